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

from benchmarks.device import about, medians
from benchmarks.graphs import SIZES, heterophilous_graphs, random_graph
from bunn import Laplacian
from bunn.kernels import Rows
from bunn.kernels.walk import Tiling, walk

WIDTHS = (512, 64)
DTYPES = (torch.float32, torch.bfloat16)


def tilings(dtype: torch.dtype, width: int) -> Iterator[Tiling]:
    """The candidates: a thread reads 16 bytes of a row, or twice as many."""
    warp = 32 * 16 // dtype.itemsize
    for (per_warp, warps), at_once, rows in itertools.product(
        ((1, 1), (2, 1), (1, 2), (1, 4)), (4, 8, 16), (1, 4, 16)
    ):
        columns = warp * per_warp * warps
        if columns <= max(width, warp):
            yield Tiling(min(columns, width), at_once, rows, warps)


def graphs() -> dict[str, tuple[Tensor, int]]:
    large = {"questions": (random_graph(*SIZES["questions"]), SIZES["questions"][0])}
    return {**heterophilous_graphs(), **large}


def step(lap: Laplacian, dtype: torch.dtype, width: int, tiling: Tiling) -> Callable[[], None]:
    """``T_{k+1}`` from ``T_k`` and ``T_{k-1}``, and two terms of the sum."""
    torch.manual_seed(0)
    x, p = torch.randn(2, lap.num_nodes, width, device="cuda").to(dtype).unbind(0)
    total = torch.zeros(lap.num_nodes, width, device="cuda")
    crow, col, value, *_, segments = lap.operator
    rows = Rows(crow, col, value, segments)

    def run() -> None:
        walk(x, rows, alpha=2.0, p=p, y=p, out=total, r=total, a=0.1, b=0.1, tiling=tiling)

    return run


def compile_all(job: tuple[torch.dtype, int, Tiling]) -> None:
    """Leaves the compiled kernel in Triton's cache."""
    edge_index = torch.tensor([[0, 1], [1, 0]], device="cuda")
    step(Laplacian(edge_index), *job)()
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
        mean = lap.num_entries / num_nodes
        for dtype, width in itertools.product(DTYPES, WIDTHS):
            steps = {
                json.dumps(tiling): step(lap, dtype, width, tiling)
                for tiling in {*tilings(dtype, width), Tiling.of(dtype, width, mean)}
            }
            taken = medians(steps, repeats=5, budget_ms=4.0)
            ranked = sorted(taken.items(), key=lambda item: item[1])
            own = json.dumps(Tiling.of(dtype, width, mean))
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
