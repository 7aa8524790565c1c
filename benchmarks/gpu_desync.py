"""The most that desync could save as part of the last write of the heat: steps without it.

The stacks of the paper's table of run times, captured, with and without the maps that bring heat
back to the frames of the nodes in the forward pass. Without, what is computed is another function
and as much work but for that pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from benchmarks.device import medians, save_measured
from benchmarks.gpu_layers import CHANNELS, LAYERS, PRECISIONS, Form, Step
from benchmarks.graphs import graphs_of_the_table
from bunn import kernels
from bunn.replay import captured


@contextmanager
def without_desync() -> Iterator[None]:
    """Meanwhile inverse maps of the forward pass do nothing."""
    turn_by = kernels.turn_by

    def turn(x: Tensor, angle: Tensor, turned: int, inverse: bool) -> Tensor:
        return x.view_as(x) if inverse else turn_by(x, angle, turned, inverse)

    kernels.turn_by = turn
    try:
        yield
    finally:
        kernels.turn_by = turn_by


def step_of(edge_index: Tensor, num_nodes: int, precision: str) -> Any:
    step = Step(Form("BuNN", captured=True), edge_index, num_nodes, precision)
    for _ in range(3):
        step()
    return captured(step)


def main() -> None:
    torch.set_float32_matmul_precision("high")
    rows: list[dict[str, Any]] = []
    for name, (edge_index, num_nodes) in graphs_of_the_table().items():
        for precision in PRECISIONS:
            steps = {"with": step_of(edge_index, num_nodes, precision)}
            with without_desync():
                steps["without"] = step_of(edge_index, num_nodes, precision)
            taken = medians(steps, repeats=9, budget_ms=15.0)
            saved = 1 - taken["without"] / taken["with"]
            rows.append({"graph": name, "precision": precision, "milliseconds": taken})
            rows[-1]["saved"] = saved
            print(name, precision, f"{saved:.1%}")
            save_measured("gpu_desync", rows, __doc__, channels=CHANNELS, layers=LAYERS)


if __name__ == "__main__":
    main()
