"""A run that was interrupted ends with the bytes of one that was not."""

import json
import shutil
from pathlib import Path

import pytest

from bunn import files
from bunn.training import CheckpointError, RunFolderError, train
from bunn.training import checkpoint as checkpoint_module
from bunn.training.record import MetricsFile
from tests.training.tiny import StoppedError, left_behind, listing, stop_after, tiny

#: Everything that has a state: dropout, signs, schedules, moments, patience, loss scales.
EXPERIMENTS = {
    "cosine, dropout, clipping": (
        {
            "model": {"dropout": 0.3, "num_bundles": 2, "learn_time": True},
            "optimizer": {"lr": 0.05, "clip": 0.5, "weight_decay": 0.1, "time_lr": 0.1},
            "schedule": {"name": "cosine", "warmup": 2},
            "training": {"average": 0.5},
        },
        [(0, 0)],
    ),
    "plateau, mini-batches": (
        {
            "optimizer": {"name": "adam", "lr": 0.2},
            "schedule": {"name": "plateau", "patience": 0, "monitor": "loss"},
            "training": {"batch_size": 3, "eval_every": 2},
        },
        [(1, 4)],
    ),
    "together, dropout, plateau": (
        {
            "model": {"dropout": 0.3},
            "optimizer": {"lr": 0.2},
            "schedule": {"name": "plateau", "patience": 0},
            "training": {"together": True, "average": 0.8},
        },
        [(0, 0), (1, 1), (0, 2)],
    ),
    "together, signs, labels, cosine": (
        {
            "dataset": "minesweeper-board",
            "encoding": {"lap_pe": 3, "rwse": 2},
            "model": {"dropout": 0.2},
            "schedule": {"name": "cosine"},
            "training": {"together": True, "label_inputs": 0.5},
        },
        [(0, 0), (1, 1)],
    ),
    "together, one after the other out of patience": (
        {
            "architecture": "mlp",
            "model": {"dropout": 0.2},
            "optimizer": {"lr": 0.03},
            "training": {"together": True, "patience": 1, "epochs": 14},
        },
        [(0, 1), (0, 5), (0, 7)],
    ),
    "one by one, float16": (
        {
            "architecture": "gcn",
            "model": {"dropout": 0.2},
            "training": {"precision": "16-mixed", "together": False},
        },
        [(0, 0), (1, 1)],
    ),
}


def experiment(name):
    sections, runs = EXPERIMENTS[name]
    training = {"epochs": 6, **sections.get("training", {}), "checkpoint_seconds": 0.0}
    return tiny(**{**sections, "training": training}), runs


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_interrupted_again_and_again(name, tmp_path):
    """Killed at every evaluation, before the checkpoint of its epoch is written."""
    config, runs = experiment(name)
    expected = train(config, runs, folder=tmp_path / "whole", device="cpu")
    watched, interruptions = set(), 0
    while True:

        def stop_once(progressed):
            place = (progressed.run, progressed.epoch)
            if progressed.step and place not in watched:
                watched.add(place)
                raise StoppedError

        try:
            outcomes = train(
                config, runs, folder=tmp_path / "cut", resume=True, device="cpu", watcher=stop_once
            )
            break
        except StoppedError:
            interruptions += 1
    assert interruptions >= sum(len(outcome.evaluations) for outcome in expected)
    if "patience" in name:
        assert len({outcome.epochs for outcome in expected}) > 1
    assert left_behind(tmp_path / "cut") == left_behind(tmp_path / "whole")
    for one, other in zip(outcomes, expected, strict=True):
        assert (one.best, one.evaluations, one.epochs) == (
            other.best,
            other.evaluations,
            other.epochs,
        )


@pytest.mark.parametrize("epoch", [1, 3, 6])
def test_a_checkpoint_of_some_epochs_ago(epoch, tmp_path):
    """Metrics that were written after the checkpoint are written again, not twice."""
    config, runs = experiment("together, dropout, plateau")
    train(config, runs, folder=tmp_path / "whole", device="cpu")
    cut = tmp_path / "cut"
    with pytest.raises(StoppedError):
        train(config, runs, folder=cut, device="cpu", watcher=stop_after(2))
    (checkpoints,) = (cut / "checkpoints").iterdir()
    kept = tmp_path / "kept"
    shutil.copytree(checkpoints, kept)
    with pytest.raises(StoppedError):
        train(config, runs, folder=cut, device="cpu", resume=True, watcher=stop_after(epoch))
    shutil.rmtree(checkpoints)
    shutil.copytree(kept, checkpoints)
    train(config, runs, folder=cut, device="cpu", resume=True)
    assert left_behind(cut) == left_behind(tmp_path / "whole")


