"""Training: every run of an experiment, watched, recorded, and resumed where it was left."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bunn.data import DATASETS, GraphDataset, load_dataset
from bunn.data.transforms import DiskCache
from bunn.keeping import lasting
from bunn.training.config import Config
from bunn.training.device import Device
from bunn.training.drive import Driver, can_be_stacked, in_step, is_small
from bunn.training.group import Group
from bunn.training.options import ConfigError
from bunn.training.record import RunFolder, RunFolderError
from bunn.training.run import Evaluation, Run
from bunn.training.watch import Progressed, Watcher, ignore


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
    data: GraphDataset | None = None,
    watcher: Watcher = ignore,
    tensorboard: bool = False,
    environment: dict[str, Any] | None = None,
    keep: Callable[[Run], None] | None = None,
    compile: bool = False,
    capture: bool = True,
    with_test: bool = True,
) -> list[Outcome]:
    """Trains a model for every pair of split and seed.

    Args:
        config: The experiment.
        runs: Pairs of split and seed. (default: the first split, seed 0)
        folder: Where to record it; :obj:`None` records nothing. (default: :obj:`None`)
        resume: Whether to go on in a folder that holds this experiment. (default: :obj:`False`)
        device: ``"cpu"``, ``"cuda"``, or ``"auto"`` for the best there is. (default: ``"auto"``)
        data_root: Where data lives. (default: ``$BUNN_DATA``, or the user's cache folder)
        data: The dataset of the configuration, for who has loaded it before, and trains on it
            again: what was worked out of packed graphs is known. (default: it is loaded)
        watcher: Called after every evaluation. (default: nobody watches)
        tensorboard: Whether to write events for TensorBoard into the folder. (default:
            :obj:`False`)
        environment: What to write into ``environment.json``. (default: nothing)
        keep: Called with every finished :class:`Run`, to look at its model. (default: nobody does)
        compile: Whether runs that are trained one by one go through :func:`torch.compile`: some
            seconds first, then faster steps, most of all on a GPU. (default: :obj:`False`)
        capture: Whether steps on a GPU are captured as CUDA graphs where they do the same again and
            again: for one graph, batches on the same edges, and batches of packed graphs, which are
            filled up to one size. (default: :obj:`True`)
        with_test: Whether metrics of test data are computed; who chooses among configurations does
            without, so that no choice can depend on them. (default: :obj:`True`)

    Raises:
        InterruptedRunError: After Ctrl-C, once all is saved.
    """
    if not runs or len(set(runs)) < len(runs) or any(min(pair) < 0 for pair in runs):
        raise ValueError(
            f"runs={list(runs)}; give at least one pair (split, seed), none of them negative or "
            "twice"
        )
    record = None if folder is None else RunFolder(Path(folder), environment, runs)
    if data is None:
        root = None if data_root is None else Path(data_root)
        data = load_dataset(config.dataset, root, config.data)
    elif data.name != config.dataset:
        raise ConfigError(
            f"data is {data.name}, but config.dataset={config.dataset!r}; pass the dataset of the "
            "configuration"
        )
    training = _Training(
        config, runs, device, data, watcher, record, tensorboard, keep, compile, capture, with_test
    )
    if record is None:
        return training.train()
    record.check(config, resume)  # before anything is there that was not
    with record.locked():
        record.check(config, resume)  # another process may have come first
        return training.train()


class _Training:
    def __init__(
        self,
        config: Config,
        runs: Sequence[tuple[int, int]],
        device: str,
        data: GraphDataset,
        watcher: Watcher,
        record: RunFolder | None,
        tensorboard: bool,
        keep: Callable[[Run], None] | None,
        compile: bool,
        capture: bool,
        with_test: bool,
    ) -> None:
        self.config, self.pairs, self.watcher, self.record = config, list(runs), watcher, record
        self.tensorboard = tensorboard and record is not None
        self.device = Device(device, config.training.precision)
        self.data = data
        self.reported = DATASETS[config.dataset].reported_part
        self.cache = DiskCache()
        self.keep = keep or (lambda run: None)
        self.compile, self.capture, self.with_test = compile, capture, with_test

    def train(self) -> list[Outcome]:
        outcomes = []
        with lasting(), _interruptible() as interrupted:
            for runs in self._groups():
                if self.record is not None:  # now that the runs could be built
                    self.record.describe(self.config)
                outcomes += self._train_group(runs, interrupted)
                for run in runs:
                    self.keep(run)
        return outcomes

    def _groups(self) -> Iterator[list[Run]]:
        """Runs that are trained together; one by one if they are large or their graphs differ."""
        runs = (self._run(*pair) for pair in self.pairs)  # built when they are needed
        first = next(runs)
        together = self.config.training.together
        if can_be_stacked(first) and (is_small(first) if together is None else together):
            every = [first, *runs]
            yield from [every] if in_step(every) else [[run] for run in every]
            return
        yield [first]
        for run in runs:
            yield [run]

    def _run(self, split: int, seed: int) -> Run:
        return Run(
            *(self.config, self.data, split, seed, self.device, self.reported, self.cache),
            with_test=self.with_test,
        )

    def _train_group(self, runs: list[Run], interrupted: Callable[[], bool]) -> list[Outcome]:
        group = Group(runs, self.config, self.device, self.record, self.tensorboard)
        try:
            group.restore()
            self._check_tested(runs)
            driver = Driver(runs, self.compile, self.capture)
            for run in runs:
                self._report(run)
            while active := [run for run in runs if not run.finished]:
                evaluated = [len(run.evaluations) for run in active]
                driver.train_epoch()
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
        seconds = group.seconds
        return [_outcome(run, seconds) for run in runs]

    def _check_tested(self, runs: list[Run]) -> None:
        """What was trained without a look at test data has no test metric of its best epoch."""
        untested = [run.name for run in runs if run.best and "test" not in run.best.metrics]
        if self.with_test and untested and self.record is not None:
            raise RunFolderError(
                f"{self.record.path}: {untested[0]} was trained without test metrics, for a "
                "choice among configurations; train it into another folder"
            )

    def _interruption_message(self, run: Run) -> str:
        if self.record is None:
            return f"interrupted after epoch {run.epoch}; nothing was recorded"
        return f"interrupted after epoch {run.epoch}; everything is saved in {self.record.path}"

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
                best.metrics[run.select_by],
                best.metrics.get("test", math.nan),
                run.finished,
            )
        )


def _outcome(run: Run, seconds: float) -> Outcome:
    if run.best is None:
        raise ValueError(f"{run.name} was never evaluated; lower training.eval_every")
    parameters = sum(parameter.numel() for parameter in run.model.parameters())
    return Outcome(
        run.split, run.seed, run.best, tuple(run.evaluations), run.epoch, parameters, seconds
    )


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Lets the first Ctrl-C wait for the end of an epoch; the second one stops at once.

    A second SIGTERM says nothing new: ``timeout`` sends two, to the process and to its group.
    """
    asked: list[int] = []

    def ask(number: int, frame: object) -> None:
        if asked and number == signal.SIGINT:
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
