"""Runs that are trained together, or one: their files and their clock."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from bunn.files import copy_atomically
from bunn.training.checkpoint import Checkpoints, Snapshot
from bunn.training.config import Config
from bunn.training.device import Device
from bunn.training.record import MetricsFile, RunFolder, RunFolderError, identity
from bunn.training.run import Evaluation, Run

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class Group:
    """Runs that share their steps and their checkpoints.

    Args:
        runs: One run, or several that are trained together.
        config: Their experiment.
        device: Where they run.
        record: Where they are recorded, if anywhere.
        tensorboard: Whether to write events for TensorBoard too.
    """

    def __init__(
        self,
        runs: list[Run],
        config: Config,
        device: Device,
        record: RunFolder | None,
        tensorboard: bool,
    ) -> None:
        self.runs, self.config, self.device, self.record = runs, config, device, record
        self.tensorboard = tensorboard
        self._seconds, self._started = 0.0, time.monotonic()
        self._saved_at, self._saved_epoch = time.monotonic(), -1
        self._files: dict[str, MetricsFile] = {}
        self._events: dict[str, SummaryWriter] = {}
        self._checkpoints: Checkpoints | None = None
        if record is not None:
            self._checkpoints = Checkpoints(record.checkpoints_of(runs), identity(config, runs))

    @property
    def seconds(self) -> float:
        return self._seconds + time.monotonic() - self._started

    def restore(self) -> None:
        """Goes back to the last checkpoint, or to the start."""
        self.device.start(self.runs[0].entropy)
        snapshot = None if self._checkpoints is None else self._checkpoints.load()
        for run in self.runs:
            values = None if snapshot is None else snapshot.values["runs"][run.name]
            evaluations = self._open(run, 0 if values is None else values["num_evaluations"])
            if snapshot is not None and values is not None:
                files = {kind: snapshot.tensors[f"{run.name}.{kind}"] for kind in run.files}
                run.unpack(files, values, evaluations)
        if snapshot is not None:
            self._seconds = snapshot.values["seconds"]
            self.device.restore(snapshot.tensors["random"], snapshot.values["precision"])
            self._saved_epoch = max(run.epoch for run in self.runs)
            self._export()  # which a kill may have come before
        self._started = time.monotonic()

    def _open(self, run: Run, count: int) -> list[Evaluation]:
        if self.record is None:
            return []
        file = self._files[run.name] = self.record.metrics(run)
        try:
            evaluations = file.restart(count)
        except OSError as error:
            raise _unwritable(file.path, error) from error
        if self.tensorboard:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415

            folder = self.record.path / "tensorboard" / run.name
            last = evaluations[-1].epoch if evaluations else 0
            self._events[run.name] = SummaryWriter(str(folder), purge_step=last + 1)
        return evaluations

    def note(self, run: Run) -> None:
        """Writes the latest evaluation down."""
        latest = run.evaluations[-1]
        if run.name in self._files:
            try:
                self._files[run.name].append(latest)
            except OSError as error:
                raise _unwritable(self._files[run.name].path, error) from error
        if run.name in self._events:
            scalars = {"loss": latest.loss, "lr": latest.lr, **latest.metrics}
            for name, value in scalars.items():
                self._events[run.name].add_scalar(name, value, latest.epoch)

    def save_when_due(self) -> None:
        if time.monotonic() - self._saved_at >= self.config.training.checkpoint_seconds:
            self.save()

    def save(self) -> None:
        """Writes a checkpoint of all runs, unless there is one of this epoch."""
        epoch = max(run.epoch for run in self.runs)
        self._saved_at = time.monotonic()
        if self._checkpoints is None or epoch == self._saved_epoch:
            return
        for file in self._files.values():
            file.sync()
        tensors, values = {"random": self.device.random_state()}, {}
        for run in self.runs:
            files, values[run.name] = run.pack()
            tensors |= {f"{run.name}.{kind}": content for kind, content in files.items()}
        snapshot = Snapshot(
            tensors,
            {"runs": values, "seconds": self.seconds, "precision": self.device.precision_state()},
        )
        self._checkpoints.save(snapshot, f"epoch-{epoch:06d}")
        self._saved_epoch = epoch
        self._export()

    def _export(self) -> None:
        """Puts the weights of the checkpoint where people look for them."""
        folder = None if self._checkpoints is None else self._checkpoints.folder_of_last()
        if folder is None or self.record is None:
            return
        for run in self.runs:
            for kind in ("last",) if run.best is None else ("best", "last"):
                path = self.record.path / run.name / f"{kind}.safetensors"
                try:
                    copy_atomically(folder / f"{run.name}.{kind}.safetensors", path)
                except OSError as error:
                    raise _unwritable(path, error) from error

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        for events in self._events.values():
            events.close()


def _unwritable(path: Path, error: OSError) -> RunFolderError:
    return RunFolderError(
        f"{path} cannot be written: {error}; make room or make the folder writable, then "
        "resume: the last checkpoint, if there is one, is whole"
    )
