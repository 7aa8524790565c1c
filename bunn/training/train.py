"""Training: every run of an experiment, watched, recorded, and resumed where it was left."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bunn.data import DATASETS, GraphDataset, load_dataset
from bunn.data.transforms import DiskCache
from bunn.files import copy_atomically
from bunn.training.checkpoint import Checkpoints, Snapshot
from bunn.training.config import Config
from bunn.training.device import Device
from bunn.training.drive import can_be_stacked, is_small, train_epoch
from bunn.training.record import MetricsFile, RunFolder, RunFolderError, identity
from bunn.training.run import Evaluation, Run
from bunn.training.watch import Progressed, Watcher, ignore

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class InterruptedRunError(RuntimeError):
    """Stopped by the user, after everything was saved."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Args:
        split: The index of its split.
        seed: Its seed.
        best: The evaluation that was selected, on validation data.
        evaluations: All of them.
        epochs: The epochs that were trained.
        parameters: The number of parameters of the model.
        seconds: The time it took; runs that are trained together share theirs.
    """

    split: int
    seed: int
    best: Evaluation
    evaluations: tuple[Evaluation, ...]
    epochs: int
    parameters: int
    seconds: float


def train(
    config: Config,
    runs: Sequence[tuple[int, int]] = ((0, 0),),
    *,
    folder: str | Path | None = None,
    resume: bool = False,
    device: str = "auto",
    data_root: str | Path | None = None,
    watcher: Watcher = ignore,
    tensorboard: bool = False,
    environment: dict[str, Any] | None = None,
    keep: Callable[[Run], None] | None = None,
) -> list[Outcome]:
    """Trains a model for every pair of split and seed.

    Args:
        config: The experiment.
        runs: Pairs of split and seed. (default: the first split, seed 0)
        folder: Where to record it; :obj:`None` records nothing. (default: :obj:`None`)
        resume: Whether to go on in a folder that holds this experiment. (default: :obj:`False`)
        device: ``"cpu"``, ``"cuda"``, or ``"auto"`` for the best there is. (default: ``"auto"``)
        data_root: Where data lives. (default: ``$BUNN_DATA``, or the user's cache folder)
        watcher: Called after every evaluation. (default: nobody watches)
        tensorboard: Whether to write events for TensorBoard into the folder. (default:
            :obj:`False`)
        environment: What to write into ``environment.json``. (default: nothing)
        keep: Called with every finished :class:`Run`, to look at its model. (default: nobody does)

    Raises:
        InterruptedRunError: After Ctrl-C, once all is saved.
    """
    record = None if folder is None else RunFolder(Path(folder))
    if record is None:
        return _Training(config, runs, device, data_root, watcher, None, tensorboard, keep).train()
    with record.locked():
        record.open(config, environment or {}, resume)
        return _Training(
            config, runs, device, data_root, watcher, record, tensorboard, keep
        ).train()


class _Training:
    def __init__(
        self,
        config: Config,
        runs: Sequence[tuple[int, int]],
        device: str,
        data_root: str | Path | None,
        watcher: Watcher,
        record: RunFolder | None,
        tensorboard: bool,
        keep: Callable[[Run], None] | None,
    ) -> None:
        self.config, self.pairs, self.watcher, self.record = config, list(runs), watcher, record
        self.tensorboard = tensorboard and record is not None
        self.device = Device(device, config.training.precision)
        self.data: GraphDataset = load_dataset(
            config.dataset, None if data_root is None else Path(data_root), config.data
        )
        self.reported = DATASETS[config.dataset].reported_part
        self.cache = DiskCache()
        self.keep = keep or (lambda run: None)

    def train(self) -> list[Outcome]:
        outcomes = []
        with _interruptible() as interrupted:
            for group in self._groups():
                outcomes += self._train_group(group, interrupted)
                for run in group:
                    self.keep(run)
        return outcomes

    def _groups(self) -> Iterator[list[Run]]:
        """Runs that are trained together; one by one if they are large."""
        first = self._run(*self.pairs[0])
        together = self.config.training.together
        if together is None:
            together = is_small(first) and self.config.training.precision != "16-mixed"
        if together and can_be_stacked(first):
            yield [first, *(self._run(*pair) for pair in self.pairs[1:])]
            return
        yield [first]
        for pair in self.pairs[1:]:
            yield [self._run(*pair)]

    def _run(self, split: int, seed: int) -> Run:
        return Run(self.config, self.data, split, seed, self.device, self.reported, self.cache)

    def _train_group(self, runs: list[Run], interrupted: Callable[[], bool]) -> list[Outcome]:
        group = _Group(runs, self.config, self.device, self.record, self.tensorboard)
        try:
            group.restore()
            for run in runs:
                self._report(run)
            while active := [run for run in runs if not run.finished]:
                evaluated = [len(run.evaluations) for run in active]
                train_epoch(active)
                for run, count in zip(active, evaluated, strict=True):
                    if len(run.evaluations) > count:
                        group.note(run)
                        self._report(run)
                group.save_when_due()
                if interrupted():
                    group.save()
                    raise InterruptedRunError(self._interruption_message(runs[0]))
            group.save()
        finally:
            group.close()
        return [_outcome(run, group.seconds) for run in runs]

    def _interruption_message(self, run: Run) -> str:
        if self.record is None:
            return f"interrupted after epoch {run.epoch}; nothing was recorded"
        return (
            f"interrupted after epoch {run.epoch}; everything is saved in {self.record.path}; "
            "go on with --resume"
        )

    def _report(self, run: Run) -> None:
        if run.best is None:
            self.watcher(Progressed(run.name, run.epoch, self.config.training.epochs))
            return
        best, latest = run.best, run.evaluations[-1]
        self.watcher(
            Progressed(
                run.name,
                run.epoch,
                self.config.training.epochs,
                run.step,
                run.objective.task.metric,
                latest.loss,
                latest.metrics[run.select_by],
                latest.metrics["test"],
                best.metrics[run.select_by],
                run.finished,
            )
        )


class _Group:
    """Runs that are trained together, their files and their clock."""

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
        self.device.seed(self.runs[0].entropy)
        snapshot = None if self._checkpoints is None else self._checkpoints.load()
        for run in self.runs:
            values = None if snapshot is None else snapshot.values["runs"][run.name]
            evaluations = self._open(run, 0 if values is None else values["num_evaluations"])
            if snapshot is not None and values is not None:
                files = {
                    kind: snapshot.tensors[f"{run.name}.{kind}"]
                    for kind in ("last", "best", "optimizer")
                }
                run.unpack(files, values, evaluations)
        if snapshot is not None:
            self._seconds = snapshot.values["seconds"]
            self.device.restore(snapshot.tensors["random"], snapshot.values["precision"])
            self._saved_epoch = max(run.epoch for run in self.runs)
        self._started = time.monotonic()

    def _open(self, run: Run, count: int) -> list[Evaluation]:
        if self.record is None:
            return []
        file = self._files[run.name] = self.record.metrics(run)
        try:
            evaluations = file.restart(count)
        except OSError as error:
            raise RunFolderError(f"{file.path} cannot be written: {error}") from error
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
                raise RunFolderError(
                    f"{self._files[run.name].path} cannot be written: {error}; make room, then go "
                    "on with --resume: the last checkpoint is whole"
                ) from error
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
        if self._checkpoints is None or self.record is None or epoch == self._saved_epoch:
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
        written = self._checkpoints.save(snapshot, f"epoch-{epoch:06d}")
        self._saved_epoch = epoch
        for run in self.runs:
            for kind in ("best", "last"):
                source = written / f"{run.name}.{kind}.safetensors"
                copy_atomically(source, self.record.path / run.name / f"{kind}.safetensors")

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        for events in self._events.values():
            events.close()


def _outcome(run: Run, seconds: float) -> Outcome:
    if run.best is None:
        raise ValueError(f"{run.name} was never evaluated; lower training.eval_every")
    parameters = sum(parameter.numel() for parameter in run.model.parameters())
    return Outcome(
        run.split, run.seed, run.best, tuple(run.evaluations), run.epoch, parameters, seconds
    )


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Lets the first Ctrl-C wait for the end of an epoch; the second one stops at once."""
    asked: list[int] = []

    def ask(number: int, frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            before[number] = signal.signal(number, ask)
        except ValueError:  # not the main thread: whoever runs there minds the signals
            break
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
