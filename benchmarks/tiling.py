"""How a pass over the edges is best cut up: every :class:`Tiling` on several graphs.

``python -m benchmarks.tiling`` prints, for each graph, type and width, the fastest tilings of a
typical step of the recurrence and the one that the package chooses. Needs a CUDA device.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch_geometric.utils import grid

from benchmarks.device import about, medians
from benchmarks.graphs import SIZES, heterophilous_graphs, random_graph
from bunn import Laplacian
from bunn.kernels.launching import parts
from bunn.kernels.walk import Tiling, walk
from bunn.replay import captured

WIDTHS = (512, 128, 64)
DTYPES = (torch.float32, torch.bfloat16)
#: Features of the largest field.
LARGEST = 2**27


def tilings(dtype: torch.dtype, width: int) -> Iterator[Tiling]:
    """The candidates: a thread reads 16 bytes of a row at a time."""
    columns = min(width, 32 * 16 // dtype.itemsize)
    for at_once in (4, 8, 16):
        yield Tiling(columns, at_once, 1, 1)
    for each, rows in itertools.product((3, 4), (2, 4, 8, 16)):
        yield Tiling(columns, 8, rows, 1, each)
    for rows, warps in ((4, 2), (8, 2), (16, 2), (16, 4)):
        yield Tiling(columns, 8, rows, warps)


def graphs() -> dict[str, tuple[Tensor, int]]:
    side = 1000
    return {
        **heterophilous_graphs(),
        "questions": (random_graph(*SIZES["questions"]), SIZES["questions"][0]),
        "grid": (grid(side, side)[0], side * side),
        "random": (random_graph(side * side, 4 * side * side), side * side),
    }


def fields(num_nodes: int, dtype: torch.dtype, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """``T_k``, ``T_{k-1}`` and the sum."""
    x = torch.ones(num_nodes, width, device="cuda", dtype=dtype)
    return x, torch.zeros_like(x), torch.zeros_like(x, dtype=torch.float32)


def step(
    lap: Laplacian, given: tuple[Tensor, Tensor, Tensor], tiling: Tiling
) -> Callable[[], None]:
    """``T_{k+1}`` from ``T_k`` and ``T_{k-1}``, and two terms of the sum."""
    x, p, total = given
    rows = lap.operator.rows

    def run() -> None:
        walk(x, rows, alpha=2.0, p=p, y=p, out=total, r=total, a=0.1, b=0.1, tiling=tiling)

    return run


def several(run: Callable[[], None]) -> Callable[[], None]:
    """Ten steps as one CUDA graph: launched one by one, small ones wait for the host."""

    def ten() -> None:
        for _ in range(10):
            run()

    return captured(ten)


def compile_all(job: tuple[torch.dtype, int, Tiling]) -> None:
    """Leaves the compiled kernel in Triton's cache."""
    edge_index = torch.tensor([[0, 1], [1, 0]], device="cuda")
    dtype, width, tiling = job
    step(Laplacian(edge_index), fields(2, dtype, width), tiling)()
    torch.cuda.synchronize()


def main() -> int:
    if not torch.cuda.is_available():
        print("benchmarks.tiling needs a CUDA device", file=sys.stderr)
        return 2
    jobs = [
        (dtype, width, tiling)
        for dtype, width in itertools.product(DTYPES, WIDTHS)
        for tiling in tilings(dtype, width)
    ]
    with multiprocessing.get_context("spawn").Pool(min(12, os.cpu_count() or 1)) as pool:
        pool.map(compile_all, jobs)
    found: list[dict[str, Any]] = []
    for name, (edge_index, num_nodes) in graphs().items():
        lap = Laplacian(edge_index, num_nodes=num_nodes).to("cuda", torch.float32)
        degree = parts(lap.num_entries, num_nodes)
        for dtype, width in itertools.product(DTYPES, WIDTHS):
            if num_nodes * width > LARGEST:
                continue
            given = fields(num_nodes, dtype, width)
            steps = {
                json.dumps(tiling): several(step(lap, given, tiling))
                for tiling in {*tilings(dtype, width), Tiling.of(dtype, width, degree)}
            }
            tens = medians(steps, repeats=5, budget_ms=4.0)
            taken = {tiling: ms / 10 for tiling, ms in tens.items()}
            ranked = sorted(taken.items(), key=lambda item: item[1])
            own = json.dumps(Tiling.of(dtype, width, degree))
            found.append({"graph": name, "dtype": str(dtype), "width": width, "ms": dict(ranked)})
            print(f"{name} {dtype} {width}: chosen {own} {taken[own]:.4f} ms")
            for tiling, ms in ranked[:4]:
                print(f"    {tiling} {ms:.4f} ms")
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w") as file:
            json.dump({"about": about(), "found": found}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
