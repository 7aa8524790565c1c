"""Watching runs: what happened to which run, and a live display of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
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
        test: The metric on the test part, at the last evaluation.
        best: The best ``val`` so far.
        finished: Whether it ended.
    """

    run: str
    epoch: int
    epochs: int
    step: int = 0
    metric: str = ""
    loss: float = math.nan
    val: float = math.nan
    test: float = math.nan
    best: float = math.nan
    finished: bool = False


Watcher = Callable[[Progressed], None]


def ignore(progressed: Progressed) -> None:
    """Watches nothing."""


class LiveDisplay:
    """A line for every run: a bar, step, loss, metrics, best so far, time left.

    Where there is no terminal, a line is printed whenever a run ends.

    Args:
        console: Where to draw.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._tasks: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
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

    def __call__(self, progressed: Progressed) -> None:
        state = _state(progressed)
        if not self.console.is_terminal:
            if progressed.finished:
                self.console.print(f"{progressed.run}: {state}", markup=False, highlight=False)
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


def _state(progressed: Progressed) -> str:
    if math.isnan(progressed.loss):
        return "done" if progressed.finished else ""
    return (
        f"step {progressed.step}  loss {progressed.loss:.4g}  {progressed.metric} "
        f"{progressed.val:.4f} (best {progressed.best:.4f}, test {progressed.test:.4f})"
    )
