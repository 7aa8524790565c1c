"""Watching runs: what happened to which run, and a live display of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


@dataclass(frozen=True)
class Progressed:
    """How far a run is.

    Args:
        run: Its name.
        epoch: Epochs done.
        epochs: Epochs in all.
        step: Optimiser steps done.
        metric: The name of the metric.
        loss: The mean training loss of the last evaluated epoch.
        val: The metric it is selected by, at the last evaluation.
        best: The best ``val`` so far.
        test: The metric on the test part, of the model that was best; no number where test data are
            left alone.
        finished: Whether it ended.
    """

    run: str
    epoch: int
    epochs: int
    step: int = 0
    metric: str = ""
    loss: float = math.nan
    val: float = math.nan
    best: float = math.nan
    test: float = math.nan
    finished: bool = False


Watcher = Callable[[Progressed], None]


def ignore(progressed: Progressed) -> None:
    """Watches nothing."""


class Display:
    """Bars that are drawn while it is entered, where there is a terminal.

    Args:
        console: Where to draw.
        columns: What a line shows before the time that passed and the time that is left.
    """

    def __init__(self, console: Console, *columns: ProgressColumn) -> None:
        self.console = console
        self._progress = Progress(
            *columns,
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()


class LiveDisplay(Display):
    """A line for every run: a bar, step, loss, metrics, best so far, time left.

    Where there is no terminal, a line is printed when a run ends, and now and then before.

    Args:
        console: Where to draw.
        every: Seconds between two lines about a run where there is no terminal. (default: ``30.0``)
    """

    def __init__(self, console: Console, every: float = 30.0) -> None:
        super().__init__(
            console,
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
        )
        self.every = every
        self._printed: dict[str, float] = {}
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, progressed: Progressed) -> None:
        state = _state(progressed)
        if not self.console.is_terminal:
            self._print(progressed, state)
            return
        if progressed.run not in self._tasks:
            self._tasks[progressed.run] = self._progress.add_task(
                progressed.run, total=progressed.epochs, state=""
            )
        self._progress.update(
            self._tasks[progressed.run],
            completed=progressed.epochs if progressed.finished else progressed.epoch,
            state=state,
        )

    def _print(self, progressed: Progressed, state: str) -> None:
        now = time.monotonic()
        last = self._printed.setdefault(progressed.run, now)
        if not progressed.finished and now - last < self.every:
            return
        self._printed[progressed.run] = now
        epoch = f"epoch {progressed.epoch}/{progressed.epochs}"
        line = f"{progressed.run}: {epoch}  {state}".rstrip()
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


class SearchDisplay(Display):
    """A bar of trials and the best value so far; where there is no terminal, a line per trial.

    Args:
        console: Where to draw.
        trials: How many there will be.
    """

    def __init__(self, console: Console, trials: int) -> None:
        super().__init__(
            console,
            TextColumn("trials"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
        )
        self.trials, self.done = trials, 0
        self._task = self._progress.add_task("", total=trials)

    def __call__(self, progressed: Progressed) -> None:
        """A trial is over."""
        self.done += 1
        best = "none is complete"
        if not math.isnan(progressed.best):
            best = f"best validation {progressed.metric} {progressed.best:.4f}"
        self._progress.update(self._task, completed=self.done, description=best)
        if not self.console.is_terminal:
            line = f"{self.done} of {self.trials} trials, {best}"
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)


def _state(progressed: Progressed) -> str:
    if math.isnan(progressed.loss):
        return "done" if progressed.finished else ""
    tested = "" if math.isnan(progressed.test) else f" (test {progressed.test:.4f})"
    return (
        f"step {progressed.step}  loss {progressed.loss:.4g}  {progressed.metric} "
        f"{progressed.val:.4f}, best {progressed.best:.4f}{tested}"
    )
