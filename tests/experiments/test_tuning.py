"""Searches: what is tried, chosen, given up, shared and kept."""

import dataclasses
import json
import math
import os
import subprocess
import sys

import optuna
import pytest
import torch
from optuna.trial import TrialState, create_trial

from bunn.experiments import studies, tuning
from bunn.experiments.evaluation import evaluate
from bunn.experiments.presets import find_preset
from bunn.experiments.results import read_results
from bunn.experiments.spaces import parse_spaces
from bunn.experiments.studies import (
    PRUNER,
    REPORTS,
    Search,
    best_trials,
    bury,
    is_poor,
    open_study,
    this_process,
)
from bunn.training import (
    ConfigError,
    Evaluation,
    InterruptedRunError,
    NonFiniteLossError,
    Outcome,
    train,
)
from bunn.training.watch import ignore
from tests.runs import SMALL

#: At the first rate nothing is learned in so few epochs.
RATES = "optimizer.lr=1e-7,0.01"
EPOCHS = 10


@pytest.fixture
def search(tmp_path):
    """Two rates, on small barbells."""
    return searching(tmp_path)


def searching(folder, *spaces, splits=(0,), settings=(), **changes):
    _, config = find_preset(
        "barbell", "bunn", "default", [*SMALL, f"training.epochs={EPOCHS}", *settings]
    )
    fields = {
        "config": config,
        "space": parse_spaces(config, spaces or [RATES]),
        "splits": splits,
        "seeds": (0,),
        "storage": str(folder / "studies" / "barbell.log"),
        "study": "barbell",
        "device": "cpu",
        "sampler_seed": 0,
    }
    return Search(**fields | changes)


def add(search, trials):
    tuning.add_trials(search, trials, jobs=1, watcher=ignore)
    return open_study(search)


def planned(search, *choices):
    """The study after trials of these configurations, one after the other."""
    study = open_study(search)
    for chosen in choices:
        study.enqueue_trial(chosen)
    return add(search, len(choices))


def test_the_better_of_two_choices_is_found_by_its_validation_metric(tmp_path):
    search = searching(tmp_path, splits=(0, 1))
    study = planned(search, {"optimizer.lr": 1e-7}, {"optimizer.lr": 0.01})
    assert [trial.params for trial in best_trials(study)] == [
        {"optimizer.lr": 0.01},
        {"optimizer.lr": 1e-7},
    ]
    for trial in study.trials:
        config = search.configuration(trial.params)
        runs = [train(config, [pair], device="cpu")[0] for pair in ((0, 0), (1, 0))]
        validated = [min(entry.metrics["val"] for entry in run.evaluations) for run in runs]
        assert trial.value == pytest.approx(sum(validated) / 2, rel=1e-6)
        assert trial.user_attrs["epochs"] == [EPOCHS, EPOCHS]


def test_larger_is_better_where_it_is(tmp_path):
    _, config = find_preset("minesweeper-board", "mlp")
    search = dataclasses.replace(
        searching(tmp_path), config=config, space=parse_spaces(config, [RATES])
    )
    assert open_study(search).direction == optuna.study.StudyDirection.MAXIMIZE
    assert open_study(searching(tmp_path, study="b")).direction.name == "MINIMIZE"


def test_without_a_plan_all_of_the_space_is_tried(search):
    study = add(search, 8)
    assert {trial.params["optimizer.lr"] for trial in study.trials} == {1e-7, 0.01}
    assert best_trials(study)[0].params == {"optimizer.lr": 0.01}


def test_steps_of_a_trial_do_not_meet(tmp_path):
    study = add(searching(tmp_path, splits=(0, 1, 2)), 1)
    (trial,) = study.trials
    reported = trial.intermediate_values
    assert list(reported) == list(range(1, REPORTS + 3))
    first = [reported[step] for step in range(1, REPORTS + 1)]
    assert first == sorted(first, reverse=True)  # the best so far
    assert reported[REPORTS + 2] == trial.value


