"""Result files: they come back as they were, are written whole, and errors say what is wrong."""

import errno
import json
import math
import os
import shutil
import statistics
import subprocess
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bunn
from bunn.experiments.environment import environment, git_commit
from bunn.experiments.measure import curves
from bunn.experiments.results import METRICS, Result, read_results
from bunn.files import WIDTH, as_json, write_atomically
from bunn.training import Evaluation, Outcome
from tests.experiments.samples import sample, with_curves

#: What the file of every result holds.
PROMISED = (
    *("experiment", "dataset", "model", "preset", "metric", "seeds", "test", "val"),
    *("test_mean", "test_std", "epochs", "seconds", "device", "versions", "git_commit", "command"),
)

numbers = st.floats(0, 1e6, allow_nan=False)
data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=60,
)  # fmt: skip


@settings(max_examples=15)
@given(
    test=st.lists(numbers, min_size=1, max_size=12),
    notes=st.text(),
    options=st.dictionaries(st.text(), data, max_size=3),
    curve=st.lists(numbers, max_size=40),
    part=st.sampled_from(["test", "train"]),
)
def test_a_result_comes_back_as_it_was(tmp_path_factory, test, notes, options, curve, part):
    curves = {"epoch": list(range(len(curve))), "train_loss": curve} if curve else {}
    result = sample(test=test, notes=notes, options=options, curves=curves, part=part)
    path = result.write(tmp_path_factory.getbasetemp() / "round-trip")
    assert Result.read(path) == result


@given(st.lists(numbers, min_size=2, max_size=20))
def test_mean_and_sample_standard_deviation(test):
    result = sample(test=test)
    assert result.test_mean == pytest.approx(sum(test) / len(test))
    squares = sum((value - statistics.fmean(test)) ** 2 for value in test)
    assert result.test_std == pytest.approx(math.sqrt(squares / (len(test) - 1)), abs=1e-9)
    assert sample(test=test[:1]).test_std == 0.0


def test_the_file_holds_what_is_promised_under_its_name(tmp_path):
    path = sample(model="gat-sep", preset="released").write(tmp_path)
    assert path == tmp_path / "synthetic" / "barbell-gat-sep-released.json"
    content = json.loads(path.read_text())
    assert tuple(content)[: len(PROMISED)] == PROMISED
    assert content["test_mean"] == pytest.approx(0.002)
    assert '"seeds": [0, 1, 2],\n' in path.read_text()


@given(data)
def test_json_is_json(value):
    assert json.loads(as_json(value)) == value


@given(st.lists(st.floats(-1e9, 1e9), max_size=200))
def test_lists_of_numbers_run_on(values):
    lines = as_json({"a": {"values": values}}).splitlines()
    assert all(len(line) <= WIDTH + len(' "values": []') for line in lines)
    assert len(lines) <= 8 + len(values) // 3


def test_what_json_cannot_hold_is_kept_as_text(tmp_path):
    result = sample(options={"time": math.inf, "device": torch.device("cpu"), "times": (1.0, 2.0)})
    assert result.options == {"time": "inf", "device": "cpu", "times": [1.0, 2.0]}
    assert Result.read(result.write(tmp_path)) == result


