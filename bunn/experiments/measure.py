"""From an experiment to its result file."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from bunn.data import DATASETS, GraphDataset, load_dataset
from bunn.experiments.environment import Environment, environment
from bunn.experiments.results import Result
from bunn.files import as_json, write_atomically
from bunn.training import Config, Outcome, Run, RunFolderError, train
from bunn.training.device import free_memory
from bunn.training.record import differences
from bunn.training.watch import Progressed, Watcher

#: Points of a training curve that are worth keeping.
CURVE_POINTS = 60
#: What ``extra`` has of every run; results of earlier versions have the first two.
OF_EVERY_RUN = ("epochs_run", "best_epoch", "last_val", "last_test")


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
    data: GraphDataset | None = None,
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
        data: The dataset, if it is loaded already.
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
        data=data,
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
            "last_val": [outcome.evaluations[-1].metrics["val"] for outcome in outcomes],
            "last_test": [outcome.evaluations[-1].metrics[part] for outcome in outcomes],
            **({} if look is None else look(finished)),
        },
        **facts,
    )


def measure_split_by_split(
    config: Config, runs: Sequence[tuple[int, int]], *, folder: Path, watcher: Watcher, **how: Any
) -> Iterator[Result]:
    """The same, every run in a folder of its own: what is finished is never done again, whatever
    runs are asked for later.

    A finished run leaves its result and its best weights there. After each, all that the folder
    holds are one result.

    Args:
        config: The experiment.
        runs: Pairs of split and seed, trained one after the other.
        folder: Where all of them are recorded.
        watcher: Told of every run's progress.
        how: What else :func:`measure` takes.
    """
    data: GraphDataset | None = None  # loaded once, with all that is found out about its graphs
    for split, seed in runs:
        place = folder / f"split{split}-seed{seed}"
        result = _finished(place, config)
        if result is None:
            data = data or load_dataset(config.dataset, how.get("data_root"), config.data)
            one = [(split, seed)]
            result = measure(config, one, folder=place, watcher=watcher, data=data, **how)
            free_memory()
            write_atomically(place / "result.json", as_json(result.as_dict()) + "\n")
        else:
            epochs = config.training.epochs
            watcher(Progressed(f"split{split}-seed{seed}", epochs, epochs, finished=True))
        _clear(place)
        known: set[Path] = set()
        # Another process may finish a run while this result is written: then it is written again.
        while known != (known := set(folder.glob("*/result.json"))):
            yield combined([_same(path, config) for path in known])
    del data
    free_memory()


def combined(results: Sequence[Result]) -> Result:
    """Several results of the same configuration as one, their runs by split and seed.

    Its curves are those of the first; commands, commits, devices and versions that differ are all
    named.
    """
    results = sorted(results, key=lambda result: (result.splits, result.seeds))
    first = results[0]
    options = [Config.completed(result.options) for result in results]
    if any(other != options[0] for other in options):
        raise ValueError(f"results of {first.file} have different options; combine equal ones")
    together: dict[str, Any] = {
        name: [value for result in results for value in getattr(result, name)]
        for name in ("seeds", "splits", "test", "val")
    }
    extra = {
        name: [
            value
            for result in results
            for value in result.extra.get(name, [None] * len(result.test))
        ]
        for name in OF_EVERY_RUN
        if any(name in result.extra for result in results)
    }
    others = {name: value for name, value in first.extra.items() if name not in OF_EVERY_RUN}
    return replace(
        first,
        **together,
        seconds=round(sum(result.seconds for result in results), 2),
        command=_every((result.command for result in results), "; "),
        git_commit=_every(result.git_commit for result in results),
        device=_every(result.device for result in results),
        versions={
            name: _every(result.versions[name] for result in results if name in result.versions)
            for name in first.versions
        },
        options=options[0],
        extra={**others, **extra, "seconds": [result.seconds for result in results]},
    )


def apart(result: Result) -> list[Result]:
    """The runs of a result, each as one of its own, for :func:`combined`.

    Curves stay with the first, whose they are.
    """
    seconds = result.extra.get("seconds", [result.seconds])
    return [
        replace(
            result,
            seeds=[result.seeds[index]],
            splits=[result.splits[index]],
            test=[result.test[index]],
            val=[result.val[index]],
            seconds=seconds[index],
            curves=result.curves if index == 0 else {},
            extra={
                **result.extra,
                **{
                    name: [result.extra[name][index]]
                    for name in OF_EVERY_RUN
                    if name in result.extra
                },
            },
        )
        for index in range(len(result.test))
    ]


def _every(texts: Iterable[str], between: str = ", ") -> str:
    """What texts say, each thing once: those of combined results say several."""
    return between.join(dict.fromkeys(part for text in texts for part in text.split(between)))


def _finished(place: Path, config: Config) -> Result | None:
    """The result of a run, if it is done."""
    path = place / "result.json"
    return _same(path, config) if path.is_file() else None


def _same(path: Path, config: Config) -> Result:
    """A result, which has to be one of this configuration."""
    result = Result.read(path)
    before = Config.completed(result.options)
    if changed := sorted(differences(before, config.as_dict())):
        raise RunFolderError(
            f"{path.parent} was run with another configuration: {'; '.join(changed)}; take it "
            "away, or choose another folder"
        )
    return result


def _clear(place: Path) -> None:
    """Removes what a finished run does not need: gigabytes, for some models."""
    shutil.rmtree(place / "checkpoints", ignore_errors=True)
    for path in place.glob("*/last.safetensors"):
        path.unlink()


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
