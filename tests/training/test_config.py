"""Configurations: what is read, what is refused, and what the refusal says."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bunn.data import DATASETS, BoardOptions, ClusterOptions
from bunn.training import (
    MODELS,
    Config,
    ConfigError,
    Encoding,
    Optimizer,
    Schedule,
    Training,
)
from bunn.training.models import BuNNOptions
from bunn.training.options import field_types, parse_value, read_options
from tests.training.tiny import tiny

SECTIONS = {
    "encoding": Encoding,
    "optimizer": Optimizer,
    "schedule": Schedule,
    "training": Training,
}
#: Values that some option of the type takes; those that this one does not take are passed over.
CANDIDATES = (
    *(None, True, False, 1, 2, 3, 4, 8, 40, 0.0, 1e-7, 0.1, 0.5, 3.25, math.inf),
    *([1.0], [0.5, math.inf], "relu", "elu", "tanh", "householder", "mlp", "after"),
)


@st.composite
def changed(draw, cls):
    """Options with fields changed to some of the values that they take."""
    kinds, values = field_types(cls), {}
    for name in draw(st.lists(st.sampled_from(sorted(kinds)), max_size=4)) if kinds else ():
        literals = str(kinds[name]).split("'")[1::2]
        value = draw(st.sampled_from([*CANDIDATES, *literals]))
        try:
            read_options(cls, {**values, name: value}, "section")
        except ConfigError:
            continue
        values[name] = value
    return read_options(cls, values, "section")


@st.composite
def configs(draw, dataset, architecture):
    sections = {name: draw(changed(cls)) for name, cls in SECTIONS.items()}
    if sections["schedule"].warmup > sections["training"].epochs:
        sections.pop("schedule")
    data = draw(changed(DATASETS[dataset].options))
    model = draw(changed(MODELS[architecture].options))
    return Config(dataset, architecture, data, model, **sections)


def as_text(value) -> str:
    """What a user types after ``=``."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def check_round_trips(config: Config) -> None:
    written = json.dumps(config.as_dict(), allow_nan=False)
    assert Config.from_dict(json.loads(written)) == config
    overrides = [
        f"{section}.{name}={as_text(value)}"
        for section, options in config.as_dict().items()
        if isinstance(options, dict)
        for name, value in options.items()
    ]
    assert Config(config.dataset, config.architecture).override(overrides) == config


@pytest.mark.parametrize("architecture", MODELS)
@settings(max_examples=12)
@given(data=st.data())
def test_any_model_survives_json_and_the_command_line(architecture, data):
    check_round_trips(data.draw(configs("barbell", architecture)))


@pytest.mark.parametrize("dataset", DATASETS)
def test_any_dataset_survives_json_and_the_command_line(dataset):
    @settings(max_examples=12 if field_types(DATASETS[dataset].options) else 1)
    @given(configs(dataset, "mlp"))
    def check(config):
        check_round_trips(config)

    check()


def test_defaults_are_filled_in():
    config = Config("minesweeper-board")
    assert isinstance(config.data, BoardOptions)
    assert isinstance(config.model, BuNNOptions)
    assert Config.from_dict({"dataset": "minesweeper-board", "model": None}) == config


@pytest.mark.parametrize(
    ("setting", "section", "name", "value"),
    [
        ("model.num_layers=4", "model", "num_layers", 4),
        ("model.num_layers = 4", "model", "num_layers", 4),
        ("training.epochs=1e3", "training", "epochs", 1000),
        ("optimizer.lr=1e-4", "optimizer", "lr", 1e-4),
        ("optimizer.lr=.5", "optimizer", "lr", 0.5),
        ("optimizer.lr=1", "optimizer", "lr", 1.0),
        ("model.time=inf", "model", "time", math.inf),
        ("training.goal=-inf", "training", "goal", -math.inf),
        ("model.norm=none", "model", "norm", None),
        ("model.norm=batch", "model", "norm", "batch"),
        ("model.learn_time=true", "model", "learn_time", True),
        ("model.learn_time=False", "model", "learn_time", False),
        ("training.together=None", "training", "together", None),
        ("training.precision=64", "training", "precision", "64"),
        ("training.precision='64'", "training", "precision", "64"),
        ("training.precision=bf16-mixed", "training", "precision", "bf16-mixed"),
        ("schedule.name=plateau", "schedule", "name", "plateau"),
        ("data.cluster_size=7", "data", "cluster_size", 7),
        ("encoding.lap_pe=3", "encoding", "lap_pe", 3),
    ],
)
def test_every_form_of_an_override(setting, section, name, value):
    config = tiny().override([setting])
    seen = getattr(getattr(config, section), name)
    assert seen == value
    assert type(seen) is type(value)
    assert config.override([]) == config


