"""The paper's table of training times: five layers, 512 wide, one bundle or sheaf of the plane.

Every model stands in the frame of the heterophilous benchmark. A time is that of a whole training,
1,000 steps with an evaluation after each, without what is done once: loading, and compiling if that
was asked for.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bunn.baselines import BASELINES
from bunn.experiments.heterophilous import FRAME, datasets_of, measured, preset
from bunn.experiments.jobs import Job
from bunn.experiments.request import Request
from bunn.training import Config
from bunn.training.models import BuNNOptions
from bunn.training.watch import Watcher

EXPERIMENT = "heterophilous-runtime"
MODELS = ("sage", "gat", "gt", "nsd", "bunn")
LAYERS, RUNS = 5, 3


def config(dataset: str, model: str) -> Config:
    """The training whose time is taken."""
    base = preset(dataset, model)
    options = base.model
    if model == "bunn":
        options = BuNNOptions(**FRAME, num_layers=LAYERS, normalization="sym")
    if model == "nsd":
        width, dropout = FRAME["hidden_channels"], FRAME["dropout"]
        options = BASELINES["nsd"].options(
            hidden_channels=width, num_layers=LAYERS, stalk_dim=2, dropout=dropout
        )
    training = replace(base.training, epochs=1000, eval_every=1)
    return replace(base, model=options, training=training)


def jobs(request: Request) -> list[Job]:
    """One job for every cell of the table that can be filled here."""
    count = request.seeds or RUNS
    return [
        Job(f"{dataset} {model}", cell, (dataset, model, count, request), runs=count)
        for dataset in datasets_of(request)
        for model in request.models or MODELS
    ]


def cell(watcher: Watcher, dataset: str, model: str, count: int, request: Request) -> Path:
    """Measures one cell of the table and writes its result file."""
    runs = [(0, seed) for seed in range(count)]
    result = measured(watcher, config(dataset, model), runs, EXPERIMENT, "paper", request)
    timed = replace(
        result,
        metric="seconds",
        test=result.extra["seconds"],
        val=[],
        extra={**result.extra, result.metric: result.test},
    )
    return timed.write(request.results)
