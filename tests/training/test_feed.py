"""Batches: which graphs, in which order, with which rows, edges and signs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from bunn.data import (
    BoardOptions,
    ClusterOptions,
    GraphList,
    Split,
    Task,
    TreeOptions,
    load_dataset,
)
from bunn.training import ConfigError, Encoding
from bunn.training import feed as feed_module
from bunn.training.encode import encode
from bunn.training.feed import Feed
from tests.training.tiny import BOARD, CLUSTERS, molecule

CPU = torch.device("cpu")
REGRESSION = Task("graph", "regression", "mae")


def molecule_split(counts=(7, 3, 2), task=REGRESSION) -> Split:
    parts = [[molecule(100 * part + i, task) for i in range(n)] for part, n in enumerate(counts)]
    return Split(*parts)


def board_split(index: int = 0) -> Split:
    return load_dataset("minesweeper-board", options=BoardOptions(**BOARD)).split(index)


def barbell_split(index: int = 0, **options) -> Split:
    return load_dataset("barbell", options=ClusterOptions(**{**CLUSTERS, **options})).split(index)


def feed_of(split: Split, batch_size=None, seed=0, dtype=torch.float32, **encoding) -> Feed:
    return Feed(split, batch_size, Encoding(**encoding), seed, CPU, dtype)


def first_values(feed: Feed, epoch: int) -> list[list[float]]:
    """What tells graphs apart, batch by batch."""
    return [batch.y[:, 0].tolist() for batch in feed.training(epoch)]


@settings(max_examples=20)
@given(
    count=st.integers(1, 7), batch_size=st.none() | st.integers(1, 9), epoch=st.integers(0, 10**6)
)
def test_every_graph_comes_once_an_epoch(count, batch_size, epoch):
    split = molecule_split((count, 1, 1))
    feed = feed_of(split, batch_size)
    batches = list(feed.training(epoch))
    assert len(batches) == feed.steps == -(-count // min(batch_size or count, count))
    seen = torch.cat([batch.y for batch in batches])
    expected = torch.cat([data.y for data in split.train])
    assert sorted(seen.tolist()) == sorted(expected.tolist())
    assert sum(batch.inputs.x.size(0) for batch in batches) == sum(
        data.num_nodes for data in split.train
    )


def test_the_order_depends_on_seed_and_epoch_alone():
    split = molecule_split()
    feed, again = feed_of(split, 2), feed_of(split, 2)
    orders = [first_values(feed, epoch) for epoch in range(5)]
    torch.manual_seed(99)
    list(again.training(7))  # what came before does not matter
    assert [first_values(again, epoch) for epoch in reversed(range(5))] == orders[::-1]
    assert all(orders[0] != order for order in orders[1:])
    assert [first_values(feed_of(split, 2, seed=1), epoch) for epoch in range(5)] != orders


def test_evaluation_is_in_order_and_complete(monkeypatch):
    split = molecule_split()
    feed = feed_of(split)
    monkeypatch.setattr(feed_module, "EVALUATION_NODES", 12)
    for part, graphs in (("train", split.train), ("val", split.val), ("test", split.test)):
        batches = list(feed.evaluation(part))
        assert len(batches) > 1 or len(graphs) == 1 or part == "test"
        seen = torch.cat([batch.y for batch in batches])
        assert torch.equal(seen, torch.cat([data.y for data in graphs]))


def test_batches_that_are_kept_are_the_same_batches(monkeypatch):
    for split, batch_size in ((barbell_split(), 1), (molecule_split(), None)):
        feed = feed_of(split, batch_size)
        first = {id(batch.inputs.x) for batch in feed.training(0)}
        assert {id(batch.inputs.x) for batch in feed.training(1)} == first
    assert next(feed.evaluation("train")) is next(feed.training(0))
    monkeypatch.setattr(feed_module, "KEPT_NODES", 0)
    feed = feed_of(molecule_split())
    assert next(feed.training(0)) is not next(feed.training(1))


def test_a_batch_of_one_is_a_graph_and_a_batch_of_many_is_block_diagonal():
    split = molecule_split()
    for batch in feed_of(split, 1).training(0):
        assert batch.inputs.batch is None
        assert batch.inputs.batch_size == 1
    (batch,) = feed_of(split).training(0)
    sizes = [data.num_nodes for data in split.train]
    assert batch.inputs.batch_size == 7
    assert torch.bincount(batch.inputs.batch).tolist() == sizes
    row, col = batch.inputs.edge_index
    assert torch.equal(batch.inputs.batch[row], batch.inputs.batch[col])
    (alone,) = feed_of(board_split()).training(0)
    assert alone.inputs.batch is None


def test_rows_of_a_transductive_graph():
    split = board_split()
    feed = feed_of(split)
    assert feed.transductive
    (batch,) = feed.training(0)
    data, output = split.train[0], torch.arange(36.0).unsqueeze(1)
    for part in ("train", "val", "test"):
        rows, y = batch.select(output, part)
        mask = data[f"{part}_mask"]
        assert torch.equal(rows, output[mask])
        assert torch.equal(y, data.y[mask])
    assert next(feed.evaluation("val")) is next(feed.evaluation("test"))


def test_rows_of_graphs_with_a_mask_and_without():
    split = load_dataset("tree-neighborsmatch", options=TreeOptions(depth=2)).split(0)
    feed = feed_of(split, 5)
    assert not feed.transductive
    for batch in (next(feed.training(0)), next(feed.evaluation("val"))):
        count = batch.inputs.batch_size
        rows, y = batch.select(torch.arange(7 * count), "val")
        assert rows.tolist() == list(range(0, 7 * count, 7))  # the roots
        assert torch.equal(y, batch.y[::7])
    (batch,) = feed_of(molecule_split()).training(0)
    output = torch.randn(7, 2)
    assert batch.select(output, "train") == (output, batch.y)


def test_masks_do_not_pile_up():
    graphs = [molecule(i, Task("node", "regression", "mae")) for i in range(6)]
    for data in graphs:
        data.mask = torch.rand(data.num_nodes) > 0.5
    feed = feed_of(Split(graphs, graphs[:1], graphs[:1]), 2)
    for epoch in range(40):
        for batch in feed.training(epoch):
            output, y = batch.select(batch.y, "train")
            assert torch.equal(output, y)
    assert len(feed._rows) <= feed_module.KEPT_MASKS


def test_encodings_are_attached_in_front_of_the_model():
    split = board_split()
    (batch,) = feed_of(split, lap_pe=3, rwse=2, flip_signs=False).training(0)
    encoded = encode(split, Encoding(lap_pe=3, rwse=2)).train[0]
    assert torch.equal(batch.inputs.pe, torch.cat([encoded.lap_pe, encoded.rwse], 1))
    assert feed_of(split, lap_pe=3).transductive  # the three parts are still one
    assert next(feed_of(split).training(0)).inputs.pe is None
    assert "lap_pe" not in split.train[0]  # the dataset is left alone


def test_encodings_beside_the_features():
    split = molecule_split((3, 1, 1))
    encoding = {"lap_pe": 2, "rwse": 3, "flip_signs": False}
    (beside,) = feed_of(split, pe_as="features", degree=True, **encoding).training(0)
    (plain,) = feed_of(split, **encoding).training(0)
    assert beside.inputs.pe is None
    width, degree = plain.inputs.x.size(1), beside.inputs.x[:, -1:]
    _, nodes = plain.inputs.batch.unique(return_counts=True)
    root = nodes[plain.inputs.batch].sqrt().unsqueeze(1)
    expected = torch.cat(
        (plain.inputs.x, root * plain.inputs.pe[:, :2], plain.inputs.pe[:, 2:], degree), dim=1
    )
    torch.testing.assert_close(beside.inputs.x, expected)
    assert Encoding(pe_as="features", degree=True, **encoding).features(width) == width + 6
    (binned,) = feed_of(split, pe_as="features", quantiles=4, **encoding).training(0)
    assert binned.inputs.x.size(1) == 4 * (width + 5)
    assert bool(((binned.inputs.x >= 0) & (binned.inputs.x <= 1)).all())


def test_signs_of_features_are_not_flipped():
    with pytest.raises(ConfigError, match=r"use encoding.flip_signs=false"):
        Encoding(lap_pe=2, pe_as="features")
    assert Encoding(rwse=2, pe_as="features").channels == 0


def test_the_degree_is_one_more_feature():
    split = molecule_split((3, 1, 1))
    (batch,) = feed_of(split, degree=True, rwse=2).training(0)
    (plain,) = feed_of(split, rwse=2).training(0)
    degree = torch.bincount(batch.inputs.edge_index[0], minlength=len(batch.inputs.x))
    expected = torch.cat((plain.inputs.x, degree.log1p().unsqueeze(1)), dim=1)
    torch.testing.assert_close(batch.inputs.x, expected)
    assert torch.equal(batch.inputs.pe, plain.inputs.pe)


def test_quantiles_are_those_of_training_graphs():
    split = molecule_split((3, 1, 1))
    for data in split.test:
        data.x = data.x + 100  # never looked at
    feed = feed_of(split, degree=True, quantiles=4)
    plain = feed_of(split, degree=True)
    (batch,), (reference,) = feed.training(0), plain.training(0)
    bins = batch.inputs.x.view(*reference.inputs.x.shape, 4)
    assert bool(((bins >= 0) & (bins <= 1)).all())
    middle = reference.inputs.x[:, 0].median()
    torch.testing.assert_close(bins[:, 0, 1] == 1, reference.inputs.x[:, 0] >= middle)
    (shown,) = feed.evaluation("test")
    assert bool((shown.inputs.x.view(-1, bins.size(1), 4)[:, 0] == 1).all())


def test_signs_are_random_in_training_only():
    split = molecule_split()
    feed = feed_of(split, 3, lap_pe=2, rwse=2)
    plain = feed_of(split, 3, lap_pe=2, rwse=2, flip_signs=False)
    flips = set()
    for epoch in range(6):
        for batch, unflipped in zip(feed.training(epoch), plain.training(epoch), strict=True):
            pe, reference = batch.inputs.pe, unflipped.inputs.pe
            assert torch.equal(pe[:, 2:], reference[:, 2:])  # walks have no sign
            assert torch.equal(pe[:, :2].abs(), reference[:, :2].abs())
            ratio = (pe / reference)[:, :2]
            graph = batch.inputs.batch
            graph = torch.zeros(len(pe), dtype=torch.long) if graph is None else graph
            for index in range(batch.inputs.batch_size):
                own = ratio[graph == index]
                for column in range(2):
                    signs = own[:, column][own[:, column].isfinite()]
                    assert (signs == signs[:1]).all()  # one sign per graph and eigenvector
                    flips |= set(signs.tolist())
    assert flips == {1.0, -1.0}
    for part in ("train", "val", "test"):
        for batch, unflipped in zip(feed.evaluation(part), plain.evaluation(part), strict=True):
            assert torch.equal(batch.inputs.pe, unflipped.inputs.pe)


def test_signs_depend_on_seed_and_epoch_alone():
    feed = feed_of(board_split(), lap_pe=4)

    def signs(seed: int) -> list[list[float]]:
        feed.seed = seed
        return [next(feed.training(epoch)).inputs.pe[0].sign().tolist() for epoch in range(8)]

    first = signs(0)
    torch.manual_seed(5)
    assert signs(0) == first
    assert signs(1) != first
    assert len({tuple(row) for row in first}) > 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_floating_point_values_have_one_precision(dtype):
    data = Data(
        x=torch.rand(2, 3),
        edge_index=torch.tensor([[0, 1], [1, 0]]),
        edge_weight=torch.ones(2, dtype=torch.float64),
        y=torch.tensor([0, 1]),
    )
    (batch,) = feed_of(Split([data], [data], [data]), dtype=dtype, rwse=2).training(0)
    inputs = batch.inputs
    assert inputs.x.dtype == inputs.edge_weight.dtype == inputs.pe.dtype == dtype
    assert batch.y.dtype == inputs.edge_index.dtype == torch.long


def test_which_feeds_have_their_edges_in_step():
    clusters = load_dataset("barbell", options=ClusterOptions(**CLUSTERS))
    first, second = clusters.split(0), clusters.split(1)
    assert feed_of(first, 1).in_step_with(feed_of(second, 1, seed=3))
    assert not feed_of(first, 1).in_step_with(feed_of(second, 2))
    assert not feed_of(first, 1).in_step_with(feed_of(barbell_split(cluster_size=4), 1))
    assert not feed_of(first, 1).in_step_with(feed_of(barbell_split(num_val=5), 1))
    boards = [feed_of(board_split(index)) for index in range(2)]
    assert boards[0].in_step_with(boards[1])
    assert not boards[0].in_step_with(feed_of(molecule_split((1, 1, 1))))
    graphs = molecule_split()
    assert not feed_of(graphs, 1).in_step_with(feed_of(graphs, 1, seed=1))


def test_weights_and_nodes_without_edges_count_too():
    def feed(weight, nodes: int = 4) -> Feed:
        edges = torch.tensor([[0, 1], [1, 0]])
        data = Data(x=torch.rand(nodes, 1), edge_index=edges, y=torch.zeros(nodes, dtype=int))
        if weight is not None:
            data.edge_weight = torch.full((2,), weight)
        alone = GraphList([data])
        return feed_of(Split(alone, alone, alone))

    assert feed(None).in_step_with(feed(None))
    assert feed(2.0).in_step_with(feed(2.0))
    assert not feed(2.0).in_step_with(feed(3.0))
    assert not feed(2.0).in_step_with(feed(None))
    assert not feed(None).in_step_with(feed(None, 5))


@pytest.mark.parametrize("count", [23, 24, 5])
def test_graphs_of_a_bucket_are_alike(count):
    """Every graph comes once all the same, and only the last batch is smaller."""
    split = molecule_split((count, 1, 1))
    sizes = {float(data.y[0, 0]): data.num_nodes for data in split.train}
    plain, bucketed = (Feed(split, 4, Encoding(), 0, CPU, buckets=b) for b in (1, 3))
    spread = {}
    for name, feed in (("plain", plain), ("bucketed", bucketed)):
        batches = [values for epoch in range(20) for values in first_values(feed, epoch)]
        nodes = [[sizes[value] for value in values] for values in batches]
        spread[name] = sum(max(batch) * len(batch) - sum(batch) for batch in nodes)
    assert count == 5 or spread["bucketed"] < 0.6 * spread["plain"]
    for epoch in range(3):
        values = first_values(bucketed, epoch)
        assert sorted(value for batch in values for value in batch) == sorted(sizes)
        assert [len(batch) for batch in values[:-1]] == [4] * (len(values) - 1)
    assert first_values(bucketed, 0) == first_values(bucketed, 0)
    assert count == 5 or first_values(bucketed, 0) != first_values(bucketed, 1)


def test_an_encoder_is_handed_eigenvalues_too():
    split = molecule_split()
    encoding = {"lap_pe": 2, "rwse": 3, "pe_as": "encoder"}
    (batch,) = feed_of(split, **encoding).training(0)
    assert batch.inputs.pe.shape[1] == 7 == Encoding(**encoding).channels
    encoded = encode(split, Encoding(**encoding)).train
    values = torch.cat([data.lap_eigenvalues for data in encoded])
    walks = torch.cat([data.rwse for data in encoded])
    assert torch.equal(batch.inputs.pe[:, 2:4], values)
    assert torch.equal(batch.inputs.pe[:, 4:], walks)
    vectors = torch.cat([data.lap_pe for data in encoded])
    torch.testing.assert_close(batch.inputs.pe[:, :2].abs(), vectors.abs())


def test_edge_features_are_for_those_who_read_them():
    split = molecule_split()
    for part in (split.train, split.val, split.test):
        for data in part:
            data.edge_attr = torch.randn(data.num_edges, 2, dtype=torch.float64)
    (batch,) = feed_of(split).training(0)
    assert batch.inputs.edge_attr is None
    assert len(batch.inputs.arguments) == 6
    (batch,) = Feed(split, None, Encoding(), 0, CPU, edges=True).training(0)
    expected = torch.cat([data.edge_attr for data in split.train]).float()
    assert torch.equal(batch.inputs.edge_attr, expected)
    assert batch.inputs.arguments[-1] is batch.inputs.edge_attr
