"""``diffuse`` alone on a GPU: what it reads and writes, against a copy and against cuSPARSE.

Every step is captured in a CUDA graph, so that no launch is waited for. All but the last run the
same Chebyshev polynomial in the same precision, on the same features:

- ``cusparse``: torch's CSR product and the sum of the terms, as a few lines of torch do it;
- ``cusparse_factored``: torch's CSR product, factor by factor, as the kernels do it;
- ``sparse``: ``method="chebyshev"``;
- ``dense``: ``method="dense"``, the kernel being there already, for up to 2^30 of its entries;
- ``auto``: what ``diffuse`` chooses, which ``chosen`` says: one of these two; ``"between ends"``,
  the best polynomial for the eigenvalues that the graph has; or ``"limit"``.

``over_cusparse`` takes the faster of the two. ``compulsory`` counts each array once per product
that has to read or write it: the entries of the graph, and the features twice in a linear factor,
five times in a quadratic one. At t = 100 in float32 ``diffuse`` leaves a part of ``tol`` to the
rounding of the operator and takes two products more than the others, which are not counted. Errors
are those of :mod:`benchmarks.errors`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch_geometric.utils import grid

from benchmarks import errors
from benchmarks.device import copy_bandwidth, medians, save_measured
from benchmarks.graphs import graphs_of_the_table, random_graph
from bunn import Laplacian, diffuse
from bunn.diffusion import Options, Time, chebyshev_degree
from bunn.diffusion.auto import decide
from bunn.diffusion.chebyshev import chebyshev, coefficients_for
from bunn.diffusion.factors import factorize
from bunn.graph.operator import csr_matrix
from bunn.kernels.arguments import Factor
from bunn.replay import captured

TIMES = (1.0, 10.0, 100.0)
DTYPES = (torch.float32, torch.bfloat16)
#: Graphs whose features do not fit into the cache of any GPU, with few channels.
LARGE, LARGE_CHANNELS, CHANNELS = ("grid", "random"), 64, 512
#: What the kernels are compared with.
RIVALS = ("cusparse", "cusparse_factored")
#: Entries of the largest kernel of heat that is formed.
DENSE_ENTRIES = 2**30


def graphs() -> dict[str, tuple[Tensor, int]]:
    """The heterophilous graphs, those without files by their size, and two large ones."""
    side, found = 1000, graphs_of_the_table()
    found["grid"] = (grid(side, side)[0], side * side)
    found["random"] = (random_graph(side * side, 4 * side * side), side * side)
    return found


def factors_of(time: float, dtype: torch.dtype) -> tuple[Factor, ...]:
    """What the kernels multiply at a time."""
    degree = chebyshev_degree(time, Options(1e-5).for_precision(dtype).tol)
    found = factorize(cast(tuple[float, ...], coefficients_for(time, degree, torch.empty(1, 1))))
    assert found is not None
    return found


def compulsory_bytes(
    nodes: int, entries: int, width: int, factors: Sequence[Factor], dtype: torch.dtype
) -> int:
    """The fewest bytes that the factors move."""
    field = nodes * width * dtype.itemsize
    graph = 8 * entries + 4 * nodes
    moved = {1: graph + 2 * field, 2: 2 * graph + 5 * field}
    return sum(moved[len(factor.steps)] for factor in factors)


def factored(y: Tensor, s: Tensor, factors: Sequence[Factor]) -> Tensor:
    """The factors through torch."""
    for factor in factors:
        (a, _, c), *more = factor.steps
        z = torch.addmm(y, s, y, beta=c, alpha=a)
        if more:
            a, b, c = more[0]
            z = (b * y).add_(torch.addmm(z, s, z, beta=c, alpha=a))
        y = z
    return y


def measure(lap: Laplacian, width: int, time: float, dtype: torch.dtype) -> dict[str, Any]:
    x = errors.features(lap, width, dtype)
    factors = factors_of(time, dtype)
    degree = sum(len(factor.steps) for factor in factors)
    crow, col, value, *_ = lap.operator
    s = csr_matrix(crow, col, value.to(dtype))
    methods = {"sparse": "chebyshev", "dense": "dense", "auto": "auto"}
    if lap.blocks.area > DENSE_ENTRIES:
        del methods["dense"]
    steps = {
        name: captured(partial(diffuse, x, lap, time, method=method))
        for name, method in methods.items()
    }
    steps["cusparse"] = captured(lambda: chebyshev(x.clone(), s, time, degree))
    steps["cusparse_factored"] = captured(lambda: factored(x, s, factors))
    taken = medians(steps, repeats=11, budget_ms=10.0)
    exact = diffuse(x.double(), lap, time, tol=1e-12, method="chebyshev")
    found = {name: diffuse(x, lap, time, method=method) for name, method in methods.items()}
    # What it takes now that it knows what it will know of the graph.
    options = Options(1e-5).for_precision(dtype)
    chosen, _ = decide(x, lap, Time.of(time, x.shape[1:]), options)
    if chosen == "chebyshev":
        chosen = "sparse" if found["auto"].equal(found["sparse"]) else "between ends"
    moved = compulsory_bytes(lap.num_nodes, lap.num_entries, width, factors, dtype)
    rival = min(taken[name] for name in RIVALS)
    return {
        "degree": degree,
        "milliseconds": taken,
        "over_cusparse": {name: rival / ms for name, ms in taken.items()},
        "compulsory_bytes": moved,
        "bytes_per_second": moved / (taken["sparse"] * 1e-3),
        "errors": {name: errors.worst_error(y, exact, x, lap) for name, y in found.items()},
        "chosen": chosen,
    }


def main() -> None:
    copy, rows = copy_bandwidth(), []
    for name, (edge_index, num_nodes) in graphs().items():
        lap = Laplacian(edge_index, num_nodes=num_nodes).to("cuda", torch.float32)
        width = LARGE_CHANNELS if name in LARGE else CHANNELS
        for dtype, time in itertools.product(DTYPES, TIMES):
            row = measure(lap, width, time, dtype)
            row["of_copy"] = row["bytes_per_second"] / copy
            rows.append(
                {
                    "graph": name,
                    "nodes": num_nodes,
                    "entries": lap.num_entries,
                    "channels": width,
                    "dtype": str(dtype).removeprefix("torch."),
                    "time": time,
                    **row,
                }
            )
            ratios = {key: round(value, 2) for key, value in row["over_cusparse"].items()}
            print(name, rows[-1]["dtype"], time, ratios, f"{row['of_copy']:.2f} of copy")
            about = {"copy_bytes_per_second": copy, "errors_are": errors.WORDS}
            save_measured("gpu_diffusion", rows, __doc__, **about)


if __name__ == "__main__":
    main()