def test_a_run_that_ends_early_is_compared_to_its_end(tmp_path):
    """The first evaluation reaches the goal; later shares of the epochs have its value."""
    study = add(searching(tmp_path, settings=["training.goal=1e9"]), 1)
    (trial,) = study.trials
    assert trial.user_attrs["epochs"] == [1]
    assert set(trial.intermediate_values.values()) == {trial.value}
    assert len(trial.intermediate_values) == REPORTS


def test_poor_trials_are_given_up_early(search):
    good = [{"optimizer.lr": 0.01}] * PRUNER["n_startup_trials"]
    study = planned(search, *good, {"optimizer.lr": 1e-7})
    last = study.trials[-1]
    assert [trial.state for trial in study.trials[:-1]] == [TrialState.COMPLETE] * len(good)
    assert last.state == TrialState.PRUNED
    assert last.user_attrs["epochs"] == [EPOCHS * PRUNER["n_warmup_steps"] // REPORTS]
    assert "worse than the median after epoch 2" in last.user_attrs["reason"]


def test_a_mean_over_runs_is_compared_with_means(search):
    """Its first run was good; Optuna, which looks at the best of all steps, would go on."""
    study = open_study(search)
    space = search.space["optimizer.lr"].distribution()
    for _ in range(PRUNER["n_startup_trials"]):
        study.add_trial(
            create_trial(
                params={"optimizer.lr": 0.01},
                distributions={"optimizer.lr": space},
                value=0.5,
                intermediate_values={REPORTS: 0.4, REPORTS + 1: 0.5},
            )
        )
    trial = study.ask({"optimizer.lr": space})
    trial.report(0.3, REPORTS)
    assert not is_poor(study, trial, REPORTS, 0.3)
    trial.report(0.6, REPORTS + 1)
    assert is_poor(study, trial, REPORTS + 1, 0.6)
    assert not trial.should_prune()


class Values:
    """Stands in for training: validation metrics by split, and no others."""

    def __init__(self, *values):
        self.values, self.asked = values, []

    def __call__(self, config, pairs, **keywords):
        ((split, _),) = pairs
        self.asked.append(split)
        best = Evaluation(1, 1, 0.1, 0.1, {"val": self.values[split]})
        return [Outcome(split, 0, best, (best,), 1, 1, 0.1)]


def test_later_runs_of_a_poor_trial_are_left_out(tmp_path, monkeypatch):
    search = searching(tmp_path, splits=(0, 1, 2))
    monkeypatch.setattr(tuning, "train", Values(0.4, 0.6, 0.8))
    study = add(search, PRUNER["n_startup_trials"])
    assert [trial.value for trial in study.trials] == pytest.approx([0.6] * len(study.trials))
    training = Values(0.4, 0.7, 0.1)
    monkeypatch.setattr(tuning, "train", training)
    last = add(search, 1).trials[-1]
    assert training.asked == [0, 1]
    assert last.state == TrialState.PRUNED
    assert last.user_attrs["reason"] == "worse than the median after 2 of 3 runs: 0.55"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NonFiniteLossError("the loss is nan\nand more"), "the loss is nan"),
        (torch.OutOfMemoryError("CUDA out of memory"), "CUDA out of memory"),
        (ConfigError("hidden_channels=8 does not fit"), "hidden_channels=8 does not fit"),
    ],
)
def test_a_run_that_fails_prunes_its_trial_and_the_search_goes_on(
    error, reason, search, monkeypatch
):
    monkeypatch.setattr(tuning, "train", raising(error))
    study = add(search, 2)
    assert [trial.state for trial in study.trials] == [TrialState.PRUNED] * 2
    assert {trial.user_attrs["reason"] for trial in study.trials} == {reason}


def raising(error):
    def fail(*arguments, **keywords):
        raise error

    return fail


def test_a_metric_that_is_no_number_prunes_its_trial(search, monkeypatch):
    monkeypatch.setattr(tuning, "train", Values(float("nan")))
    (trial,) = add(search, 1).trials
    assert trial.state == TrialState.PRUNED
    assert trial.user_attrs["reason"] == "the validation mse is nan"


