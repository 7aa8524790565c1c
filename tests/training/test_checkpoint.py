"""Checkpoints: whole after a crash at any moment, found out when damaged, never in the way."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from bunn.training import CheckpointError, Optimizer
from bunn.training import checkpoint as module
from bunn.training.checkpoint import Checkpoints, Snapshot, pack_optimizer, unpack_optimizer
from bunn.training.optimizer import build_optimizer
from tests.training.tiny import listing

#: Everything that changes the disk, but for writing into a file that nothing names yet.
OPERATIONS = ("mkdir", "rename", "replace", "unlink", "rmdir", "fsync")


class CrashError(BaseException):
    """The power is gone: nothing after it happens."""


def snapshot(number: int) -> Snapshot:
    weights = {"weight": torch.full((3, 2), float(number)), "count": torch.tensor(number)}
    return Snapshot(
        {"run.last": weights, "run.best": {}, "random": {"cpu": torch.arange(5).byte()}},
        {"epoch": number, "worst": float("inf"), "name": "ä"},
    )


def assert_is(loaded: Snapshot | None, number: int) -> None:
    assert loaded is not None
    expected = snapshot(number)
    assert loaded.values == expected.values
    assert loaded.tensors.keys() == expected.tensors.keys()
    for file, tensors in expected.tensors.items():
        assert loaded.tensors[file].keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert torch.equal(loaded.tensors[file][name], tensor)


def folders(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_dir()}


def save(folder: Path, *numbers: int) -> Checkpoints:
    checkpoints = Checkpoints(folder, "me")
    for number in numbers:
        checkpoints.save(snapshot(number), f"epoch-{number:06d}")
    return checkpoints


def test_the_last_one_is_loaded_and_two_are_kept(tmp_path):
    folder = tmp_path / "checkpoints"
    assert Checkpoints(folder, "me").load() is None
    assert Checkpoints(folder, "me").folder_of_last() is None
    for number in range(1, 5):
        checkpoints = save(folder, number)
        assert_is(Checkpoints(folder, "me").load(), number)
        assert checkpoints.folder_of_last() == folder / f"epoch-{number:06d}"
    assert folders(folder) == {"epoch-000003", "epoch-000004"}
    (folder / "last.json").unlink()
    assert_is(checkpoints.load(), 3)
    assert checkpoints.folder_of_last() == folder / "epoch-000003"


def test_parameters_in_two_places_and_odd_layouts(tmp_path):
    weight = torch.arange(6.0).view(2, 3)
    tensors = {"a": weight, "b": weight, "c": weight.T, "d": weight[:, 1], "e": torch.tensor(1.5)}
    tensors = {name: nn.Parameter(tensor) for name, tensor in tensors.items()}
    Checkpoints(tmp_path, "me").save(Snapshot({"x": tensors}, {}), "one")
    loaded = Checkpoints(tmp_path, "me").load().tensors["x"]
    for name, tensor in tensors.items():
        assert torch.equal(loaded[name], tensor.detach())


def crash_at(monkeypatch: pytest.MonkeyPatch, moment: int) -> list[str]:
    """Lets everything from operation number ``moment`` on fail; the operations that were done."""
    done: list[str] = []

    def guarded(name, operation):
        def call(*arguments, **keywords):
            if len(done) >= moment:
                raise CrashError
            done.append(name)
            return operation(*arguments, **keywords)

        return call

    for name in OPERATIONS:
        monkeypatch.setattr(os, name, guarded(name, getattr(os, name)))
    monkeypatch.setattr(module, "save_file", guarded("save_file", module.save_file))
    return done


@pytest.mark.parametrize("label", ["epoch-000003", "epoch-000002"])
def test_a_crash_at_any_moment_leaves_a_whole_checkpoint(label, tmp_path):
    """Also where the new one would have the name of one that is there."""
    before = tmp_path / "before"
    save(before, 1, 2)
    (before / ".epoch-000000.part").mkdir()  # of an earlier crash
    (before / ".last.json.abcd.tmp").write_text("{")
    moment, new = 0, []
    while True:
        folder = tmp_path / f"{moment}"
        shutil.copytree(before, folder)
        with pytest.MonkeyPatch.context() as monkeypatch:
            done = crash_at(monkeypatch, moment)
            try:
                Checkpoints(folder, "me").save(snapshot(3), label)
                crashed = False
            except CrashError:
                crashed = True
        loaded = Checkpoints(folder, "me").load()
        new.append(loaded is not None and loaded.values["epoch"] == 3)
        assert_is(loaded, 3 if new[-1] else 2)
        (folder / "last.json").unlink()  # the one before is whole as well
        assert Checkpoints(folder, "me").load().values["epoch"] in (1, 2)

        shutil.rmtree(folder)
        shutil.copytree(before, folder)
        with pytest.MonkeyPatch.context() as monkeypatch:
            crash_at(monkeypatch, moment)
            with pytest.raises(CrashError) if crashed else pytest.MonkeyPatch.context():
                Checkpoints(folder, "me").save(snapshot(3), label)
        save(folder, 4)  # and life goes on
        assert_is(Checkpoints(folder, "me").load(), 4)
        assert len(folders(folder)) == 2
        assert not [path for path in folder.rglob("*") if path.suffix in (".tmp", ".part")]
        if not crashed:
            break
        moment += 1
    assert {"save_file", "mkdir", "rename", "replace", "fsync", "rmdir"} <= set(done)
    assert moment > 12
    assert new == sorted(new)  # from one moment on, the new one counts
    assert not new[0]
    assert new[-1]


DAMAGES = {
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "empty": lambda path: path.write_bytes(b""),
    "a bit flipped": lambda path: path.write_bytes(
        bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:]
    ),
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "name", ["run.last.safetensors", "run.best.safetensors", "random.safetensors", "values.json"]
)
def test_a_damaged_file_is_found_and_nothing_is_touched(damage, name, tmp_path):
    save(tmp_path, 1, 2)
    file = tmp_path / "epoch-000002" / name
    DAMAGES[damage](file)
    before = listing(tmp_path)
    with pytest.raises(CheckpointError) as error:
        Checkpoints(tmp_path, "me").load()
    assert str(file) in str(error.value)
    assert ("is missing" if damage == "missing" else "is damaged") in str(error.value)
    assert f"remove {tmp_path / 'last.json'} to go on" in str(error.value)
    assert listing(tmp_path) == before
    (tmp_path / "last.json").unlink()  # the advice
    assert_is(Checkpoints(tmp_path, "me").load(), 1)


def test_advice_that_would_not_help_is_not_given(tmp_path):
    save(tmp_path, 1)
    (tmp_path / "epoch-000001" / "values.json").unlink()
    with pytest.raises(CheckpointError, match=r"values\.json is missing; .*: restore it"):
        Checkpoints(tmp_path, "me").load()
    shutil.copy(tmp_path / "last.json", tmp_path / "previous.json")  # both name the same one
    with pytest.raises(CheckpointError, match=r"values\.json is missing; .*: restore it"):
        Checkpoints(tmp_path, "me").load()
    (tmp_path / "previous.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"values\.json is missing; .*: restore it"):
        Checkpoints(tmp_path, "me").load()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is damaged"),
        ('{"format": "bunn-che', "is damaged"),
        ("[1, 2]", "is damaged"),
        ("\0\0\0", "is damaged"),
        ('{"format": "bunn-checkpoint", "version": 1}', "is damaged"),
        (
            '{"format": "bunn-checkpoint", "version": 1, "identity": "me", "folder": "", '
            '"files": {}}',
            "is damaged",
        ),
        ("{}", "no checkpoint of this version of bunn (format=None, version=None)"),
        ('{"format": "other", "version": 1}', "(format='other', version=1)"),
        ('{"format": "bunn-checkpoint", "version": 2}', "version=2"),
    ],
)
def test_a_manifest_of_somebody_else(content, message, tmp_path):
    save(tmp_path, 1, 2)
    manifest = tmp_path / "last.json"
    manifest.write_text(content)
    before = listing(tmp_path)
    with pytest.raises(CheckpointError) as error:
        Checkpoints(tmp_path, "me").load()
    assert str(manifest) in str(error.value)
    assert message in str(error.value)
    assert "nothing was changed" in str(error.value)
    assert listing(tmp_path) == before


def test_a_checkpoint_of_another_experiment(tmp_path):
    save(tmp_path, 1)
    before = listing(tmp_path)
    with pytest.raises(CheckpointError, match="belongs to an experiment with another config"):
        Checkpoints(tmp_path, "you").load()
    assert listing(tmp_path) == before


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_full_disk_keeps_the_old_one(failing, tmp_path, monkeypatch):
    save(tmp_path, 1, 2)
    before = listing(tmp_path)
    calls = []
    write = module.save_file

    def full(tensors, path):
        calls.append(path)
        if len(calls) == failing:
            Path(path).write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(tensors, path)

    monkeypatch.setattr(module, "save_file", full)
    with pytest.raises(CheckpointError) as error:
        save(tmp_path, 3)
    for part in ("epoch-000003", "No space left on device", "make room", "then resume"):
        assert part in str(error.value)
    assert listing(tmp_path) == before
    assert folders(tmp_path) == {"epoch-000001", "epoch-000002"}
    monkeypatch.undo()
    save(tmp_path, 3)
    assert_is(Checkpoints(tmp_path, "me").load(), 3)


def test_a_full_disk_when_the_manifest_is_written(tmp_path, monkeypatch):
    save(tmp_path, 1, 2)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(CheckpointError, match="No space left"):
        save(tmp_path, 3)
    monkeypatch.undo()
    assert_is(Checkpoints(tmp_path, "me").load(), 2)
    save(tmp_path, 3)
    assert_is(Checkpoints(tmp_path, "me").load(), 3)
    assert len(folders(tmp_path)) == 2


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="could not be written"):
        save(tmp_path / "file" / "checkpoints", 1)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_an_optimiser_goes_on_where_it_was(name, tmp_path):
    def step(model, optimizer, number):
        model(torch.full((1, 3), float(number))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    options = Optimizer(name, lr=0.1, weight_decay=0.01)
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = build_optimizer(options, model)
    for number in range(3):
        step(model, optimizer, number)
    optimizer.param_groups[0]["lr"] = 0.03
    moments, groups = pack_optimizer(optimizer)
    Checkpoints(tmp_path, "me").save(
        Snapshot({"moments": moments, "model": model.state_dict()}, groups), "one"
    )
    loaded = Checkpoints(tmp_path, "me").load()
    other = nn.Linear(3, 2)
    other.load_state_dict(loaded.tensors["model"])
    again = build_optimizer(options, other)
    unpack_optimizer(again, loaded.tensors["moments"], loaded.values)
    assert json.dumps(again.state_dict()["param_groups"]) == json.dumps(
        optimizer.state_dict()["param_groups"]
    )
    for number in range(3):
        step(model, optimizer, number)
        step(other, again, number)
        assert torch.equal(model.weight, other.weight)
        assert torch.equal(model.bias, other.bias)
