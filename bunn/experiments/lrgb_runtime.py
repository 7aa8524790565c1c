"""The paper's table of times per epoch: six layers, 500,000 parameters, one bundle of the plane.

A time is that of a training epoch, the mean of five, without evaluations. Some go before, so that
kernels are compiled, steps captured, and eigenvectors, which are computed once, are there. Loop,
optimiser and positional encodings are those of the models in the benchmark.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import torch

from bunn.baselines import BASELINES
from bunn.data import load_dataset
from bunn.data.transforms import DiskCache
from bunn.experiments.environment import environment
from bunn.experiments.jobs import Job
from bunn.experiments.lrgb import check_budget, datasets_of, preset
from bunn.experiments.request import Request
from bunn.experiments.results import Result
from bunn.keeping import lasting
from bunn.training import Config, Run
from bunn.training.capture import WARMUP
from bunn.training.device import Device
from bunn.training.drive import Driver
from bunn.training.models import BuNNOptions
from bunn.training.watch import Progressed, Watcher

EXPERIMENT = "lrgb-runtime"
MODELS = ("gcn", "gatedgcn", "gps", "bunn")
LAYERS, EPOCHS = 6, 5
#: Epochs that go before: on a GPU as many as it takes to capture the last step of an epoch, too.
BEFORE = {"cuda": WARMUP + 1}
#: Widths with which six layers have about 500,000 parameters.
WIDTHS = {"gcn": 235, "gatedgcn": 124, "gps": 76, "bunn": 232}
#: What follows no more than needed: never evaluated, never at an end.
ENDLESS = 10**6


def config(dataset: str, model: str) -> Config:
    """The training whose epochs are timed."""
    base = preset(dataset, model, "paper")
    if model == "bunn":
        options = BuNNOptions(
            hidden_channels=WIDTHS[model],
            num_layers=LAYERS,
            dropout=base.model.dropout,
            norm="batch",
            norm_first=False,
            head_layers=3,
            normalization="sym",
            method="spectral",
        )
    else:
        kept = {name: getattr(base.model, name) for name in ("act", "norm", "norm_first")}
        extra = {"heads": 4, "local": "gatedgcn"} if model == "gps" else {}
        options = BASELINES[model].options(
            hidden_channels=WIDTHS[model],
            num_layers=LAYERS,
            dropout=base.model.dropout,
            head_layers=3,
            **kept,
            **extra,
        )
    training = replace(base.training, epochs=ENDLESS, eval_every=ENDLESS)
    return replace(base, model=options, training=training)


def jobs(request: Request) -> list[Job]:
    """One job for every cell of the table that can be filled here."""
    cells = [
        (dataset, model) for dataset in datasets_of(request) for model in request.models or MODELS
    ]
    for key in cells:
        check_budget(config(*key))
    return [Job(" ".join(key), cell, (*key, request)) for key in cells]


def cell(watcher: Watcher, dataset: str, model: str, request: Request) -> Path:
    """Times one cell of the table and writes its result file."""
    experiment = config(dataset, model)
    epochs = request.epochs or EPOCHS
    device = Device(request.device, experiment.training.precision)
    data = load_dataset(dataset, request.data_root)
    before = BEFORE.get(device.device.type, 1)
    device.start(0)
    run = Run(experiment, data, 0, 0, device, cache=DiskCache())
    seconds = []
    with lasting():
        driver = Driver([run], request.compile)
        for epoch in range(before + epochs):
            watcher(Progressed(model, epoch, before + epochs))
            start = _now(device.device)
            driver.train_epoch()
            seconds.append(_now(device.device) - start)
    watcher(Progressed(model, before + epochs, before + epochs, finished=True))
    measured = seconds[before:]
    result = Result(
        experiment=EXPERIMENT,
        dataset=dataset,
        model=model,
        preset="compiled" if request.compile else "paper",
        metric="seconds",
        seeds=list(range(len(measured))),
        test=measured,
        val=[],
        epochs=epochs,
        seconds=round(sum(seconds), 2),
        command=request.command,
        options=experiment.as_dict(),
        parameters=sum(parameter.numel() for parameter in run.model.parameters()),
        extra={"first_epoch": seconds[0]},
        **environment(device.device.type),
    )
    return result.write(request.results)


def _now(device: torch.device) -> float:
    """The time at which all that was asked of a device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
