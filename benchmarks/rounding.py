"""What it costs to keep the terms of the recurrence in 16 bits, simulated in float64.

Heat at several times by the Chebyshev recurrence, by Clenshaw's and factor by factor, every term
rounded to a type as soon as it is formed, everything else exact; the polynomial is that of tol
1e-3, and what cutting it off costs is not counted. Errors are relative to the features, in the norm
in which the operator is symmetric, those of the worst column: of white, of smooth and of constant
features, on four graphs (a grid, a small one of 72 nodes, a path, a scale-free one).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.utils import barabasi_albert_graph, grid, to_undirected

from benchmarks.results import save
from bunn import Laplacian, diffuse
from bunn.diffusion.chebyshev import chebyshev_coefficients, chebyshev_degree
from bunn.diffusion.factors import factorize
from bunn.graph.operator import csr_matrix

TIMES = (1.0, 10.0, 30.0, 100.0, 1000.0)
#: Beyond them, in float32, the recurrence of Chebyshev alone.
LARGE_TIMES = (1e4, 1e5)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def small_grid() -> Tensor:
    """Eight by nine nodes with four neighbours, fewer at the boundary, where many of them lie."""
    node = torch.arange(72).view(8, 9)
    beside, below = (node[:, :-1], node[:, 1:]), (node[:-1], node[1:])
    ends = [torch.stack((a.flatten(), b.flatten())) for a, b in (beside, below)]
    edge_index: Tensor = to_undirected(torch.cat(ends, dim=1))
    return edge_index


def cases() -> Iterator[tuple[Laplacian, Tensor]]:
    """Graphs, and features in the frame where the operator is symmetric."""
    torch.manual_seed(0)
    np.random.seed(0)  # what PyG draws from
    path = torch.stack((torch.arange(1999), torch.arange(1, 2000)))
    edges = (grid(45, 45)[0], to_undirected(path), barabasi_albert_graph(2000, 10), small_grid())
    for edge_index in edges:
        lap = Laplacian(edge_index).to(torch.float64)
        root = lap.operator.before
        assert root is not None
        white = torch.randn(lap.num_nodes, 8, dtype=torch.float64)
        smooth = 1 + 0.1 * diffuse(white, lap, 50.0, tol=1e-12)
        constant = torch.linspace(0.5, 1.0, 33, dtype=torch.float64).repeat(lap.num_nodes, 1)
        for x in (white, smooth, constant):
            yield lap, root * x


def chebyshev(z: Tensor, s: Tensor, c: list[float], dtype: torch.dtype) -> Tensor:
    previous, current = z.to(dtype).double(), (s @ z).to(dtype).double()
    total = c[0] * z + c[1] * current
    for coefficient in c[2:]:
        previous, current = current, (2 * s @ current - previous).to(dtype).double()
        total = total + coefficient * current
    return total


def clenshaw(z: Tensor, s: Tensor, c: list[float], dtype: torch.dtype) -> Tensor:
    newer, later = (c[-1] * z).to(dtype).double(), torch.zeros_like(z)
    for coefficient in c[-2:0:-1]:
        newer, later = (coefficient * z + 2 * s @ newer - later).to(dtype).double(), newer
    return c[0] * z + s @ newer - later


def factored(z: Tensor, s: Tensor, c: list[float], dtype: torch.dtype) -> Tensor:
    factors, y = factorize(tuple(c)), z
    assert factors is not None
    for factor in factors:
        then = y
        for by_sum, by_then, by_own in factor.steps:
            moved = by_sum * s @ y + by_then * then + by_own * y
            y, then = moved.to(dtype).double(), y
    return y


RECURRENCES = {"chebyshev": chebyshev, "clenshaw": clenshaw, "factored": factored}


def worst(time: float, dtype: torch.dtype, names: Iterable[str] = RECURRENCES) -> dict[str, Any]:
    degree = chebyshev_degree(time, 1e-3)
    times = torch.tensor([time], dtype=torch.float64)
    c = chebyshev_coefficients(times, degree)[:, 0].tolist()
    errors = dict.fromkeys(names, 0.0)
    for lap, z in cases():
        s = csr_matrix(*lap.operator[:3])
        exact = chebyshev(z, s, c, torch.float64)
        for name in errors:
            off = (RECURRENCES[name](z, s, c, dtype) - exact).norm(dim=0) / z.norm(dim=0)
            errors[name] = max(errors[name], float(off.max()))
    return {"degree": degree, "errors": errors}


def main() -> None:
    rows = []
    asked = [(dtype, time, (*RECURRENCES,)) for dtype, time in itertools.product(DTYPES, TIMES)]
    asked += [(torch.float32, time, ("chebyshev",)) for time in LARGE_TIMES]
    for dtype, time, names in asked:
        name, eps = str(dtype).removeprefix("torch."), torch.finfo(dtype).eps
        rows.append({"dtype": name, "time": time, "eps": eps, **worst(time, dtype, names)})
        print(rows[-1])
    save("rounding", rows, what=(__doc__ or "").strip())


if __name__ == "__main__":
    main()
