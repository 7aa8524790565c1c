"""``bunn tune``, run as a user runs it."""

import json
import shlex
import shutil
import signal

import pytest

from bunn.experiments.results import Result, read_results
from tests.commands import wait_until
from tests.data.raw_files import write_dataset
from tests.runs import SMALL
from tests.test_commands import explained, usage

SET = [word for setting in SMALL for word in ("--set", setting)]
ONE = ("--jobs", "1", "--device", "cpu", "--sampler-seed", "0")
RATES = ("--search", "optimizer.lr=1e-7,0.01")
TUNE = ["tune", "barbell", *SET, "--set", "training.epochs=5", *RATES, *ONE, "--splits", "0"]
#: One trial takes many seconds.
LONG = ["tune", "barbell", *SET, "--set", "training.epochs=1000000", *RATES, *ONE]
LOG = "runs/tune/barbell-bunn.log"


def trials(folder, experiment="train", study="barbell-bunn"):
    path = folder / "results" / experiment / "tuning" / f"{study}.json"
    return json.loads(path.read_text())["trials"]


@pytest.fixture(scope="module")
def tuned(warm, tmp_path_factory):
    """A search of four trials: its folder and what was printed."""
    folder = tmp_path_factory.mktemp("tuned")
    return folder, warm.run(*TUNE, "--trials", "4", cwd=folder)


def test_what_tune_prints(tuned):
    folder, finished = tuned
    assert finished.returncode == 0, finished.stderr
    rows = trials(folder)
    best = min(rows, key=lambda row: row["value"])
    assert best["params"] == {"optimizer.lr": 0.01}
    table = [line.split("│") for line in finished.stdout.splitlines() if line.startswith("│")]
    shown = [(int(cells[1]), cells[2].strip()) for cells in table]
    ordered = sorted(rows, key=lambda row: (row["value"], row["number"]))
    assert shown == [(row["number"], f"{row['value']:.4f}") for row in ordered]
    assert "4 trials: 4 complete, 0 pruned, 0 failed" in finished.stdout
    assert f"4 of 4 trials, best validation mse {best['value']:.4f}" in finished.stderr
    assert "test" not in finished.stdout.replace("num_test", "")
    said = [line for line in finished.stderr.splitlines() if "trials" in line]
    assert len(said) == 4
    assert not any("test" in line for line in said)


