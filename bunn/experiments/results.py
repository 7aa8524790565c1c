"""Result files: what was measured, on how many runs, by which command, with what.

One JSON file per experiment, data set, model and preset. Every table and page is made from these.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bunn.files import as_json, plain, write_atomically
from bunn.names import did_you_mean

#: Folders of other files: the verdicts of ``bunn verify``, what ``bunn tune`` tried.
OTHER_FOLDERS = ("theory", "tuning")
#: What ``Result.curves`` may hold.
CURVES = ("epoch", "train_loss", "val")

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


class Metric(NamedTuple):
    """What a metric is called in print, and which way is better."""

    title: str
    lower_is_better: bool = False
    fraction: bool = True


METRICS = {
    "accuracy": Metric("accuracy"),
    "roc-auc": Metric("ROC AUC"),
    "average-precision": Metric("AP"),
    "macro-f1": Metric("macro F1"),
    "mae": Metric("MAE", lower_is_better=True, fraction=False),
    "mse": Metric("MSE", lower_is_better=True, fraction=False),
    "seconds": Metric("time", lower_is_better=True, fraction=False),
}


@dataclass(frozen=True)
class Result:
    """A model on a data set, over several runs.

    Args:
        experiment, dataset, model, preset: Lower case with hyphens; they name the file.
        metric: A key of :data:`METRICS`. Accuracies and the like are fractions, not per cent.
        seeds: One per run.
        test: The metric of each run at its best validation epoch, on ``part``.
        val: The validation metric of each run; empty where nothing is validated.
        epochs: The budget of a run.
        seconds: Wall time of all runs together.
        device: In words.
        versions: Of everything that could change a number.
        git_commit: ``"+dirty"`` at its end if the code was modified, ``"unknown"`` without git.
        command: What to type to measure this again.
        splits: The split of each run, where they differ.
        notes: Why the numbers differ from the published ones, if they do.
        options: The effective configuration; what JSON cannot hold, an infinite time for one, is
            kept as text.
        parameters: How many the model has.
        curves: ``"epoch"``, and at those epochs ``"train_loss"`` and ``"val"``, means over runs;
            kept to six digits.
        part: The part of the data that ``test`` is measured on.
        extra: Anything else worth keeping.
    """

    experiment: str
    dataset: str
    model: str
    preset: str
    metric: str
    seeds: list[int]
    test: list[float]
    val: list[float]
    epochs: int
    seconds: float
    device: str
    versions: dict[str, str]
    git_commit: str
    command: str
    splits: list[int] = field(default_factory=list)
    notes: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    parameters: int | None = None
    curves: dict[str, list[float]] = field(default_factory=dict)
    part: Literal["test", "train"] = "test"
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("experiment", "dataset", "model", "preset"):
            _check_name(name, getattr(self, name))
        if self.metric not in METRICS:
            raise ValueError(
                f"metric={self.metric!r}; no such metric{did_you_mean(self.metric, METRICS)}; "
                f"use one of {', '.join(METRICS)}"
            )
        if self.part not in ("test", "train"):
            raise ValueError(f"part={self.part!r}; no such part; use 'test' or 'train'")
        for name in ("seeds", "splits"):
            _check_numbers(name, getattr(self, name), int)
        for name in ("test", "val"):
            _check_numbers(name, getattr(self, name), float, METRICS[self.metric].fraction)
        if not self.test:
            raise ValueError("test=[]; there is no run in it; give one value per run")
        for name in ("seeds", "val", "splits"):
            values = getattr(self, name)
            if len(values) != len(self.test) and (values or name == "seeds"):
                raise ValueError(
                    f"{name}={values}; {len(values)} values for {len(self.test)} runs; "
                    "give one per run, in the order of test"
                )
        _check_numbers("epochs", [self.epochs], int)
        _check_numbers("seconds", [self.seconds], float)
        _check_numbers("parameters", [self.parameters or 0], int)
        _check_texts(self)
        _check_curves(self.curves)
        for name in ("options", "extra"):
            object.__setattr__(self, name, plain(getattr(self, name)))
        short = {name: [_six_digits(v) for v in values] for name, values in self.curves.items()}
        object.__setattr__(self, "curves", short)

    @property
    def test_mean(self) -> float:
        """Mean of ``test``."""
        return statistics.fmean(self.test)

    @property
    def test_std(self) -> float:
        """Sample standard deviation of ``test`` (over ``n - 1``); 0.0 for a single run."""
        return statistics.stdev(self.test) if len(self.test) > 1 else 0.0

    @property
    def file(self) -> Path:
        """``<experiment>/<dataset>-<model>-<preset>.json``, below the folder of results."""
        return Path(self.experiment) / f"{self.dataset}-{self.model}-{self.preset}.json"

    def as_dict(self) -> dict[str, Any]:
        """What the file holds: every field that says something, and ``test_mean``, ``test_std``."""
        content: dict[str, Any] = {}
        for entry in dataclasses.fields(self):
            value = getattr(self, entry.name)
            if value not in (None, "", [], {}) or not _is_optional(entry):
                content[entry.name] = value
            if entry.name == "val":
                content |= {"test_mean": self.test_mean, "test_std": self.test_std}
        return content

    def write(self, folder: str | Path) -> Path:
        """Writes the result below ``folder`` and returns its path; whole, or not at all."""
        path = Path(folder) / self.file
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, as_json(self.as_dict()) + "\n")
        return path

    @classmethod
    def read(cls, path: str | Path) -> Result:
        """Reads a file that :meth:`write` wrote.

        Raises:
            ValueError: If the file is no result, with its path, the field and the fix.
        """
        try:
            return cls._from_text(Path(path).read_text(encoding="utf-8"))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: {error}") from error

    @classmethod
    def _from_text(cls, text: str) -> Result:
        try:
            content = json.loads(text, parse_constant=_refuse_constant)
        except json.JSONDecodeError as error:
            raise ValueError(f"no JSON ({error}); measure it again or take it out") from error
        if not isinstance(content, dict):
            raise ValueError(f"holds a {type(content).__name__}; a result is a JSON object")
        fields = {entry.name: entry for entry in dataclasses.fields(cls)}
        derived = ("test_mean", "test_std")
        for name in content:
            if name not in fields and name not in derived:
                known = [*fields, *derived]
                hint = did_you_mean(name, known)
                raise ValueError(f"{name}; no such field{hint}; rename it or drop")
        for name, entry in fields.items():
            if name not in content and not _is_optional(entry):
                raise ValueError(f"{name}; this field is missing; measure the result again")
        stored = {name: content.pop(name) for name in derived if name in content}
        result = cls(**content)
        for name, value in stored.items():
            _check_numbers(name, [value], float)
            if not math.isclose(value, getattr(result, name), rel_tol=1e-6, abs_tol=1e-9):
                raise ValueError(
                    f"{name}={value}; test gives {getattr(result, name)}; numbers are measured, "
                    "not typed: run its command again"
                )
        return result


def read_results(folder: str | Path) -> list[Result]:
    """All results below ``folder``, ``<experiment>/*.json`` and ``<experiment>/ablations/*.json``,
    by file name.

    Of the folders of ``bunn train``, it is the ``result.json`` that counts; where two of them hold
    the same dataset, model and preset, the preset of the later is called as the folder is.

    Raises:
        FileNotFoundError: If there is no such folder.
        ValueError: If a file is no result, or does not have the name of what it holds.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"results={folder}; no such folder; run bunn reproduce first, or give another: "
            "--results runs for those of bunn train"
        )
    results: list[Result] = []
    patterns = ("*/*.json", "*/ablations/*.json", "result.json")
    for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
        if path.parent.name in OTHER_FOLDERS:
            continue
        if (path.parent / "config.json").is_file():
            if path.name == "result.json":
                result = Result.read(path)
                if any(result.file == other.file for other in results):
                    result = dataclasses.replace(result, preset=_as_name(path.parent.name))
                results.append(result)
            continue
        result = Result.read(path)
        if path.parts[-2:] != result.file.parts:
            raise ValueError(f"{path}: holds {result.file}; give it that name, or take it out")
        results.append(result)
    return results


def _is_optional(entry: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return entry.default is not missing or entry.default_factory is not missing


def _six_digits(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.6g}")


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text}; a result holds finite numbers; measure it again")


def _check_name(name: str, value: object) -> None:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError(
            f"{name}={value!r}; names are lower case letters and digits with hyphens, since they "
            f"name the file; write {_as_name(value)!r}"
        )


def _as_name(value: object) -> str:
    return re.sub(r"[^a-z0-9]+", "-", str(value).lower()).strip("-") or "bunn"


def _check_numbers(name: str, values: Any, kind: type, fraction: bool = False) -> None:
    """Finite numbers of ``kind``, at least 0, at most 1 if they are fractions."""
    if not isinstance(values, list):
        raise TypeError(f"{name}={values!r}; this is no list; give a list of numbers")
    allowed = (int,) if kind is int else (int, float)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, allowed):
            raise TypeError(f"{name}={value!r}; this is no {kind.__name__}; give plain numbers")
        if not math.isfinite(value) or value < 0:
            raise ValueError(
                f"{name}={value}; it must be finite and at least 0; leave diverged runs out and "
                "say so in notes"
            )
        if fraction and value > 1:
            raise ValueError(f"{name}={value}; this metric is a fraction; divide per cent by 100")


def _check_texts(result: Result) -> None:
    for name in ("device", "git_commit", "command", "notes"):
        value = getattr(result, name)
        if not isinstance(value, str):
            raise TypeError(f"{name}={value!r}; this is no text; give a string")
    for name in ("versions", "options", "extra", "curves"):
        value = getattr(result, name)
        if not isinstance(value, dict):
            raise TypeError(f"{name}={value!r}; this is no mapping; give a dict")


def _check_curves(curves: dict[str, list[float]]) -> None:
    for name, values in curves.items():
        if name not in CURVES:
            raise ValueError(
                f"curves has {name!r}; no such curve{did_you_mean(name, CURVES)}; "
                f"use {', '.join(CURVES)}"
            )
        if not isinstance(values, list) or not all(
            isinstance(value, int | float) and math.isfinite(value) for value in values
        ):
            raise ValueError(f"curves[{name!r}]; a value is no finite number; leave it out")
        if len(values) != len(curves.get("epoch", [])):
            raise ValueError(
                f"curves[{name!r}] has {len(values)} values for {len(curves.get('epoch', []))} "
                "epochs; give one per entry of curves['epoch']"
            )
