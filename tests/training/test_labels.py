"""Training labels as inputs: never the one in question, and at prediction all of them."""

from dataclasses import replace

import pytest
import torch
from torch_geometric.data import Data

from bunn.data import GraphDataset, Split, Task, load_dataset
from bunn.training import Config, ConfigError, train
from bunn.training.building import build_model
from bunn.training.drive import Driver
from bunn.training.labels import ShownLabels
from bunn.training.run import Output
from tests.training.test_run import run_of
from tests.training.tiny import molecules, register, tiny


def shown_in(batch, channels):
    """The rows with a label, and the labels."""
    labels = batch.inputs.x[:, -channels:]
    rows = (labels != 0).any(1).nonzero().squeeze(1)
    return rows, labels[rows].argmax(1)


def labelled_run(share=0.5, **sections):
    training = {"label_inputs": share, **sections.pop("training", {})}
    return run_of(tiny("minesweeper-board", training=training, **sections))


def ring(classes: int = 3, n: int = 12) -> Data:
    """A ring, its nodes of all classes in turn; the first eight for training."""
    masks = {f"{part}_mask": torch.zeros(n, dtype=torch.bool) for part in ("train", "val", "test")}
    masks["train_mask"][: n - 4] = True
    masks["val_mask"][n - 4 : n - 2] = masks["test_mask"][n - 2 :] = True
    edges = torch.stack((torch.arange(n), (torch.arange(n) + 1) % n))
    return Data(x=torch.randn(n, 2), y=torch.arange(n) % classes, edge_index=edges, **masks)


def on_one_graph(monkeypatch: pytest.MonkeyPatch, graph: Data) -> None:
    """Registers ``"ring"``."""
    graphs, task = [graph], Task("node", "multiclass", "accuracy")
    width = int(graph.y.max()) + 1
    dataset = GraphDataset("ring", task, 2, width, 1, lambda _: Split(graphs, graphs, graphs))
    register(monkeypatch, dataset)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.99])
def test_a_step_asks_for_what_it_does_not_show(share):
    run = labelled_run(share)
    (batch,) = run.feed.training(0)
    train_rows = set(batch.rows["train"].tolist())
    drawn = set()
    for _ in range(5):
        seen = run.labels.some(batch)
        rows, labels = shown_in(seen, 2)
        asked = seen.rows["train"].tolist()
        assert rows.numel() == min(len(train_rows) - 1, max(1, round(share * len(train_rows))))
        assert not set(rows.tolist()) & set(asked)
        assert set(rows.tolist()) | set(asked) == train_rows
        assert torch.equal(labels, batch.y[rows].long().flatten())
        assert torch.equal(seen.inputs.x[:, :-2], batch.inputs.x)
        assert seen.rows["val"] is batch.rows["val"]
        drawn.add(tuple(sorted(asked)))
    assert len(drawn) > 1


def test_an_evaluation_shows_all_training_labels_and_no_other():
    run = labelled_run()
    (batch,) = run.feed.evaluation("val")
    seen = run.labels.all(batch)
    rows, labels = shown_in(seen, 2)
    assert torch.equal(rows, batch.rows["train"].sort().values)
    assert torch.equal(labels, batch.y[rows].long().flatten())
    assert seen.rows is batch.rows


def test_the_model_never_reads_what_it_is_asked_for():
    """Whatever the labels in question are, the model reads the same."""
    run = labelled_run()
    requests = []
    for flipped in (False, True):
        (batch,) = run.feed.training(0)
        torch.manual_seed(3)
        asked = run.labels.some(batch).rows["train"]
        if flipped:
            y = batch.y.clone()
            for rows in (asked, batch.rows["val"], batch.rows["test"]):
                y[rows] = 1 - y[rows]
            batch = batch._replace(y=y)
        torch.manual_seed(3)
        request = next(run.take_step(batch))
        assert isinstance(request, Output)
        requests.append(request.batch.inputs.x)
    assert torch.equal(*requests)


def test_classes_are_inputs_one_by_one_and_what_is_not_known_is_none(monkeypatch):
    graph = ring(classes=3)
    on_one_graph(monkeypatch, graph)
    run = run_of(tiny("ring", training={"label_inputs": 0.5}))
    (batch,) = run.feed.evaluation("val")
    x = run.labels.all(batch).inputs.x
    assert torch.equal(x[:8, 2:], torch.eye(3)[graph.y[:8]])
    assert not x[8:, 2:].any()

    board = labelled_run()
    (batch,) = board.feed.evaluation("val")
    first = batch.rows["train"][0]
    y = batch.y.clone()
    y[first] = float("nan")
    assert not board.labels.all(batch._replace(y=y)).inputs.x[first, -2:].any()


