"""The Long Range Graph Benchmark, from raw files to its tables."""

import gc
import importlib.util
import os
import shutil
import signal
import sys
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bunn import FlatBundle
from bunn.data import load_dataset, peptides
from bunn.data.pack import PackedGraphs
from bunn.experiments import lrgb, lrgb_ablations, lrgb_runtime
from bunn.experiments.jobs import run_jobs
from bunn.experiments.lrgb import FUNC, MODELS, STRUCT, THREE, VOC, names, num_parameters, preset
from bunn.experiments.published import PUBLISHED
from bunn.experiments.reproduce import EXPERIMENTS, jobs_of
from bunn.experiments.request import Request
from bunn.experiments.results import Result, read_results
from bunn.experiments.tables import tables_for
from bunn.nn import DiffusionTime
from bunn.training import ConfigError, InterruptedRunError
from bunn.training.building import build_model
from bunn.training.encode import encode
from bunn.training.optimizer import build_optimizer
from bunn.training.watch import ignore
from tests.data.raw_files import SMILES, write_dataset, write_peptides

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ogb") is None, reason="needs bunn[chem]")
CELLS = [
    (dataset, model, name)
    for dataset in THREE
    for model in MODELS
    for name in names(dataset, model)
]


@pytest.fixture(autouse=True)
def _own_files(monkeypatch, tmp_path):
    monkeypatch.setenv("BUNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(peptides, "ORIGINALS", dict(peptides.ORIGINALS))


@pytest.fixture
def little(tmp_path):
    """Miniatures in the original formats."""
    for name in (FUNC, STRUCT):
        write_peptides(tmp_path / "data", name, SMILES * 3)
    write_dataset(tmp_path / "data", VOC)
    return tmp_path


def request(folder: Path, experiment: str = "lrgb", **options) -> Request:
    return Request(
        experiment,
        folder / "runs" / experiment,
        folder / "results",
        "bunn reproduce",
        device="cpu",
        data_root=folder / "data",
        **options,
    )


def reproduce(folder: Path, watcher=ignore, **options) -> list[Result]:
    run_jobs(jobs_of(request(folder, **options)), 1, watcher)
    return read_results(folder / "results")


def test_data_is_loaded_once_for_all_seeds_and_given_back(little, monkeypatch):
    """A pack and what is known of its graphs hold each other: on a GPU gigabytes would stay."""
    unions = []

    def spy(*args):
        data = load_dataset(*args)
        unions.append(weakref.ref(data.split(0).train.pack.union))
        return data

    for module in ("bunn.experiments.measure", "bunn.training.train"):
        monkeypatch.setattr(sys.modules[module], "load_dataset", spy)
    options = {"datasets": (FUNC,), "models": ("gcn",), "epochs": 1}
    gc.disable()
    try:
        reproduce(little, seeds=(0, 1), **options)
        assert [union() for union in unions] == [None]
    finally:
        gc.enable()
    reproduce(little, seeds=(0, 1), **options)
    assert len(unions) == 1  # nothing was left to do


def test_the_table_has_the_models_of_the_paper():
    printed = [entry for entry in PUBLISHED if entry.experiment == "lrgb"]
    assert {entry.model for entry in printed} - {"elsewhere"} == set(MODELS)
    assert {entry.dataset for entry in printed} == set(THREE)
    runtimes = {entry.model for entry in PUBLISHED if entry.experiment == "lrgb-runtime"}
    assert runtimes == set(lrgb_runtime.MODELS)
    for table, rows in lrgb_ablations.TABLES.items():
        assert {entry.model for entry in PUBLISHED if entry.experiment == table} == set(rows)


@pytest.mark.parametrize("cell", CELLS, ids="-".join)
def test_presets_keep_to_the_protocol_and_to_the_budget(cell):
    dataset, model, _ = cell
    config = preset(*cell)
    assert (config.dataset, config.architecture) == (dataset, model)
    low = 300_000 if cell == (STRUCT, "bunn", "released") else 440_000  # as it was released
    assert low < num_parameters(config) <= lrgb.BUDGET
    assert config.optimizer.name == "adamw"
    unclipped = dataset == VOC and model in ("gcn", "gine", "gatedgcn")
    assert config.optimizer.clip == (None if unclipped else 1.0)
    assert config.training.balanced == (dataset == VOC)
    if model == "bunn":
        assert config.optimizer.weight_decay == 0.2
        assert config.schedule.name == "cosine"
    assert config.model.head_layers <= 3


def test_the_released_configuration_of_peptides_func():
    """As the notes on the authors' code have it."""
    config = preset(FUNC, "bunn", "released")
    model = config.model
    assert (model.num_layers, model.hidden_channels, model.num_bundles) == (4, 256, 8)
    assert (model.phi, model.phi_layers, model.phi_channels, model.phi_norm) == (
        *("sum-residual", 1, 32),
        "batch",
    )
    assert model.time == pytest.approx([10.0 ** (k - 4) for k in range(8)])
    assert model.learn_time
    assert (model.update, model.normalization) == ("after", "sym")
    assert (config.optimizer.lr, config.training.epochs) == (5e-3, 250)
    assert (config.training.batch_size, config.schedule.warmup) == (200, 5)
    assert (config.encoding.rwse, config.encoding.rwse_channels) == (20, 28)


def test_times_do_not_decay():
    config = preset(FUNC, "bunn", "released")
    model = build_model(config, lrgb.SIZES[FUNC])
    optimizer = build_optimizer(config.optimizer, model, fused=False)
    times = {id(part.log_time) for part in model.modules() if isinstance(part, DiffusionTime)}
    assert len(times) == 4
    held = {
        id(parameter): group["weight_decay"]
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    assert {held[time] for time in times} == {0}
    assert set(held.values()) == {0, 0.2}


def test_the_cayley_transform_is_the_map_of_the_released_code():
    """There ``cos = (p^2 - 1) / (1 + p^2)`` and ``sin = 2p / (1 + p^2)``: minus the rotation by the
    other angle, and signs cancel between a map and its transpose."""
    params = torch.randn(7, 3, 1, dtype=torch.float64)
    ours, p = FlatBundle(params, "cayley").matrices(), params[..., 0]
    cos, sin = (p**2 - 1) / (1 + p**2), 2 * p / (1 + p**2)
    theirs = torch.stack((cos, sin, -sin, cos), -1).view(7, 3, 2, 2)
    assert torch.allclose(theirs, -ours) or torch.allclose(theirs, -ours.mT)


def test_an_oversized_model_is_refused(monkeypatch):
    best = lrgb.RELEASED[FUNC]
    monkeypatch.setitem(lrgb.RELEASED, FUNC, replace(best, width=320))
    options = {"datasets": (FUNC,), "models": ("bunn",), "presets": ("released",)}
    with pytest.raises(ConfigError, match=r"has 7\d\d,\d\d\d parameters; .* lower model\.hidden"):
        jobs_of(request(Path(), **options))


@pytest.mark.slow
def test_from_raw_files_to_the_table(little):
    results = reproduce(little, epochs=5, seeds=(0,), datasets=(FUNC,))
    assert len(results) == len(MODELS) + 1
    (table,) = tables_for(results, "lrgb")
    measured = {row.label for row in table.rows if any(cell.result for cell in row.cells)}
    titles = ("GCN", "GINE", "GatedGCN", "DRew", "SAN", "GPS", "Graph ViT", "Exphormer", "BuNN")
    ran = {f"{title} (paper-5-epochs)" for title in titles}
    assert measured == {*ran, "BuNN (released-5-epochs)"}
    assert "not run here" in table.markdown()


@pytest.mark.slow
@pytest.mark.parametrize("dataset", [STRUCT, VOC])
def test_the_other_two_are_trained_likewise(dataset, little):
    models = ("gcn", "gine", "gps", "bunn")
    results = reproduce(little, epochs=10, seeds=(0,), datasets=(dataset,), models=models)
    assert len(results) == len(models) + 1
    assert {result.dataset for result in results} == {dataset}
    assert all(torch.isfinite(torch.tensor(result.test)).all() for result in results)


def test_what_is_interrupted_goes_on(little, monkeypatch):
    monkeypatch.setattr("bunn.experiments.jobs.REPORT_EVERY", 0.0)
    seen = []

    def stop(progressed):
        """In the midst of the second seed."""
        seen.append(progressed)
        if len(seen) == 10:
            os.kill(os.getpid(), signal.SIGINT)

    options = {"datasets": (FUNC,), "models": ("bunn",), "presets": ("released",), "epochs": 6}
    (whole,) = reproduce(little, seeds=(0, 1), **options)
    assert (whole.seeds, whole.splits) == ([0, 1], [0, 0])
    elsewhere = little / "again"
    elsewhere.mkdir()
    (elsewhere / "data").symlink_to(little / "data")
    with pytest.raises(InterruptedRunError):
        reproduce(elsewhere, stop, seeds=(0, 1), **options)
    (partly,) = read_results(elsewhere / "results")
    assert (partly.seeds, partly.test) == ([0], whole.test[:1])
    (again,) = reproduce(elsewhere, seeds=(0, 1), **options)
    assert (again.test, again.val, again.seeds) == (whole.test, whole.val, whole.seeds)


def test_only_what_is_missing(little):
    """On another machine, which has the result files but not the runs."""
    options = {"datasets": (FUNC,), "models": ("bunn",), "presets": ("released",), "epochs": 2}
    (before,) = reproduce(little, seeds=(0,), **options)
    assert before.extra["last_val"] == [before.val[0]] or before.extra["best_epoch"] == [1]
    shutil.rmtree(little / "runs")
    (same,) = reproduce(little, seeds=(0,), missing=True, **options)
    assert same == before
    assert not list((little / "runs").rglob("result.json"))
    (more,) = reproduce(little, seeds=(0, 1), missing=True, **options)
    assert (more.seeds, more.test[:1]) == ([0, 1], before.test)
    assert len(more.extra["last_test"]) == 2
    (place,) = (little / "runs").rglob("result.json")
    assert place.parent.name == "split0-seed1"
    (file,) = (little / "results").rglob("*.json")
    changed = replace(more, options={**more.options, "encoding": {"rwse": 3}})
    changed.write(little / "results")
    with pytest.raises(ConfigError, match=r"is of another configuration: .*encoding\.rwse"):
        reproduce(little, seeds=(0, 1, 2), missing=True, **options)
    assert Result.read(file) == changed


def test_results_without_a_last_epoch_keep_those_of_others(little):
    """As earlier versions wrote them."""
    options = {"datasets": (FUNC,), "models": ("gcn",), "epochs": 2}
    (before,) = reproduce(little, seeds=(0,), **options)
    extra = {name: value for name, value in before.extra.items() if "last" not in name}
    replace(before, extra=extra).write(little / "results")
    shutil.rmtree(little / "runs")
    (more,) = reproduce(little, seeds=(1,), **options)
    assert more.extra["last_val"][0] is None
    assert len(more.extra["last_val"]) == 2
    assert Result.read(next((little / "results").rglob("*.json"))) == more


def test_ablations_fill_both_tables(little):
    reproduce(little, experiment="ablations", epochs=5, seeds=(0,), datasets=(FUNC,))
    results = read_results(little / "results")
    assert len(results) == 5
    for name, rows in lrgb_ablations.TABLES.items():
        found = {result.model: result for result in results if result.experiment == name}
        assert set(found) == set(rows)
        assert {result.preset for result in found.values()} == {"released-5-epochs"}
        assert tables_for(results, name)
    kinds = {result.model: result.options for result in results}
    assert kinds["bunn-rwse"]["encoding"]["rwse"] == 20
    assert kinds["bunn-lpe"]["encoding"]["lap_pe"] == 10
    assert kinds["bunn-no-pe"]["encoding"] == lrgb_options_without_encodings()
    assert kinds["bunn-no-weights"]["model"]["weight"] is False
    assert kinds["bunn-no-weights"]["model"]["bias"] is None
    values = {result.model: result.test for result in results}
    assert values["bunn"] == values["bunn-rwse"]  # which is the same
    trained = {path.parent.parent.name for path in little.rglob("result.json")}
    names_of = ("bunn", "bunn-lpe", "bunn-no-pe", "bunn-no-weights")
    assert trained == {f"{FUNC}-{name}-released-5-epochs" for name in names_of}
    with pytest.raises(ConfigError, match="not of pascalvoc-sp"):
        jobs_of(request(little, "ablations", datasets=(VOC,)))


def test_rows_that_are_trained_once_are_one_job(little):
    """Two processes would meet in the folder of that training."""
    jobs = jobs_of(request(little, "ablations", datasets=(FUNC,)))
    rows = [[row.model for row in job.arguments[0]] for job in jobs]
    assert sorted(rows) == [
        ["bunn-lpe"],
        ["bunn-no-pe"],
        ["bunn-no-weights"],
        ["bunn-rwse", "bunn"],
    ]


def test_a_run_that_another_process_finishes_meanwhile_is_in_the_result(little):
    options = {"datasets": (FUNC,), "models": ("gcn",), "epochs": 1}
    (job,) = jobs_of(request(little, seeds=(0,), **options))
    measured = lrgb.measured

    def slowly(*arguments):
        for result in measured(*arguments):
            if result.seeds == [0]:
                reproduce(little, seeds=(1,), **options)
            yield result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lrgb, "measured", slowly)
        file = job.work(ignore, *job.arguments)
    assert Result.read(file).seeds == [0, 1]


def lrgb_options_without_encodings():
    return preset(VOC, "gine").as_dict()["encoding"]


def test_times_of_an_epoch(little):
    results = reproduce(little, experiment="lrgb-runtime", epochs=2, datasets=(FUNC,))
    assert {result.model for result in results} == set(lrgb_runtime.MODELS)
    for result in results:
        assert result.metric == "seconds"
        assert len(result.test) == 2
        assert min(result.test) > 0
        assert result.extra["first_epoch"] > 0
        assert 440_000 < result.parameters <= lrgb.BUDGET
        assert result.options["model"]["num_layers"] == 6
    bunn = lrgb_runtime.config(FUNC, "bunn").model
    assert (bunn.num_bundles, bunn.bundle_dim, bunn.method) == (1, 2, "spectral")


def test_unknown_names_get_the_nearest(little):
    with pytest.raises(ConfigError, match=r"no 'peptides-fun' here; did you mean 'peptides-func'"):
        jobs_of(request(little, datasets=("peptides-fun",)))
    with pytest.raises(ConfigError, match="there is none for bunn on peptides-func"):
        jobs_of(request(little, datasets=(FUNC,), models=("bunn",), presets=("tuned",)))
    with pytest.raises(ConfigError, match="there is no 'sage' here"):
        jobs_of(request(little, models=("sage",)))


def test_what_is_not_here_is_left_out(little):
    (little / "data" / peptides.ORIGINALS[STRUCT][0].file).unlink()
    found = {job.name for job in jobs_of(request(little, models=("gcn",)))}
    assert found == {f"{FUNC} gcn", f"{VOC} gcn"}


#: One atom; several; pieces; no bonds at all; larger than any in training.
ODD = ("C", "CCO", "[NH4+].[Cl-]", "[Na+].[Cl-].[K+]", "NCC(=O)" * 30 + "O")


@pytest.mark.parametrize(
    ("model", "name"),
    [(model, name) for dataset, model, name in CELLS if dataset == FUNC],
)
def test_a_batch_gives_what_its_graphs_give_one_by_one(model, name, tmp_path):
    """Whatever the graphs, through encoders, spectra and layers."""
    write_peptides(tmp_path, FUNC, ODD * 9)
    config = preset(FUNC, model, name)
    dataset = load_dataset(FUNC, tmp_path)
    torch.manual_seed(0)
    network = build_model(config, dataset).double().eval()
    split = encode(dataset.split(0), config.encoding)
    graphs = PackedGraphs(split.train.pack, torch.arange(len(ODD)))  # the first rows of the table

    def output(data):
        columns = [data[key] for key in pe_names(config) if key in data]
        pe = torch.cat(columns, 1).double() if columns else None
        edges = {"edge_attr": data.edge_attr} if config.model.reads_edges else {}
        size = int(data.batch.max()) + 1
        with torch.no_grad():
            return network(data.x, data.edge_index, None, pe, data.batch, size, **edges)

    together = output(graphs.collate(torch.arange(len(ODD))))
    alone = [output(graphs.collate(torch.tensor([i]))) for i in range(len(ODD))]
    assert together.shape == (len(ODD), 10)
    assert together.isfinite().all()
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-5, atol=1e-6)


