"""The full models of the heterophilous benchmark on a GPU: a training step.

As the authors ran them: 512 wide, t = 1, 256 planes, an update of two layers on features and heat
together; on minesweeper 8 layers, each with a phi of 8 SAGE layers; on tolokers 6 with 7. A step is
forward, backward and optimiser, in ``tf32`` or with ``bf16`` autocast: eager; captured as a CUDA
graph, which ``bunn train`` does unasked; or with compiled blocks, and captured. Memory is what an
eager step holds at its peak beyond parameters, optimiser and input, and that of the GraphSAGE of
the benchmark with as many layers: those of all phi, and one more for each layer of a BuNN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from benchmarks.device import about, by_kind, medians, save_measured, side_by_side
from benchmarks.gpu_layers import PRECISIONS, TrainingStep, peak_bytes
from benchmarks.graphs import heterophilous_graphs
from benchmarks.results import unfinished
from bunn import BuNN, Laplacian
from bunn.baselines import BASELINES
from bunn.replay import captured

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
    )


def build_sage(name: str) -> nn.Module:
    """A GraphSAGE of as many layers, in the frame of the benchmark."""
    in_channels, layers, phi_layers = MODELS[name]
    sage, depth = BASELINES["sage"], layers * (phi_layers + 1)
    options = sage.options(
        hidden_channels=CHANNELS, num_layers=depth, dropout=DROPOUT, feed_forward=True
    )
    return sage.build(options, in_channels, 1)


def step_of(model: nn.Module, name: str, graph: Tensor | Laplacian, precision: str) -> TrainingStep:
    """A training step on random numbers."""
    num_nodes = heterophilous_graphs()[name][1]
    x = torch.randn(num_nodes, MODELS[name][0], device="cuda")
    y = torch.randint(2, (num_nodes, 1), device="cuda").float()
    loss = F.binary_cross_entropy_with_logits
    return TrainingStep(model.cuda(), graph, x, y, loss, precision)


def memory(name: str, precision: str) -> dict[str, int]:
    """Bytes that a step holds at its peak."""
    edge_index = heterophilous_graphs()[name][0].cuda()
    steps = {
        "BuNN": step_of(build(name), name, laplacian(name), precision),
        "SAGE": step_of(build_sage(name), name, edge_index, precision),
    }
    return {model: peak_bytes(step) for model, step in steps.items()}


def forms(name: str, precision: str) -> Iterator[tuple[str, BuNN, Callable[[], None]]]:
    """The ways to take a step."""
    lap = laplacian(name)
    torch.compiler.reset()  # code for one size, not for any
    for form in ("eager", "captured", "compiled"):
        model = build(name)
        if form == "compiled":
            for block in model.blocks:  # all of which are one to the compiler
                block.compile()
        step = step_of(model, name, lap, precision)
        for _ in range(3):
            step()
        yield form, model, step if form == "eager" else captured(step)


def warm(job: tuple[str, str]) -> None:
    """Compiles what one row of the table needs."""
    torch.set_float32_matmul_precision("high")
    for _ in forms(*job):
        pass


def measure(name: str, precision: str) -> dict[str, Any]:
    peaks = memory(name, precision)
    steps = {form: (model, step) for form, model, step in forms(name, precision)}
    model, _ = steps["eager"]
    taken = {form: step for form, (_, step) in steps.items()}
    return {
        "milliseconds": medians(taken, repeats=9, budget_ms=50.0),
        "kinds": {form: by_kind(step) for form, step in taken.items() if form != "eager"},
        "peak_bytes": peaks,
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
