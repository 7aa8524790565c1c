"""The run folder: what is in it, who may use it, and what is said to the others."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bunn.data import MissingDataError
from bunn.training import CheckpointError, Evaluation, RunFolderError, train
from bunn.training.record import MetricsFile, RunFolder
from tests.training.tiny import citations, left_behind, listing, register, tiny

#: Another process: it takes the lock of a folder if it can, says so, and waits.
TAKE_LOCK = """
import fcntl, sys
file = open(sys.argv[1], "a")
try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("taken", flush=True)
except OSError:
    print("busy", flush=True)
sys.stdin.read()
"""


def other_process(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-S", "-c", TAKE_LOCK, str(folder / ".lock")]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder
    )


def test_a_folder_holds_all_that_was_run(tmp_path):
    folder, config = tmp_path / "deep" / "run", tiny(architecture="mlp")
    train(config, [(0, 0), (1, 2)], folder=folder, device="cpu", environment={"device": "a CPU"})
    assert json.loads((folder / "config.json").read_text()) == config.as_dict()
    assert json.loads((folder / "environment.json").read_text()) == {"device": "a CPU"}
    for name in ("split0-seed0", "split1-seed2"):
        lines = (folder / name / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3, 4]
        assert set(json.loads(lines[0])) == {"epoch", "step", "lr", "loss", "val", "test"}
        assert {path.name for path in (folder / name).iterdir()} == {
            "metrics.jsonl",
            "best.safetensors",
            "last.safetensors",
        }


def test_a_second_process_is_kept_out(tmp_path):
    folder, config = tmp_path / "run", tiny(architecture="mlp")
    folder.mkdir()
    with other_process(folder) as process:
        assert process.stdout.readline() == "taken\n"
        with pytest.raises(RunFolderError, match=r"run is in use by another process; wait for it"):
            train(config, folder=folder, device="cpu")
        assert not listing(folder)
        process.communicate("")
    assert process.returncode == 0
    with RunFolder(folder).locked(), other_process(folder) as process:
        assert process.stdout.readline() == "busy\n"
        process.communicate("")
    train(config, folder=folder, device="cpu")  # and nobody is there any more


def test_a_folder_is_used_once(tmp_path):
    config = tiny(architecture="mlp", training={"epochs": 1})
    train(config, folder=tmp_path / "run", device="cpu")
    before = listing(tmp_path)
    with pytest.raises(RunFolderError, match="already holds a run; resume it, or choose"):
        train(config, folder=tmp_path / "run", device="cpu")
    assert listing(tmp_path) == before


def test_another_configuration_is_refused_with_what_changed(tmp_path):
    config = tiny(architecture="mlp", training={"epochs": 1})
    train(config, folder=tmp_path, device="cpu")
    before = listing(tmp_path)
    other = config.override(["optimizer.lr=0.5", "model.num_layers=7", "training.goal=inf"])
    with pytest.raises(RunFolderError) as error:
        train(other, folder=tmp_path, resume=True, device="cpu")
    for part in (
        str(tmp_path),
        "optimizer.lr was 0.01 and is now 0.5",
        "model.num_layers was 2 and is now 7",
        "training.goal was None and is now 'inf'",
    ):
        assert part in str(error.value)
    assert "weight_decay" not in str(error.value)
    with pytest.raises(RunFolderError, match="architecture was 'mlp' and is now 'gcn'"):
        train(tiny(architecture="gcn"), folder=tmp_path, resume=True, device="cpu")
    assert listing(tmp_path) == before


def test_other_seeds_in_the_same_place_are_refused(tmp_path):
    """Also where ``runs.json`` does not say which they were."""
    config = tiny(architecture="mlp", training={"epochs": 1})
    train(config, [(0, 0), (0, 1), (0, 2)], folder=tmp_path, device="cpu")
    (tmp_path / "runs.json").write_text("[[0, 0], [0, 2]]")
    before = listing(tmp_path)
    with pytest.raises(CheckpointError, match="other splits and seeds"):
        train(config, [(0, 0), (0, 2)], folder=tmp_path, resume=True, device="cpu")
    assert {**before, **listing(tmp_path)} == before


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("name", ["thesis.tex", ".hidden", "environment.json"])
def test_somebody_elses_folder_is_left_alone(name, resume, tmp_path):
    (tmp_path / name).write_text("important")
    with pytest.raises(RunFolderError, match="is not empty and holds no run; choose another"):
        train(tiny(architecture="mlp"), folder=tmp_path, resume=resume, device="cpu")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_kill_before_anything_was_said(tmp_path):
    """Drafts of ``config.json`` and the lock are no reason to refuse, and do not stay."""
    config = tiny(architecture="mlp", training={"epochs": 2})
    train(config, folder=tmp_path / "whole", device="cpu")
    folder = tmp_path / "killed"
    folder.mkdir()
    (folder / ".lock").touch()
    (folder / ".config.json.0a1b2c3d.tmp").write_text('{"dataset": "bar')
    train(config, folder=folder, resume=True, device="cpu")
    assert left_behind(folder) == left_behind(tmp_path / "whole")
    (folder / "environment.json").unlink()  # killed between the two
    (folder / "split0-seed0" / ".best.safetensors.0a1b2c3d.tmp").write_text("")
    train(config, folder=folder, resume=True, device="cpu", environment={"a": 1})
    assert json.loads((folder / "environment.json").read_text()) == {"a": 1}
    assert not list(folder.rglob("*.tmp"))


def test_what_cannot_be_built_leaves_no_trace(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    with pytest.raises(MissingDataError, match=r"ind\.citeseer\.x"):
        train(tiny("citeseer", "mlp"), folder=folder, device="cpu", data_root=tmp_path)
    for runs in ((), ((0, -1),), ((0, 0), (0, 0))):
        with pytest.raises(ValueError, match=r"runs=\[.*\]; give at least one pair"):
            train(tiny(), runs, folder=folder, device="cpu")
    assert not folder.exists()
    register(monkeypatch, replace(citations(monkeypatch), num_splits=2))
    config = tiny("citations", "mlp")
    with pytest.raises(ValueError, match="citations has no such split"):
        train(config, [(2, 0)], folder=folder, device="cpu")
    assert not listing(folder)
    train(config, [(1, 0)], folder=folder, device="cpu")  # the folder is still free


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    config = tiny(architecture="mlp")
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(RunFolderError) as error:
            train(config, folder=folder, device="cpu")
        assert f"{folder} cannot be written" in str(error.value)
        assert "choose another folder" in str(error.value)

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    for owner, name in ((os, "mkdir"), (os, "replace"), (Path, "exists")):
        with monkeypatch.context() as patch:
            patch.delenv("BUNN_DATA", raising=False)  # generated data asks for no folder
            patch.setattr(owner, name, refuse)
            with pytest.raises(RunFolderError, match=r"cannot be written: .*Permission denied"):
                train(config, folder=tmp_path / name, device="cpu")


@pytest.mark.parametrize("content", ["", "{", "[1]", "\0"])
def test_a_damaged_configuration(content, tmp_path):
    config = tiny(architecture="mlp", training={"epochs": 1})
    train(config, folder=tmp_path, device="cpu")
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(RunFolderError, match=r"config\.json is damaged .*; restore it"):
        train(config, folder=tmp_path, resume=True, device="cpu")


EVALUATIONS = [
    Evaluation(epoch, 2 * epoch, 0.1, 1 / 3, {"train": 0.5, "val": value, "test": 1e-9})
    for epoch, value in enumerate([1 / 7, float("nan"), float("inf"), -2.0], start=1)
]


def test_evaluations_are_lines_of_json(tmp_path):
    file = MetricsFile(tmp_path / "run" / "metrics.jsonl")
    assert file.restart(0) == []
    for evaluation in EVALUATIONS:
        file.append(evaluation)
    file.sync()
    file.close()
    for line in file.path.read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)  # strict: no NaN, no Infinity
    assert repr(file.restart(4)) == repr(EVALUATIONS)
    file.append(EVALUATIONS[0])
    file.close()
    assert len(file.path.read_text().splitlines()) == 5
    written = file.path.read_bytes()
    assert repr(file.restart(2)) == repr(EVALUATIONS[:2])
    file.close()
    assert written.startswith(file.path.read_bytes())
    assert file.path.read_bytes().count(b"\n") == 2


def test_a_line_that_was_cut_short_is_dropped_and_a_missing_one_is_noticed(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps(evaluation.as_dict()) + "\n" for evaluation in EVALUATIONS]
    path.write_text("".join(lines[:2]) + lines[2][:17])
    file = MetricsFile(path)
    file.restart(2)
    file.append(EVALUATIONS[2])
    file.close()
    assert path.read_text() == "".join(lines[:3])
    with pytest.raises(CheckpointError, match=r"has 3 lines, the checkpoint knows of 4"):
        MetricsFile(path).restart(4)
    for damage in ("{}\n", "nonsense\n", "[]\n"):
        path.write_text(damage + lines[1])
        with pytest.raises(CheckpointError, match=r"metrics\.jsonl is damaged"):
            MetricsFile(path).restart(2)
        assert path.read_text() == damage + lines[1]


def test_nothing_is_written_to_a_file_that_is_not_open(tmp_path):
    with pytest.raises(ValueError, match="not open"):
        MetricsFile(tmp_path / "metrics.jsonl").append(EVALUATIONS[0])


def test_a_folder_is_resumed_with_the_same_runs(tmp_path):
    config = tiny(architecture="mlp", training={"epochs": 1})
    train(config, [(0, 0), (0, 1)], folder=tmp_path / "run", device="cpu")
    before = listing(tmp_path)
    for runs, named in (
        ([(0, 0)], "splits 0 and seeds 0;"),
        ([(0, 0), (0, 1), (0, 2)], "splits 0 and seeds 0, 1, 2;"),
        ([(0, 1), (0, 0)], "splits 0 and seeds 1, 0;"),
        ([(0, 0), (1, 1)], r"pairs of split and seed \(0, 0\), \(1, 1\);"),
    ):
        with pytest.raises(
            RunFolderError, match=f"with splits 0 and seeds 0, 1, and is now asked for {named}"
        ):
            train(config, runs, folder=tmp_path / "run", device="cpu", resume=True)
    assert listing(tmp_path) == before
    train(config, [(0, 0), (0, 1)], folder=tmp_path / "run", device="cpu", resume=True)
    for content in ("[]", "[[0]]", "[3]", "{", "{}"):
        (tmp_path / "run" / "runs.json").write_text(content)
        with pytest.raises(RunFolderError, match=r"runs\.json is damaged"):
            train(config, [(0, 0), (0, 1)], folder=tmp_path / "run", device="cpu", resume=True)