def test_a_defect_is_raised_and_recorded(search, monkeypatch):
    monkeypatch.setattr(tuning, "train", raising(AssertionError("a defect")))
    with pytest.raises(AssertionError, match="a defect"):
        add(search, 3)
    (trial,) = open_study(search).trials
    assert trial.state == TrialState.FAIL
    assert trial.user_attrs["reason"] == "AssertionError: a defect"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), InterruptedRunError("after epoch 3")])
def test_an_interrupted_trial_is_a_failed_one_and_the_rest_stays(error, search, monkeypatch):
    add(search, 1)
    with monkeypatch.context() as patch:
        patch.setattr(tuning, "train", raising(error))
        with pytest.raises(InterruptedRunError, match="run the same command again to go on"):
            add(search, 3)
    study = add(search, 1)
    states = [TrialState.COMPLETE, TrialState.FAIL, TrialState.COMPLETE]
    assert [trial.state for trial in study.trials] == states
    assert study.trials[1].user_attrs["reason"] == "interrupted"


def test_impossible_configurations_are_passed_over(tmp_path):
    search = searching(tmp_path, "model.num_bundles=1,3")  # two planes each, for 8 channels
    study = planned(search, {"model.num_bundles": 3}, {"model.num_bundles": 1})
    assert [trial.state for trial in study.trials] == [TrialState.PRUNED, TrialState.COMPLETE]
    assert "hidden_channels=8" in study.trials[0].user_attrs["reason"]
    assert tuning.configurations_tried(study) == 1


def test_a_search_in_which_nothing_is_possible_ends(tmp_path):
    search = searching(tmp_path, "model.num_bundles=3,5")
    with pytest.raises(ConfigError, match=r"none of the first 20 .* was possible.*hidden_channels"):
        add(search, 100)
    assert len(open_study(search).trials) == tuning.MOST_INVALID


def test_no_trial_starts_when_the_time_is_up(search):
    tuning.add_trials(search, 3, jobs=1, watcher=ignore, minutes=0)
    assert not open_study(search).trials


def test_a_seed_gives_the_same_trials_and_later_ones_are_others(tmp_path):
    def chosen(study):
        return [trial.params["optimizer.lr"] for trial in study.trials]

    searches = [
        searching(tmp_path / name, "optimizer.lr=1e-5..1e-2 log", sampler_seed=seed)
        for name, seed in (("a", 3), ("b", 3), ("c", 4))
    ]
    first, same, other = (chosen(add(search, 2)) for search in searches)
    assert first == same
    assert not set(first) & set(other)
    assert len(set(chosen(add(searches[0], 2)))) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": ["training.patience=3"]}, "base.training.patience was None and is now 3"),
        ({"splits": (0, 1)}, r"splits was \[0\] and is now \[0, 1\]"),
        ({"seeds": (1,)}, r"seeds was \[0\] and is now \[1\]"),
    ],
)
def test_a_study_is_joined_with_the_same_question_only(changes, message, tmp_path):
    open_study(searching(tmp_path))
    with pytest.raises(ConfigError, match=f"{message}; .*--study"):
        open_study(searching(tmp_path, **changes))
    open_study(searching(tmp_path, study="another", **changes))


def test_another_space_is_another_question(tmp_path):
    open_study(searching(tmp_path, "optimizer.lr=1e-5..1e-2 log"))
    open_study(searching(tmp_path, "optimizer.lr=0.00001 .. 0.01 log"))
    with pytest.raises(ConfigError, match=r"space\.optimizer\.lr was '1e-05\.\.0\.01 log' and is"):
        open_study(searching(tmp_path, "optimizer.lr=1e-5..1e-2"))


@pytest.mark.parametrize("name", ["a/b", "", ".hidden", "a b"])
def test_the_name_of_a_study_is_one_of_a_file(name, tmp_path):
    with pytest.raises(ConfigError, match="--study"):
        searching(tmp_path, study=name)


def test_a_dataset_that_is_judged_by_training_is_not_searched(tmp_path):
    _, config = find_preset("tree-neighborsmatch", "bunn")
    with pytest.raises(ConfigError, match="judged by its training data"):
        searching(tmp_path, config=config)


