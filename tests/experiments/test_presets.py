"""Presets and the jobs of an experiment: what would be run, without running it."""

import math
from pathlib import Path

import pytest
import torch

from bunn.data import DATASETS, load_dataset
from bunn.experiments import neighborsmatch, synthetic
from bunn.experiments.presets import find_preset, presets
from bunn.experiments.published import PUBLISHED
from bunn.experiments.reproduce import jobs_of
from bunn.experiments.request import Request
from bunn.training import MODELS, Config, ConfigError
from bunn.training.building import build_model

EVERY_PAIR = [(dataset, model) for dataset in DATASETS for model in MODELS]


@pytest.mark.parametrize(("dataset", "model"), EVERY_PAIR, ids=lambda name: name)
def test_every_pair_has_presets_of_its_own(dataset, model):
    for name in presets(dataset, model):
        found, config = find_preset(dataset, model, name)
        assert found == name
        assert (config.dataset, config.architecture) == (dataset, model)
        assert Config.from_dict(config.as_dict()) == config


def test_what_is_used_unasked():
    assert find_preset("barbell", "gcn")[0] == "paper"
    assert find_preset("tree-neighborsmatch", "bunn")[0] == "paper"
    assert find_preset("minesweeper", "bunn")[0] == "default"
    assert find_preset("cora", "bunn")[0] == "default"


def test_one_graph_is_trained_in_full_batch_and_many_in_mini_batches():
    for name, spec in DATASETS.items():
        training = find_preset(name, "gcn", "default")[1].training
        assert (training.batch_size is None) == spec.transductive, name


def test_a_preset_that_is_not_there():
    with pytest.raises(ConfigError, match="no preset 'papr' for gcn on clique; did you mean 'pap"):
        find_preset("clique", "gcn", "papr")
    with pytest.raises(ConfigError, match="dataset='barbel' is not known; did you mean 'barbell'"):
        find_preset("barbel", "gcn")


class TestSynthetic:
    @pytest.mark.parametrize("model", synthetic.MODELS)
    @pytest.mark.parametrize("dataset", synthetic.DATASETS)
    def test_protocol(self, dataset, model):
        config = synthetic.preset(dataset, model)
        assert config.optimizer.name == "adam"
        assert config.optimizer.lr == 1e-3
        assert config.schedule.name == "plateau"
        assert (config.training.epochs, config.training.batch_size) == (500, 1)
        assert config.model.hidden_channels == 128
        assert config.model.linear_encoder
        if model != "gps":
            assert config.model.num_layers == {"barbell": 3, "clique": 1}[dataset]

    def test_every_row_of_the_paper_is_a_job(self):
        rows = {entry.model for entry in PUBLISHED if entry.experiment == "synthetic"}
        assert rows == {*synthetic.CONSTANTS, *synthetic.MODELS}
        names = {job.name for job in jobs_of(request("synthetic"))}
        assert names == {f"{d} {m}" for d in synthetic.DATASETS for m in rows}

    def test_one_layer_cannot_reach_the_other_cluster_of_a_barbell(self):
        """Three can: the depth of the table is the smallest that makes sense."""
        graph = load_dataset("barbell").split(0).train[0]
        for layers, reaches in ((2, False), (3, True)):
            config = synthetic.preset("barbell", "gcn").override([f"model.num_layers={layers}"])
            torch.manual_seed(0)
            model = build_model(config, load_dataset("barbell"))
            x = graph.x.clone().requires_grad_()
            model(x, graph.edge_index)[0].sum().backward()
            assert bool(x.grad[19].abs() > 0) == reaches


