"""Several trainings at once: one process each, one display for all.

A training of small graphs uses one core; jobs are dealt out to as many processes as there are
workers. Every process reports to the display of the first one, saves what it has on Ctrl-C, and
ends when the first one is gone.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.queues import SimpleQueue
from statistics import fmean
from typing import Any

import torch

from bunn.training import InterruptedRunError, Progressed
from bunn.training.watch import Watcher

#: Seconds between two reports of a job.
REPORT_EVERY = 0.5

_INTERRUPTED = "interrupted; what was done is saved: run the same command again to go on"


@dataclass(frozen=True)
class Job:
    """Something to do in another process.

    Args:
        name: What the display calls it.
        work: A function of the module level, called with a watcher and ``arguments``.
        arguments: Anything that can be pickled.
        runs: How many trainings it is, if they come one after the other.
    """

    name: str
    work: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    runs: int = 1


class MeanWatcher:
    """Reports the runs of a job as one, with the means of their numbers, not too often.

    Args:
        name: Of the job.
        watcher: Who is told.
        count: How many runs there will be at least. (default: ``1``)
    """

    def __init__(self, name: str, watcher: Watcher, count: int = 1) -> None:
        self.name, self.watcher, self.count = name, watcher, count
        self._latest: dict[str, Progressed] = {}
        self._reported = 0.0

    def __call__(self, progressed: Progressed) -> None:
        self._latest[progressed.run] = progressed
        runs = self._latest.values()
        count = max(self.count, len(runs))
        done = len(runs) == count and all(run.finished for run in runs)
        now = time.monotonic()
        if not done and now - self._reported < REPORT_EVERY:
            return
        self._reported = now
        self.watcher(
            replace(
                progressed,
                run=self.name,
                epoch=sum(run.epochs if run.finished else run.epoch for run in runs) // count,
                loss=fmean(run.loss for run in runs),
                val=fmean(run.val for run in runs),
                test=fmean(run.test for run in runs),
                best=fmean(run.best for run in runs),
                finished=done,
            )
        )


def default_workers(device: str) -> int:
    """A process per core; one on a GPU, which it fills alone."""
    return 1 if device != "cpu" and torch.cuda.is_available() else os.cpu_count() or 1


def run_jobs(jobs: Sequence[Job], workers: int, watcher: Watcher) -> list[Any]:
    """Does all jobs and returns what they return, in their order.

    At the first error nothing new starts and what is under way is saved; then the error is raised
    as the job raised it.

    Args:
        jobs: The jobs.
        workers: How many processes; with one, everything happens in this one.
        watcher: Told of every job's progress.

    Raises:
        InterruptedRunError: After Ctrl-C, once every process has saved its work.
        ChildProcessError: A process was killed.
    """
    if workers <= 1 or len(jobs) <= 1:
        return _run_here(jobs, watcher)
    context = multiprocessing.get_context("spawn")
    line = _Line(os.getpid(), context.SimpleQueue(), context.RawValue(ctypes.c_bool, False))
    executor = ProcessPoolExecutor(
        min(workers, len(jobs)), context, initializer=_start, initargs=(line,)
    )
    with executor, _counted_interrupts() as asked:
        with _born_deaf():
            futures = [executor.submit(_work, job) for job in jobs]
            # The pool would not notice the death of the process it started last, until it wakes.
            executor.submit(int)
        _watch(executor, futures, line, watcher, asked)
        return _results(futures)


def _run_here(jobs: Sequence[Job], watcher: Watcher) -> list[Any]:
    try:
        return [job.work(MeanWatcher(job.name, watcher, job.runs), *job.arguments) for job in jobs]
    except InterruptedRunError as error:
        raise InterruptedRunError(_INTERRUPTED) from error


@dataclass(frozen=True)
class _Line:
    """Between the first process and its workers.

    Args:
        parent: The first process.
        reports: What the workers tell it.
        stop: Set when no job should start any more.
    """

    parent: int
    reports: SimpleQueue[Progressed]
    stop: Any


def _watch(
    executor: ProcessPoolExecutor,
    futures: list[Future[Any]],
    line: _Line,
    watcher: Watcher,
    asked: Callable[[], int],
) -> None:
    """Passes reports on until all is done, and Ctrl-C (or an error) on to the workers."""
    pending, told = set(futures), 0
    try:
        while pending:
            done, pending = wait(pending, timeout=0.1)
            while not line.reports.empty():
                watcher(line.reports.get())
            failed = any(not future.cancelled() and future.exception() for future in done)
            line.stop.value |= failed or asked() > 0
            if (wanted := max(asked(), int(line.stop.value))) > told:
                told = wanted
                _interrupt(executor, pending)
    finally:
        if pending:  # the watcher failed
            line.stop.value = True
            _interrupt(executor, pending)


def _interrupt(executor: ProcessPoolExecutor, pending: set[Future[Any]]) -> None:
    """Cancels what has not started; the first time, what is under way is saved."""
    for future in pending:
        future.cancel()
    for pid in list(executor._processes or {}):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)


def _results(futures: list[Future[Any]]) -> list[Any]:
    """What the jobs returned; or the first error, if possible one that is no interruption."""
    errors = [future.exception() for future in futures if not future.cancelled()]
    raised = [error for error in errors if error is not None]
    for error in raised:
        if isinstance(error, BrokenProcessPool):
            raise ChildProcessError(
                "a process was killed, perhaps for want of memory; what was done is saved: run the "
                "same command again, with fewer --jobs"
            ) from error
        if not isinstance(error, InterruptedRunError):
            raise error
    if raised or any(future.cancelled() for future in futures):
        raise InterruptedRunError(_INTERRUPTED)
    return [future.result() for future in futures]


@contextmanager
def _counted_interrupts() -> Iterator[Callable[[], int]]:
    """While it lasts, every Ctrl-C is counted, and SIGTERM once."""
    asked: list[int] = []
    before = {}

    def count(number: int, frame: object) -> None:
        if number == signal.SIGINT or number not in asked:
            asked.append(number)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, count)
    try:
        yield lambda: len(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _born_deaf() -> Iterator[None]:
    """Processes started meanwhile hear no Ctrl-C until :func:`_start` says what to do then."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


#: In a worker, the line to the first process.
_lines: list[_Line] = []


def _start(line: _Line) -> None:
    """A worker: one thread, out of the terminal's reach, and gone when its parent is."""
    _lines.append(line)
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # between jobs
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if hasattr(os, "setsid"):
        os.setsid()

    def follow() -> None:
        while os.getppid() == line.parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _work(job: Job) -> Any:
    """Does a job in a worker; a training in it takes over what Ctrl-C does."""
    line = _lines[-1]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if line.stop.value:  # looked at once Ctrl-C is heard: it cannot fall between
            raise KeyboardInterrupt
        return job.work(MeanWatcher(job.name, line.reports.put, job.runs), *job.arguments)
    except KeyboardInterrupt:
        raise InterruptedRunError(f"{job.name} was interrupted") from None
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