def test_no_checkpoint_yet(tmp_path):
    config = tiny(architecture="mlp", training={"checkpoint_seconds": 1e6})
    train(config, folder=tmp_path / "whole", device="cpu")
    with pytest.raises(StoppedError):
        train(config, folder=tmp_path / "cut", device="cpu", watcher=stop_after(3))
    assert not (tmp_path / "cut" / "checkpoints").exists()
    train(config, folder=tmp_path / "cut", device="cpu", resume=True)
    assert left_behind(tmp_path / "cut") == left_behind(tmp_path / "whole")


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    config, runs = experiment("together, signs, labels, cosine")
    first = train(config, runs, folder=tmp_path, device="cpu")
    before = listing(tmp_path)
    watched = []
    second = train(config, runs, folder=tmp_path, device="cpu", resume=True, watcher=watched.append)
    assert listing(tmp_path) == before
    assert [one.evaluations for one in first] == [other.evaluations for other in second]
    assert all(progressed.finished for progressed in watched)
    assert [one.best for one in first] == [other.best for other in second]


def test_killed_between_the_checkpoint_and_its_weights(tmp_path, monkeypatch):
    """The files that people look at are brought up to date, even if nothing is left to train."""
    config = tiny(architecture="mlp")
    train(config, folder=tmp_path / "whole", device="cpu")

    def stop(*_):
        raise StoppedError

    with monkeypatch.context() as patch:
        patch.setattr("bunn.training.group.copy_atomically", stop)
        with pytest.raises(StoppedError):
            train(config, folder=tmp_path / "cut", device="cpu")
    assert not (tmp_path / "cut" / "split0-seed0" / "best.safetensors").exists()
    train(config, folder=tmp_path / "cut", device="cpu", resume=True)
    assert left_behind(tmp_path / "cut") == left_behind(tmp_path / "whole")


def test_before_the_first_evaluation_there_are_no_best_weights(tmp_path):
    training = {"epochs": 4, "eval_every": 3, "checkpoint_seconds": 0.0, "batch_size": 2}
    config = tiny(architecture="mlp", training=training)
    train(config, folder=tmp_path / "whole", device="cpu")
    with pytest.raises(StoppedError):
        train(config, folder=tmp_path / "cut", device="cpu", watcher=stop_after(3))
    folder = tmp_path / "cut" / "split0-seed0"
    assert not (folder / "best.safetensors").exists()
    assert (folder / "last.safetensors").exists()
    train(config, folder=tmp_path / "cut", device="cpu", resume=True)
    assert left_behind(tmp_path / "cut") == left_behind(tmp_path / "whole")


def test_a_damaged_checkpoint_and_the_advice(tmp_path):
    config, runs = experiment("cosine, dropout, clipping")
    train(config, runs, folder=tmp_path / "whole", device="cpu")
    cut = tmp_path / "cut"
    with pytest.raises(StoppedError):
        train(config, runs, folder=cut, device="cpu", watcher=stop_after(4))
    (manifest,) = cut.glob("checkpoints/*/last.json")
    folder = manifest.parent / json.loads(manifest.read_text())["folder"]
    file = folder / "split0-seed0.last.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    before = listing(cut)
    with pytest.raises(CheckpointError, match=r"split0-seed0\.last\.safetensors is damaged"):
        train(config, runs, folder=cut, device="cpu", resume=True)
    assert listing(cut) == before
    manifest.unlink()
    train(config, runs, folder=cut, device="cpu", resume=True)
    assert left_behind(cut) == left_behind(tmp_path / "whole")


def test_a_full_disk(tmp_path, monkeypatch):
    """Wherever the disk is full: a message that names the file, and a run that can go on."""
    config, runs = experiment("together, dropout, plateau")
    train(config, runs, folder=tmp_path / "whole", device="cpu")
    cut = tmp_path / "cut"

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    places = (
        (checkpoint_module, "save_file", "could not be written"),
        (files.os, "link", "safetensors cannot be written"),
        (files.os, "replace", "could not be written"),
    )
    for epoch, (owner, name, message) in enumerate(places, start=1):
        with monkeypatch.context() as patch:

            def fill(progressed, epoch=epoch, owner=owner, name=name, patch=patch):
                if progressed.epoch == epoch:
                    patch.setattr(owner, name, full)
                    patch.setattr(files.shutil, "copyfile", full)

            with pytest.raises((CheckpointError, RunFolderError)) as error:
                train(config, runs, folder=cut, device="cpu", resume=True, watcher=fill)
        assert "No space left on device" in str(error.value)
        assert message in str(error.value)
        assert "then resume" in str(error.value)
    train(config, runs, folder=cut, device="cpu", resume=True)
    assert left_behind(cut) == left_behind(tmp_path / "whole")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_under_the_metrics(tmp_path, monkeypatch):
    config = tiny(architecture="mlp", training={"checkpoint_seconds": 0.0})
    train(config, folder=tmp_path / "whole", device="cpu")
    with monkeypatch.context() as patch:
        restart = MetricsFile.restart

        def restart_on_a_full_disk(file, count):
            evaluations = restart(file, count)
            file.close()
            file._file = Path("/dev/full").open("a")  # noqa: SIM115
            return evaluations

        patch.setattr(MetricsFile, "restart", restart_on_a_full_disk)
        with pytest.raises(RunFolderError, match=r"metrics\.jsonl cannot be written: .*No space"):
            train(config, folder=tmp_path / "cut", device="cpu")
    train(config, folder=tmp_path / "cut", device="cpu", resume=True)
    assert left_behind(tmp_path / "cut") == left_behind(tmp_path / "whole")
