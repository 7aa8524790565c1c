"""The full models of the heterophilous benchmark on a GPU: a training step.

As the authors ran them: 512 wide, t = 1, 256 planes, an update of two layers on features and heat
together; on minesweeper 8 layers, each with a phi of 8 SAGE layers; on tolokers 6 with 7. A step is
forward, backward and optimiser, in ``tf32`` or with ``bf16`` autocast: eager; captured as a CUDA
graph, which ``bunn train`` does unasked; or with compiled blocks, and captured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812

from benchmarks.device import about, by_kind, capture, medians, save_measured, side_by_side
from benchmarks.gpu_layers import PRECISIONS, autocast
from benchmarks.graphs import heterophilous_graphs
from benchmarks.results import unfinished
from bunn import BuNN, Laplacian

CHANNELS, BUNDLES, DROPOUT = 512, 256, 0.2
#: Input features, layers, and layers of phi.
MODELS = {"minesweeper": (7, 8, 8), "tolokers": (10, 6, 7)}


def laplacian(name: str) -> Laplacian:
    edge_index, num_nodes = heterophilous_graphs()[name]
    return Laplacian(edge_index, num_nodes=num_nodes, normalization="sym").to("cuda")


def build(name: str) -> BuNN:
    """The model for a data set."""
    in_channels, layers, phi_layers = MODELS[name]
    torch.manual_seed(0)
    return BuNN(
        in_channels,
        CHANNELS,
        layers,
        1,
        num_bundles=BUNDLES,
        phi="sage",
        phi_layers=phi_layers,
        phi_channels=CHANNELS,
        dropout=DROPOUT,
        maps="rotation",
        update="mlp-concat",
        normalization="sym",
    ).cuda()


def step_of(model: BuNN, lap: Laplacian, precision: str) -> Callable[[], None]:
    """A training step on random numbers."""
    x = torch.randn(lap.num_nodes, model.in_channels, device="cuda")
    y = torch.randint(2, (lap.num_nodes, 1), device="cuda").float()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-5, fused=True, capturable=True)

    def step() -> None:
        optimizer.zero_grad()
        with autocast(precision, "cuda"):
            output = model(x, lap)
        F.binary_cross_entropy_with_logits(output.float(), y).backward()
        optimizer.step()

    return step


def forms(name: str, precision: str) -> Iterator[tuple[str, BuNN, Callable[[], None]]]:
    """The ways to take a step."""
    lap = laplacian(name)
    torch.compiler.reset()  # code for one size, not for any
    for form in ("eager", "captured", "compiled"):
        model = build(name)
        if form == "compiled":
            for block in model.blocks:  # all of which are one to the compiler
                block.compile()
        step = step_of(model, lap, precision)
        for _ in range(3):
            step()
        yield form, model, step if form == "eager" else capture(step)


def warm(job: tuple[str, str]) -> None:
    """Compiles what one row of the table needs."""
    torch.set_float32_matmul_precision("high")
    for _ in forms(*job):
        pass


def measure(name: str, precision: str) -> dict[str, Any]:
    steps = {form: (model, step) for form, model, step in forms(name, precision)}
    model, _ = steps["eager"]
    taken = {form: step for form, (_, step) in steps.items()}
    return {
        "milliseconds": medians(taken, repeats=9, budget_ms=50.0),
        "kinds": {form: by_kind(step) for form, step in taken.items() if form != "eager"},
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def main() -> None:
    torch.set_float32_matmul_precision("high")
    jobs = [(name, precision) for name in MODELS for precision in PRECISIONS]
    rows = unfinished("gpu_models", len(jobs))
    there = {(row["graph"], row["precision"]) for row in rows}
    jobs = [job for job in jobs if job not in there]
    side_by_side(warm, jobs)
    for name, precision in jobs:
        rows.append({"graph": name, "precision": precision, "commit": about()["git_commit"]})
        rows[-1] |= measure(name, precision)
        print(name, precision, rows[-1]["milliseconds"])
        save_measured("gpu_models", rows, __doc__, channels=CHANNELS)


if __name__ == "__main__":
    main()