def pe_names(config):
    eigenvalues = ["lap_eigenvalues"] if config.encoding.pe_as == "encoder" else []
    return ["lap_pe", *eigenvalues, "rwse"]


def test_the_command_line(warm, tmp_path):
    write = (
        "from pathlib import Path\n"
        "from tests.data.raw_files import SMILES, write_peptides\n"
        "write_peptides(Path('data'), 'peptides-func', SMILES * 3)\n"
    )
    arguments = ("reproduce", "lrgb", "--data-root", "data", "--models", "gcn,bunn", "--seeds", "2")
    more = ("--epochs", "5", "--jobs", "1", "--preset", "released", "--device", "cpu")
    done = warm.run(*arguments, *more, cwd=tmp_path, before=write)
    assert done.returncode == 0, done.stderr
    assert "Long Range Graph Benchmark" in done.stdout
    assert "BuNN (released-5-epochs)" in done.stdout
    files = sorted(path.name for path in (tmp_path / "results" / "lrgb").iterdir())
    assert files == [
        "peptides-func-bunn-released-5-epochs.json",
        "peptides-func-gcn-paper-5-epochs.json",
    ]
    assert Result.read(tmp_path / "results" / "lrgb" / files[0]).seeds == [0, 1]


def test_every_experiment_has_its_options():
    for name in ("lrgb", "lrgb-runtime", "ablations"):
        assert {"--datasets", "--data-root", "--epochs"} <= EXPERIMENTS[name].options
