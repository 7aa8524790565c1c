"""``bunn tune --try``: configurations of one's own, each trained to its end.

Every run has a folder, from which it goes on after an interruption, and computes no test metric.
The file of what was tried keeps what it has: other machines may have measured it.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from bunn.experiments.environment import environment
from bunn.experiments.evaluation import Chosen
from bunn.experiments.jobs import Job, run_jobs
from bunn.experiments.question import Question, forget_data
from bunn.experiments.spaces import settings
from bunn.files import as_json, plain, write_atomically
from bunn.training import Config, ConfigError, NonFiniteLossError, Progressed, train
from bunn.training.device import free_memory
from bunn.training.options import parse_value
from bunn.training.record import FolderInUseError, differences
from bunn.training.watch import Watcher

#: What a finished run leaves in its folder.
VALIDATED = "validated.json"
#: Why a run is left out that another process trains.
BUSY = "another process trains it"

Pair = tuple[int, int]
Params = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Attempts(Question):
    """Which of these configurations validates best.

    Args:
        changes: What each changes in ``config``, as :meth:`bunn.training.Config.override` takes it.
        runs: Where runs are recorded, and go on.
    """

    changes: tuple[tuple[str, ...], ...]
    runs: Path

    def __post_init__(self) -> None:
        super().__post_init__()
        configs: list[Config] = []
        for change in self.changes:
            asked = f"--try {' '.join(change)!r}"
            try:
                config = self.config.override(change)
            except ConfigError as error:
                raise ConfigError(f"{asked}: {error}") from error
            if config in configs:
                raise ConfigError(f"{asked} is there twice; give every configuration once")
            configs.append(config)

    def asked(self) -> list[Attempt]:
        """The configurations, none of which has been run yet."""
        split = [[setting.partition("=") for setting in each] for each in self.changes]
        params = [
            plain({name.strip(): parse_value(text) for name, _, text in each}) for each in split
        ]
        return [Attempt(self.configuration(each), each) for each in params]

    def folder(self, config: Config, pair: Pair) -> Path:
        """Of a run; its name depends on nothing but the configuration."""
        content = json.dumps(config.as_dict(), sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()[:12]
        return self.runs / digest / "split{}-seed{}".format(*pair)


@dataclass
class Attempt:
    """A configuration, and what came of it.

    Args:
        config: The configuration.
        params: What it changes, by option.
        runs: What is known of each run: its validation metric ``val``, epochs, seconds, device.
        reason: Why it has not been run, if it could not be.
    """

    config: Config
    params: Params
    runs: dict[Pair, dict[str, Any]] = field(default_factory=dict)
    reason: str | None = None

    def value(self, pairs: Collection[Pair]) -> float:
        """The mean of the best validation metrics of some of its runs."""
        return fmean(self.runs[pair]["val"] for pair in pairs)

    def seconds(self, pairs: Collection[Pair]) -> float:
        """The time that they took."""
        return math.fsum(self.runs[pair]["seconds"] for pair in pairs)


def run_attempts(
    attempts: Attempts, *, jobs: int, watcher: Watcher, results: Path, command: str
) -> tuple[list[Attempt], int]:
    """Trains what the file of the study does not have, and writes all that is known to it.

    Args:
        attempts: The configurations.
        jobs: In how many processes.
        watcher: Told of every run.
        results: Where result files go.
        command: What was typed.

    Returns:
        All that the file has, and how many runs were left to other processes that train them.

    Raises:
        InterruptedRunError: After Ctrl-C; what was done is in the file and the run folders.
    """
    file = attempts.file(results)
    known, asked = _read(file, attempts), attempts.asked()
    missing = [
        (each, pair)
        for pair in attempts.pairs
        for each in asked
        if pair not in _find(known, each).runs
    ]
    every = [
        Job(_name(attempts, each, pair), _run, (attempts, each.config, pair))
        for each, pair in missing
    ]
    failed: list[str | None] = [None] * len(every)
    busy = 0
    try:
        failed = run_jobs(every, jobs, watcher)
    finally:
        forget_data()
        known = _read(file, attempts)  # again: another process may have written to it
        for each, _ in missing:
            _find(known, each).reason = None
        for (each, pair), reason in zip(missing, failed, strict=True):
            attempt = _find(known, each)
            place = attempts.folder(each.config, pair) / VALIDATED
            if place.is_file():
                attempt.runs[pair] = json.loads(place.read_text())
            busy += reason == BUSY
            if reason != BUSY:
                attempt.reason = attempt.reason or reason
        _write(file, attempts, known, command)
    return known, busy


def ranked(attempts: Attempts, known: list[Attempt]) -> list[Attempt]:
    """Those with all runs that are asked for, the best first."""
    complete = [each for each in known if set(attempts.pairs) <= each.runs.keys()]
    sign = 1 if attempts.smaller_is_better else -1
    return sorted(complete, key=lambda each: sign * each.value(attempts.pairs))


def chosen(attempts: Attempts, known: list[Attempt]) -> Chosen | None:
    """The best, if any has all runs that are asked for."""
    best = ranked(attempts, known)
    if not best:
        return None
    tried = sum(bool(each.runs) for each in known)
    return Chosen(best[0].params, known.index(best[0]), tried)


def _run(watcher: Watcher, attempts: Attempts, config: Config, pair: Pair) -> str | None:
    """One run; returns why there is none, if the configuration is one that cannot be trained."""
    place = attempts.folder(config, pair)
    if (place / VALIDATED).is_file():
        epochs = config.training.epochs
        watcher(Progressed("", epochs, epochs, finished=True))
        return None
    facts = environment(attempts.kind_of_device)
    try:
        (outcome,) = train(
            config,
            [pair],
            folder=place,
            resume=True,
            device=attempts.device,
            data=attempts.data_for(config),
            watcher=watcher,
            environment={**facts},
            with_test=False,
        )
    except FolderInUseError:
        return BUSY
    except (NonFiniteLossError, torch.OutOfMemoryError, ValueError) as error:
        return str(error).partition("\n")[0]
    if not math.isfinite(outcome.best.metrics["val"]):
        return f"the validation {attempts.metric} is {outcome.best.metrics['val']}"
    entry = {
        "val": outcome.best.metrics["val"],
        "best_epoch": outcome.best.epoch,
        "epochs": outcome.epochs,
        "seconds": round(outcome.seconds, 2),
        "parameters": outcome.parameters,
        **facts,
    }
    write_atomically(place / VALIDATED, as_json(entry) + "\n")
    shutil.rmtree(place / "checkpoints", ignore_errors=True)
    for weights in place.glob("*/*.safetensors"):
        weights.unlink()
    free_memory()
    return None


def _name(attempts: Attempts, attempt: Attempt, pair: Pair) -> str:
    """What the display calls a run."""
    words = settings(attempt.params) or ["(as it is)"]
    if len(attempts.pairs) > 1:
        words.append("(split {}, seed {})".format(*pair))
    return " ".join(words)


def _find(known: list[Attempt], asked: Attempt) -> Attempt:
    """The configuration among those that are known, or a new one at their end."""
    for each in known:
        if each.config == asked.config:
            return each
    known.append(Attempt(asked.config, asked.params))
    return known[-1]


def _read(file: Path, attempts: Attempts) -> list[Attempt]:
    """What the file has, if it is one of these attempts."""
    if not file.is_file():
        return []
    try:
        content = json.loads(file.read_text())
        before = Config.completed(content["base"])
        rows = [(row["params"], _by_pair(row["runs"]), row["reason"]) for row in content["trials"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{file} is not one that bunn tune --try wrote; name another study with --study"
        ) from error
    if changed := sorted(differences(before, attempts.config.as_dict())):
        raise ConfigError(
            f"{file} was started from another configuration: {'; '.join(changed)}; start from the "
            "same one, or name another study with --study"
        )
    return [Attempt(attempts.configuration(params), params, *rest) for params, *rest in rows]


def _by_pair(runs: list[dict[str, Any]]) -> dict[Pair, dict[str, Any]]:
    """Runs of a row by their split and seed."""
    left = [dict(run) for run in runs]
    return {(run.pop("split"), run.pop("seed")): run for run in left}


def _write(file: Path, attempts: Attempts, known: list[Attempt], command: str) -> None:
    best = chosen(attempts, known)
    content = {
        "study": attempts.study,
        **attempts.described(),
        "metric": attempts.metric,
        "objective": "mean over the runs of a trial of the best validation metric; the best is the "
        "one whose mean over these splits and seeds is",
        "smaller_is_better": attempts.smaller_is_better,
        "sampler": "by hand",
        "command": command,
        "best": None if best is None else best.trial,
        "trials": [_row(number, each) for number, each in enumerate(known)],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, as_json(plain(content)) + "\n")


def _row(number: int, attempt: Attempt) -> dict[str, Any]:
    runs = [
        {"split": split, "seed": seed, **run} for (split, seed), run in sorted(attempt.runs.items())
    ]
    return {
        "number": number,
        "params": attempt.params,
        "value": attempt.value(attempt.runs) if attempt.runs else None,
        "runs": runs,
        "reason": attempt.reason,
    }
