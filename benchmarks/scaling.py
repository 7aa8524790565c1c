"""Time against the number of edges, from 10^4 to 10^7: the slope of a log-log fit.

Random graphs of ten neighbours per node, the worst case for a cache; forward and backward at t = 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.graphs import random_graph
from benchmarks.results import save
from benchmarks.timing import interleaved, medians
from bunn import Laplacian, diffuse

COLUMNS = 16
NEIGHBOURS = 10
EXPONENTS = (4.0, 4.5, 5.0, 5.5, 6.0, 6.5, 7.0)
REPEATS = 7


def training_step(lap: Laplacian) -> Callable[[], None]:
    torch.manual_seed(0)
    x = torch.randn(lap.num_nodes, COLUMNS, requires_grad=True)
    g = torch.randn(lap.num_nodes, COLUMNS)

    def step() -> None:
        x.grad = None
        diffuse(x, lap, 1.0, tol=1e-6, method="chebyshev").backward(g)

    return step


def main() -> None:
    rows: list[dict[str, Any]] = []
    for exponent in EXPONENTS:
        entries = round(10**exponent)
        nodes = entries // NEIGHBOURS
        lap = Laplacian(random_graph(nodes, entries // 2), num_nodes=nodes)
        median = medians(interleaved({"bunn": training_step(lap)}, REPEATS))["bunn"]
        rows.append({"nodes": nodes, "entries": lap.num_entries, "seconds": median})
        print(f"{lap.num_entries:>9} entries  {median * 1e3:9.2f} ms")
    logs = np.array([[math.log(r["entries"]), math.log(r["seconds"])] for r in rows])
    slope = float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])
    print(f"slope {slope:.3f}")
    save(
        "scaling",
        rows,
        what="forward + backward of exp(-L) x, float32, tol 1e-6, on random graphs",
        columns=COLUMNS,
        repeats=REPEATS,
        slope=slope,
    )


if __name__ == "__main__":
    main()
