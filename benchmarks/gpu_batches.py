"""Heat on batches of small graphs on a GPU: sparse, dense and spectral.

256 random graphs to a batch, about three neighbours to a node, of 150 nodes each or of 50 to 250;
128 channels. ``dense`` and ``spectral`` are one and two products of the tensor cores with matrices
of all components, where these lie; kernels and eigenvectors are there already. ``auto`` is what
``diffuse`` chooses. Every call is a CUDA graph; errors are those of :mod:`benchmarks.errors`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks import errors
from benchmarks.device import medians, save_measured
from benchmarks.graphs import chain_graph
from bunn import Laplacian, diffuse
from bunn.replay import captured

GRAPHS, CHANNELS = 256, 128
TIMES, DTYPES = (1.0, 30.0), (torch.float32, torch.bfloat16)
METHODS = {"sparse": "chebyshev", "dense": "dense", "spectral": "spectral", "auto": "auto"}


def batch(sizes: list[int]) -> tuple[Tensor, int]:
    """Paths with extra edges, side by side."""
    edges, offset = [], 0
    for seed, size in enumerate(sizes):
        edges.append(chain_graph(size, size + size // 2, seed=seed) + offset)
        offset += size
    return torch.cat(edges, dim=1), offset


def batches() -> dict[str, tuple[Tensor, int]]:
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randint(50, 251, (GRAPHS,), generator=generator).tolist()
    return {"150 nodes": batch([150] * GRAPHS), "50 to 250 nodes": batch(mixed)}


def measure(lap: Laplacian, time: float, dtype: torch.dtype) -> dict[str, Any]:
    x = errors.features(lap, CHANNELS, dtype)
    exact = diffuse(x.double(), lap, time, tol=1e-12, method="chebyshev")
    calls = {name: partial(diffuse, x, lap, time, method=name_) for name, name_ in METHODS.items()}
    taken = medians({name: captured(call) for name, call in calls.items()}, repeats=11)
    found = {name: errors.worst_error(call(), exact, x, lap) for name, call in calls.items()}
    return {"milliseconds": taken, "errors": found}


def main() -> None:
    rows: list[dict[str, Any]] = []
    for name, (edge_index, num_nodes) in batches().items():
        lap = Laplacian(edge_index, num_nodes=num_nodes).to("cuda", torch.float32)
        lap.block_spectrum()
        for dtype in DTYPES:
            for time in TIMES:
                kind = str(dtype).removeprefix("torch.")
                rows.append({"batch": name, "dtype": kind, "time": time})
                rows[-1] |= {"nodes": num_nodes, **measure(lap, time, dtype)}
                print(rows[-1])
        about = {"channels": CHANNELS, "graphs": GRAPHS, "errors_are": errors.WORDS}
        save_measured("gpu_batches", rows, __doc__, **about)


if __name__ == "__main__":
    main()
