"""The paper's table of training times: five layers, 512 wide, one bundle or sheaf of the plane.

A time is that of a whole training, 1,000 steps with an evaluation after each. A short one goes
before, so that kernels are compiled and caches filled; nothing is saved on the way. What
``--compile`` compiles is in it, and files under a preset of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bunn.baselines import BASELINES
from bunn.experiments.heterophilous import FIVE, FRAME, datasets_of, preset
from bunn.experiments.jobs import Job
from bunn.experiments.request import Request
from bunn.experiments.requested import measured
from bunn.training import Config, ConfigError, train
from bunn.training.device import Device
from bunn.training.models import BuNNOptions
from bunn.training.watch import Watcher

EXPERIMENT = "heterophilous-runtime"
MODELS = ("sage", "gat", "gt", "nsd", "bunn")
LAYERS, RUNS = 5, 3
#: Steps of the short training before.
WARMUP = 5


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
    training = replace(base.training, epochs=1000, eval_every=1, checkpoint_seconds=math.inf)
    return replace(base, model=options, training=training)


def jobs(request: Request) -> list[Job]:
    """One job for every cell of the table that can be filled here."""
    seeds, datasets = request.seeds_or(RUNS), datasets_of(request)
    if small := sorted(set(datasets) - set(FIVE)):
        raise ConfigError(f"--datasets: times are taken on {', '.join(FIVE)}, not on {small[0]}")
    return [
        Job(f"{dataset} {model}", cell, (dataset, model, seeds, request), runs=len(seeds))
        for dataset in datasets
        for model in request.models or MODELS
    ]


def cell(
    watcher: Watcher, dataset: str, model: str, seeds: Sequence[int], request: Request
) -> Path:
    """Measures one cell of the table and writes its result file."""
    training, device = config(dataset, model), Device(request.device, "32").device.type
    short = replace(training, training=replace(training.training, epochs=WARMUP))
    train(short, device=request.device, data_root=request.data_root, compile=request.compile)
    runs, name = [(0, seed) for seed in seeds], "compiled" if request.compile else "paper"
    # Times of one device are not averaged with those of another.
    apart = replace(request, runs=request.runs / device)
    *_, result = measured(watcher, training, runs, EXPERIMENT, name, apart)
    timed = replace(
        result,
        metric="seconds",
        test=result.extra["seconds"],
        val=[],
        extra={**result.extra, result.metric: result.test},
    )
    return timed.write(request.results)
