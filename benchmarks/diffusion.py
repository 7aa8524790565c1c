"""``bunn.diffuse`` against scipy's ``expm_multiply``, Taylor to the same error, and ``matrix_exp``.

Forward and backward, float32, the same columns for all. The backward pass of every rival is what a
user would write: the same computation with the transposed matrix on the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse
import torch
from scipy.sparse.linalg import expm_multiply
from torch import Tensor
from torch_geometric.utils import k_hop_subgraph

from benchmarks.graphs import heterophilous_graphs
from benchmarks.results import save
from benchmarks.timing import interleaved, medians
from bunn import Laplacian, diffuse
from bunn.diffusion import chebyshev_degree

TIMES = (1.0, 10.0, 100.0, 1000.0)
TOL = 1e-6
COLUMNS = 32
REPEATS = 7
#: ``matrix_exp`` is cubic in the nodes: it is measured on a part of the graph of this size.
DENSE_NODES = 2000


def taylor_plan(time: float, tol: float) -> tuple[int, int]:
    """Steps and degree with the fewest products for which Taylor meets ``tol`` in float32.

    One step breaks down by cancellation as soon as ``exp(2 t)`` passes the precision, so the time
    is divided; the error of the polynomial is taken over the whole spectrum ``[0, 2]``.
    """
    spectrum = np.linspace(0, 2, 401)
    best: tuple[int, int] | None = None
    for steps in sorted({math.ceil(time / tau) for tau in (0.5, 1.0, 1.5, 2.0, 3.0)}):
        tau = time / steps
        term = np.ones_like(spectrum)
        total = term.copy()
        for degree in range(1, 60):
            term = term * (-tau * spectrum / degree)
            total = total + term
            if np.abs(total - np.exp(-tau * spectrum)).max() * steps <= tol:
                if best is None or steps * degree < best[0] * best[1]:
                    best = (steps, degree)
                break
    assert best is not None
    return best


def run_taylor(x: Tensor, lap: Laplacian, time: float, plan: tuple[int, int]) -> Tensor:
    steps, degree = plan
    for _ in range(steps):
        x = diffuse(x, lap, time / steps, method="taylor", degree=degree)
    return x


def forward_backward(function: Callable[[Tensor], Tensor], x: Tensor, g: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    y = function(x)
    y.backward(g)
    return y.detach()


def relative_error(y: Tensor, exact: Tensor, x: Tensor, lap: Laplacian) -> float:
    root = lap.degree.double().sqrt().unsqueeze(1)
    return float((root * (y.double() - exact)).norm() / (root * x.double()).norm())


def measure(edge_index: Tensor, num_nodes: int, dense: bool) -> list[dict[str, Any]]:
    lap = Laplacian(edge_index, num_nodes=num_nodes)
    torch.manual_seed(0)
    x, g = torch.randn(num_nodes, COLUMNS), torch.randn(num_nodes, COLUMNS)
    rows = [measure_time(lap, x, g, time, dense) for time in TIMES]
    for row in rows:
        print({name: round(ratio, 1) for name, ratio in row["speedup"].items()}, "t =", row["time"])
    return rows


def measure_time(lap: Laplacian, x: Tensor, g: Tensor, time: float, dense: bool) -> dict[str, Any]:
    minus = minus_laplacian(lap)
    transpose = minus.T.tocsr()
    plan = taylor_plan(time, TOL)
    found: dict[str, Tensor] = {}

    def ours() -> None:
        found["bunn"] = forward_backward(
            lambda x: diffuse(x, lap, time, tol=TOL, method="chebyshev"), x, g
        )

    def scipys() -> None:
        found["expm_multiply"] = torch.from_numpy(expm_multiply(time * minus, x.numpy()))
        expm_multiply(time * transpose, g.numpy())

    def taylors() -> None:
        found["taylor"] = forward_backward(lambda x: run_taylor(x, lap, time, plan), x, g)

    def exponential(dtype: torch.dtype) -> Tensor:
        kernel: Tensor = torch.linalg.matrix_exp(-time * lap.dense().to(dtype)).float()
        kernel.T @ g
        return kernel @ x

    steps: dict[str, Callable[[], object]] = {"bunn": ours}
    if dense:
        # In float32, powers of a sparse matrix fill up with denormal numbers, slow to multiply.
        steps["matrix_exp"] = lambda: found.update(matrix_exp=exponential(torch.float32))
        steps["matrix_exp64"] = lambda: found.update(matrix_exp64=exponential(torch.float64))
    else:
        steps |= {"expm_multiply": scipys, "taylor": taylors}
    samples = interleaved(steps, REPEATS, warmup=1, patience=20.0)
    median = medians(samples)
    exact = diffuse(x.double(), lap, time, method="chebyshev", tol=1e-13)
    return {
        "time": time,
        "degree": chebyshev_degree(time, TOL),
        "taylor_steps": plan[0],
        "taylor_degree": plan[1],
        "seconds": median,
        "runs": {name: len(values) for name, values in samples.items()},
        "speedup": {name: median[name] / median["bunn"] for name in steps},
        "error": {name: relative_error(y, exact, x, lap) for name, y in found.items()},
    }


def minus_laplacian(lap: Laplacian) -> scipy.sparse.csr_array:
    """``-L`` for scipy, in float32."""
    row, col, value = (part.numpy() for part in lap.coordinates())
    root = lap.degree.double().sqrt().numpy()
    walk = (value * root[col] / root[row]).astype(np.float32)
    matrix = scipy.sparse.csr_array((walk, (row, col)), shape=(lap.num_nodes, lap.num_nodes))
    return (matrix - scipy.sparse.eye_array(lap.num_nodes, dtype=np.float32)).tocsr()


def main() -> None:
    rows = []
    for name, (edge_index, num_nodes) in heterophilous_graphs().items():
        about = {"graph": name, "nodes": num_nodes, "entries": edge_index.size(1)}
        rows += [{**about, **row} for row in measure(edge_index, num_nodes, dense=False)]
        part = _ball(edge_index, num_nodes)
        about = {"graph": f"{name}, part", "nodes": DENSE_NODES, "entries": part.size(1)}
        rows += [{**about, **row} for row in measure(part, DENSE_NODES, dense=True)]
    save(
        "diffusion",
        rows,
        what="forward + backward of exp(-tL) x, float32, tol 1e-6; speedup is rival over bunn",
        columns=COLUMNS,
        repeats=REPEATS,
    )


def _ball(edge_index: Tensor, num_nodes: int) -> Tensor:
    """The edges among the ``DENSE_NODES`` nodes around node 0."""
    subset = torch.tensor([0])
    hops = 1
    while subset.numel() < DENSE_NODES and hops < 200:
        subset, _, _, _ = k_hop_subgraph(0, hops, edge_index, num_nodes=num_nodes)
        hops += 1
    keep = torch.full((num_nodes,), -1)
    keep[subset[:DENSE_NODES]] = torch.arange(min(DENSE_NODES, subset.numel()))
    part = keep[edge_index]
    return part[:, (part >= 0).all(0)]


if __name__ == "__main__":
    main()
