"""The loop: what is learned, selected and reported, for every kind of task."""

import dataclasses
import math

import pytest
import torch
from safetensors.torch import load_file

from bunn.data import GraphDataset, Split, Task, load_dataset
from bunn.experiments.lrgb import SIZES
from bunn.experiments.presets import find_preset
from bunn.training import Config, ConfigError, NonFiniteLossError, Outcome, Run, train
from bunn.training.building import build_model
from bunn.training.device import Device
from bunn.training.divergence import suspects
from bunn.training.drive import Driver
from bunn.training.objective import METRICS
from bunn.training.optimizer import build_optimizer
from tests.training.test_objective import average_precision, roc_auc
from tests.training.tiny import citations, molecules, tiny


def outcome_of(config: Config, split: int = 0, seed: int = 0, **keywords) -> Outcome:
    (outcome,) = train(config, [(split, seed)], device="cpu", **keywords)
    return outcome


def values(outcome: Outcome, part: str = "val") -> list[float]:
    return [evaluation.metrics[part] for evaluation in outcome.evaluations]


def run_of(config: Config, split: int = 0, seed: int = 0) -> Run:
    data = load_dataset(config.dataset, options=config.data)
    return Run(config, data, split, seed, Device("cpu", config.training.precision))


@pytest.mark.parametrize("together", [False, True])
def test_same_seed_same_result(together):
    config = tiny(model={"dropout": 0.3}, training={"together": together})
    runs = [(0, 0), (1, 1)]
    finals: list[dict] = []
    first, second = (
        train(config, runs, device="cpu", keep=lambda run: finals.append(run.model.state_dict()))
        for _ in range(2)
    )
    for one, other in zip(first, second, strict=True):
        assert one.evaluations == other.evaluations
    for one, other in zip(finals[:2], finals[2:], strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_another_seed_or_split_is_another_run():
    config = tiny(architecture="mlp")
    seen = [values(outcome_of(config, *pair)) for pair in ((0, 0), (0, 1), (1, 0), (1, 1))]
    assert len({tuple(run) for run in seen}) == 4


def test_a_run_does_not_depend_on_those_before_it():
    config = tiny(model={"dropout": 0.3}, training={"together": False})
    _, second = train(config, [(0, 5), (1, 1)], device="cpu")
    assert second.evaluations == outcome_of(config, 1, 1).evaluations


@pytest.mark.parametrize(("batch_size", "steps"), [(1, 4), (3, 2), (4, 1), (100, 1), (None, 1)])
def test_steps_and_evaluations(batch_size, steps):
    training = {"epochs": 5, "batch_size": batch_size, "eval_every": 2}
    outcome = outcome_of(tiny(architecture="mlp", training=training))
    assert [evaluation.epoch for evaluation in outcome.evaluations] == [2, 4, 5]
    assert [evaluation.step for evaluation in outcome.evaluations] == [
        2 * steps,
        4 * steps,
        5 * steps,
    ]
    assert outcome.epochs == 5


def test_the_loss_is_the_mean_over_the_steps_of_an_epoch():
    config = tiny(architecture="mlp", training={"epochs": 1, "batch_size": 2})
    run, losses = run_of(config), []
    loss = run.objective.loss
    run.objective.loss = lambda *pair: losses.append(loss(*pair)) or losses[-1]
    Driver([run]).train_epoch()
    assert len(losses) == 2
    mean = sum(loss.item() for loss in losses) / 2
    assert run.evaluations[0].loss == pytest.approx(mean, rel=1e-6)


def test_learning_rates_are_those_of_the_schedule():
    outcome = outcome_of(
        tiny(
            architecture="mlp",
            optimizer={"lr": 0.4},
            schedule={"name": "cosine", "warmup": 1},
            training={"epochs": 5, "eval_every": 2},
        )
    )
    by_epoch = [0.2, *(0.2 * (1 + math.cos(math.pi * epoch / 4)) for epoch in range(4))]
    seen = [evaluation.lr for evaluation in outcome.evaluations]
    assert seen == pytest.approx([by_epoch[1], by_epoch[3], by_epoch[4]])


@pytest.mark.parametrize("monitor", ["loss", "train", "val"])
def test_a_plateau_watches_what_it_is_told_to(monitor):
    schedule = {"name": "plateau", "patience": 0, "factor": 0.5, "min_lr": 0.0, "monitor": monitor}
    training = {"epochs": 12, "batch_size": 2}
    outcome = outcome_of(
        tiny(architecture="mlp", optimizer={"lr": 0.3}, schedule=schedule, training=training)
    )
    lr, best, expected = 0.3, math.inf, []
    for evaluation in outcome.evaluations:
        expected.append(lr)
        value = evaluation.loss if monitor == "loss" else evaluation.metrics[monitor]
        if value < best * (1 - 1e-4):
            best = value
        else:
            lr *= 0.5
    assert [evaluation.lr for evaluation in outcome.evaluations] == pytest.approx(expected)
    assert lr < 0.3
    assert ("train" in outcome.best.metrics) == (monitor == "train")


@pytest.mark.parametrize(("patience", "eval_every"), [(1, 1), (3, 1), (2, 2)])
def test_patience(patience, eval_every):
    training = {"epochs": 200, "patience": patience, "eval_every": eval_every}
    config = tiny("minesweeper-board", "mlp", optimizer={"lr": 0.1}, training=training)
    outcome = outcome_of(config)
    seen = values(outcome)
    waited, best = 0, -math.inf
    for index, value in enumerate(seen):
        assert waited < patience, f"went on after evaluation {index}"
        waited, best = (0, value) if value > best else (waited + 1, best)
    assert waited == patience
    assert outcome.epochs == eval_every * len(seen) < 200
    assert outcome.best.epoch == outcome.epochs - patience * eval_every


def test_goal():
    reference = values(outcome_of(tiny(architecture="mlp", training={"epochs": 6})))
    goal = reference[3]
    first = next(epoch for epoch, value in enumerate(reference, start=1) if value <= goal)
    outcome = outcome_of(tiny(architecture="mlp", training={"epochs": 6, "goal": goal}))
    assert values(outcome) == reference[:first]
    board = tiny("minesweeper-board", training={"epochs": 6, "goal": 0.0})
    assert outcome_of(board).epochs == 1  # larger is better here


@pytest.mark.parametrize("dataset", ["barbell", "minesweeper-board"])
def test_the_best_epoch_is_selected_and_its_weights_are_kept(dataset, tmp_path):
    config = tiny(dataset, optimizer={"lr": 0.3}, training={"epochs": 12})
    outcome = outcome_of(config, folder=tmp_path)
    seen = values(outcome)
    smaller = dataset == "barbell"
    best = min(seen) if smaller else max(seen)
    assert outcome.best == outcome.evaluations[seen.index(best)]
    assert outcome.best.epoch < 12  # or this says little
    data = load_dataset(dataset, options=config.data)
    for file, evaluation in (("best", outcome.best), ("last", outcome.evaluations[-1])):
        model = build_model(config, data).eval()
        model.load_state_dict(load_file(tmp_path / "split0-seed0" / f"{file}.safetensors"))
        with torch.no_grad():
            for part in ("val", "test"):
                graphs = getattr(data.split(0), part)
                batch = graphs.collate(torch.arange(len(graphs)))
                output = model(batch.x, batch.edge_index)
                if smaller:
                    expected = (output - batch.y).square().mean().item()
                else:
                    mask = batch[f"{part}_mask"]
                    expected = roc_auc(output[mask, 0].numpy(), batch.y[mask].numpy())
                assert evaluation.metrics[part] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("count", [1, 2])
def test_a_mean_of_weights_is_what_is_evaluated(count):
    config = tiny("minesweeper-board", optimizer={"lr": 0.3}, training={"average": 0.75})
    runs = [run_of(config, 0, seed) for seed in range(count)]
    driver, run = Driver(runs), runs[-1]
    mean = {name: p.detach().clone() for name, p in run.model.named_parameters()}
    data = load_dataset("minesweeper-board", options=config.data)
    (graph,) = data.split(0).val
    for _ in range(4):  # a step each
        driver.train_epoch()
        for name, parameter in run.model.named_parameters():
            mean[name] = 0.75 * mean[name] + 0.25 * parameter.detach()
            torch.testing.assert_close(run.average.values[name], mean[name])
        model = build_model(config, data).eval()
        model.load_state_dict(mean)
        output = model(graph.x, graph.edge_index).detach()[graph.val_mask, 0]
        expected = roc_auc(output.numpy(), graph.y[graph.val_mask].numpy())
        assert run.evaluations[-1].metrics["val"] == pytest.approx(expected, rel=1e-4)
        if run.best is run.evaluations[-1]:
            torch.testing.assert_close(run.best_weights, mean)


def test_a_mean_of_weights_leaves_times_alone():
    config = tiny("minesweeper-board", model={"learn_time": True}, training={"average": 0.9})
    run = run_of(config)
    assert {name for name, _ in run.model.named_parameters()} - run.average.values.keys() == {
        f"blocks.{i}.conv.time.log_time" for i in range(2)
    }


def test_a_mean_of_weights_has_a_mean_of_statistics():
    config = tiny("minesweeper-board", model={"norm": "batch"}, training={"average": 0.75})
    run = run_of(config)
    driver, mean = Driver([run]), {}
    for _ in range(3):
        before = {name: value.clone() for name, value in run.average.values.items()}
        driver.train_epoch()
        for name, value in run.model.state_dict().items():
            if value.is_floating_point():
                mean[name] = 0.75 * before[name] + 0.25 * value
                torch.testing.assert_close(run.average.values[name], mean[name])
    assert any(name.endswith("running_var") for name in mean)
    with run.average.in_place():
        found = {name: value for name, value in run.model.state_dict().items() if name in mean}
        torch.testing.assert_close(found, mean)


def test_a_metric_that_is_no_number_is_never_the_best():
    run = run_of(tiny(architecture="mlp", training={"epochs": 5, "patience": 3}))
    seen = iter([math.nan, math.nan, 3.0, math.nan, 2.0])
    evaluate = run._evaluate

    def evaluate_badly():
        metrics = yield from evaluate()
        return {**metrics, "val": next(seen)}

    run._evaluate = evaluate_badly
    bests = []
    while not run.finished:
        Driver([run]).train_epoch()
        bests.append(run.best.epoch)
    assert bests == [1, 1, 3, 3, 5]


def test_where_training_is_the_question_it_selects():
    """Tree-NeighborsMatch reports accuracy on the training part."""
    outcome = outcome_of(tiny("tree-neighborsmatch", "gin", training={"epochs": 8}))
    train_values = values(outcome, "train")
    assert outcome.best.metrics["train"] == max(train_values)
    assert outcome.best.epoch == 1 + train_values.index(max(train_values))


@pytest.mark.parametrize("together", [False, True])
def test_clipping(together):
    def norms(clip):
        config = tiny(optimizer={"clip": clip}, training={"epochs": 1})
        runs = [run_of(config, seed=seed) for seed in range(2 if together else 1)]
        seen = []

        def note(optimizer, *_):
            gradients = [parameter.grad for parameter in optimizer.param_groups[0]["params"]]
            seen.append(torch.cat([gradient.flatten() for gradient in gradients]).norm().item())

        for run in runs:
            run.optimizer.register_step_pre_hook(note)
        Driver(runs).train_epoch()
        return seen

    free = norms(None)
    assert min(free) > 1.0
    assert norms(0.25) == pytest.approx([0.25] * len(free), rel=1e-3)
    assert norms(1e6)[0] == pytest.approx(free[0], rel=1e-3)


def test_precisions():
    seen, dtypes = {}, {}
    for precision in ("32", "64", "bf16-mixed"):
        training = {"precision": precision, "epochs": 3}

        def keep(run, precision=precision):
            dtypes[precision] = {parameter.dtype for parameter in run.model.parameters()}

        outcome = outcome_of(tiny(optimizer={"clip": 1.0}, training=training), keep=keep)
        seen[precision] = values(outcome)
    assert dtypes["64"] == {torch.float64}
    assert dtypes["32"] == dtypes["bf16-mixed"] == {torch.float32}
    assert seen["64"] == pytest.approx(seen["32"], rel=1e-3)
    assert seen["bf16-mixed"] == pytest.approx(seen["32"], rel=0.1)
    assert seen["bf16-mixed"] != seen["32"]


@pytest.mark.parametrize("batch_size", [1, None])
def test_float16_scales_its_loss(batch_size):
    """The first steps overflow and are passed over, with no word about it."""
    training = {"precision": "16-mixed", "epochs": 8, "batch_size": batch_size}
    optimizer = {"lr": 0.05, "clip": 1.0}
    config = tiny(optimizer=optimizer, schedule={"name": "cosine"}, training=training)
    outcome = outcome_of(config)
    losses = [evaluation.loss for evaluation in outcome.evaluations]
    assert losses[-1] < losses[0]
    full = outcome_of(config.override(["training.precision=32"]))
    assert losses[-1] != full.evaluations[-1].loss
    assert outcome_of(config).evaluations == outcome.evaluations


KINDS = {
    ("graph", "multilabel", "average-precision"),
    ("graph", "regression", "mae"),
    ("graph", "binary", "roc-auc"),
    ("graph", "multiclass", "accuracy"),
    ("node", "multiclass", "macro-f1"),
    ("node", "regression", "mse"),
}


@pytest.mark.parametrize("kind", sorted(KINDS), ids="-".join)
@pytest.mark.parametrize("batch_size", [None, 3])
def test_every_kind_of_task_is_learned(kind, batch_size, monkeypatch):
    task = Task(*kind)
    assert (task.metric, task.kind) in METRICS
    molecules(monkeypatch, task)
    training = {"epochs": 6, "batch_size": batch_size}
    optimizer, model = {"lr": 0.03}, {"num_layers": 1}
    config = tiny("molecules", optimizer=optimizer, model=model, training=training)
    outcome = outcome_of(config)
    assert outcome.evaluations[-1].loss < outcome.evaluations[0].loss
    assert all(math.isfinite(value) for value in values(outcome))


@pytest.mark.parametrize("metric", ["mae", "average-precision"])
def test_graph_level_metrics_are_of_pooled_outputs(metric, monkeypatch, tmp_path):
    kind = "regression" if metric == "mae" else "multilabel"
    data = molecules(monkeypatch, Task("graph", kind, metric))
    config = tiny("molecules", "gcn", training={"epochs": 3, "batch_size": 3})
    outcome = outcome_of(config, folder=tmp_path)
    model = build_model(config, data).eval()
    model.load_state_dict(load_file(tmp_path / "split0-seed0" / "best.safetensors"))
    graphs = data.split(0).test
    with torch.no_grad():
        outputs = torch.cat([model(graph.x, graph.edge_index) for graph in graphs])
    targets = torch.cat([graph.y for graph in graphs])
    assert outputs.shape == targets.shape == (8, 2)
    if metric == "mae":
        expected = (outputs - targets).abs().mean().item()
    else:
        pairs = zip(outputs.T.numpy(), targets.T.numpy(), strict=True)
        expected = sum(average_precision(*pair) for pair in pairs) / 2
    assert outcome.best.metrics["test"] == pytest.approx(expected, rel=1e-4)


def test_encodings_reach_the_model():
    config = tiny("minesweeper-board", encoding={"lap_pe": 3, "rwse": 2})
    run = run_of(config)
    assert run.model.blocks[0].conv.phi is not None
    Driver([run]).train_epoch()
    plain = run_of(tiny("minesweeper-board"))
    assert sum(p.numel() for p in run.model.parameters()) > sum(
        p.numel() for p in plain.model.parameters()
    )


def test_the_degree_reaches_the_model():
    run = run_of(tiny("minesweeper-board", encoding={"degree": True}))
    Driver([run]).train_epoch()
    plain = run_of(tiny("minesweeper-board")).model.encoder[0]
    assert run.model.encoder[0].in_channels == plain.in_channels + 1


def test_quantiles_reach_the_model():
    run = run_of(tiny("minesweeper-board", encoding={"degree": True, "quantiles": 3}))
    Driver([run]).train_epoch()
    plain = run_of(tiny("minesweeper-board")).model.encoder[0]
    assert run.model.encoder[0].in_channels == 3 * (plain.in_channels + 1)


def test_encodings_beside_the_features_reach_the_model():
    encoding = {"lap_pe": 2, "rwse": 2, "flip_signs": False, "pe_as": "features"}
    run = run_of(tiny("minesweeper-board", encoding=encoding))
    Driver([run]).train_epoch()
    plain = run_of(tiny("minesweeper-board")).model
    assert run.model.encoder[0].in_channels == plain.encoder[0].in_channels + 4
    assert run.model.blocks[0].conv.pe_channels == 0


@pytest.mark.parametrize(
    "encoding", [{"degree": True}, {"quantiles": 1}, {"rwse": 2, "pe_as": "features"}]
)
def test_an_encoder_has_no_place_for_features_encoded(encoding):
    task = Task("node", "binary", "roc-auc")
    dataset = GraphDataset(
        "a", task, 1, 1, 1, lambda _: None, encoder=lambda _: torch.nn.Identity()
    )
    with pytest.raises(ConfigError, match="features of a go through an encoder"):
        build_model(tiny(encoding=encoding), dataset)


def test_a_loss_that_is_no_number(tmp_path):
    config = tiny(
        architecture="mlp",
        model={"norm": None},
        optimizer={"lr": 1e25},
        training={"batch_size": None, "checkpoint_seconds": 0.0},
    )
    messages = []
    for resume in (False, True):  # the checkpoint is whole: it leads to the same place
        with pytest.raises(NonFiniteLossError) as error:
            train(config, [(0, 3)], device="cpu", folder=tmp_path, resume=resume)
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    for part in (
        "the loss of split0-seed3 is ",
        "at step 2 (epoch 2)",
        "of the parameter group 'weights'",
        "Lower optimizer.lr (now 1e+25)",
        "optimizer.clip=1",
        "training.precision=32 or 64",
    ):
        assert part in messages[0]
    assert len((tmp_path / "split0-seed3" / "metrics.jsonl").read_text().splitlines()) == 1
    assert (tmp_path / "split0-seed3" / "last.safetensors").exists()


@pytest.mark.parametrize("moment", ["evaluation", "checkpoint", "many steps"])
def test_losses_that_are_looked_at_later(moment, monkeypatch):
    """As on a GPU: nothing of a run that broke is reported as its best, or kept."""
    if moment == "many steps":
        monkeypatch.setattr("bunn.training.run.UNSEEN", 3)
    eval_every = 4 if moment == "evaluation" else 1000
    training = {"batch_size": None, "epochs": 1000, "eval_every": eval_every}
    sections = {"model": {"norm": None}, "optimizer": {"lr": 1e25}, "training": training}
    run = run_of(tiny(architecture="mlp", **sections))
    run.looks_at_once, driver = False, Driver([run])
    found = r"at step 2 \(epoch 2\)"
    for _ in range(2 if moment == "many steps" else 3):
        driver.train_epoch()
    with pytest.raises(NonFiniteLossError, match=found):
        run.pack() if moment == "checkpoint" else driver.train_epoch()
    assert run.best is None


def test_data_that_is_no_number(monkeypatch):
    data = citations(monkeypatch)
    graph = data.split(0).train[0]
    graph.x[0] = math.nan
    spoiled = dataclasses.replace(data, make_split=lambda index: Split([graph], [graph], [graph]))
    run = Run(tiny("citations", "mlp"), spoiled, 0, 0, Device("cpu", "32"))
    with pytest.raises(NonFiniteLossError, match=r"at step 1 .*all parameters are finite"):
        Driver([run]).train_epoch()


def test_the_parameters_under_suspicion():
    run = run_of(tiny(model={"learn_time": True, "num_bundles": 2}))
    model, optimizer = run.model, build_optimizer(run.config.optimizer, run.model)
    with torch.no_grad():
        model.head[0].bias.fill_(1e6)
    assert "the largest entry is 1e+06, in head.0.bias of the parameter group 'weights'" in (
        suspects(model, optimizer)
    )
    with torch.no_grad():
        model.blocks[1].conv.time.log_time[0] = math.nan
    assert suspects(model, optimizer) == (
        "1 parameter(s) of the group 'times' are not finite, the first of them "
        "blocks.1.conv.time.log_time"
    )
    with torch.no_grad():
        model.head[0].bias.fill_(math.inf)
    assert "2 parameter(s)" not in suspects(model, optimizer)
    assert "group 'weights' are not finite, the first of them head.0.bias" in (
        suspects(model, optimizer)
    )


@pytest.mark.parametrize("architecture", ["bunn", "gcn"])
def test_encodings_may_be_encoded_beside_features(architecture, monkeypatch):
    encoding = {"lap_pe": 2, "rwse": 3, "pe_as": "encoder", "lap_channels": 3, "rwse_channels": 2}
    config = tiny("minesweeper-board", architecture, encoding=encoding)
    run = run_of(config)
    assert run.model.encoder.pe_channels == 7
    assert run.model.encoder.features.out_channels == 3
    Driver([run]).train_epoch()
    assert run.evaluations
    with pytest.raises(ConfigError, match="hidden_channels=8 leaves nothing for features"):
        run_of(tiny("minesweeper-board", encoding={**encoding, "rwse_channels": 5}))


def test_nodes_are_hidden_from_an_encoder_too():
    """From one of numbers before it, from one of categories, which have no zero, after it."""
    encoding = {"rwse": 3, "pe_as": "encoder", "rwse_channels": 2}
    model = {"node_dropout": 0.5, "input_dropout": 0.1}
    run = run_of(tiny("minesweeper-board", encoding=encoding, model=model))
    kinds = [type(part).__name__ for part in run.model.encoder.features]
    assert kinds == ["NodeDropout", "Dropout", "Linear"]
    Driver([run]).train_epoch()

    atoms = find_preset("peptides-func", "bunn", "released", ["model.node_dropout=0.5"])[1]
    model = build_model(atoms, SIZES["peptides-func"])
    encoder, x, pe = model.encoder, torch.zeros(400, 9, dtype=torch.long), torch.rand(400, 20)
    shown = encoder.eval()(x, pe)
    assert (shown[:, :228] != 0).any(1).all()
    train = encoder.train()(x, pe)
    hidden = (train[:, :228] == 0).all(1)
    assert 0.4 < float(hidden.float().mean()) < 0.6
    torch.testing.assert_close(train[~hidden, :228], shown[~hidden, :228])
    assert (train[:, 228:] != 0).any(1).all()  # where a node lies is not hidden


@pytest.mark.parametrize("pooling", ["mean", "sum", "max"])
def test_graphs_are_pooled_as_the_model_says(pooling):
    config = find_preset("peptides-func", "bunn", "released", [f"model.pooling={pooling}"])[1]
    assert build_model(config, SIZES["peptides-func"]).pooling == pooling
    assert run_of(tiny("minesweeper-board", model={"pooling": pooling})).model.pooling is None
    with pytest.raises(ConfigError, match="it must be one of"):
        config.override(["model.pooling=median"])
    gcn = find_preset("peptides-func", "gcn", "paper")[1]
    assert build_model(gcn, SIZES["peptides-func"]).pooling == "mean"


def test_classes_are_weighed_where_there_are_some():
    with pytest.raises(ConfigError, match=r"training\.balanced=true .* regression; leave it out"):
        run_of(tiny(training={"balanced": True}))
