"""Configurations of one's own: what is trained, what is kept, what goes on."""

import dataclasses
import json

import pytest

from bunn.experiments import attempts as trying
from bunn.experiments.attempts import Attempts, chosen, ranked, run_attempts
from bunn.experiments.presets import find_preset
from bunn.training import ConfigError, InterruptedRunError, NonFiniteLossError, train
from bunn.training.record import RunFolder
from bunn.training.watch import ignore
from tests.runs import SMALL

EPOCHS = 6
POOR, GOOD = ("optimizer.lr=1e-7",), ("optimizer.lr=0.01",)


def attempting(folder, *changes, seeds=(0,), settings=(), **fields):
    _, config = find_preset(
        "barbell", "bunn", "default", [*SMALL, f"training.epochs={EPOCHS}", *settings]
    )
    given = {"config": config, "splits": (0,), "seeds": seeds, "study": "mine", "device": "cpu"}
    return Attempts(**given | fields, changes=changes or (POOR, GOOD), runs=folder / "runs")


def run(attempts, results, jobs=1):
    known, busy = run_attempts(
        attempts, jobs=jobs, watcher=ignore, results=results, command="bunn tune --try"
    )
    assert busy == 0
    return known


def content(results):
    return json.loads((results / "train" / "tuning" / "mine.json").read_text())


@pytest.fixture
def counted(monkeypatch):
    """The configurations and runs that are trained."""
    trained = []

    def count(config, pairs, **keywords):
        trained.append((config.optimizer.lr, *pairs))
        return train(config, pairs, **keywords)

    monkeypatch.setattr(trying, "train", count)
    return trained


def test_a_value_is_the_mean_of_what_its_runs_validate(tmp_path):
    attempts = attempting(tmp_path, seeds=(0, 3))
    known = run(attempts, tmp_path)
    for attempt, lr in zip(known, (1e-7, 0.01), strict=True):
        config = attempts.configuration(attempt.params)
        assert config.optimizer.lr == lr
        outcomes = [train(config, [pair], device="cpu")[0] for pair in attempts.pairs]
        validated = [min(entry.metrics["val"] for entry in each.evaluations) for each in outcomes]
        assert attempt.value(attempts.pairs) == pytest.approx(sum(validated) / 2, rel=1e-6)
    best = chosen(attempts, known)
    assert (best.params, best.trial, best.tried) == ({"optimizer.lr": 0.01}, 1, 2)
    rows = content(tmp_path)["trials"]
    assert content(tmp_path)["best"] == 1
    assert [row["value"] for row in rows] == [each.value(attempts.pairs) for each in known]
    assert [(entry["split"], entry["seed"]) for entry in rows[0]["runs"]] == [(0, 0), (0, 3)]
    for entry in rows[0]["runs"]:
        assert entry["epochs"] == EPOCHS
        assert {"best_epoch", "seconds", "device", "git_commit", "versions"} <= entry.keys()


def test_no_test_metric_is_computed(tmp_path):
    run(attempting(tmp_path), tmp_path)
    recorded = [
        *(tmp_path / "runs").rglob("metrics.jsonl"),
        *(tmp_path / "runs").rglob("val*.json"),
    ]
    assert len(recorded) == 4
    assert not any("test" in path.read_text() for path in recorded)


def test_what_is_done_is_not_done_again_and_more_may_be_asked_for(tmp_path, counted):
    run(attempting(tmp_path, GOOD), tmp_path)
    run(attempting(tmp_path, GOOD, POOR), tmp_path)
    known = run(attempting(tmp_path, GOOD, seeds=(0, 1)), tmp_path)
    assert counted == [(0.01, (0, 0)), (1e-7, (0, 0)), (0.01, (0, 1))]
    assert [sorted(each.runs) for each in known] == [[(0, 0), (0, 1)], [(0, 0)]]
    both = attempting(tmp_path, GOOD, POOR, seeds=(0, 1))
    assert ranked(both, known) == known[:1]  # the other lacks a run
    assert ranked(attempting(tmp_path), known) == known  # of one seed there are both


def test_the_file_alone_says_what_is_done(tmp_path, counted):
    """Its runs may have been recorded on another machine."""
    run(attempting(tmp_path / "there"), tmp_path)
    before = content(tmp_path)["trials"]
    run(attempting(tmp_path / "here"), tmp_path)
    assert len(counted) == 2
    assert content(tmp_path)["trials"] == before


def test_the_order_of_changes_does_not_matter(tmp_path, counted):
    two = ("optimizer.lr=0.01", "model.time=inf")
    run(attempting(tmp_path, two), tmp_path)
    (known,) = run(attempting(tmp_path, two[::-1]), tmp_path)
    assert len(counted) == 1
    assert attempting(tmp_path).configuration(known.params).model.time == float("inf")


def test_after_an_interruption_a_run_goes_on(tmp_path, monkeypatch):
    """From its checkpoint: what comes of it is what an uninterrupted run gives."""
    whole = run(attempting(tmp_path / "whole", GOOD), tmp_path / "whole")
    resumed = []

    def stopped(config, pairs, **keywords):
        def watch(progressed):
            if progressed.epoch == EPOCHS // 2 and not resumed:
                resumed.append(progressed.epoch)
                raise InterruptedRunError("stopped")

        return train(config, pairs, **keywords | {"watcher": watch})

    every_epoch = ["training.checkpoint_seconds=0"]
    monkeypatch.setattr(trying, "train", stopped)
    attempts = attempting(tmp_path, GOOD, POOR, settings=every_epoch)
    with pytest.raises(InterruptedRunError, match="run the same command again to go on"):
        run(attempts, tmp_path)
    assert [row["runs"] for row in content(tmp_path)["trials"]] == [[], []]
    epochs = []

    def followed(config, pairs, **keywords):
        return train(
            config, pairs, **keywords | {"watcher": lambda seen: epochs.append(seen.epoch)}
        )

    monkeypatch.setattr(trying, "train", followed)
    known = run(attempts, tmp_path)
    assert epochs[0] == EPOCHS // 2 - 1  # the checkpoint before the evaluation that was stopped
    assert known[0].runs[0, 0]["val"] == whole[0].runs[0, 0]["val"]
    assert not list((tmp_path / "runs").rglob("*.safetensors"))


