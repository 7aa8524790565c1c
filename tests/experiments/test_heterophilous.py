"""The heterophilous benchmark, from raw files to the table."""

import json
import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from bunn.experiments import ablations, heterophilous, runtime
from bunn.experiments.heterophilous import FIVE, MODELS, PAPER, RELEASED, SMALL
from bunn.experiments.jobs import run_jobs
from bunn.experiments.measure import combined
from bunn.experiments.published import PUBLISHED
from bunn.experiments.reproduce import jobs_of
from bunn.experiments.request import Request
from bunn.experiments.results import Result, read_results
from bunn.experiments.tables import tables_for
from bunn.training import ConfigError, InterruptedRunError
from bunn.training.watch import ignore
from tests.data.raw_files import write_dataset, write_npz


@pytest.fixture
def little(monkeypatch, tmp_path):
    """The five in little, and models of the same shapes that are as little."""
    for dataset in FIVE:
        write_dataset(tmp_path / "data", dataset)
    monkeypatch.setenv("BUNN_CACHE", str(tmp_path / "cache"))
    for table in (PAPER, RELEASED):
        for dataset, best in table.items():
            small = replace(best, hidden=8, bundles=min(4, best.bundles), layers=2)
            monkeypatch.setitem(table, dataset, replace(small, phi_layers=min(1, best.phi_layers)))
    monkeypatch.setitem(heterophilous.FRAME, "hidden_channels", 8)
    for dataset, (_, stalk_dim, _) in heterophilous.NSD.items():
        monkeypatch.setitem(heterophilous.NSD, dataset, (8, stalk_dim, 1))
    return tmp_path


def request(folder: Path, experiment: str = "heterophilous", **options) -> Request:
    return Request(
        experiment,
        folder / "runs",
        folder / "results",
        "bunn reproduce",
        device="cpu",
        data_root=folder / "data",
        **options,
    )


def reproduce(folder: Path, watcher=ignore, **options) -> list[Result]:
    run_jobs(jobs_of(request(folder, **options)), 1, watcher)
    return read_results(folder / "results")


def test_every_model_on_all_five(little):
    results = reproduce(little, epochs=2, splits=(0,))
    # A BuNN by the paper and by its code, GraphSAGE without labels and with; those that are ours.
    ours = sum(len(found) for found in heterophilous.SEARCHED.values())
    assert len(results) == len(FIVE) * (len(MODELS) + 2) + ours
    assert {result.splits[0] for result in results} == {0}
    (table,) = tables_for(results, "heterophilous")
    measured = {row.label for row in table.rows if all(cell.result for cell in row.cells)}
    titles = ("ResNet", "GCN", "SAGE", "GAT", "GAT-sep", "GT", "GT-sep", "NSD")
    ran = {f"{title} (paper-2-epochs)" for title in (*titles, "BuNN")}
    assert measured == {*ran, "BuNN (released-2-epochs)", "SAGE (labels-2-epochs)"}


def test_what_is_not_here_is_left_out(little):
    (little / "data" / "questions" / "raw" / "questions.npz").unlink()
    names = {job.name for job in jobs_of(request(little, models=("gcn",)))}
    assert names == {f"{dataset} gcn" for dataset in FIVE[:-1]}


def test_what_is_interrupted_goes_on(little, monkeypatch):
    monkeypatch.setattr("bunn.experiments.jobs.REPORT_EVERY", 0.0)
    seen = []

    def stop(progressed):
        """In the midst of the second split; the first has reported three times."""
        seen.append(progressed)
        if len(seen) == 5:
            os.kill(os.getpid(), signal.SIGINT)

    options = {"datasets": ("minesweeper",), "models": ("bunn",), "presets": ("released",)}
    (whole,) = reproduce(little, epochs=6, splits=(0, 1, 2), **options)
    elsewhere = little / "again"
    (elsewhere / "data").parent.mkdir()
    (elsewhere / "data").symlink_to(little / "data")
    cell = elsewhere / "runs" / "minesweeper-bunn-released-6-epochs"
    with pytest.raises(InterruptedRunError):
        reproduce(elsewhere, stop, epochs=6, splits=(0, 1, 2), **options)
    (partly,) = read_results(elsewhere / "results")
    assert (partly.splits, partly.test) == ([0], whole.test[:1])  # written after every split
    first = (cell / "split0-seed0" / "result.json").read_bytes()
    assert [path.parent.name for path in cell.rglob("result.json")] == ["split0-seed0"]
    lines = (cell / "split1-seed0" / "split1-seed0" / "metrics.jsonl").read_text()
    assert lines.count("\n") == 1  # the first of two evaluations, and a checkpoint of it
    assert (cell / "split1-seed0" / "checkpoints").is_dir()
    (again,) = reproduce(elsewhere, epochs=6, splits=(0, 1, 2), **options)
    assert (cell / "split0-seed0" / "result.json").read_bytes() == first  # nothing is repeated
    assert (again.test, again.val, again.splits) == (whole.test, whole.val, whole.splits)
    assert again.extra["best_epoch"] == whole.extra["best_epoch"]