class TestNeighborsMatch:
    def test_bunn_of_the_paper(self):
        config = neighborsmatch.preset(5, "bunn")
        assert config.model.time == math.inf
        assert (config.model.num_layers, config.model.num_bundles) == (2, 32)
        assert config.data.edges == "undirected"
        assert neighborsmatch.preset(5, "bunn", "narrow").model.hidden_channels == 64

    @pytest.mark.parametrize("model", ["gcn", "gin", "gat", "ggnn"])
    def test_message_passing_of_alon_and_yahav(self, model):
        config = neighborsmatch.preset(5, model)
        assert (config.model.num_layers, config.model.hidden_channels) == (6, 32)
        assert config.data.edges == "to-root"
        assert config.model.norm_residual
        assert config.schedule.monitor == "train"

    def test_a_preset_is_for_the_models_that_have_it(self):
        jobs = jobs_of(request("neighborsmatch", depths=(3,), presets=("long",)))
        assert {job.name: job.arguments[2] for job in jobs} == {
            **{f"r=3 {model}": "long" for model in ("gcn", "gin", "gat", "ggnn")},
            "r=3 bunn": "paper",
        }
        with pytest.raises(ConfigError, match="no preset 'long' for bunn"):
            find_preset("tree-neighborsmatch", "bunn", "long")

    def test_long_runs_are_patient(self):
        paper, long = (neighborsmatch.preset(4, "gin", name) for name in ("paper", "long"))
        assert long.training.epochs == 10 * paper.training.epochs
        assert long.schedule.patience == 10 * paper.schedule.patience
        assert neighborsmatch.preset(4, "gin", "long", 7).training.epochs == 7

    @pytest.mark.parametrize("model", ["gcn", "bunn"])
    def test_the_preset_is_that_of_the_depth_asked_for(self, model):
        settings = ["data.depth=6", "training.epochs=7"]
        name, config = find_preset("tree-neighborsmatch", model, settings=settings)
        assert name == "paper"
        assert config == neighborsmatch.preset(6, model, epochs=7)

    def test_deep_trees_first(self):
        names = [job.name for job in jobs_of(request("neighborsmatch", depths=(2, 4)))]
        assert names[0].startswith("r=4")
        assert len(names) == 2 * len(neighborsmatch.MODELS)


def request(experiment: str, **options: object) -> Request:
    return Request(experiment, Path("runs"), Path("results"), "bunn reproduce", **options)


@pytest.mark.parametrize(
    ("experiment", "options", "message"),
    [
        ("synthetic", {"models": ("gnc",)}, "no 'gnc' here; did you mean 'gcn'"),
        ("synthetic", {"depths": (2,)}, "--depths is no option of synthetic"),
        ("synthetic", {"compile": True}, "--compile is no option of synthetic"),
        ("neighborsmatch", {"quick": True}, "--quick is no option of neighborsmatch"),
        ("neighborsmatch", {"models": ("mlp",)}, "no 'mlp' here"),
        ("neighborsmatch", {"presets": ("wild",)}, "--preset wild is unknown"),
        ("neighborsmatch", {"presets": ("paper", "long")}, "--preset paper,long: one at a time"),
        ("neighborsmatch", {"splits": (0,)}, "--splits is no option of neighborsmatch"),
        ("neighborsmatch", {"depths": (3, 1)}, "--depths: depth=1; too small"),
        ("synthetic", {"presets": ("narrow",)}, "--preset is no option of synthetic"),
        ("synthetic", {"device": "cuda"}, "--device is no option of synthetic"),
        ("heterophilous", {"datasets": ("cora",)}, "--datasets: there is no 'cora' here"),
        ("heterophilous", {"datasets": ("actor",), "splits": (3, 10)}, "there are 10, 0 to 9"),
        (
            "heterophilous",
            {"datasets": ("minesweeper",), "presets": ("relesed",)},
            "none for bunn on minesweeper; did you mean 'released'",
        ),
        ("heterophilous", {"datasets": ("actor",), "presets": ("paper",)}, "there are: small"),
        ("runtime", {"datasets": ("actor",)}, "times are taken on roman-empire"),
        ("heterophilous", {"models": ("gin",)}, "no 'gin' here"),
        ("heterophilous", {"seeds": (0,)}, "--seeds is no option of heterophilous"),
    ],
)
def test_what_does_not_belong_together(experiment, options, message):
    with pytest.raises(ConfigError, match=message):
        jobs_of(request(experiment, **options))
