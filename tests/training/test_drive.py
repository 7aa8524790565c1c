"""Runs that are trained together see what they would see alone."""

import pytest
import torch
from torch import nn

from bunn.data import Task, load_dataset
from bunn.training import MODELS, Config, Outcome, Run, train
from bunn.training import drive as module
from bunn.training.device import Device
from bunn.training.drive import Driver, Stack, can_be_stacked, in_step, is_small
from tests.training.tiny import citations, molecules, tiny


@pytest.fixture
def stacked_calls(monkeypatch):
    """How many models answered each stacked call."""
    sizes = []
    call = Stack.__call__

    def spy(stack, inputs):
        sizes.append(len(inputs))
        return call(stack, inputs)

    monkeypatch.setattr(Stack, "__call__", spy)
    return sizes


def both(config: Config, runs) -> tuple[list[Outcome], list[Outcome]]:
    """Outcomes of training together, and one by one."""
    return tuple(
        train(config.override([f"training.together={together}"]), runs, device="cpu")
        for together in ("true", "false")
    )


def assert_close(together: list[Outcome], alone: list[Outcome], rel: float = 1e-3) -> None:
    for one, other in zip(together, alone, strict=True):
        assert (one.split, one.seed, one.epochs) == (other.split, other.seed, other.epochs)
        assert one.best.epoch == other.best.epoch
        for mine, theirs in zip(one.evaluations, other.evaluations, strict=True):
            assert (mine.epoch, mine.step) == (theirs.epoch, theirs.step)
            assert mine.lr == pytest.approx(theirs.lr)
            assert mine.loss == pytest.approx(theirs.loss, rel=rel)
            assert mine.metrics == pytest.approx(theirs.metrics, rel=rel, abs=rel)


def run_of(config: Config, split: int = 0, seed: int = 0) -> Run:
    data = load_dataset(config.dataset, options=config.data)
    return Run(config, data, split, seed, Device("cpu", config.training.precision))


VARIANTS = {
    **{name: (name, {}) for name in MODELS},
    "bunn-times": ("bunn", {"learn_time": True, "num_bundles": 2}),
    "bunn-shared": ("bunn", {"shared_phi": True, "phi": "sage", "time": 3.0}),
    "bunn-limit": ("bunn", {"num_bundles": 2, "time": [1.0, float("inf")], "update": "mlp-concat"}),
    "gps-gat": ("gps", {"local": "gat"}),
    "sage-network": ("sage", {"feed_forward": True}),
    "nsd-general": ("nsd", {"maps": "general"}),
}


