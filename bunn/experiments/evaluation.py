"""The last step of a search: what was chosen is trained once more, and tested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bunn.experiments.measure import measure
from bunn.experiments.question import Question, experiment_of
from bunn.experiments.results import Result
from bunn.training import Config, ConfigError
from bunn.training.watch import Watcher


@dataclass(frozen=True)
class Chosen:
    """The configuration that validates best.

    Args:
        params: What was chosen, by option.
        trial: Its number.
        tried: How many configurations were.
    """

    params: dict[str, Any]
    trial: int
    tried: int


def evaluate(
    question: Question,
    chosen: Chosen | None,
    pairs: Sequence[tuple[int, int]],
    *,
    command: str,
    runs: Path,
    results: Path,
    watcher: Watcher,
) -> Result:
    """Trains the chosen configuration on all ``pairs``, and looks at their test metrics.

    Args:
        question: What was asked.
        chosen: The answer, if there is one.
        pairs: Of split and seed.
        command: What was typed.
        runs: Where the runs are recorded; the same call goes on there.
        results: Where the result will go; a result of another configuration is not replaced.
        watcher: Told of the runs.
    """
    if chosen is None:
        raise ConfigError("no trial is complete, so there is nothing to evaluate; add some first")
    config = question.configuration(chosen.params)
    _check_not_another(results, config)
    result = measure(
        config,
        pairs,
        experiment=experiment_of(config.dataset),
        preset="tuned",
        command=command,
        folder=runs / "tune" / f"{question.study}-trial{chosen.trial}",
        watcher=watcher,
        device=question.device,
        data=question.data_for(config),
    )
    found = {"configurations_tried": chosen.tried, "study": question.study}
    return replace(result, extra={**result.extra, **found})


def _check_not_another(results: Path, config: Config) -> None:
    name = f"{config.dataset}-{config.architecture}-tuned.json"
    path = results / experiment_of(config.dataset) / name
    if path.is_file() and Config.completed(Result.read(path).options) != config.as_dict():
        raise ConfigError(
            f"{path} is the result of another configuration, which was tested before; move it "
            "away to test this one (what was tried is kept)"
        )