def test_a_configuration_that_cannot_be_trained_says_why_and_the_rest_goes_on(tmp_path):
    diverges = ("optimizer.lr=1e30", "optimizer.name=adam")
    known = run(attempting(tmp_path, diverges, GOOD), tmp_path)
    assert not known[0].runs
    assert "the loss of split0-seed0 is" in known[0].reason
    assert "the loss of" in content(tmp_path)["trials"][0]["reason"]
    best = chosen(attempting(tmp_path), known)
    assert (best.trial, best.tried) == (1, 1)


def test_a_run_that_fails_is_not_forgotten_for_one_that_does_not(tmp_path, monkeypatch):
    """The first seed has a loss that explodes, and a metric that is no number; the second none."""

    def first_fails(config, pairs, **keywords):
        if pairs == [(0, 0)]:
            raise NonFiniteLossError("the loss is nan")
        (outcome,) = train(config, pairs, **keywords)
        if pairs == [(0, 1)]:
            bad = dataclasses.replace(outcome.best, metrics={"val": float("nan")})
            return [dataclasses.replace(outcome, best=bad)]
        return [outcome]

    monkeypatch.setattr(trying, "train", first_fails)
    attempts = attempting(tmp_path, GOOD, seeds=(0, 1, 2))
    (attempt,) = run(attempts, tmp_path)
    assert list(attempt.runs) == [(0, 2)]
    assert attempt.reason == "the loss is nan"
    (row,) = content(tmp_path)["trials"]
    assert row["reason"] == "the loss is nan"
    (attempt,) = run(attempting(tmp_path, GOOD, seeds=(1,)), tmp_path)
    assert attempt.reason == "the validation mse is nan"
    monkeypatch.setattr(trying, "train", train)
    (attempt,) = run(attempts, tmp_path)
    assert (len(attempt.runs), attempt.reason) == (3, None)


def test_larger_is_better_where_it_is(tmp_path):
    _, config = find_preset("minesweeper-board", "mlp")
    attempts = attempting(tmp_path, config=config)
    known = [trying.Attempt(config, {}, {(0, 0): {"val": value}}) for value in (0.5, 0.9, 0.7)]
    assert [each.runs[0, 0]["val"] for each in ranked(attempts, known)] == [0.9, 0.7, 0.5]
    assert [each.runs[0, 0]["val"] for each in ranked(attempting(tmp_path), known)] == [
        *(0.5, 0.7, 0.9)
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([GOOD, ("optimizer.lr=1e-2",)], "--try 'optimizer.lr=1e-2' is there twice"),
        ([("optimizer.rl=1",)], "--try 'optimizer.rl=1': optimizer.rl is no option"),
        ([("model.num_bundles=3",)], "--try 'model.num_bundles=3': .*hidden_channels=8"),
        ([("wide",)], "--try 'wide': "),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_trained(changes, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        attempting(tmp_path, *changes)


def test_a_file_of_something_else_is_left_alone(tmp_path):
    run(attempting(tmp_path), tmp_path)
    file = tmp_path / "train" / "tuning" / "mine.json"
    before = file.read_text()
    with pytest.raises(ConfigError, match=r"training.patience was None and is now 2.*--study"):
        run(attempting(tmp_path, settings=["training.patience=2"]), tmp_path)
    assert file.read_text() == before
    file.write_text('{"trials": []}')
    with pytest.raises(ConfigError, match=r"is not one that bunn tune --try wrote.*--study"):
        run(attempting(tmp_path), tmp_path)
    assert file.read_text() == '{"trials": []}'


def test_two_that_write_the_same_file_lose_nothing(tmp_path, monkeypatch):
    """What the file got meanwhile stays in it."""
    other = attempting(tmp_path / "other", POOR)

    def meanwhile(*arguments, **keywords):
        monkeypatch.setattr(trying, "train", train)
        run(other, tmp_path)
        return train(*arguments, **keywords)

    monkeypatch.setattr(trying, "train", meanwhile)
    run(attempting(tmp_path, GOOD), tmp_path)
    assert [row["params"] for row in content(tmp_path)["trials"]] == [
        {"optimizer.lr": 1e-7},
        {"optimizer.lr": 0.01},
    ]


def test_a_run_of_another_process_is_left_to_it(tmp_path):
    """Its folder is locked; the other configuration is free, and nothing has failed."""
    attempts = attempting(tmp_path)
    taken = attempts.folder(attempts.configuration({"optimizer.lr": 1e-7}), (0, 0))
    with RunFolder(taken).locked():
        known, busy = run_attempts(
            attempts, jobs=1, watcher=ignore, results=tmp_path, command="bunn tune --try"
        )
    assert busy == 1
    assert [len(each.runs) for each in known] == [0, 1]
    assert [each.reason for each in known] == [None, None]
    assert all(each.runs for each in run(attempts, tmp_path))


def test_the_name_of_a_study_is_one_of_a_file(tmp_path):
    with pytest.raises(ConfigError, match="names a file"):
        attempting(tmp_path, study="a/b")