def test_curves_keep_six_digits():
    result = sample(curves={"epoch": [1000001], "train_loss": [0.123456789]})
    assert result.curves == {"epoch": [1000001], "train_loss": [0.123457]}


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"model": "GAT_sep"}, ValueError, "model='GAT_sep'.*write 'gat-sep'"),
        ({"dataset": "../outside"}, ValueError, "dataset=.*write 'outside'"),
        ({"preset": ""}, ValueError, "preset=''"),
        ({"metric": "acuracy"}, ValueError, "metric='acuracy'.*did you mean 'accuracy'"),
        ({"metric": "accuracy", "test": [98.99]}, ValueError, "98.99.*fraction.*100"),
        ({"test": []}, ValueError, "no run"),
        ({"test": [math.nan] * 3}, ValueError, "test=nan.*finite"),
        ({"test": [math.inf] * 3}, ValueError, "test=inf"),
        ({"test": [torch.tensor(1.0)]}, TypeError, "test=tensor.*plain numbers"),
        ({"test": (0.1, 0.2, 0.3)}, TypeError, "test=.*list"),
        ({"seeds": [0]}, ValueError, "seeds=.*1 values for 3 runs"),
        ({"seeds": [True, False, True]}, TypeError, "seeds=True"),
        ({"seeds": [0.5, 1, 2]}, TypeError, "seeds=0.5.*no int"),
        ({"val": [0.1]}, ValueError, "val=.*1 values for 3 runs"),
        ({"splits": [1, 2]}, ValueError, "splits=.*2 values for 3 runs"),
        ({"part": "val"}, ValueError, "part='val'"),
        ({"epochs": 1.5}, TypeError, "epochs=1.5"),
        ({"seconds": -1.0}, ValueError, "seconds=-1.0"),
        ({"notes": None}, TypeError, "notes=None"),
        ({"versions": []}, TypeError, "versions="),
        (
            {"curves": {"training_loss": []}},
            ValueError,
            "'training_loss'.*did you mean 'train_loss'",
        ),
        ({"curves": {"epoch": [0, 1], "val": [0.5]}}, ValueError, "'val'.*1 values for 2 epochs"),
        ({"curves": {"epoch": [0], "val": [math.nan]}}, ValueError, "'val'.*finite"),
    ],
)
def test_a_wrong_field_is_named_with_its_fix(changes, error, words):
    with pytest.raises(error, match=words):
        sample(**changes)


def test_what_may_be_left_out():
    result = sample(val=[], splits=[])
    assert "splits" not in result.as_dict()
    assert result.as_dict()["val"] == []


def rename(content, old, new):
    content[new] = content.pop(old)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda c: rename(c, "seeds", "sedes"), "sedes; no such field, did you mean 'seeds'"),
        (lambda c: c.pop("git_commit"), "git_commit; this field is missing"),
        (lambda c: c.update(test_mean=0.5), "test_mean=0.5; test gives 0.002"),
        (lambda c: c.update(test_std=0.5), "test_std=0.5; test gives 0.001"),
        (lambda c: c.update(test_mean=None), "test_mean=None"),
        (lambda c: c.update(val=[math.nan] * 3), "NaN; a result holds finite numbers"),
        (lambda c: c.update(test=3), "test=3; this is no list"),
        (lambda c: c.update(metric=3), "metric=3"),
    ],
)
def test_a_damaged_file_is_named_with_its_field(tmp_path, damage, words):
    path = sample().write(tmp_path)
    content = json.loads(path.read_text())
    damage(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=words) as error:
        Result.read(path)
    assert str(error.value).startswith(str(path))


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "3", '{"experiment": "synth', b"\xff\xfe"])
def test_a_file_that_is_no_result(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=r"x\.json"):
        Result.read(path)


