"""From an experiment to its result file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from bunn.data import DATASETS
from bunn.experiments.environment import Environment, environment
from bunn.experiments.results import Result
from bunn.training import Config, Outcome, Run, train
from bunn.training.watch import Watcher

#: Points of a training curve that are worth keeping.
CURVE_POINTS = 60


def measure(
    config: Config,
    runs: Sequence[tuple[int, int]],
    *,
    experiment: str,
    preset: str,
    command: str,
    folder: Path | None,
    watcher: Watcher,
    resume: bool = True,
    device: str = "auto",
    data_root: str | Path | None = None,
    tensorboard: bool = False,
    compile: bool = False,
    name: str | None = None,
    notes: str = "",
    look: Callable[[list[Run]], dict[str, Any]] | None = None,
) -> Result:
    """Trains, and says what came out.

    Args:
        config: The experiment.
        runs: Pairs of split and seed.
        experiment: What it belongs to.
        preset: What its configuration is called.
        command: What to type to measure this again.
        folder: Where it is recorded; with ``resume``, where it goes on. The result names the
            versions, device and commit that it was started with there.
        name: What the dataset is called in tables. (default: its name)
        notes: What a reader should know about the number. (default: nothing)
        look: Called with all finished runs; what it returns becomes ``extra``. (default: nothing)
    """
    finished: list[Run] = []
    kind = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
    facts = environment(kind)
    outcomes = train(
        config,
        runs,
        folder=folder,
        resume=resume,
        device=device,
        data_root=data_root,
        watcher=watcher,
        tensorboard=tensorboard,
        compile=compile,
        environment={**facts, "threads": torch.get_num_threads(), "command": command},
        keep=finished.append if look is not None else None,
    )
    if folder is not None:
        facts = _recorded(folder) or facts
    spec = DATASETS[config.dataset]
    part = spec.reported_part
    return Result(
        experiment=experiment,
        dataset=name or config.dataset,
        model=config.architecture,
        preset=preset,
        metric=spec.task.metric,
        seeds=[outcome.seed for outcome in outcomes],
        splits=[outcome.split for outcome in outcomes],
        test=[outcome.best.metrics[part] for outcome in outcomes],
        val=[outcome.best.metrics["val"] for outcome in outcomes],
        epochs=config.training.epochs,
        seconds=round(_seconds(outcomes), 2),
        command=command,
        notes=notes,
        options=config.as_dict(),
        parameters=outcomes[0].parameters,
        curves=curves(outcomes),
        part="train" if part == "train" else "test",
        extra={
            "epochs_run": [outcome.epochs for outcome in outcomes],
            "best_epoch": [outcome.best.epoch for outcome in outcomes],
            **({} if look is None else look(finished)),
        },
        **facts,
    )


def _recorded(folder: Path) -> Environment | None:
    """With what the runs of a folder were started: who resumes them may have other versions."""
    try:
        kept = json.loads((folder / "environment.json").read_text())
        return Environment(
            versions=kept["versions"], device=kept["device"], git_commit=kept["git_commit"]
        )
    except (OSError, ValueError, LookupError, TypeError):
        return None


def curves(outcomes: Sequence[Outcome]) -> dict[str, list[float]]:
    """Training loss and validation metric against the epoch, means over runs, thinned out.

    An epoch whose numbers are not finite is left out.
    """
    common = min(len(outcome.evaluations) for outcome in outcomes)
    stride = max(1, -(-common // CURVE_POINTS))
    kept = sorted({*range(0, common, stride), common - 1})
    rows = [[outcome.evaluations[index] for outcome in outcomes] for index in kept]
    points = [
        (row[0].epoch, fmean(e.loss for e in row), fmean(e.metrics["val"] for e in row))
        for row in rows
    ]
    finite = [point for point in points if all(map(math.isfinite, point))]
    return {
        name: [point[column] for point in finite]
        for column, name in enumerate(("epoch", "train_loss", "val"))
    }


def _seconds(outcomes: Sequence[Outcome]) -> float:
    """Wall time of all runs: those that were trained together share theirs."""
    return sum({(outcome.seconds): outcome.seconds for outcome in outcomes}.values())
