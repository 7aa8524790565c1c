"""What it saves to know between which ends the eigenvalues of a graph lie.

``auto`` where calls will be repeated against ``method="chebyshev"``, whose polynomial is for every
graph: the degrees of both, and the time of one over that of the other, forward, on a CPU; by
a degree of 0 the limit is meant. ``seconds_to_find`` is what it takes to find the ends, once.
Errors are those of :mod:`benchmarks.errors`.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import torch

from benchmarks import errors
from benchmarks.graphs import graphs_of_the_table
from benchmarks.results import save
from benchmarks.timing import interleaved, medians, seconds
from bunn import Laplacian, diffuse
from bunn.diffusion import Options, chebyshev_degree
from bunn.diffusion.minimax import minimax
from bunn.graph.interval import Interval
from bunn.keeping import lasting

TIMES = (1.0, 3.0, 10.0, 30.0, 100.0)
DTYPES = (torch.float32, torch.bfloat16)
COLUMNS, REPEATS, WARMUP = 64, 31, 10


def degrees(x: torch.Tensor, time: float, ends: Interval) -> tuple[int, int]:
    """That for every graph, and that for these eigenvalues, 0 for the limit; on paper, of all of
    ``tol``."""
    tol = Options(1e-5).for_precision(x.dtype).tol
    for_all = chebyshev_degree(time, tol)
    if ends.rest(time) <= tol:
        return for_all, 0
    found = minimax(time, tol, *ends)
    return for_all, for_all if found is None else len(found) - 1


def measure(lap: Laplacian, time: float, dtype: torch.dtype, ends: Interval) -> dict[str, Any]:
    x = errors.features(lap, COLUMNS, dtype)

    def known() -> torch.Tensor:
        with lasting():
            return diffuse(x, lap, time)

    def plain() -> torch.Tensor:
        return diffuse(x, lap, time, method="chebyshev")

    taken = medians(interleaved({"known": known, "plain": plain}, REPEATS, WARMUP))
    exact = diffuse(x.double(), lap, time, method="chebyshev", tol=1e-12)
    for_all, for_these = degrees(x, time, ends)
    return {
        "degree": {"plain": for_all, "known": for_these},
        "seconds": taken,
        "ratio": taken["known"] / taken["plain"],
        "error": errors.worst_error(known(), exact, x, lap),
    }


def main() -> None:
    rows: list[dict[str, Any]] = []
    for name, (edge_index, num_nodes) in graphs_of_the_table().items():
        lap = Laplacian(edge_index, num_nodes=num_nodes)
        to_find = seconds(partial(lap.eigenpairs.between, lap))
        ends = lap.eigenpairs.between(lap)
        about = {"graph": name, "nodes": num_nodes, "ends": ends, "seconds_to_find": to_find}
        for dtype, time in itertools.product(DTYPES, TIMES):
            kind = str(dtype).removeprefix("torch.")
            rows.append({**about, "dtype": kind, "time": time, **measure(lap, time, dtype, ends)})
            print(name, kind, time, rows[-1]["degree"], round(rows[-1]["ratio"], 2))
    save("ends", rows, what=(__doc__ or "").strip(), columns=COLUMNS, repeats=REPEATS)


if __name__ == "__main__":
    main()
