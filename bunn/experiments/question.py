"""What a search asks: which configurations, judged by which runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from bunn.data import DATASETS, GraphDataset, heterophilous, load_dataset
from bunn.experiments import lrgb
from bunn.experiments.spaces import settings
from bunn.training import Config, ConfigError
from bunn.training.objective import ERRORS


@dataclass(frozen=True, kw_only=True)
class Question:
    """Which configuration validates best.

    Args:
        config: What all configurations share, and the rest before it is chosen.
        splits: The splits that a configuration is trained on.
        seeds: The seeds of every split.
        study: The name of all that is tried.
        device: ``"cpu"``, ``"cuda"`` or ``"auto"``. (default: ``"auto"``)
        data_root: Where data lives. (default: as :func:`bunn.data.data_root` has it)
    """

    config: Config
    splits: tuple[int, ...]
    seeds: tuple[int, ...]
    study: str
    device: str = "auto"
    data_root: Path | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\w[\w.-]*", self.study, re.ASCII):
            raise ConfigError(
                f"--study {self.study!r} names a file, too; use letters, digits, '-', '_' and '.'"
            )
        if DATASETS[self.config.dataset].reported_part == "train":
            raise ConfigError(
                f"{self.config.dataset} is judged by its training data; a search looks at "
                "validation data: choose another dataset"
            )

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Of split and seed."""
        return [(split, seed) for split in self.splits for seed in self.seeds]

    @property
    def metric(self) -> str:
        return DATASETS[self.config.dataset].task.metric

    @property
    def smaller_is_better(self) -> bool:
        return self.metric in ERRORS

    @property
    def kind_of_device(self) -> str:
        return "cuda" if self.device != "cpu" and torch.cuda.is_available() else "cpu"

    def configuration(self, params: dict[str, Any]) -> Config:
        """The configuration with what was chosen."""
        return self.config.override(settings(params))

    def final_runs(self, num_splits: int | None) -> list[tuple[int, int]]:
        """The runs by which the configuration that is chosen is judged in the end: all splits, or
        as many seeds as the benchmark has; where neither is given, those of the question."""
        if experiment_of(self.config.dataset) == lrgb.EXPERIMENT:
            return [(0, seed) for seed in range(lrgb.SEEDS)]
        splits = self.splits if num_splits is None else range(num_splits)
        return [(split, self.seeds[0]) for split in splits]

    def described(self) -> dict[str, Any]:
        """What everybody who goes on with it must agree on, as plain values."""
        return {
            "dataset": self.config.dataset,
            "model": self.config.architecture,
            "splits": list(self.splits),
            "seeds": list(self.seeds),
            "base": self.config.as_dict(),
        }

    def file(self, results: Path) -> Path:
        """Where all that was tried is written, below ``results``."""
        folder = results / experiment_of(self.config.dataset) / "tuning"
        return folder / f"{self.study}.json"

    def data_for(self, config: Config) -> GraphDataset:
        """The data of a configuration, and what is known of its graphs, for as long as no other
        is asked for."""
        return _load(config.dataset, self.data_root, config.data)


def experiment_of(dataset: str) -> str:
    """What results on a dataset belong to."""
    if dataset in {spec.name for spec in heterophilous.SPECS}:
        return "heterophilous"
    return lrgb.EXPERIMENT if dataset in lrgb.THREE else "train"


@lru_cache(maxsize=1)
def _load(dataset: str, root: Path | None, options: Any) -> GraphDataset:
    return load_dataset(dataset, root, options)


def forget_data() -> None:
    """Gives back what :meth:`Question.data_for` keeps."""
    _load.cache_clear()
