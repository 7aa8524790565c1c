"""``bunn train``, ``datasets``, ``reproduce`` and ``report``, run as a user runs them."""

import json
import re
import shlex
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bunn.data import DATASETS
from bunn.experiments.presets import find_preset
from bunn.experiments.results import Result, read_results
from tests.commands import run
from tests.data.raw_files import real_root, write_dataset
from tests.experiments.samples import sample, trees, with_curves
from tests.runs import SMALL, files, outcome, train

EXTRAS = ("lightning", "torchmetrics", "safetensors")


def explained(result, code):
    """The message of a command that failed: no traceback, no long story."""
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    (message,) = [line for line in result.stderr.splitlines() if line.startswith("bunn: ")]
    return message


def usage(result):
    """The message of a command that was not understood."""
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.replace("│", " ").split())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of twelve epochs and two seeds, started cold: its folder and what was printed."""
    folder = tmp_path_factory.mktemp("trained")
    arguments = train("training.epochs=12", output="run")
    return folder / "run", run(*arguments, "--seeds", "0,3", cwd=folder)


def test_a_run_folder_tells_everything(trained):
    folder, finished = trained
    assert finished.returncode == 0, finished.stderr
    _, preset = find_preset("barbell", "bunn")
    effective = preset.override([*SMALL, "training.epochs=12"])
    assert json.loads((folder / "config.json").read_text()) == effective.as_dict()
    environment = json.loads((folder / "environment.json").read_text())
    assert {"torch", "torch_geometric", "lightning", "bunn"} <= environment["versions"].keys()
    assert environment["threads"] == 1
    assert environment["device"]
    assert environment["git_commit"]
    assert environment["command"].startswith("bunn train barbell --set data.cluster_size=3")
    for name in ("split0-seed0", "split0-seed3"):
        lines = (folder / name / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["epoch"] for line in lines] == list(range(1, 13))
        last = load_file(folder / name / "last.safetensors")
        best = load_file(folder / name / "best.safetensors")
        assert best.keys() == last.keys()
        assert sum(tensor.numel() for tensor in last.values()) > 0


def test_the_result_is_the_best_validated_epoch(trained):
    folder, _ = trained
    result = json.loads((folder / "result.json").read_text())
    for index, seed in enumerate((0, 3)):
        path = folder / f"split0-seed{seed}" / "metrics.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        best = min(rows, key=lambda row: row["val"])
        assert (result["val"][index], result["test"][index]) == (best["val"], best["test"])
        assert result["extra"]["best_epoch"][index] == best["epoch"]
    assert result["seeds"] == [0, 3]
    assert result["options"] == json.loads((folder / "config.json").read_text())


def test_what_train_prints(trained):
    folder, finished = trained
    assert "cluster_size=3" in finished.stderr  # the effective configuration
    assert "hidden_channels=8" in finished.stderr
    result = json.loads((folder / "result.json").read_text())
    for seed, value in zip((0, 3), result["test"], strict=True):
        (line,) = [row for row in finished.stdout.splitlines() if f"split 0, seed {seed}" in row]
        assert f"{value:.4f}" in line
    assert f"test mse {result['test_mean']:.4f}" in finished.stdout
    assert finished.stdout.rstrip().endswith("everything is in run")


def test_the_same_seed_gives_the_same_bytes(trained, warm, tmp_path):
    again = warm.run(*train("training.epochs=12", output="run"), "--seeds", "0,3", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert outcome(tmp_path / "run") == outcome(trained[0])


def test_a_finished_run_is_left_alone(trained, warm):
    folder, _ = trained
    before, result = files(folder), outcome(folder)
    arguments = train("training.epochs=12", output="run")

    message = explained(warm.run(*arguments, "--seeds", "0,3", cwd=folder.parent), 1)
    assert "run already holds a run" in message
    assert "--resume" in message
    changed = train("training.epochs=13", "optimizer.lr=0.1", output="run")
    message = explained(warm.run(*changed, "--resume", cwd=folder.parent), 1)
    assert "training.epochs was 12 and is now 13" in message
    assert "optimizer.lr was 0.001 and is now 0.1" in message
    message = explained(warm.run(*arguments, "--seeds", "0", "--resume", cwd=folder.parent), 1)
    assert "was started with splits 0 and seeds 0, 3" in message
    assert "now asked for splits 0 and seeds 0;" in message
    assert "--output names another" in message
    assert files(folder) == before

    # What was set when it was started need not be said again.
    arguments = [argument for argument in arguments if "=" not in argument and argument != "--set"]
    resumed = warm.run(*arguments, "--resume", cwd=folder.parent)
    assert resumed.returncode == 0, resumed.stderr
    assert outcome(folder) == result
    after = files(folder)
    # In the result, the command and the time it took, by a hundredth of a second.
    changed = {name for name in {**before, **after} if before.get(name) != after.get(name)}
    assert changed <= {"result.json"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("barbel",), "dataset='barbel' is not known; did you mean 'barbell'?"),
        (("barbell", "--model", "bunny"), "architecture='bunny' is not known; did you mean 'bunn'"),
        (("barbell", "--preset", "papr"), "no preset 'papr' for bunn on barbell; did you mean 'pa"),
        (("barbell", "--set", "modle.num_layers=4"), "modle is no section; did you mean 'model'?"),
        (("barbell", "--set", "model.num_layer=4"), "model.num_layer is no option; did you mean"),
        (("barbell", "--set", "num_layers=4"), "'num_layers=4' is no setting; write SECTION.OPTI"),
        (("barbell", "--set", "model.num_layers=4.5"), "model.num_layers=4.5; it must be a whole"),
        (("barbell", "--set", "optimizer.name=sgd"), "optimizer.name='sgd'; it must be one of"),
        (("barbell", "--set", "training.epochs=0"), "epochs=0"),
        (("barbell", "--set", "data.cluster_size=0"), "cluster_size=0"),
    ],
)
def test_a_bad_configuration_names_the_option_and_the_fix(arguments, message, warm, tmp_path):
    assert message in explained(warm.run("train", *arguments, cwd=tmp_path), 2)
    assert not list(tmp_path.iterdir())


def test_resuming_what_is_not_there_is_said(warm, tmp_path):
    command = train("training.epochs=1", output="nothing")
    finished = warm.run(*command, "--resume", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert "nothing holds no run to go on with: starting one" in finished.stderr
    finished = warm.run(*command, "--resume", cwd=tmp_path)
    assert "starting one" not in finished.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--splits", "five"), "--splits five: write numbers such as 0, 0-4 or 1,3"),
        (("--splits", "all"), "--splits all: there is no end to them"),
        (("--seeds", "3-1"), "--seeds 3-1: write the smaller one first: 1-3"),
        (("--seeds", "0,1,0-2"), "--seeds 0,1,0-2: write every number once"),
        (("--seeds", "0-99999999999"), "--seeds 0-99999999999: these are more than 10,000 numbers"),
        (("--device", "gpu"), "Invalid value for '--device'"),
        (("--threads", "0"), "Invalid value for '--threads'"),
    ],
)
def test_bad_arguments_are_explained(arguments, message, warm, tmp_path):
    assert message in usage(warm.run("train", "barbell", *arguments, cwd=tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_slip_costs_nothing(warm, tmp_path):
    """What fails before the first epoch leaves no folder that would have to be resumed."""
    arguments = train("training.epochs=1", output="run")
    slip = warm.run(*arguments, "--set", "model.act=geru", cwd=tmp_path)
    assert "geru" in explained(slip, 2)
    if not torch.cuda.is_available():
        slip = warm.run(*arguments, "--device", "cuda", cwd=tmp_path)
        assert "torch sees no CUDA device" in explained(slip, 1)
    finished = warm.run(*arguments, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr


def test_a_loss_that_explodes(warm, tmp_path):
    wild = train("optimizer.lr=1e30", "training.epochs=50", output="run")
    message = explained(warm.run(*wild, cwd=tmp_path), 1)
    assert re.search(r"at step \d+", message)
    assert "optimizer.lr" in message


def test_missing_data_says_what_is_expected_where(warm, tmp_path):
    message = explained(warm.run("train", "minesweeper", "--data-root", "nowhere", cwd=tmp_path), 1)
    assert str(tmp_path / "nowhere" / "minesweeper" / "raw" / "minesweeper.npz") in message
    assert DATASETS["minesweeper"].source in message
    assert not list(tmp_path.iterdir())


def test_datasets_lists_what_is_here(warm, tmp_path):
    write_dataset(tmp_path, "minesweeper")
    listing = warm.run("datasets", "--json", cwd=tmp_path, BUNN_DATA=str(tmp_path))
    assert listing.returncode == 0, listing.stderr
    content = json.loads(listing.stdout)
    assert content["root"] == str(tmp_path)
    rows = {row["name"]: row for row in content["datasets"]}
    assert list(rows) == list(DATASETS)
    assert rows["minesweeper"]["present"]
    assert rows["barbell"]["present"]
    expected = [str(tmp_path / file) for file in DATASETS["tolokers"].files]
    assert not rows["tolokers"]["present"]
    assert rows["tolokers"]["missing"] == expected

    table = warm.run("datasets", "--data-root", str(tmp_path), cwd=tmp_path)
    assert table.returncode == 0, table.stderr
    for name, state in (("minesweeper", "present"), ("barbell", "generated"), ("cora", "missing")):
        (line,) = [row for row in table.stdout.splitlines() if f"│ {name} " in row]
        assert state in line
        assert DATASETS[name].task.metric in line
        assert DATASETS[name].licence in line
    assert "bunn datasets --download" in table.stdout


def test_a_dataset_is_fetched(warm, tmp_path):
    bring = (
        "import dataclasses\n"
        "from bunn.data import DATASETS\n"
        "from tests.data.raw_files import write_dataset\n"
        "bring = lambda folder: write_dataset(folder, 'texas')\n"
        "DATASETS['texas'] = dataclasses.replace(DATASETS['texas'], download=bring)\n"
    )
    arguments = ("datasets", "--data-root", "new", "--download", "texas", "--download", "barbell")
    fetched = warm.run(*arguments, cwd=tmp_path, before=bring)
    assert fetched.returncode == 0, fetched.stderr
    assert f"texas is now in {tmp_path / 'new'}" in fetched.stdout
    assert "barbell is generated" in fetched.stdout
    assert (tmp_path / "new" / DATASETS["texas"].files[0]).is_file()
    again = warm.run(*arguments, cwd=tmp_path)
    assert "texas was already in" in again.stdout


def test_a_dataset_that_cannot_be_fetched(warm, tmp_path):
    cut = (
        "import socket\n"
        "def refuse(*_, **__): raise OSError('no net')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
    )
    arguments = ("datasets", "--data-root", "new", "--download", "minesweeper")
    message = explained(warm.run(*arguments, cwd=tmp_path, before=cut), 1)
    assert "the download failed" in message
    assert str(tmp_path / "new" / "minesweeper" / "raw" / "minesweeper.npz") in message
    assert not files(tmp_path)

    (tmp_path / "file").write_text("")
    arguments = ("datasets", "--data-root", "file/below", "--download", "minesweeper")
    message = explained(warm.run(*arguments, cwd=tmp_path), 1)
    assert f"{tmp_path / 'file' / 'below'} cannot be written" in message
    assert "--data-root" in message

    unknown = usage(warm.run("datasets", "--download", "mineswepper", cwd=tmp_path))
    assert "did you mean 'minesweeper'?" in unknown


def test_training_on_files(warm, tmp_path):
    write_dataset(tmp_path, "minesweeper")
    arguments = train(
        *("model.hidden_channels=4", "training.epochs=2"), dataset="minesweeper", output="run"
    )
    arguments += ["--data-root", str(tmp_path), "--splits", "8-9"]
    finished = warm.run(*arguments, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert "test roc-auc" in finished.stdout
    assert json.loads((tmp_path / "run" / "result.json").read_text())["splits"] == [8, 9]
    assert "--splits 10: there are 10, 0 to 9" in usage(
        warm.run(*arguments[:-1], "10", cwd=tmp_path)
    )


def test_a_damaged_file_is_named(warm, tmp_path):
    write_dataset(tmp_path, "minesweeper")
    path = tmp_path / DATASETS["minesweeper"].files[0]
    path.write_bytes(path.read_bytes()[:1000])
    arguments = ("train", "minesweeper", "--data-root", str(tmp_path), "--output", "run")
    message = explained(warm.run(*arguments, cwd=tmp_path), 1)
    assert f"{path}; cannot be read" in message
    assert not (tmp_path / "run").exists()


def test_a_damaged_cache_is_computed_anew(warm, tmp_path):
    def encoded(output):
        arguments = train("encoding.lap_pe=4", "training.epochs=3", output=output)
        finished = warm.run(*arguments, cwd=tmp_path, BUNN_CACHE=str(tmp_path / "cache"))
        assert finished.returncode == 0, finished.stderr
        return finished.stderr, outcome(tmp_path / output)

    first, expected = encoded("first")
    assert "warning" not in first
    (cached,) = (tmp_path / "cache").rglob("*.npz")  # all graphs have the same edges
    whole = cached.read_bytes()
    cached.write_bytes(whole[: len(whole) // 2])
    said, found = encoded("second")
    assert f"bunn: warning: {cached} is damaged" in said
    assert found == expected
    assert cached.read_bytes() == whole
    said, found = encoded("third")
    assert "warning" not in said
    assert found == expected


@pytest.mark.parametrize("place", ["file/below/run", "/proc/bunn/run"])
def test_a_folder_that_cannot_be_written(place, warm, tmp_path):
    """As root every folder is writable; nothing can be made below a file, or in /proc."""
    (tmp_path / "file").write_text("")
    message = explained(warm.run(*train(output=place), cwd=tmp_path), 1)
    assert f"{place} cannot be" in message
    assert "--output" in message


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_results_that_cannot_be_written(warm, tmp_path):
    arguments = ("reproduce", "synthetic", "--quick", "--models", "base-1", "--jobs", "1")
    message = explained(warm.run(*arguments, "--results", "/proc/bunn", cwd=tmp_path), 1)
    assert "/proc/bunn" in message
    assert "--results" in message


def test_reproduce_prints_the_table_beside_the_papers(warm, tmp_path):
    constant = ("--quick", "--models", "base-1, base-2", "--seeds", "3", "--jobs", "1")
    arguments = ("reproduce", "synthetic", *constant)
    finished = warm.run(*arguments, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    folder = tmp_path / "runs" / "quick" / "synthetic"
    found = {path.name: Result.read(path) for path in folder.iterdir()}
    assert found.keys() == {
        f"{data}-{model}-quick.json" for data in ("barbell", "clique") for model in BASELINES
    }
    for model, (label, expected) in BASELINES.items():
        result = found[f"barbell-{model}-quick.json"]
        assert result.test_mean == pytest.approx(expected, rel=0.05)
        assert result.seeds == [0, 1, 2]
        assert result.command == shlex.join(["bunn", *arguments])
        (row,) = [line for line in finished.stdout.splitlines() if label in line]
        printed = float(re.search(r"quick\) +([\d.]+)", row)[1])
        assert printed == pytest.approx(result.test_mean, rel=0.01)
    assert "30.97" in finished.stdout  # the paper's
    assert "results: runs/quick/synthetic" in finished.stdout
    assert "picture" not in finished.stdout  # of the learned bundle: nothing was learned


#: What predicting 0, or the mean of the other cluster, comes to.
BASELINES = {"base-1": ("Base. 1", 31.0), "base-2": ("Base. 2", 1.0)}


def test_reproduce_neighborsmatch_draws_the_curve(warm, tmp_path):
    arguments = ("reproduce", "neighborsmatch", "--models", "gcn", "--depths", "2", "--epochs", "2")
    finished = warm.run(*arguments, "--jobs", "1", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    folder = tmp_path / "results" / "neighborsmatch"
    result = Result.read(folder / "tree-neighborsmatch-r2-gcn-paper.json")
    assert result.part == "train"
    assert "picture: results/neighborsmatch/neighborsmatch.png" in finished.stdout
    assert (folder / "neighborsmatch.png").read_bytes().startswith(b"\x89PNG")
    before = files(folder)
    again = warm.run(*arguments, "--jobs", "1", cwd=tmp_path)  # nothing is left to do
    assert again.returncode == 0, again.stderr
    assert files(folder).keys() == before.keys()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("synthetic", "--models", "bnn"), "--models: there is no 'bnn' here; did you mean 'bunn'"),
        (("synthetic", "--epochs", "3"), "--epochs is no option of synthetic"),
        (("neighborsmatch", "--quick"), "--quick is no option of neighborsmatch"),
        (("neighborsmatch", "--preset", "wild"), "--preset wild is unknown"),
    ],
)
def test_a_reproduction_that_is_none(arguments, message, warm, tmp_path):
    assert message in explained(warm.run("reproduce", *arguments, cwd=tmp_path), 2)
    assert not list(tmp_path.iterdir())


def test_runs_that_were_asked_for_are_printed_beside_those_that_were_there(warm, tmp_path):
    write_dataset(tmp_path, "cornell")
    command = ("reproduce", "heterophilous", "--datasets", "cornell", "--models", "gcn")
    options = ("--epochs", "1", "--jobs", "1", "--data-root", ".")
    first = warm.run(*command, "--splits", "0,2", *options, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "more in its file" not in first.stdout
    second = warm.run(*command, "--splits", "1", *options, cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    (result,) = read_results(tmp_path / "results")
    assert result.splits == [0, 1, 2]
    line = f"cornell-gcn-small-1-epochs: split 1, seed 0: {result.test[1]:.4f} (2 more in its file)"
    assert line in second.stdout


def test_arguments_of_reproduce(warm, tmp_path):
    assert "'sintetic'" in usage(warm.run("reproduce", "sintetic", cwd=tmp_path))
    answer = usage(warm.run("reproduce", "neighborsmatch", "--depths", "2-x", cwd=tmp_path))
    assert "--depths 2-x: write numbers" in answer
    answer = usage(warm.run("reproduce", "heterophilous", "--datasets", "", cwd=tmp_path))
    assert "--datasets '': write names" in answer


def test_report_writes_tables_and_one_page(warm, tmp_path):
    for result in (
        with_curves(),
        with_curves(model="gcn", test=[1.05, 1.1]),
        sample(dataset="clique", test=[0.9]),
        *trees("bunn", {2: 1.0, 5: 1.0}),
    ):
        result.write(tmp_path / "results")
    printed = warm.run("report", "--output", "pages/report.html", cwd=tmp_path)
    assert printed.returncode == 0, printed.stderr
    assert "0.002" in printed.stdout
    assert "page: pages/report.html" in printed.stdout
    page = (tmp_path / "pages" / "report.html").read_text()
    assert "<svg" in page
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", page)  # nothing is loaded

    written = files(tmp_path)
    markdown = warm.run("report", "synthetic", "--markdown", cwd=tmp_path)
    assert markdown.returncode == 0, markdown.stderr
    assert "| BuNN" in markdown.stdout
    assert "NeighborsMatch" not in markdown.stdout
    assert files(tmp_path) == written

    message = explained(warm.run("report", "syntetic", cwd=tmp_path), 2)
    assert "no results of 'syntetic'; did you mean 'synthetic'?" in message
    message = explained(warm.run("report", "results/synthetic", cwd=tmp_path), 2)
    assert "use --results results/synthetic" in message
    message = explained(warm.run("report", "--output", "results/synthetic", cwd=tmp_path), 1)
    assert "results/synthetic cannot be written" in message
    assert "--output" in message


def test_report_without_results(warm, tmp_path):
    assert "results=results; no such folder" in explained(warm.run("report", cwd=tmp_path), 1)
    (tmp_path / "results").mkdir()
    message = explained(warm.run("report", cwd=tmp_path), 2)
    assert "no result files in results" in message
    assert "bunn reproduce" in message
    (tmp_path / "results" / "synthetic").mkdir()
    (tmp_path / "results" / "synthetic" / "barbell-bunn-paper.json").write_text("{")
    message = explained(warm.run("report", cwd=tmp_path), 1)
    assert "results/synthetic/barbell-bunn-paper.json" in message


def without(package):
    """Python that makes a package as good as not installed."""
    return (
        f"for name in [{package!r}, *sys.modules]:\n"
        f"    if name.partition('.')[0] == {package!r}: sys.modules[name] = None\n"
    )


@pytest.mark.parametrize("package", EXTRAS)
def test_a_missing_extra_is_named(package, warm, tmp_path):
    result = warm.run("train", "barbell", cwd=tmp_path, before=without(package))
    message = explained(result, 1)
    assert f"needs {package}" in message
    assert "pip install 'bunn[train]'" in message
    assert not list(tmp_path.iterdir())


def test_what_needs_no_extras_runs_without(warm, tmp_path):
    missing = "".join(map(without, (*EXTRAS, "tensorboard", "matplotlib")))
    listing = warm.run("datasets", "--json", cwd=tmp_path, before=missing)
    assert listing.returncode == 0, listing.stderr
    verified = warm.run("verify", "--claim", "limit", "--no-plot", cwd=tmp_path, before=missing)
    assert verified.returncode == 0, verified.stderr
    assert warm.run("--help", cwd=tmp_path, before=missing).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "settings", "metric"),
    [
        ("minesweeper", ("model.hidden_channels=16", "model.num_bundles=4"), "roc-auc"),
        ("cora", ("model.hidden_channels=16", "encoding.rwse=4"), "accuracy"),
    ],
)
def test_training_on_the_original_files(dataset, settings, metric, warm, tmp_path):
    root = real_root(dataset)
    arguments = train(*settings, "training.epochs=3", dataset=dataset, output="run")
    finished = warm.run(*arguments, cwd=tmp_path, BUNN_DATA=str(root))
    assert finished.returncode == 0, finished.stderr
    lines = (tmp_path / "run" / "split0-seed0" / "metrics.jsonl").read_text().splitlines()
    first, *_, last = map(json.loads, lines)
    assert (first["epoch"], last["epoch"]) == (1, 3)
    assert last["loss"] < first["loss"]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["metric"] == metric