@pytest.mark.parametrize("text", ["1,inf", "[1, inf]", "(1, inf)", "1.0,inf,"])
def test_every_form_of_a_list(text):
    config = tiny().override(["model.num_bundles=2", f"model.time={text}"])
    assert config.model.time == (1.0, math.inf)
    assert parse_value("[inf]") == [math.inf]


def test_later_overrides_win_and_options_are_checked_together():
    config = tiny().override(["model.num_layers=1", "model.num_layers=3"])
    assert config.model.num_layers == 3
    # Neither is right on the way; both are right in the end.
    config = tiny().override(["model.hidden_channels=30", "model.num_bundles=5"])
    assert config.model.hidden_channels == 30


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.num_layer=4", "model.num_layer is no option; did you mean 'num_layers'?"),
        ("modle.num_layers=4", "modle is no section; did you mean 'model'?"),
        ("optimizer.LR=1", "did you mean 'lr'?"),
        ("model.lr=1", "model.lr is no option; did you mean optimizer.lr?"),
        ("model.self_loops=true", "it is one of gcn, gat, gat-sep, not of bunn"),
        ("training.zzz=1", "training.zzz is no option; there are: epochs, batch_size"),
        ("zzz.epochs=1", "there are: data, model, encoding, optimizer, schedule, training"),
        ("model.num_layers", "write SECTION.OPTION=VALUE, such as model.num_layers=4"),
        ("epochs=4", "'epochs=4' is no setting"),
        ("dataset=clique", "'dataset=clique' is no setting"),
        ("dataset.name=clique", "dataset is no section"),
        ("model.num_layers=two", "model.num_layers='two'; it must be a whole number"),
        ("model.num_layers=2.5", "model.num_layers=2.5; it must be a whole number"),
        ("model.num_layers=true", "model.num_layers=True; it must be a whole number"),
        ("model.num_layers=", "model.num_layers=''; it must be a whole number"),
        ("optimizer.lr=fast", "optimizer.lr='fast'; it must be a number"),
        ("optimizer.clip=big", "optimizer.clip='big'; it must be a number or none"),
        ("model.residual=1", "model.residual=1; it must be true or false"),
        ("model.act=3", "model.act=3; it must be a word"),
        ("model.norm=group", "model.norm='group'; it must be one of ['layer', 'batch'] or none"),
        ("training.precision=16", "training.precision=16; it must be one of ['32', '64'"),
        ("model.time=a,b", "it must be a number or a list, each a number"),
        ("schedule.name=linear", "one of ['constant', 'cosine', 'plateau']"),
    ],
)
def test_a_setting_that_cannot_be_meant(setting, message):
    with pytest.raises(ConfigError) as error:
        tiny().override([setting])
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "dataset is missing"),
        ({"dataset": "barbel"}, "dataset='barbel' is not known; did you mean 'barbell'?"),
        ({"dataset": ["barbell"]}, "dataset=['barbell'] is not known"),
        ({"dataset": "barbell", "architecture": "bun"}, "did you mean 'bunn'?"),
        ({"dataset": "barbell", "architecture": "GCN"}, "did you mean 'gcn'?"),
        ({"dataset": "barbell", "modell": {}}, "modell is no section; did you mean 'model'?"),
        ({"dataset": "barbell", "model": 3}, "model=3; it must be a section"),
        ({"dataset": "barbell", "model": {"phy": "mlp"}}, "model.phy is no option"),
        ({"dataset": "cora", "data": {"size": 3}}, "data.size is no option; there are none"),
    ],
)
def test_values_that_cannot_be_meant(values, message):
    with pytest.raises(ConfigError) as error:
        Config.from_dict(values)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("section", "options", "message"),
    [
        ("encoding", {"lap_pe": -1}, "encoding: lap_pe=-1; it must be >= 0"),
        ("optimizer", {"lr": 0.0}, "optimizer: lr=0.0; it must be a positive number"),
        ("optimizer", {"lr": math.inf}, "lr=inf"),
        ("optimizer", {"time_lr": -1.0}, "time_lr=-1.0"),
        ("optimizer", {"clip": 0.0}, "clip=0.0"),
        ("optimizer", {"weight_decay": -1.0}, "weight_decay=-1.0; it must be >= 0"),
        ("optimizer", {"weight_decay": math.inf}, "weight_decay=inf; it must be finite"),
        ("schedule", {"factor": 1.0}, "factor=1.0; a plateau multiplies by a factor in (0, 1)"),
        ("schedule", {"patience": -1}, "patience=-1"),
        ("schedule", {"name": "plateau", "warmup": 2}, "warmup=2; a plateau knows no warm-up"),
        ("schedule", {"warmup": 5}, "schedule.warmup=5; it is longer than training.epochs=4"),
        ("training", {"epochs": 0}, "training: epochs=0; it must be >= 1"),
        ("training", {"batch_size": 0}, "batch_size=0"),
        ("training", {"eval_every": 0}, "eval_every=0"),
        ("training", {"patience": 0}, "patience=0"),
        ("training", {"checkpoint_seconds": -1.0}, "checkpoint_seconds=-1.0"),
        ("training", {"goal": math.nan}, "goal=nan; no metric reaches it"),
        ("data", {"cluster_size": 0}, "data: cluster_size=0"),
        ("model", {"hidden_channels": 9}, "hidden_channels=9 is no multiple of num_bundles"),
        ("model", {"maps": "o3"}, "model: maps='o3' is unknown"),
        ("model", {"num_bundles": 2, "time": [1.0, 2.0, 3.0]}, "time holds 3 values"),
        ("model", {"method": "taylor"}, "method='taylor' needs degree=K"),
    ],
)
def test_options_that_contradict_themselves(section, options, message):
    with pytest.raises(ConfigError) as error:
        tiny(**{section: options})
    assert message in str(error.value)