def test_more_splits_may_follow(little):
    options = {"datasets": ("tolokers",), "models": ("gcn",), "epochs": 2}
    (before,) = reproduce(little, splits=(1,), **options)
    (after,) = reproduce(little, splits=(0, 3), **options)
    assert after.splits == [0, 1, 3]
    assert after.test[1] == before.test[0]
    assert len(after.extra["seconds"]) == 3
    (same,) = reproduce(little, splits=(3,), **options)  # fewer splits take nothing away
    assert same == after
    assert not list(little.rglob("checkpoints"))
    assert len(list(little.rglob("best.safetensors"))) == 3


def test_another_configuration_is_not_mixed_in(little, monkeypatch):
    options = {"datasets": ("tolokers",), "models": ("gcn",), "epochs": 2}
    reproduce(little, splits=(0,), **options)
    monkeypatch.setitem(heterophilous.FRAME, "dropout", 0.3)
    for splits in ((0,), (1,)):
        with pytest.raises(RuntimeError, match=r"split0-seed0 was .* model\.dropout was 0\.2"):
            reproduce(little, splits=splits, **options)


def test_options_that_came_later_have_their_defaults(little):
    options = {"datasets": ("tolokers",), "models": ("bunn",), "presets": ("released",)}
    (before,) = reproduce(little, splits=(0,), epochs=2, **options)
    place = little / "runs" / "tolokers-bunn-released-2-epochs" / "split0-seed0"
    for path in (place / "result.json", place / "config.json"):
        content = json.loads(path.read_text())
        sections = content["options"] if path.name == "result.json" else content
        del sections["model"]["node_dropout"], sections["training"]["average"]
        path.write_text(json.dumps(content))
    (after,) = reproduce(little, splits=(0, 1), epochs=2, **options)
    assert after.splits == [0, 1]
    assert (after.test[0], after.options) == (before.test[0], before.options)


def test_no_run_of_a_result_is_lost(little):
    """Where folders are gone, or on another machine, what was measured stays beside what is new."""
    options = {"datasets": ("tolokers",), "models": ("gcn",), "epochs": 2}
    (before,) = reproduce(little, splits=(0, 1, 3), **options)
    (little / "runs").rename(little / "elsewhere")
    elsewhere = replace(before, git_commit="another", device="another card")
    elsewhere.write(little / "results")
    (after,) = reproduce(little, splits=(2, 3), **options)
    assert after.splits == [0, 1, 2, 3]
    assert [after.test[0], after.test[1], after.test[3]] == before.test
    assert [after.extra["seconds"][0], after.extra["best_epoch"][1]] == [
        before.extra["seconds"][0],
        before.extra["best_epoch"][1],
    ]
    assert after.seconds == pytest.approx(sum(after.extra["seconds"]))
    assert after.device.startswith("another card, ")
    assert after.curves == before.curves
    (same,) = reproduce(little, splits=(2,), **options)
    assert same == after


def test_times_of_another_machine_are_not_mixed_in(little):
    options = {"experiment": "runtime", "datasets": ("tolokers",), "models": ("sage",), "epochs": 2}
    reproduce(little, seeds=(0, 1), **options)
    (same,) = reproduce(little, seeds=(0,), **options)
    assert same.seeds == [0, 1]
    (little / "runs").rename(little / "elsewhere")
    with pytest.raises(ConfigError, match=r"json has split0-seed1, which was timed before"):
        reproduce(little, seeds=(0,), **options)


def test_only_equal_results_are_combined(little):
    options = {"models": ("gcn",), "epochs": 2, "splits": (0,)}
    results = reproduce(little, datasets=("tolokers", "questions"), **options)
    with pytest.raises(ValueError, match="have different options"):
        combined(results)