@pytest.mark.parametrize("function", ["replace", "fsync"])
def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch, function):
    path = sample().write(tmp_path)
    before = path.read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, function, full)
    with pytest.raises(OSError, match="No space"):
        sample(notes="new").write(tmp_path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_written_file_has_ordinary_permissions(tmp_path):
    (tmp_path / "plain").write_text("")
    write_atomically(tmp_path / "atomic", "")
    modes = [(tmp_path / name).stat().st_mode for name in ("plain", "atomic")]
    assert modes[0] == modes[1]


def test_all_results_of_a_folder(tmp_path):
    written = [with_curves(), sample(model="gcn"), sample(experiment="lrgb", dataset="peptides")]
    for result in written:
        result.write(tmp_path)
    (tmp_path / "theory").mkdir()
    (tmp_path / "theory" / "verify.json").write_text('{"claims": []}')
    found = read_results(tmp_path)
    assert [r.file for r in found] == sorted(r.file for r in written)
    assert sorted(found, key=repr) == sorted(written, key=repr)


def test_a_folder_with_a_misnamed_file(tmp_path):
    path = sample().write(tmp_path)
    path.rename(path.with_name("barbell-gcn-paper.json"))
    with pytest.raises(ValueError, match=r"barbell-gcn-paper.*holds.*barbell-bunn-paper"):
        read_results(tmp_path)


def test_no_folder_of_results(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing-here"):
        read_results(tmp_path / "nothing-here")


def test_the_environment_fills_a_result():
    found = environment()
    assert found["versions"]["bunn"] == bunn.__version__
    assert found["versions"]["torch"] == torch.__version__
    assert {"python", "torch_geometric", "lightning", "torchmetrics", "numpy"} <= set(
        found["versions"]
    )
    assert found["device"]
    sample(**found)


def test_every_metric_has_a_direction():
    assert {name for name, metric in METRICS.items() if metric.lower_is_better} == {
        "mae",
        "mse",
        "seconds",
    }


@pytest.fixture
def checkout(tmp_path):
    """A repository with a package and a result in it."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    for name in ("package/__init__.py", "results/a.json", "README.md"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    return tmp_path


def git(folder, *arguments):
    who = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    answer = subprocess.run(
        ["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True, env=env
    )
    return answer.stdout.strip()


@pytest.mark.parametrize(
    ("file", "dirty"),
    [
        (None, False),
        ("README.md", True),
        ("package/__init__.py", True),
        ("package/new.py", True),
        ("results/a.json", False),
        ("results/b.json", False),
        ("stray.txt", False),
    ],
)
def test_the_commit_says_whether_code_was_modified(checkout, file, dirty):
    commit = git(checkout, "rev-parse", "HEAD")
    if file is not None:
        (checkout / file).write_text("changed")
    assert git_commit(checkout / "package") == commit + "+dirty" * dirty


def test_an_installed_copy_inside_another_repository_has_no_commit(checkout):
    copy = checkout / ".venv" / "package"
    copy.mkdir(parents=True)
    (copy / "__init__.py").write_text("")
    assert git_commit(copy) == "unknown"


def test_no_commit_without_git(checkout, tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))  # as in a hook: not ours
    assert git_commit(checkout / "package") == git(checkout, "rev-parse", "HEAD")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_commit(checkout / "package") == "unknown"
    assert git_commit(Path(bunn.__file__).parent) == "unknown"


def test_a_copy_elsewhere_is_told_its_commit(checkout, tmp_path, monkeypatch):
    monkeypatch.setenv("BUNN_COMMIT", "0123abc")
    assert git_commit(tmp_path) == git_commit(checkout / "package") == "0123abc"


def test_the_folders_of_bunn_train_are_results_too(tmp_path):
    result = sample(experiment="train", preset="default")
    for folder in ("first", "Second_2", "unfinished"):
        (tmp_path / folder).mkdir()
        for name in ("config", "environment", "runs"):
            (tmp_path / folder / f"{name}.json").write_text("{}")
        if folder != "unfinished":
            (tmp_path / folder / "result.json").write_text(json.dumps(result.as_dict()))
    names = {found.preset for found in read_results(tmp_path)}
    assert names == {"default", "first"}  # in the order of their paths
    assert read_results(tmp_path / "first") == [result]
    assert read_results(tmp_path / "unfinished") == []


def test_curves_leave_out_what_is_not_finite():
    values = [1.0, math.inf, 0.5, math.nan]
    evaluations = tuple(
        Evaluation(epoch, epoch, 1e-3, 2.0, {"train": 1.0, "val": value, "test": value})
        for epoch, value in enumerate(values)
    )
    nothing = Outcome(0, 0, evaluations[1], evaluations[1:2], 1, 10, 1.0)
    assert curves([nothing]) == {"epoch": [], "train_loss": [], "val": []}
    outcome = Outcome(0, 0, evaluations[2], evaluations, 3, 10, 1.0)
    assert curves([outcome]) == {"epoch": [0, 2], "train_loss": [2.0, 2.0], "val": [1.0, 0.5]}


def test_the_commit_is_that_of_the_code_that_runs(monkeypatch):
    before = environment()["git_commit"]
    monkeypatch.setenv("BUNN_COMMIT", "a commit made meanwhile")
    assert environment()["git_commit"] == before
