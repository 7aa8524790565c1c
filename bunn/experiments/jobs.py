"""Several trainings at once: one process each, one display for all.

A training of small graphs uses one core; jobs are dealt out to as many processes as there are
workers. Every process reports to the display of the first one, saves what it has on Ctrl-C, and
ends when the first one is gone.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch

from bunn.training import InterruptedRunError, Progressed
from bunn.training.watch import Watcher

#: Seconds between two reports of a job.
REPORT_EVERY = 0.5


@dataclass(frozen=True)
class Job:
    """Something to do in another process.

    Args:
        name: What the display calls it.
        work: A function of the module level, called with a watcher and ``arguments``.
        arguments: Anything that can be pickled.
    """

    name: str
    work: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


class MeanWatcher:
    """Reports the runs of a job as one, with the means of their numbers, not too often.

    Args:
        name: Of the job.
        watcher: Who is told.
    """

    def __init__(self, name: str, watcher: Watcher) -> None:
        self.name, self.watcher = name, watcher
        self._latest: dict[str, Progressed] = {}
        self._reported = 0.0

    def __call__(self, progressed: Progressed) -> None:
        self._latest[progressed.run] = progressed
        runs = self._latest.values()
        done = all(run.finished for run in runs)
        now = time.monotonic()
        if not done and now - self._reported < REPORT_EVERY:
            return
        self._reported = now
        self.watcher(
            replace(
                progressed,
                run=self.name,
                epoch=min(run.epoch for run in runs),
                loss=fmean(run.loss for run in runs),
                val=fmean(run.val for run in runs),
                test=fmean(run.test for run in runs),
                best=fmean(run.best for run in runs),
                finished=done,
            )
        )


def run_jobs(jobs: Sequence[Job], workers: int, watcher: Watcher) -> list[Any]:
    """Does all jobs and returns what they return, in their order.

    Args:
        jobs: The jobs.
        workers: How many processes; with one, everything happens in this one.
        watcher: Told of every job's progress.

    Raises:
        InterruptedRunError: After Ctrl-C, once every process has saved its work.
    """
    if workers <= 1 or len(jobs) <= 1:
        return [job.work(MeanWatcher(job.name, watcher), *job.arguments) for job in jobs]
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        reports = manager.Queue()
        executor = ProcessPoolExecutor(
            min(workers, len(jobs)), context, initializer=_start, initargs=(os.getpid(),)
        )
        with executor, _forwarding(executor) as stopped:
            futures = [executor.submit(_work, job, reports) for job in jobs]
            _watch(futures, reports, watcher, stopped)
            return [future.result() for future in futures]


def _watch(
    futures: list[Future[Any]],
    reports: queue.Queue[Progressed],
    watcher: Watcher,
    stopped: Callable[[], bool],
) -> None:
    """Passes reports on until all is done; at the first error, lets nothing new start."""
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=0.1)
        while not reports.empty():
            watcher(reports.get())
        failed = any(not future.cancelled() and future.exception() for future in done)
        if failed or stopped():
            for future in pending:
                future.cancel()
            pending = {future for future in pending if not future.cancelled()}
    errors = [future.exception() for future in futures if not future.cancelled()]
    for error in errors:
        if error is not None and not isinstance(error, InterruptedRunError):
            raise error
    if stopped():
        raise InterruptedRunError("interrupted; what was done is saved: run the same command again")


class _forwarding:  # noqa: N801
    """While it lasts, Ctrl-C is passed on to the processes of a pool, once."""

    def __init__(self, executor: ProcessPoolExecutor) -> None:
        self._executor = executor
        self._asked = 0
        self._before: Any = None

    def __enter__(self) -> Callable[[], bool]:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._forward)
        return lambda: self._asked > 0

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _forward(self, number: int, frame: object) -> None:
        self._asked += 1
        for process in list((self._executor._processes or {}).values()):
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, signal.SIGINT)


def _start(parent: int) -> None:
    """A worker: one thread, deaf to the terminal's Ctrl-C, and gone when its parent is."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # between jobs; a training minds it
    if hasattr(os, "setsid"):
        os.setsid()

    def follow() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _work(job: Job, reports: queue.Queue[Progressed]) -> Any:
    return job.work(MeanWatcher(job.name, reports.put), *job.arguments)
