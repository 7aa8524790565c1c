"""Time against the diffusion time on a GPU: how heat costs more the further it goes.

``sparse`` is the recurrence, whose number of products grows like the root of ``t``; ``auto`` takes
the dense product, which costs the same at any time, and the limit, once it is reached. tol is 1e-4,
64 channels, float32; captured in CUDA graphs. ``growth`` is the slope of the times from ``t = 100``
on in doubly logarithmic scale: one half is the root. Beyond ``t = 1677`` at this tolerance,
rounding the operator to float32 could cost all of it, and the recurrence runs in float64, which
moves twice the bytes: hence also ``float64``, the same for features in float64 at all times.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch_geometric.utils import grid

from benchmarks.device import capture, medians, save_measured
from benchmarks.graphs import heterophilous_graphs
from bunn import Laplacian, diffuse

TIMES = (1.0, 10.0, 100.0, 1000.0, 10_000.0)
CHANNELS, TOLERANCE, SIDE = 64, 1e-4, 300
METHODS = {
    "sparse": ("chebyshev", torch.float32),
    "auto": ("auto", torch.float32),
    "float64": ("chebyshev", torch.float64),
}


def graphs() -> dict[str, tuple[Tensor, int]]:
    return {**heterophilous_graphs(), "grid": (grid(SIDE, SIDE)[0], SIDE * SIDE)}


def growth(milliseconds: dict[float, float]) -> float:
    """The slope between ``t = 100`` and the end."""
    first, last = 100.0, max(milliseconds)
    return math.log(milliseconds[last] / milliseconds[first]) / math.log(last / first)


def main() -> None:
    rows: list[dict[str, Any]] = []
    for name, (edge_index, num_nodes) in graphs().items():
        lap = Laplacian(edge_index, num_nodes=num_nodes).to("cuda", torch.float32)
        x = torch.randn(num_nodes, CHANNELS, device="cuda")
        steps = {
            f"{label} {time:g}": capture(
                partial(diffuse, x.to(dtype), lap, time, method=method, tol=TOLERANCE)
            )
            for label, (method, dtype) in METHODS.items()
            for time in TIMES
        }
        taken = medians(steps, repeats=7, budget_ms=10.0)
        by_method = {
            label: {time: taken[f"{label} {time:g}"] for time in TIMES} for label in METHODS
        }
        rows.append(
            {
                "graph": name,
                "nodes": num_nodes,
                "entries": lap.num_entries,
                "milliseconds": by_method,
                "growth": {label: growth(times) for label, times in by_method.items()},
            }
        )
        print(name, {label: round(value, 2) for label, value in rows[-1]["growth"].items()})
    save_measured("gpu_times", rows, __doc__, channels=CHANNELS, tol=TOLERANCE)


if __name__ == "__main__":
    main()
