"""A full-batch training step on graphs from 10^5 nodes on, to what fits on one GPU.

A BuNN of two layers, 64 wide, t = 1, float32 with TF32, on grids (about eight neighbours) and on
graphs whose degrees follow a power law (ten edges to a node): forward, backward and optimiser.
A size that does not fit ends the series; its error is in the file.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch_geometric.utils import coalesce, grid

from benchmarks.device import medians, save_measured
from bunn import BuNN, Laplacian

CHANNELS, LAYERS, CLASSES = 64, 2, 10
SIZES = (10**5, 10**6, 3 * 10**6, 10**7, 2 * 10**7, 3 * 10**7)


def square(num_nodes: int) -> Tensor:
    side = math.isqrt(num_nodes)
    edges: Tensor = grid(side, side, device=torch.device("cuda"))[0]
    return edges


def power_law(num_nodes: int, edges_per_node: int = 10, exponent: float = 0.5) -> Tensor:
    """Ends drawn with a chance that falls with their rank to a power, then shuffled."""
    generator = torch.Generator("cuda").manual_seed(0)
    uniform = torch.rand(2, num_nodes * edges_per_node, device="cuda", generator=generator)
    rank = (num_nodes * uniform ** (1 / (1 - exponent))).long().clamp_(max=num_nodes - 1)
    del uniform
    ends = torch.randperm(num_nodes, device="cuda", generator=generator)[rank]
    ends = ends[:, ends[0] != ends[1]]
    edges: Tensor = coalesce(torch.cat((ends, ends.flip(0)), dim=1), num_nodes=num_nodes)
    return edges


GRAPHS: dict[str, Callable[[int], Tensor]] = {"grid": square, "power-law": power_law}


def measure(edge_index: Tensor) -> dict[str, Any]:
    start = time.perf_counter()
    lap = Laplacian(edge_index).to("cuda")
    del edge_index
    torch.cuda.synchronize()
    built = time.perf_counter() - start
    torch.manual_seed(0)
    model = BuNN(CHANNELS, CHANNELS, LAYERS, CLASSES).cuda()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    x = torch.randn(lap.num_nodes, CHANNELS, device="cuda")
    y = torch.randint(CLASSES, (lap.num_nodes,), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x, lap), y).backward()
        optimizer.step()

    step()
    torch.cuda.reset_peak_memory_stats()
    taken = medians({"step": step}, repeats=5, budget_ms=1.0)["step"]
    return {
        "nodes": lap.num_nodes,
        "entries": lap.num_entries,
        "milliseconds": taken,
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "build_seconds": built,
    }


def main() -> None:
    torch.set_float32_matmul_precision("high")
    # Lest what is left over in pieces decides what fits.
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    rows: list[dict[str, Any]] = []
    for name, make in GRAPHS.items():
        for size in SIZES:
            torch.cuda.empty_cache()
            try:
                rows.append({"graph": name, **measure(make(size))})
            except torch.OutOfMemoryError as error:
                rows.append({"graph": name, "nodes": size, "error": str(error).partition("\n")[0]})
                break
            print(rows[-1])
            save_measured("gpu_scale", rows, __doc__, channels=CHANNELS)
    save_measured("gpu_scale", rows, __doc__, channels=CHANNELS)


if __name__ == "__main__":
    main()