def test_the_printed_command_trains_the_best(tuned, warm, tmp_path):
    folder, finished = tuned
    (line,) = [row for row in finished.stdout.splitlines() if row.startswith("best: ")]
    command = shlex.split(line.removeprefix("best: bunn "))
    again = warm.run(*command, "--device", "cpu", "--output", "run", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    best = min(row["value"] for row in trials(folder))
    assert Result.read(tmp_path / "run" / "result.json").val == [pytest.approx(best, rel=1e-6)]


def test_a_second_call_adds_trials_and_another_question_is_refused(warm, tmp_path):
    assert warm.run(*TUNE, "--trials", "1", cwd=tmp_path).returncode == 0
    assert warm.run(*TUNE, "--trials", "2", cwd=tmp_path).returncode == 0
    assert [row["number"] for row in trials(tmp_path)] == [0, 1, 2]
    other = warm.run(*TUNE, "--set", "training.patience=2", cwd=tmp_path)
    message = explained(other, 2)
    assert "base.training.patience was None and is now 2" in message
    assert "--study" in message
    named = warm.run(*TUNE, "--seeds", "1", "--study", "second", "--trials", "1", cwd=tmp_path)
    assert named.returncode == 0, named.stderr
    assert len(trials(tmp_path, study="second")) == 1
    assert len(trials(tmp_path)) == 3


@pytest.mark.slow
def test_jobs_share_a_study(warm, tmp_path):
    """Two processes, as on two machines that name the same storage."""
    arguments = [word if word != "1" else "2" for word in TUNE]
    finished = warm.run(*arguments, "--trials", "5", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    rows = trials(tmp_path)
    assert [row["number"] for row in rows] == list(range(5))
    assert {row["state"] for row in rows} <= {"complete", "pruned"}
    assert "5 of 5 trials" in finished.stderr


def under_way(warm, folder):
    """A search whose first trial is being trained."""
    command = warm.start(*LONG, "--splits", "0", "--trials", "2", cwd=folder)
    log = folder / LOG

    def training():
        assert command.poll() is None, command.finish().stderr
        return log.is_file() and b'"process"' in log.read_bytes()

    wait_until(training)
    return command


def test_trials_of_another_place_are_not_overwritten(tuned, warm, tmp_path):
    """A clone that has the file of a study, but not its journal."""
    shutil.copytree(tuned[0] / "results", tmp_path / "results")
    message = explained(warm.run(*TUNE, "--trials", "1", cwd=tmp_path), 2)
    assert "holds 4 trials that are not in" in message
    assert "--study" in message
    assert trials(tmp_path) == trials(tuned[0])


def test_values_that_no_model_takes_are_said(warm, tmp_path):
    asked = [word for word in TUNE if word not in RATES]
    finished = warm.run(*asked, "--search", "model.maps=foo,bar", "--trials", "1", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert "1 trial: 0 complete, 0 pruned, 0 failed, 1 impossible" in finished.stdout
    assert "no value: " in finished.stdout
    assert "is unknown; use one of" in finished.stdout


def go_on(warm, folder):
    """The states of all trials after the same search, in less time."""
    finished = warm.run(*LONG, "--splits", "0", "--minutes", "0", cwd=folder)
    assert finished.returncode == 0, finished.stderr
    return [(row["state"], row["reason"]) for row in trials(folder)]


def test_ctrl_c_ends_a_search_that_goes_on_later(warm, tmp_path):
    command = under_way(warm, tmp_path)
    command.signal(signal.SIGINT)
    assert "run the same command again to go on" in explained(command.finish(), 130)
    assert go_on(warm, tmp_path) == [("failed", "interrupted")]


def test_a_killed_search_goes_on(warm, tmp_path):
    command = under_way(warm, tmp_path)
    command.signal(signal.SIGKILL)
    command.finish()
    assert go_on(warm, tmp_path) == [("failed", "its process was gone")]


def test_the_best_is_tested_once_on_all_splits(warm, tmp_path):
    write_dataset(tmp_path, "minesweeper")
    small = ("model.hidden_channels=8", "model.num_layers=1", "training.epochs=3")
    options = [word for setting in small for word in ("--set", setting)]
    command = (
        "tune",
        "minesweeper",
        "--model",
        "gcn",
        *options,
        *RATES,
        *ONE,
        "--data-root",
        ".",
        "--trials",
        "2",
    )
    finished = warm.run(*command, "--evaluate", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    (result,) = read_results(tmp_path / "results")
    assert result.file.as_posix() == "heterophilous/minesweeper-gcn-tuned.json"
    assert (result.splits, result.seeds) == (list(range(10)), [0] * 10)
    assert result.extra["configurations_tried"] == 2
    assert result.extra["study"] == "minesweeper-gcn"
    assert f"test roc-auc {result.test_mean:.4f}" in finished.stdout
    rows = trials(tmp_path, "heterophilous", "minesweeper-gcn")
    assert [len(row["epochs"]) for row in rows] == [3] * 2  # the first three splits
    report = warm.run("report", "--markdown", cwd=tmp_path)
    assert report.returncode == 0, report.stderr


TRY = ["tune", "barbell", *SET, "--set", "training.epochs=5", "--device", "cpu"]
BY_HAND = "barbell-bunn-by-hand"


def test_configurations_of_ones_own(warm, tmp_path):
    tries = ("--try", "optimizer.lr=1e-7", "--try", "optimizer.lr=0.01 model.time=inf", "--try", "")
    asked = (*TRY, *tries, "--splits", "0", "--jobs", "1")
    finished = warm.run(*asked, cwd=tmp_path, before="sys.modules['optuna'] = None")
    assert finished.returncode == 0, finished.stderr
    rows = trials(tmp_path, study=BY_HAND)
    infinite = {"optimizer.lr": 0.01, "model.time": "inf"}
    assert [row["params"] for row in rows] == [{"optimizer.lr": 1e-7}, infinite, {}]
    best = min(rows, key=lambda row: row["value"])
    table = [line.split("│") for line in finished.stdout.splitlines() if line.startswith("│")]
    assert (int(table[0][1]), table[0][2].strip()) == (best["number"], f"{best['value']:.4f}")
    assert "3 configurations, 3 of them with all runs that were asked for" in finished.stdout
    assert "(test" not in finished.stderr
    (line,) = [row for row in finished.stdout.splitlines() if row.startswith("best: ")]
    command = shlex.split(line.removeprefix("best: bunn "))
    again = warm.run(*command, "--device", "cpu", "--output", "run", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    trained = Result.read(tmp_path / "run" / "result.json")
    assert trained.val == [pytest.approx(best["value"], rel=1e-6)]
    evaluated = warm.run(*asked, "--evaluate", cwd=tmp_path)
    assert evaluated.returncode == 0, evaluated.stderr
    (result,) = read_results(tmp_path / "results")
    assert result.test == trained.test
    assert result.extra["configurations_tried"] == 3


def test_configurations_that_are_stopped_go_on(warm, tmp_path):
    """Two at once; the longer one has not ended when both are stopped."""
    tries = ("--try", "training.epochs=3", "--try", "training.epochs=1000000")
    asked = (*TRY, *tries, "--splits", "0", "--jobs", "2")
    command = warm.start(*asked, cwd=tmp_path)
    runs = tmp_path / "runs" / "tune" / BY_HAND

    def both():
        assert command.poll() is None, command.finish().stderr
        return list(runs.rglob("validated.json")) and evaluations_of(runs, 5)

    wait_until(both)
    command.signal(signal.SIGINT)
    assert "run the same command again to go on" in explained(command.finish(), 130)
    rows = trials(tmp_path, study=BY_HAND)
    assert [len(row["runs"]) for row in rows] == [1, 0]
    assert list(runs.rglob("checkpoints/*/last.json"))  # of the other


def evaluations_of(folder, count):
    """Whether some run has been evaluated so often."""
    found = folder.rglob("metrics.jsonl")
    return any(path.read_bytes().count(b"\n") >= count for path in found)


@pytest.mark.parametrize(
    ("option", "value"),
    [("--search", "optimizer.lr=1,2"), ("--trials", "3"), ("--sampler-seed", "0")],
)
def test_what_is_tried_is_said_once(option, value, warm, tmp_path):
    finished = warm.run(*TRY, "--try", "", option, value, cwd=tmp_path)
    assert f"--try and {option} exclude each other" in usage(finished)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("barbel",), "dataset='barbel' is not known; did you mean 'barbell'?"),
        (("barbell", "--search", "optimizer.rl=1..2"), "optimizer.rl is no option"),
        (("barbell", "--search", "optimizer.lr=1..x"), "optimizer.lr=1..x; its ends"),
        (("barbell", "--study", "a/b"), "--study 'a/b' names a file"),
        (("barbell", "--storage", "x://y"), "--storage x://y holds no studies"),
        (("tree-neighborsmatch",), "is judged by its training data"),
        (("barbell", "--try", "optimizer.rl=1"), "--try 'optimizer.rl=1': optimizer.rl is no"),
    ],
)
def test_what_cannot_be_searched_is_explained(arguments, message, warm, tmp_path):
    assert message in explained(warm.run("tune", *arguments, cwd=tmp_path), 2)


def test_splits_that_are_not_there(warm, tmp_path):
    write_dataset(tmp_path, "minesweeper")
    asked = ("tune", "minesweeper", "--data-root", ".", "--splits", "8-10")
    assert "--splits 8-10: there are 10, 0 to 9" in usage(warm.run(*asked, cwd=tmp_path))


def test_without_optuna(warm, tmp_path):
    finished = warm.run(*TUNE, cwd=tmp_path, before="sys.modules['optuna'] = None")
    assert "bunn tune needs optuna; pip install 'bunn[tune]'" in explained(finished, 1)
    assert not list(tmp_path.iterdir())


def test_other_commands_do_without_optuna(warm, tmp_path):
    finished = warm.run("datasets", cwd=tmp_path, before="sys.modules['optuna'] = None")
    assert finished.returncode == 0, finished.stderr