def test_sections_of_another_type():
    with pytest.raises(ConfigError, match=r"data is a ClusterOptions; .*pass a BoardOptions"):
        Config("minesweeper-board", data=ClusterOptions())
    with pytest.raises(ConfigError, match=r"model is a BuNNOptions; .*architecture='mlp'"):
        Config("barbell", "mlp", model=BuNNOptions())
    with pytest.raises(ConfigError, match=r"training is a int; .*pass a Training"):
        Config("barbell", training=3)


def test_every_registered_model_builds_from_its_defaults():
    for name, model in MODELS.items():
        assert model.name == name
        assert model.reference
        built = model.build(model.options(), 3, 2, pooling="mean", pe_channels=4)
        assert sum(parameter.numel() for parameter in built.parameters()) > 0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Schedule("step"), r"name='step'; it must be one of \['constant', 'cosine'"),
        (lambda: Schedule("plateau", monitor="valid"), r"monitor='valid'; it must be one of"),
        (lambda: Optimizer("sgd"), r"name='sgd'; it must be one of \['adam', 'adamw'\]"),
        (lambda: Optimizer(lr="x"), r"lr='x'; it must be a number"),
        (lambda: Training(epochs="3"), r"epochs='3'; it must be a whole number"),
        (lambda: Training(precision="8"), r"precision='8'; it must be one of \['32'"),
        (lambda: Encoding(lap_pe=1.5), r"lap_pe=1.5; it must be a whole number"),
        (lambda: Config("clique", "gcn", model={"width": 3}), r"model.width is no option"),
    ],
)
def test_python_is_checked_like_the_command_line(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


def test_sections_may_be_mappings():
    config = Config("clique", "gcn", model={"hidden_channels": 16}, training={"epochs": 3})
    assert config.model.hidden_channels == 16
    assert config.training == Training(epochs=3)
    assert Optimizer(lr=1).lr == 1.0