def test_smaller_relatives(little):
    for dataset in SMALL:
        write_npz(little / "data" / "heterophilous-small" / f"{dataset.replace('-', '_')}.npz")
    results = reproduce(little, datasets=SMALL, models=("nsd", "bunn"), epochs=2, splits=(0,))
    assert {(result.dataset, result.preset) for result in results} == {
        (dataset, "small-2-epochs") for dataset in SMALL
    }


def test_times_are_of_whole_trainings(little):
    results = reproduce(
        little, experiment="runtime", epochs=3, seeds=(0, 1), datasets=("minesweeper",)
    )
    assert {result.model for result in results} == set(runtime.MODELS)
    for result in results:
        assert result.metric == "seconds"
        assert result.seconds == pytest.approx(sum(result.test), abs=0.02)
        assert len(result.extra["roc-auc"]) == 2
    (table,) = tables_for(results, "heterophilous-runtime")
    assert len(table.results) == len(runtime.MODELS)


def test_ablations_change_something():
    base = ablations.config("unchanged").as_dict()
    for name in ablations.ABLATIONS:
        changed = ablations.config(name).as_dict()
        assert (changed == base) == (name == "unchanged")


def test_ablations(little):
    chosen = ("trivial-bundle", "time-learned")
    options = {"presets": chosen, "seeds": (0, 1), "epochs": 2}
    results = reproduce(little, experiment="heterophilous-ablations", **options)
    assert [result.seeds for result in results] == [[0, 1], [0, 1]]
    (table,) = tables_for(results, "ablations")
    labels = [row.label for row in table.rows]
    assert labels == ["BuNN (time-learned-2-epochs)", "BuNN (trivial-bundle-2-epochs)"]


def test_presets_are_those_of_the_tables():
    """Of the paper's source, as it is in its tables of best values."""
    bunn = heterophilous.preset("minesweeper", "bunn")
    assert (bunn.model.num_bundles, bunn.model.num_layers, bunn.model.phi_layers) == (128, 8, 8)
    assert (bunn.optimizer.lr, bunn.training.epochs, bunn.model.dropout) == (3e-5, 2000, 0.2)
    released = heterophilous.preset("tolokers", "bunn", "released")
    assert (released.model.num_bundles, released.model.phi_channels) == (256, 512)
    assert (released.model.maps, released.model.update) == ("rotation", "mlp-concat")
    assert released.training.epochs == 1000
    nsd = heterophilous.preset("tolokers", "nsd")
    assert (nsd.model.hidden_channels, nsd.model.num_layers, nsd.optimizer.lr) == (64, 5, 3e-4)


def test_every_row_of_the_paper_has_a_preset():
    rows = {entry.model for entry in PUBLISHED if entry.experiment == "heterophilous"}
    assert rows - {"elsewhere"} <= set(MODELS)
    for dataset in (*FIVE, *SMALL):
        for model in MODELS:
            for name in heterophilous.names(dataset, model):
                config = heterophilous.preset(dataset, model, name)
                assert (config.dataset, config.architecture) == (dataset, model)


def test_committed_results_say_how_they_were_measured():
    folder = Path(__file__).parents[2] / "results" / "heterophilous"
    for path in folder.glob("*.json"):
        result = Result.read(path)
        assert re.fullmatch(r"[0-9a-f]{40}(, [0-9a-f]{40})*", result.git_commit), path
    tried = [json.loads(path.read_text()) for path in (folder / "tuning").glob("*.json")]
    assert len(tried) >= 2
    for study in tried:
        assert {trial["device"] for trial in study["trials"]} <= {"NVIDIA H200", "cpu"}
        for trial in study["trials"]:
            known = trial["git_commit"] is not None
            assert known or study["sampler"] == "by hand"
            assert not known or re.fullmatch(r"[0-9a-f]{40}", trial["git_commit"])
    for dataset, count in heterophilous.TRIED.items():
        trials = [t for study in tried if study["dataset"] == dataset for t in study["trials"]]
        assert count == sum(trial["state"] in ("complete", "pruned") for trial in trials)
        searched = [name for name, found in heterophilous.SEARCHED.items() if dataset in found]
        assert searched
        for path in (folder / f"{dataset}-bunn-{preset}.json" for preset in searched):
            if path.exists():  # which takes a while after a preset was chosen
                assert Result.read(path).extra["configurations_tried"] == count