@pytest.mark.parametrize("dataset", ["barbell", "minesweeper-board"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_together_is_alone(variant, dataset, stacked_calls):
    architecture, options = VARIANTS[variant]
    batch_size = 2 if dataset == "barbell" else None
    training = {"epochs": 2, "batch_size": batch_size, "precision": "64"}
    config = tiny(dataset, architecture, model=options, training=training)
    together, alone = both(config, [(0, 0), (1, 1), (0, 2)])
    assert set(stacked_calls) == {3}
    assert_close(together, alone, rel=1e-6)


def test_classes_of_masked_nodes(stacked_calls):
    config = tiny("tree-neighborsmatch", "gin", training={"epochs": 3, "batch_size": 4})
    assert_close(*both(config, [(0, 0), (1, 1)]))
    assert stacked_calls


@pytest.mark.parametrize(("precision", "rel"), [("32", 1e-4), ("bf16-mixed", 0.05)])
def test_other_precisions_and_clipping(precision, rel, stacked_calls):
    training = {"epochs": 2, "precision": precision}
    config = tiny(architecture="gcn", optimizer={"clip": 0.5}, training=training)
    together, alone = both(config, [(0, 0), (1, 1)])
    assert stacked_calls
    assert_close(together, alone, rel)


def test_encodings_and_their_signs_are_those_of_the_run(stacked_calls):
    config = tiny("minesweeper-board", encoding={"lap_pe": 3, "rwse": 2})
    assert_close(*both(config, [(0, 0), (1, 1)]))
    assert stacked_calls


def test_dropout_differs_from_run_to_run():
    config = tiny("minesweeper-board", "mlp", model={"dropout": 0.5}, training={"together": True})
    first, second = (run_of(config, seed=seed) for seed in (0, 1))
    second.model.load_state_dict(first.model.state_dict())
    (batch,) = first.feed.training(0)
    first.model.train()
    output = Stack([first.model, second.model])([batch.inputs, batch.inputs])
    assert not torch.equal(output[0], output[1])
    first.model.eval()
    output = Stack([first.model, second.model])([batch.inputs, batch.inputs])
    assert torch.equal(output[0], output[1])


def test_some_stop_early_and_the_others_go_on(stacked_calls):
    """Patience ends the runs one after the other; the last ones are trained as if alone."""
    training = {"epochs": 40, "patience": 1, "precision": "64"}
    config = tiny(architecture="mlp", optimizer={"lr": 0.1}, training=training)
    runs = [(0, 1), (0, 2), (0, 3), (0, 4)]
    together, alone = both(config, runs)
    ends = sorted({outcome.epochs for outcome in together})
    assert len(ends) > 2
    assert {4, 3, 2} >= set(stacked_calls) > {4}
    assert sorted(stacked_calls, reverse=True) == stacked_calls
    assert_close(together, alone, rel=1e-6)


def test_runs_end_in_memory_of_their_own(stacked_calls):
    """A run that is left alone has its parameters where a resumed one has them: aligned."""
    runs = [run_of(tiny(architecture="mlp"), seed=seed) for seed in range(2)]
    driver = Driver(runs)
    driver.train_epoch()
    addresses = {parameter.data_ptr() for run in runs for parameter in run.model.parameters()}
    runs[0].epoch = 4  # finished
    before = [parameter.detach().clone() for parameter in runs[0].model.parameters()]
    driver.train_epoch()
    for parameter in runs[1].model.parameters():
        assert parameter.data_ptr() not in addresses
        assert parameter.untyped_storage().nbytes() == parameter.nbytes
    for old, new in zip(before, runs[0].model.parameters(), strict=True):
        assert torch.equal(old, new)
    assert set(stacked_calls) == {2}


def test_graphs_that_differ_are_trained_one_by_one(monkeypatch, stacked_calls):
    citations(monkeypatch)
    config = tiny("citations", "gcn")
    together, alone = both(config, [(0, 0), (1, 0), (2, 0)])
    assert not stacked_calls
    assert [one.evaluations for one in together] == [other.evaluations for other in alone]
    together, alone = both(config, [(0, 0), (2, 0), (4, 1)])  # splits of one graph
    assert set(stacked_calls) == {3}
    assert_close(together, alone)


@pytest.mark.parametrize("level", ["node", "graph"])
def test_collections_of_graphs_are_trained_one_by_one(level, monkeypatch, stacked_calls):
    molecules(monkeypatch, Task(level, "regression", "mae"))
    config = tiny("molecules", "gin", training={"batch_size": 3})
    together, alone = both(config, [(0, 0), (0, 1)])
    assert not stacked_calls
    assert [one.evaluations for one in together] == [other.evaluations for other in alone]


@pytest.mark.parametrize("together", ["true", "none"])
def test_float16_is_never_trained_together(together, stacked_calls):
    """A loss scale belongs to one run."""
    config = tiny(architecture="mlp", training={"precision": "16-mixed", "epochs": 2})
    runs = [(0, 0), (1, 1)]
    outcomes = train(config.override([f"training.together={together}"]), runs, device="cpu")
    assert not stacked_calls
    for pair, outcome in zip(runs, outcomes, strict=True):
        (alone,) = train(config, [pair], device="cpu")
        assert alone.evaluations == outcome.evaluations


def test_running_averages_are_never_stacked(stacked_calls):
    config = tiny(architecture="mlp", model={"norm": "batch"}, training={"batch_size": 2})
    assert not can_be_stacked(run_of(config))
    together, alone = both(config, [(0, 0), (1, 1)])
    assert not stacked_calls
    assert [one.evaluations for one in together] == [other.evaluations for other in alone]


def test_parameters_in_two_places_are_never_stacked():
    run = run_of(tiny(architecture="mlp"))
    assert can_be_stacked(run)
    norms = [part for part in run.model.modules() if isinstance(part, nn.LayerNorm)]
    norms[1].weight = norms[0].weight
    assert not can_be_stacked(run)


def test_small_runs_are_trained_together_unasked(monkeypatch, stacked_calls):
    config = tiny(architecture="mlp", training={"epochs": 1})
    assert is_small(run_of(config))
    train(config, [(0, 0), (1, 1)], device="cpu")
    assert stacked_calls
    stacked_calls.clear()
    monkeypatch.setitem(module.SMALL, "cpu", 6 * 8 - 1)
    train(config, [(0, 0), (1, 1)], device="cpu")
    assert not stacked_calls
    assert in_step([run_of(config)])
