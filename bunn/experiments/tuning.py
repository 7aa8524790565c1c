"""``bunn tune``: a search for the configuration that validates best.

A trial trains one configuration, run after run; its value is the mean of the best validation metric
of its runs. Test metrics are not computed; those of the configuration that is chosen are, by
:func:`bunn.experiments.evaluation.evaluate`, once the search is over.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from importlib import metadata
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from bunn.experiments.environment import environment
from bunn.experiments.evaluation import Chosen
from bunn.experiments.jobs import Job, run_jobs
from bunn.experiments.question import forget_data
from bunn.experiments.studies import (
    PRUNER,
    REPORTS,
    SAMPLER,
    Search,
    best_trials,
    bury,
    is_poor,
    open_study,
    this_process,
)
from bunn.files import as_json, plain, write_atomically
from bunn.training import (
    ConfigError,
    InterruptedRunError,
    NonFiniteLossError,
    Progressed,
    train,
)
from bunn.training.device import free_memory
from bunn.training.watch import Watcher

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

#: If as many configurations are impossible and none is possible, something else is wrong.
MOST_INVALID = 20


def add_trials(
    search: Search, trials: int, *, jobs: int, watcher: Watcher, minutes: float | None = None
) -> None:
    """Adds trials to the study of a search.

    Args:
        search: The search.
        trials: How many.
        jobs: In how many processes.
        watcher: Told when a trial is over, and of the best value so far.
        minutes: No trial starts after that time. (default: there is no hurry)

    Raises:
        InterruptedRunError: After Ctrl-C; the study keeps all trials but those under way.
    """
    study = open_study(search)
    bury(study)
    first = len(study.get_trials(deepcopy=False))
    end = None if minutes is None else time.time() + 60 * minutes
    every = [Job(f"trial {i}", run_trial, (search, first + i, end)) for i in range(trials)]
    try:
        run_jobs(every, jobs, watcher)
    finally:
        forget_data()


def run_trial(watcher: Watcher, search: Search, number: int, end: float | None) -> None:
    """Asks the study for a configuration, tries it, and tells the study.

    Args:
        watcher: Told when it is over.
        search: The search.
        number: Decides, with a seed, what is chosen.
        end: The time after which nothing is tried.
    """
    if end is not None and time.time() > end:
        return
    try:
        study = open_study(search, number)
        _try_next(study, search)
        best = best_trials(study)
    except KeyboardInterrupt as error:
        raise InterruptedRunError("a trial was interrupted") from error
    value = best[0].value if best else None
    value = math.nan if value is None else value
    watcher(Progressed("trial", 1, 1, metric=search.metric, best=value, finished=True))


def _try_next(study: Study, search: Search) -> None:
    """One trial; what comes of it is in the study, with the reason if it is no value."""
    from optuna import TrialPruned  # noqa: PLC0415
    from optuna.trial import TrialState  # noqa: PLC0415

    trial = study.ask({name: space.distribution() for name, space in search.space.items()})
    objective = _Objective(study, trial, search)
    started = time.monotonic()
    state, value, reason, invalid = TrialState.FAIL, None, "", False
    try:
        facts = environment(search.kind_of_device)
        trial.set_user_attr("device", facts["device"])
        trial.set_user_attr("git_commit", facts["git_commit"])
        trial.set_user_attr("process", this_process())
        value = objective()
        state = TrialState.COMPLETE
    except (TrialPruned, NonFiniteLossError, torch.OutOfMemoryError) as error:
        state, reason = TrialState.PRUNED, _first_line(error)
    except ValueError as error:  # options that do not go together
        state, reason, invalid = TrialState.PRUNED, _first_line(error), True
    except BaseException as error:
        stopped = isinstance(error, KeyboardInterrupt | InterruptedRunError)
        reason = "interrupted" if stopped else f"{type(error).__name__}: {_first_line(error)}"
        raise
    finally:
        trial.set_user_attr("seconds", round(time.monotonic() - started, 2))
        trial.set_user_attr("epochs", objective.epochs)
        if reason:
            trial.set_user_attr("reason", reason)
        if invalid:
            trial.set_user_attr("invalid", True)
        study.tell(trial, value, state)
    free_memory()
    if invalid:
        _stop_if_none_is_possible(study, reason)


class _Objective:
    """The value of a trial; reports to the study on the way, and gives up where it says so.

    Steps 1 to :data:`REPORTS` of a trial are equal shares of the epochs of its first run, and what
    is reported is the best validation metric so far. Every further run is a step more, at which the
    mean over all runs so far is reported.
    """

    def __init__(self, study: Study, trial: Trial, search: Search) -> None:
        self.study, self.trial, self.search = study, trial, search
        self.epochs: list[int] = []
        self._step = 0

    def __call__(self) -> float:
        search = self.search
        config = search.configuration(self.trial.params)
        best: list[float] = []
        for index, pair in enumerate(search.pairs):
            (outcome,) = train(
                config,
                [pair],
                device=search.device,
                data=search.data_for(config),
                with_test=False,
                watcher=self._watch_first if index == 0 else self._watch,
            )
            best.append(outcome.best.metrics["val"])
            self._report(REPORTS + index, fmean(best))
            if index + 1 < len(search.pairs):
                done = f"{index + 1} of {len(search.pairs)} runs"
                self._give_up_if_poor(fmean(best), done)
        return fmean(best)

    def _watch(self, progressed: Progressed) -> None:
        if progressed.epoch == 0:
            self.epochs.append(0)
        self.epochs[-1] = progressed.epoch

    def _watch_first(self, progressed: Progressed) -> None:
        self._watch(progressed)
        if math.isnan(progressed.best) or progressed.finished:
            return
        budget = self.search.config.training.epochs  # the same for all trials
        step = min(REPORTS, progressed.epoch * REPORTS // budget)
        if step > self._step:
            self._report(step, progressed.best)
            self._give_up_if_poor(progressed.best, f"epoch {progressed.epoch}")

    def _report(self, step: int, value: float) -> None:
        """Reports at ``step``, and at those before that were passed over, by an early end say."""
        from optuna import TrialPruned  # noqa: PLC0415

        if not math.isfinite(value):
            raise TrialPruned(f"the validation {self.search.metric} is {value}")
        for passed in range(self._step + 1, step + 1):
            self.trial.report(value, passed)
        self._step = step

    def _give_up_if_poor(self, value: float, done: str) -> None:
        from optuna import TrialPruned  # noqa: PLC0415

        if is_poor(self.study, self.trial, self._step, value):
            raise TrialPruned(f"worse than the median after {done}: {value:.6g}")


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _stop_if_none_is_possible(study: Study, reason: str) -> None:
    from optuna.trial import TrialState  # noqa: PLC0415

    tried = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    if len(tried) >= MOST_INVALID and all("invalid" in trial.user_attrs for trial in tried):
        raise ConfigError(
            f"none of the first {len(tried)} configurations was possible; the last: {reason}; "
            "change --search or --set"
        )


def counts(study: Study) -> Counter[str]:
    """How many trials are complete, pruned, impossible, failed or under way."""
    return Counter(_state(trial) for trial in study.get_trials(deepcopy=False))


def configurations_tried(study: Study) -> int:
    """How many configurations were trained, to the end or until they were given up."""
    found = counts(study)
    return found["complete"] + found["pruned"]


def reasons(study: Study) -> list[str]:
    """Why trials have no value, but for those that others were better than; each reason once."""
    found = [
        str(trial.user_attrs["reason"])
        for trial in study.get_trials(deepcopy=False)
        if _state(trial) in ("impossible", "failed") and "reason" in trial.user_attrs
    ]
    return list(dict.fromkeys(found))


def chosen(search: Search, study: Study) -> Chosen | None:
    """The best of a study, if any trial is complete."""
    best = best_trials(study)
    if not best:
        return None
    return Chosen(best[0].params, best[0].number, configurations_tried(study))


def check_file(search: Search, study: Study, results: Path) -> None:
    """Raises an error if the file of a study has trials that the study has not: they would be lost.

    A study is kept apart from its file, perhaps on another machine.
    """
    path = search.file(results)
    if not path.is_file():
        return
    known = {trial.number: plain(trial.params) for trial in study.get_trials(deepcopy=False)}
    try:
        rows = json.loads(path.read_text())["trials"]
        lost = sum(known.get(row["number"]) != row["params"] for row in rows)
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigError(
            f"{path} is not one that bunn tune wrote; move it, or name another study with --study, "
            "or another folder with --results"
        ) from error
    if lost:
        raise ConfigError(
            f"{path} holds {lost} trials that are not in {search.storage} and would be lost; name "
            "another study with --study, or another folder with --results"
        )


def write_trials(search: Search, study: Study, results: Path, command: str) -> Path:
    """Writes all that was tried to ``<experiment>/tuning/<study>.json`` below ``results``."""
    check_file(search, study, results)
    facts = environment(search.kind_of_device)
    best = best_trials(study)
    content = {
        "study": search.study,
        **search.described(),
        "metric": search.metric,
        "objective": "mean over splits and seeds of the best validation metric",
        "smaller_is_better": search.smaller_is_better,
        "sampler": {"name": "TPESampler", **SAMPLER, "seed": search.sampler_seed},
        "pruner": {"name": "MedianPruner", **PRUNER, "reports_of_the_first_run": REPORTS},
        "command": command,
        "versions": {**facts["versions"], "optuna": metadata.version("optuna")},
        "best": best[0].number if best else None,
        "trials": [_row(trial) for trial in study.get_trials(deepcopy=False)],
    }
    path = search.file(results)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, as_json(plain(content)) + "\n")
    return path


def _state(trial: FrozenTrial) -> str:
    if "invalid" in trial.user_attrs:
        return "impossible"
    names = {"FAIL": "failed", "RUNNING": "under way"}
    return names.get(trial.state.name, trial.state.name.lower())


def _row(trial: FrozenTrial) -> dict[str, Any]:
    """A trial in plain words; a value is that of all its runs, so only complete ones have it."""
    state = _state(trial)
    lost = "its process was gone" if state == "failed" else None
    return {
        "number": trial.number,
        "state": state,
        "value": trial.value if state == "complete" else None,
        "params": trial.params,
        "epochs": trial.user_attrs.get("epochs", []),
        "seconds": trial.user_attrs.get("seconds"),
        "device": trial.user_attrs.get("device"),
        "git_commit": trial.user_attrs.get("git_commit"),
        "reason": trial.user_attrs.get("reason", lost),
    }
