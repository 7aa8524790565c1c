"""Jobs in other processes: what they return, raise and report, and when one is killed."""

import math
import os
import signal
import time

import pytest

from bunn.experiments.jobs import Job, MeanWatcher, run_jobs
from bunn.training import InterruptedRunError, Progressed
from bunn.training.watch import ignore


def add(watcher, first, second):
    watcher(Progressed("sum", 1, 1, loss=float(first), finished=True))
    return first + second


def fail(watcher, error):
    raise error


def be_killed(watcher):
    os.kill(os.getpid(), signal.SIGKILL)


def be_slow(watcher):
    time.sleep(600)


def test_jobs_return_in_order_and_report_by_their_names():
    told = []
    jobs = [Job("first", add, (1, 2)), Job("second", add, (3, 4))]
    assert run_jobs(jobs, 1, told.append) == [3, 7]
    assert [(report.run, report.loss) for report in told] == [("first", 1.0), ("second", 3.0)]


def test_errors_arrive_as_they_are_and_nothing_follows():
    error = LookupError("not here")
    done = []
    jobs = [Job("fails", fail, (error,)), Job("next", lambda watcher: done.append(1))]
    with pytest.raises(LookupError) as caught:
        run_jobs(jobs, 1, ignore)
    assert caught.value is error
    assert not done


def test_an_interrupted_job_says_how_to_go_on():
    with pytest.raises(InterruptedRunError, match="run the same command again"):
        run_jobs([Job("one", fail, (InterruptedRunError("go on with --resume"),))], 1, ignore)


def test_runs_of_a_job_are_reported_as_one():
    told = []
    watcher = MeanWatcher("job", told.append)
    watcher(Progressed("a", 10, 10, 100, "mse", 1.0, 2.0, 4.0, 3.0, finished=True))
    watcher(Progressed("b", 8, 10, 80, "mse", 3.0, 4.0, 6.0, 5.0))  # too soon to be told
    watcher(Progressed("b", 10, 10, 100, "mse", 2.0, 4.0, 8.0, 6.0, finished=True))
    assert [(report.run, report.finished) for report in told] == [("job", True), ("job", True)]
    last = told[-1]
    assert (last.epoch, last.metric) == (10, "mse")
    assert (last.loss, last.val, last.test, last.best) == (1.5, 3.0, 4.5, 6.0)
    watcher = MeanWatcher("job", told.append)
    watcher(Progressed("a", 0, 10))
    assert math.isnan(told[-1].loss)


@pytest.mark.slow
def test_a_process_that_is_killed_is_told_of_and_takes_the_others_along():
    """Had the slow one been waited for, this would take ten minutes."""
    jobs = [Job("slow", be_slow), Job("killed", be_killed)]
    with pytest.raises(ChildProcessError, match=r"killed.*run the same command again"):
        run_jobs(jobs, 2, ignore)
