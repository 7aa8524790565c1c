"""Time against the diffusion time on a GPU: how heat costs more the further it goes.

``sparse`` is the recurrence, whose number of products grows like the root of ``t``; ``auto`` takes
the dense product, which costs the same at any time, the best polynomial for where the eigenvalues
of a graph lie, and the limit, once it is reached. tol is 1e-4, 64 channels, float32; captured in
CUDA graphs. ``growth`` is the slope of the times from ``t = 100`` on in doubly logarithmic scale:
one half is the root. From some time on float32 does not suffice for tol, and all is float64, on
twice the bytes. Hence also ``float64``, the same for features in float64 at all times. Errors are
those of :mod:`benchmarks.errors`, against float64 at a tol of 1e-12.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch_geometric.utils import grid

from benchmarks import errors
from benchmarks.device import medians, save_measured
from benchmarks.graphs import heterophilous_graphs
from bunn import Laplacian, diffuse
from bunn.replay import captured

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


def measure(lap: Laplacian) -> dict[str, Any]:
    x = errors.features(lap, CHANNELS, torch.float32)
    calls = {
        (label, time): partial(diffuse, x.to(dtype), lap, time, method=method, tol=TOLERANCE)
        for label, (method, dtype) in METHODS.items()
        for time in TIMES
    }
    steps = {f"{label} {time:g}": captured(call) for (label, time), call in calls.items()}
    # Only now does auto know that it is asked for often, and do what was captured.
    found: dict[str, dict[float, float]] = {label: {} for label in METHODS}
    for time in TIMES:
        exact = diffuse(x.double(), lap, time, method="chebyshev", tol=1e-12)
        for label in METHODS:
            found[label][time] = errors.worst_error(calls[label, time](), exact, x, lap)
    taken = medians(steps, repeats=7, budget_ms=10.0)
    by_method = {label: {time: taken[f"{label} {time:g}"] for time in TIMES} for label in METHODS}
    return {
        "milliseconds": by_method,
        "growth": {label: growth(times) for label, times in by_method.items()},
        "errors": found,
    }


def main() -> None:
    rows: list[dict[str, Any]] = []
    for name, (edge_index, num_nodes) in graphs().items():
        lap = Laplacian(edge_index, num_nodes=num_nodes).to("cuda", torch.float32)
        rows.append({"graph": name, "nodes": num_nodes, "entries": lap.num_entries})
        rows[-1] |= measure(lap)
        print(name, {label: round(value, 2) for label, value in rows[-1]["growth"].items()})
        print(name, rows[-1]["errors"])
        about = {"channels": CHANNELS, "tol": TOLERANCE, "errors_are": errors.WORDS}
        save_measured("gpu_times", rows, __doc__, **about)


if __name__ == "__main__":
    main()
