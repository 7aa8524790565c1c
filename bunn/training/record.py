"""The folder of an experiment: what was run, with what, and everything it said."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from bunn.files import as_json, plain, write_atomically
from bunn.training.checkpoint import CheckpointError
from bunn.training.config import Config
from bunn.training.run import Evaluation, Run

try:
    import fcntl
except ImportError:  # a platform without file locks
    fcntl = None  # type: ignore[assignment]


class RunFolderError(RuntimeError):
    """A run folder that cannot be used as asked."""


class FolderInUseError(RunFolderError):
    """A run folder that another process writes to."""


class RunFolder:
    """Where an experiment is recorded.

    ::

        config.json            the exact configuration
        runs.json              the pairs of split and seed
        environment.json       versions, device, commit, command
        checkpoints/           the last checkpoint and the one before, to resume from
        split0-seed0/
            metrics.jsonl      one line per evaluation
            best.safetensors   the weights of the best epoch
            last.safetensors   the weights of the last checkpoint
        result.json            the outcome, once all runs are done

    Args:
        path: The folder.
        environment: What ``environment.json`` says. (default: nothing)
        runs: Pairs of split and seed. (default: the first split, seed 0)
    """

    def __init__(
        self,
        path: Path,
        environment: dict[str, Any] | None = None,
        runs: Sequence[tuple[int, int]] = ((0, 0),),
    ) -> None:
        self.path, self.environment = path, environment or {}
        self.runs = list(runs)

    def check(self, config: Config, resume: bool) -> None:
        """Whether the folder is new or, with ``resume``, holds the same experiment."""
        config_file = self.path / "config.json"
        try:
            known, entries = config_file.exists(), _entries(self.path)
        except OSError as error:
            raise _unwritable(self.path, error) from error
        if known:
            self._check_same(config, config_file, resume)
        elif any(not _is_draft(entry.name) for entry in entries):
            raise RunFolderError(
                f"{self.path} is not empty and holds no run; choose another folder"
            )

    def describe(self, config: Config) -> None:
        """Writes what is run, and with what, unless that is written; removes unfinished drafts."""
        contents = {
            "config.json": config.as_dict(),
            "runs.json": self.runs,
            "environment.json": plain(self.environment),
        }
        try:
            for draft in self.path.rglob(".*.tmp"):  # of a process that was killed
                draft.unlink(missing_ok=True)
            for name, content in contents.items():
                if not (self.path / name).exists():
                    write_atomically(self.path / name, as_json(content) + "\n")
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def _check_same(self, config: Config, config_file: Path, resume: bool) -> None:
        if not resume:
            raise RunFolderError(
                f"{self.path} already holds a run; resume it, or choose another folder"
            )
        before = Config.completed(_read(config_file, dict))
        changed = sorted(differences(before, config.as_dict()))
        if changed:
            raise RunFolderError(
                f"{self.path} was started with another configuration: {'; '.join(changed)}; "
                "resume with the same one, or choose another folder"
            )
        runs = runs_of(self.path)
        if runs is not None and runs != self.runs:
            raise RunFolderError(
                f"{self.path} was started with {_named(runs)}, and is now asked for "
                f"{_named(self.runs)}; resume with the same splits and seeds, or choose another "
                "folder"
            )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Creates the folder and keeps a second process out of it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / ".lock").open("a")
        except OSError as error:
            raise _unwritable(self.path, error) from error
        with lock:
            if fcntl is not None:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as error:
                    raise FolderInUseError(
                        f"{self.path} is in use by another process; wait for it, or choose another "
                        "folder"
                    ) from error
            yield

    def metrics(self, run: Run) -> MetricsFile:
        return MetricsFile(self.path / run.name / "metrics.jsonl")

    def checkpoints_of(self, runs: Sequence[Run]) -> Path:
        """One folder of checkpoints for runs that are trained together."""
        name = runs[0].name if len(runs) == 1 else f"{runs[0].name}-to-{runs[-1].name}"
        return self.path / "checkpoints" / name


def _read(path: Path, kind: type) -> Any:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} is damaged ({error}); restore it") from error
    if not isinstance(content, kind):
        raise RunFolderError(f"{path} is damaged ({content!r}); restore it")
    return content


def identity(config: Config, runs: Sequence[Run]) -> str:
    """A digest of what a checkpoint belongs to."""
    content = json.dumps([config.as_dict(), [run.name for run in runs]], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


class MetricsFile:
    """``metrics.jsonl``: a line per evaluation, the same bytes whether or not it was interrupted.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] | None = None

    def restart(self, count: int) -> list[Evaluation]:
        """Keeps the first ``count`` lines, those that the checkpoint knows of, and returns them."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = self.path.read_text().splitlines()[:count] if self.path.exists() else []
        if len(lines) < count:
            raise CheckpointError(
                f"{self.path} has {len(lines)} lines, the checkpoint knows of {count}; restore it, "
                "or train into another folder"
            )
        try:
            evaluations = [Evaluation.from_dict(json.loads(line)) for line in lines]
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{self.path} is damaged ({error}); nothing was changed: restore it, or train into "
                "another folder"
            ) from error
        write_atomically(self.path, "".join(f"{line}\n" for line in lines))
        self._file = self.path.open("a")
        return evaluations

    def append(self, evaluation: Evaluation) -> None:
        if self._file is None:
            raise ValueError("the metrics file is not open; call restart first")
        self._file.write(json.dumps(evaluation.as_dict()) + "\n")
        self._file.flush()

    def sync(self) -> None:
        """Brings what was written to the disk, before a checkpoint counts on it."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # append has said what is wrong
                self._file.close()
            self._file = None


def runs_of(path: Path) -> list[tuple[int, int]] | None:
    """The pairs of split and seed that a folder was started with, if it is one that says so."""
    file = path / "runs.json"
    if not file.is_file():
        return None
    content = _read(file, list)
    try:
        pairs = [(int(split), int(seed)) for split, seed in content]
    except (TypeError, ValueError):
        pairs = []
    if not pairs:
        raise RunFolderError(f"{file} is damaged ({content!r}); restore it")
    return pairs


def _named(runs: Sequence[tuple[int, int]]) -> str:
    """Pairs of split and seed as they are asked for."""
    splits, seeds = (list(dict.fromkeys(numbers)) for numbers in zip(*runs, strict=True))
    if list(runs) == [(split, seed) for split in splits for seed in seeds]:
        return f"splits {_listed(splits)} and seeds {_listed(seeds)}"
    return f"pairs of split and seed {_listed(runs)}"


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values))


def _entries(path: Path) -> list[Path]:
    return list(path.iterdir()) if path.is_dir() else []


def _is_draft(name: str) -> bool:
    """Whether a file can be there before ``config.json`` is."""
    return name == ".lock" or (name.startswith(".config.json.") and name.endswith(".tmp"))


def _unwritable(path: Path, error: OSError) -> RunFolderError:
    return RunFolderError(f"{path} cannot be written: {error}; choose another folder")


def differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """What is not the same in two nested mappings, an entry at a time."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            yield from differences(
                before.get(key), after.get(key), f"{path}.{key}" if path else str(key)
            )
    elif before != after:
        yield f"{path} was {before!r} and is now {after!r}"
