"""Optuna's studies: where they are kept, how they choose and prune, what they remember.

A study in a file or a database can be joined by any number of processes and machines. It remembers
what is searched, so that nobody joins it with another question.
"""

from __future__ import annotations

import copy
import functools
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bunn.experiments.question import Question
from bunn.experiments.spaces import Space
from bunn.training import Config, ConfigError
from bunn.training.record import differences

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.storages import BaseStorage
    from optuna.storages.journal import JournalFileSymlinkLock
    from optuna.trial import FrozenTrial

#: A trial's first run is compared with those of others as often, at equal shares of its epochs.
REPORTS = 20
#: How configurations are chosen: ten at random, then by what came of those before. Those that are
#: being tried count as bad, so that several processes do not all try the same.
SAMPLER: dict[str, Any] = {"n_startup_trials": 10, "multivariate": True, "constant_liar": True}
#: When a trial is given up: where it is worse than the median of the complete ones, once there are
#: five, after a fifth of the epochs.
PRUNER: dict[str, Any] = {"n_startup_trials": 5, "n_warmup_steps": REPORTS // 5}


@dataclass(frozen=True, kw_only=True)
class Search(Question):
    """What is searched, and where it is kept.

    Args:
        space: What may be chosen, by option.
        storage: The file or the database of the study.
        sampler_seed: Of what is chosen. (default: another one every time)
    """

    space: dict[str, Space]
    storage: str
    sampler_seed: int | None = None

    def __post_init__(self) -> None:
        if not self.space:
            raise ConfigError(
                "there is nothing to search; say what: --search model.num_layers=1..8"
            )
        super().__post_init__()

    def described(self) -> dict[str, Any]:
        space = {name: str(space) for name, space in self.space.items()}
        return {**super().described(), "space": space}


def open_study(search: Search, number: int = 0) -> Study:
    """The study of a search; a new one if there is none.

    Args:
        search: The search.
        number: Of the configuration that will be chosen next: with a seed, it decides what is.

    Raises:
        ConfigError: The study is one of another search, or cannot be opened.
    """
    import optuna  # noqa: PLC0415

    with _quiet(), _opening(search.storage):
        study = optuna.create_study(
            storage=_storage(search.storage),
            study_name=search.study,
            sampler=optuna.samplers.TPESampler(seed=_seed(search, number), **SAMPLER),
            pruner=optuna.pruners.MedianPruner(**PRUNER),
            direction="minimize" if search.smaller_is_better else "maximize",
            load_if_exists=True,
        )
        if "search" not in study.user_attrs:
            study.set_user_attr("search", search.described())
        before = study.user_attrs["search"]
        before = {**before, "base": Config.completed(before["base"])}
    if changed := sorted(differences(before, search.described())):
        raise ConfigError(
            f"the study {search.study!r} in {search.storage} was started with another search: "
            f"{'; '.join(changed)}; search as it does, or name another with --study"
        )
    return study


#: Seconds in which a trial has named its process.
NAMELESS = 60.0


def bury(study: Study) -> None:
    """Counts trials as failed that were under way in processes of this machine that are gone."""
    from optuna.trial import TrialState  # noqa: PLC0415

    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        host, process = trial.user_attrs.get("process", ("", 0))
        gone = host == socket.gethostname() and not _is_alive(process)
        started = trial.datetime_start or datetime.now()
        nameless = not host and (datetime.now() - started).total_seconds() > NAMELESS
        if gone or nameless:
            with suppress(RuntimeError):  # another process did the same
                study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)


def best_trials(study: Study) -> list[FrozenTrial]:
    """The complete trials, the best first."""
    from optuna.study import StudyDirection  # noqa: PLC0415
    from optuna.trial import TrialState  # noqa: PLC0415

    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    sign = 1 if study.direction == StudyDirection.MINIMIZE else -1
    return sorted(complete, key=lambda trial: (sign * (trial.value or 0.0), trial.number))


def is_poor(study: Study, trial: Trial, step: int, value: float) -> bool:
    """Whether ``value`` at ``step`` is one to give up at.

    Optuna's pruners compare the best of all steps; a mean over several runs may well be worse than
    the first of them, so here they are shown the last step alone.
    """
    latest = copy.copy(study.get_trials(deepcopy=False)[trial.number])
    latest.intermediate_values = {step: value}
    return study.pruner.prune(study, latest)


def this_process() -> list[Any]:
    """What :func:`bury` knows a process by."""
    return [socket.gethostname(), os.getpid()]


def _is_alive(process: int) -> bool:
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _seed(search: Search, number: int) -> int | None:
    """Another one for every trial, or all processes, and all later calls, would try the same."""
    if search.sampler_seed is None:
        return None
    return int(np.random.SeedSequence((search.sampler_seed, number)).generate_state(1)[0])


@functools.cache
def _storage(place: str) -> BaseStorage:
    """A database if it is a URL, else a journal: a file to which every process appends."""
    from optuna.storages import JournalStorage, RDBStorage  # noqa: PLC0415
    from optuna.storages.journal import JournalFileBackend  # noqa: PLC0415

    if "://" in place:
        return RDBStorage(place)
    path = Path(place).absolute()  # its lock is a link to it
    path.parent.mkdir(parents=True, exist_ok=True)
    _mend(path)
    return JournalStorage(JournalFileBackend(str(path), _lock(path)))


def _lock(path: Path) -> JournalFileSymlinkLock:
    """Optuna's lock of a journal, which can be interrupted at any time.

    Where Ctrl-C comes while it is released, it looks for a file that is not there, and what is
    raised is that.
    """
    from optuna.storages.journal import JournalFileSymlinkLock  # noqa: PLC0415

    class Lock(JournalFileSymlinkLock):
        def release(self) -> None:
            try:
                super().release()
            except FileNotFoundError as error:
                with suppress(RuntimeError):  # it may be released by now
                    super().release()
                raise (error.__context__ or error) from None

    return Lock(str(path))


def _mend(path: Path) -> None:
    """Takes away the line that somebody was kept from writing to its end, by a full disk say."""
    if not path.is_file() or path.read_bytes()[-1:] in (b"", b"\n"):
        return
    lock = _lock(path)
    lock.acquire()
    try:
        content = path.read_bytes()  # again: it may have been finished meanwhile
        if content.startswith(b"{"):
            os.truncate(path, content.rfind(b"\n") + 1)
    finally:
        lock.release()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what Optuna logs, and says of interfaces that may change."""
    import optuna  # noqa: PLC0415

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


@contextmanager
def _opening(place: str) -> Iterator[None]:
    """Says what could not be opened, whatever Optuna's storages raise then."""
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415

    try:
        yield
    except (SQLAlchemyError, ImportError, ValueError, LookupError, TypeError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"--storage {place} holds no studies and cannot ({reason}); name a file that is new or "
            "a journal, or the URL of a database, such as sqlite:///studies.db"
        ) from error