def test_studies_in_a_database(tmp_path):
    url = f"sqlite:///{tmp_path}/studies.db"
    first, second = (searching(tmp_path, storage=url, study=name) for name in ("first", "second"))
    add(first, 2)
    assert len(add(first, 1).trials) == 3
    assert not open_study(second).trials


@pytest.mark.parametrize("place", ["notes.txt", "nothing://there", "sqlite:////no/such/folder/x"])
def test_a_storage_that_is_none_is_left_alone(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("three lines\nof something\nelse")
    with pytest.raises(ConfigError, match=f"--storage {place} holds no studies"):
        open_study(searching(tmp_path, storage=place))
    assert (tmp_path / "notes.txt").read_text() == "three lines\nof something\nelse"


def test_a_line_that_was_cut_off_is_taken_away(tmp_path):
    search = searching(tmp_path)
    add(search, 2)
    journal = tmp_path / "studies" / "barbell.log"
    whole = journal.read_bytes()
    journal.unlink()
    moved = dataclasses.replace(search, storage=str(tmp_path / "moved.log"))
    (tmp_path / "moved.log").write_bytes(whole + b'{"op_code":8,"wor')
    assert len(add(moved, 1).trials) == 3
    copied = dataclasses.replace(search, storage=str(tmp_path / "copied.log"))
    (tmp_path / "copied.log").write_bytes((tmp_path / "moved.log").read_bytes())
    assert len(open_study(copied).trials) == 3


def test_trials_of_processes_that_are_gone_have_failed(search):
    study = open_study(search)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    here = this_process()[0]
    for process in ([here, ended.pid], [here, os.getpid()], ["elsewhere", ended.pid]):
        study.ask().set_user_attr("process", process)
    bury(study)
    states = [TrialState.FAIL, TrialState.RUNNING, TrialState.RUNNING]
    assert [trial.state for trial in study.trials] == states


def board(folder, **changes):
    """A search whose options do not speak of tests, as those of the barbells do."""
    sizes = ["data.height=6", "data.width=6", "model.hidden_channels=8", "training.epochs=4"]
    _, config = find_preset("minesweeper-board", "bunn", None, sizes)
    space = parse_spaces(config, ["model.num_bundles=1,3", "optimizer.lr=1e-5..1e-2 log"])
    return searching(folder, config=config, space=space, study="board", **changes)


def test_the_file_of_trials_tells_everything_and_nothing_of_tests(tmp_path):
    search = board(tmp_path)
    study = add(search, 6)
    path = tuning.write_trials(search, study, tmp_path / "results", "bunn tune")
    assert path == tmp_path / "results" / "train" / "tuning" / "board.json"
    assert "test" not in path.read_text().lower()
    assert "test" not in (tmp_path / "studies" / "barbell.log").read_text().lower()
    content = json.loads(path.read_text())
    assert content["metric"] == "roc-auc"
    assert content["base"] == search.config.as_dict()
    assert content["space"]["optimizer.lr"] == "1e-05..0.01 log"
    assert (content["splits"], content["seeds"]) == ([0], [0])
    assert {"torch", "optuna"} <= content["versions"].keys()
    for trial in content["trials"]:
        assert trial["device"]
        assert trial["git_commit"]
    assert content["sampler"]["seed"] == 0
    rows = content["trials"]
    assert [row["number"] for row in rows] == list(range(6))
    assert {row["state"] for row in rows} == {"complete", "impossible"}  # three bundles do not fit
    best = max((row for row in rows if row["value"] is not None), key=lambda row: row["value"])
    assert content["best"] == best["number"]
    for row in rows:
        possible = row["params"]["model.num_bundles"] == 1
        assert (row["value"] is not None) == possible == (row["reason"] is None)
        assert row["epochs"] == ([4] if possible else [])


def test_trials_that_are_in_the_file_alone_are_not_lost(tmp_path):
    """Those of another machine, or of a journal that was taken away."""
    search, results = searching(tmp_path / "there"), tmp_path / "results"
    path = tuning.write_trials(search, add(search, 2), results, "bunn tune")
    before = path.read_text()
    here = searching(tmp_path / "here")
    for check in (
        lambda: tuning.check_file(here, open_study(here), results),
        lambda: tuning.write_trials(here, add(here, 1), results, "bunn tune"),
    ):
        with pytest.raises(ConfigError, match=r"holds \d trials that are not in .*log"):
            check()
        assert path.read_text() == before
    tuning.write_trials(search, add(search, 1), results, "bunn tune")
    assert len(json.loads(path.read_text())["trials"]) == 3
    path.write_text("[]")
    with pytest.raises(ConfigError, match="is not one that bunn tune wrote"):
        tuning.check_file(search, open_study(search), results)


def test_trials_have_no_test_metrics(search, monkeypatch):
    """None is computed, so nothing that is chosen can depend on one."""
    outcomes, seen = [], []

    def watched(*arguments, watcher, **keywords):
        def watch(progressed):
            seen.append(progressed.test)
            watcher(progressed)

        outcomes.extend(train(*arguments, watcher=watch, **keywords))
        return outcomes[-1:]

    monkeypatch.setattr(tuning, "train", watched)
    add(search, 2)
    metrics = [entry.metrics for outcome in outcomes for entry in outcome.evaluations]
    assert len(metrics) == 2 * EPOCHS
    assert all("val" in entry and "test" not in entry for entry in metrics)
    assert all(math.isnan(test) for test in seen)


def test_the_best_is_evaluated_and_says_how_many_were_tried(tmp_path):
    search = board(tmp_path)
    study = add(search, 6)
    results = tmp_path / "results"
    tuning.write_trials(search, study, results, "bunn tune")
    arguments = {"command": "bunn tune", "runs": tmp_path / "runs", "watcher": ignore}
    arguments["results"] = results
    asked = (search, tuning.chosen(search, study), search.final_runs(3))
    result = evaluate(*asked, **arguments)
    result.write(results)
    (found,) = read_results(results)
    assert not read_results(results / "train")  # what was tried is no result
    assert (found.experiment, found.preset, found.splits) == ("train", "tuned", [0, 1, 2])
    assert found.options == search.configuration(best_trials(study)[0].params).as_dict()
    assert found.extra["study"] == "board"
    assert found.extra["configurations_tried"] == len(best_trials(study)) < len(study.trials)
    again = evaluate(*asked, **arguments)  # goes on where it ended
    assert again.test == result.test
    changed = {**found.options, "optimizer": {**found.options["optimizer"], "lr": 0.5}}
    dataclasses.replace(found, options=changed).write(results)
    with pytest.raises(ConfigError, match=r"tuned\.json is the result of another"):
        evaluate(*asked, **arguments)


def test_nothing_is_evaluated_where_nothing_is_complete(search, tmp_path):
    with pytest.raises(ConfigError, match="no trial is complete"):
        evaluate(
            *(search, tuning.chosen(search, open_study(search)), [(0, 0)]),
            command="",
            runs=tmp_path,
            results=tmp_path,
            watcher=ignore,
        )


@pytest.mark.parametrize("when", ["rename", "unlink"])
def test_a_lock_may_be_interrupted_while_it_is_released(when, tmp_path, monkeypatch):
    """Before it is renamed, and after it is gone: what is raised is the interrupt."""
    path = tmp_path / "journal.log"
    path.touch()
    lock, called = studies._lock(path), []
    lock.acquire()
    real = getattr(os, when)

    def interrupted(*arguments):
        called.append(arguments)
        if when == "unlink":
            real(*arguments)
        if len(called) == 1:
            raise KeyboardInterrupt
        return real(*arguments) if when == "rename" else None

    monkeypatch.setattr(os, when, interrupted)
    with pytest.raises(KeyboardInterrupt):
        lock.release()
    monkeypatch.undo()
    assert [file.name for file in tmp_path.iterdir()] == ["journal.log"]
    assert lock.acquire()  # at once
    lock.release()