def test_labels_tell_where_features_say_nothing(monkeypatch):
    """Classes that follow each other around a ring: two neighbours tell the third."""
    graph = ring(n=60)
    graph.x = torch.ones(60, 2)
    graph.edge_index = torch.cat((graph.edge_index, graph.edge_index.flip(0)), dim=1)
    on_one_graph(monkeypatch, graph)
    config = tiny(
        *("ring", "sage"),
        model={"hidden_channels": 16, "num_layers": 2},
        training={"label_inputs": 0.8, "epochs": 150},
    )
    (outcome,) = train(config, [(0, 0)], device="cpu")
    (without,) = train(config.override(["training.label_inputs=none"]), [(0, 0)], device="cpu")
    assert outcome.best.metrics["val"] == 1
    assert without.best.metrics["val"] < 1
    assert outcome.parameters == without.parameters + 3 * 16


@pytest.mark.parametrize("together", [True, False])
def test_runs_side_by_side_read_labels_of_their_own(together, monkeypatch):
    """Each shows the training labels of its split, and learns from the rest."""
    seen: dict[int, set[tuple[int, ...]]] = {}
    real = ShownLabels.some

    def some(self, batch):
        found = real(self, batch)
        rows, _ = shown_in(found, 2)
        seen.setdefault(id(self), set()).add(tuple(rows.tolist()))
        assert set(rows.tolist()) < set(batch.rows["train"].tolist())
        return found

    monkeypatch.setattr(ShownLabels, "some", some)
    training = {"label_inputs": 0.5, "together": together, "epochs": 3}
    train(tiny("minesweeper-board", training=training), [(0, 0), (1, 0)], device="cpu")
    assert [len(rows) for rows in seen.values()] == [3, 3]


@pytest.mark.parametrize(
    ("task", "outputs", "message"),
    [
        (Task("graph", "binary", "roc-auc"), 1, "every graph; only classes of nodes"),
        (Task("node", "regression", "mae"), 1, "regression target of every node"),
        (Task("node", "binary", "roc-auc"), 1, "no training nodes beside others"),
    ],
)
@pytest.mark.parametrize("masked", [False, True])
def test_where_labels_cannot_be_inputs_it_says_so(masked, task, outputs, message, monkeypatch):
    real = molecules(monkeypatch, task, outputs)
    if masked and task.level == "node":  # a part of the nodes of each graph counts

        def make_split(index: int) -> Split:
            split = real.make_split(index)
            for part in (split.train, split.val, split.test):
                for data in part:
                    data.mask = torch.arange(data.num_nodes) % 2 == 0
            return split

        register(monkeypatch, replace(real, make_split=make_split))
    config = tiny("molecules", training={"label_inputs": 0.5, "batch_size": 4})
    with pytest.raises(ConfigError, match=message):
        train(config, [(0, 0)], device="cpu")


def test_one_graph_whose_parts_are_the_same_nodes(monkeypatch):
    graph = ring()
    for part in ("train", "val", "test"):
        del graph[f"{part}_mask"]
    on_one_graph(monkeypatch, graph)
    for mask in (None, torch.arange(12) % 2 == 0):
        graph.mask = mask
        with pytest.raises(ConfigError, match="no training nodes beside others"):
            run_of(tiny("ring", training={"label_inputs": 0.5}))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_every_step_draws_other_labels(device):
    """Also where it is the replay of one: nothing else changes with a rate of nothing."""
    config = tiny(
        "minesweeper-board",
        optimizer={"lr": 1e-20},
        training={"label_inputs": 0.5, "epochs": 12},
    )
    (outcome,) = train(config, [(0, 0)], device=device)
    losses = [evaluation.loss for evaluation in outcome.evaluations]
    assert len(set(losses)) > 8
    assert len({evaluation.metrics["val"] for evaluation in outcome.evaluations}) == 1


def test_training_nodes_have_no_metric_and_decide_nothing():
    (outcome,) = train(
        tiny("minesweeper-board", training={"label_inputs": 0.5}), [(0, 0)], device="cpu"
    )
    assert outcome.best.metrics.keys() == {"val", "test"}
    schedule = {"name": "plateau", "monitor": "train"}
    with pytest.raises(ConfigError, match=r"own labels then, decides; use schedule\.monitor=val"):
        labelled_run(schedule=schedule)


def test_the_model_is_built_from_the_configuration():
    run = labelled_run()
    again = build_model(run.config, load_dataset(run.config.dataset, options=run.config.data))
    again.load_state_dict(run.model.state_dict())


def test_an_encoder_has_no_place_for_labels():
    task = Task("node", "binary", "roc-auc")
    dataset = GraphDataset("a", task, 1, 1, 1, lambda _: None, encoder=lambda width: None)
    with pytest.raises(ConfigError, match="encoder of their own"):
        ShownLabels(0.5, dataset, labelled_run().feed)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, float("nan")])
def test_a_share_lies_between_nothing_and_all(share):
    with pytest.raises(ValueError, match="share between 0 and 1"):
        Config("minesweeper-board", training={"label_inputs": share})


def test_labels_stand_beside_encodings_that_are_encoded():
    encoding = {"rwse": 3, "pe_as": "encoder", "rwse_channels": 2}
    run = run_of(
        tiny("minesweeper-board", encoding=encoding, training={"label_inputs": 0.5, "epochs": 2})
    )
    Driver([run]).train_epoch()
    assert run.model.encoder.features.in_channels > load_dataset("minesweeper-board").in_channels
