"""The paper's synthetic table: over-squashing on a barbell, over-smoothing on a clique.

Both tasks ask every node for the mean feature of the *other* cluster. Protocol (Section
"Synthetic experiments"): 100 training and 100 test graphs, Adam at 1e-3 with a plateau schedule,
batches of one graph, 500 epochs, depth 3 on the barbell and 1 on the clique, the fewest that reach
the other cluster. Here 100 further graphs are for validation, and every number is of the epoch that
is best on them. Run ``s`` draws its graphs and its weights from seed ``s``.

Features enter every model through a linear map, without a non-linearity: the two clusters have
features of different sign, so that one ReLU before the first mean would give it the mean of a
cluster apart, and the task away.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bunn.baselines import BASELINES
from bunn.data import constant_baselines, load_dataset
from bunn.experiments.environment import environment
from bunn.experiments.jobs import Job
from bunn.experiments.measure import measure
from bunn.experiments.request import Request
from bunn.experiments.results import Result
from bunn.training import Config, Optimizer, Run, Schedule, Training
from bunn.training.models import BuNNOptions
from bunn.training.watch import Progressed, Watcher

EXPERIMENT = "synthetic"
DATASETS = ("barbell", "clique")
CONSTANTS = ("base-1", "base-2")
MODELS = ("mlp", "gcn", "sage", "gat", "gps", "nsd", "bunn")
QUICK_MODELS = (*CONSTANTS, "mlp", "gcn", "sage", "bunn")
SEEDS = 3
EPOCHS, QUICK_EPOCHS = 500, 100
#: The fewest layers that reach the other cluster.
DEPTH = {"barbell": 3, "clique": 1}
#: What a baseline has of its own: two have a residual connection in their equations; the dimension
#: of NSD's stalks was chosen on validation graphs; GPS has 2 heads, and depth 1 on both tasks.
OWN: dict[str, dict[str, Any]] = {
    "nsd": {"residual": True, "orthogonal": "householder", "stalk_dim": 4},
    "gps": {"residual": True, "num_layers": 1, "heads": 2},
}


def preset(dataset: str, model: str, epochs: int = EPOCHS) -> Config:
    """The configuration of one cell of the table."""
    plain: dict[str, Any] = {
        "hidden_channels": 128,
        "num_layers": DEPTH[dataset],
        "norm": None,
        "linear_encoder": True,
    }
    options: Any
    if model == "bunn":
        options = BuNNOptions(**plain, act="relu", time=10.0, phi_channels=32, phi_layers=2)
    else:
        options = BASELINES[model].options(**{**plain, "residual": False, **OWN.get(model, {})})
    return Config(
        dataset,
        model,
        model=options,
        optimizer=Optimizer("adam", lr=1e-3),
        schedule=Schedule("plateau", patience=max(2, epochs // 50), monitor="loss"),
        training=Training(epochs=epochs, batch_size=1, eval_every=5),
    )


_ATTENTION = (
    "Better than the paper's: attention reads features, and their sign tells the clusters apart; "
    "it can average over the other cluster alone."
)
#: Why a row differs from the paper's by more than the spread of both.
NOTES: dict[tuple[str, str], str] = {
    ("barbell", "sage"): (
        "Better than the paper's: the answer does arrive through the one edge, divided by about "
        "90, and a layer that keeps a node's own features apart from its neighbours' learns to "
        "multiply it again when it is trained until the loss stops falling."
    ),
    ("clique", "gat"): _ATTENTION,
    ("clique", "gps"): _ATTENTION,
    ("clique", "nsd"): (
        "Better than the paper's, with Householder maps on stalks of dimension 4; with rotations "
        "of the plane its training did not settle."
    ),
    ("clique", "sage"): (
        "Slightly better than the paper's, and below the cluster constant: the mean of all nodes "
        "and a node's own feature say a little about the other cluster."
    ),
    ("clique", "mlp"): (
        "Worse than the paper's: one hidden layer learns the step between the clusters slowly; the "
        "best epochs are among the last."
    ),
}


def jobs(request: Request) -> list[Job]:
    """One job for every cell of the table, the long ones first."""
    longest_first = [*reversed(MODELS), *CONSTANTS]
    models = request.models or (QUICK_MODELS if request.quick else tuple(longest_first))
    seeds = request.seeds_or(1 if request.quick else SEEDS)
    return [
        Job(f"{dataset} {model}", cell, (dataset, model, seeds, request))
        for model in longest_first
        if model in models
        for dataset in DATASETS
    ]


def cell(
    watcher: Watcher, dataset: str, model: str, seeds: Sequence[int], request: Request
) -> Path:
    """Measures one cell of the table and writes its result file."""
    quick, command = request.quick, request.command
    name = "quick" if quick else "paper"
    if model in CONSTANTS:
        return _constant(watcher, dataset, model, name, seeds, command).write(request.results)
    result = measure(
        preset(dataset, model, QUICK_EPOCHS if quick else EPOCHS),
        [(seed, seed) for seed in seeds],
        experiment=EXPERIMENT,
        preset=name,
        command=command,
        folder=request.runs / f"{dataset}-{model}-{name}",
        watcher=watcher,
        device="cpu",
        notes="" if quick else NOTES.get((dataset, model), ""),
        look=_angles if model == "bunn" else None,
    )
    return result.write(request.results)


def _constant(
    watcher: Watcher, dataset: str, model: str, preset: str, seeds: Sequence[int], command: str
) -> Result:
    """A predictor that has nothing to learn, on the same test graphs."""
    started, data = time.monotonic(), load_dataset(dataset)
    errors = [constant_baselines(data.split(seed))[model] for seed in seeds]
    watcher(Progressed(model, 1, 1, finished=True))
    return Result(
        experiment=EXPERIMENT,
        dataset=dataset,
        model=model,
        preset=preset,
        metric="mse",
        seeds=list(seeds),
        splits=list(seeds),
        test=errors,
        val=[],
        epochs=0,
        seconds=round(time.monotonic() - started, 2),
        command=command,
        **environment(),
    )


def _angles(runs: list[Run]) -> dict[str, Any]:
    """The learned bundle of the first run, on its first test graph: an angle per layer and node."""
    run = runs[0]
    model: Any = run.model
    model.load_state_dict(run.best_weights)
    angles: list[list[float]] = []

    def note(module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> None:
        angles.append([round(angle, 4) for angle in output.flatten().tolist()])

    hooks = [block.conv.phi.register_forward_hook(note) for block in model.blocks]
    graph = run.feed.parts["test"][0]
    with torch.no_grad():
        model.eval()
        model(graph.x, graph.edge_index)
    for hook in hooks:
        hook.remove()
    features = [round(value, 4) for value in graph.x.flatten().tolist()]
    return {"bundle": {"angles": angles, "cluster": graph.cluster.tolist(), "x": features}}
