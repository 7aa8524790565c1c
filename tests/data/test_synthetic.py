"""The generated tasks: their mathematics, their statistics, and what the real file says."""

import itertools
import math

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.utils import to_networkx

from bunn.data import (
    DATASETS,
    BoardOptions,
    ClusterOptions,
    TreeOptions,
    constant_baselines,
    load_dataset,
)
from bunn.data.encoders import KeyValueEncoder
from bunn.data.minesweeper import board_edges, board_features
from bunn.data.seeds import generator
from tests.data.raw_files import real_root

PARTS = ("train", "val", "test")


def test_streams_differ():
    keys = [(0,), (0, 0), (0, 1), (1, 0), (2**32,), ("a", 0), ("a", "0"), ("a0",)]
    draws = [float(torch.rand((), generator=generator(*key), dtype=torch.float64)) for key in keys]
    assert len(set(draws)) == len(keys)
    assert draws[0] == float(torch.rand((), generator=generator(0), dtype=torch.float64))


# Barbell and clique


@pytest.mark.parametrize("name", ["barbell", "clique"])
@given(n=st.integers(1, 7), seed=st.integers(0, 10**6))
def test_the_target_is_the_mean_of_the_other_cluster(name, n, seed):
    options = ClusterOptions(cluster_size=n, num_train=3, num_val=2, num_test=1)
    split = load_dataset(name, options=options).split(seed)
    assert [len(getattr(split, part)) for part in PARTS] == [3, 2, 1]
    data = split.train[1]
    assert data.x.shape == data.y.shape == (2 * n, 1)
    for cluster in (0, 1):
        here = data.cluster == cluster
        assert here.sum() == n
        torch.testing.assert_close(data.y[here], data.x[~here].mean().expand(n, 1))
        side = data.x[here] * (2 * cluster - 1)
        assert (side >= 0).all()
        assert (side <= 2 * math.sqrt(3 * n) * (1 + 1e-6)).all()


@pytest.mark.parametrize("n", [1, 2, 5, 10])
def test_the_graphs_are_a_barbell_and_a_clique(n):
    options = ClusterOptions(cluster_size=n)
    barbell = load_dataset("barbell", options=options).split(0).train[0]
    clique = load_dataset("clique", options=options).split(0).train[0]
    graph = to_networkx(barbell, to_undirected=True)
    assert barbell.num_edges == 2 * (n * (n - 1) + 1)
    between = [(u, v) for u, v in graph.edges if barbell.cluster[u] != barbell.cluster[v]]
    assert len(between) == 1
    assert nx.is_connected(graph)
    assert clique.num_edges == 2 * n * (2 * n - 1)
    assert torch.equal(barbell.x, clique.x)


@pytest.mark.parametrize("n", [4, 10])
def test_features_have_the_scale_of_the_table(n):
    options = ClusterOptions(cluster_size=n, num_test=4000)
    test = load_dataset("barbell", options=options).split(0).test
    x = test.tensors["x"][:, test.graph.attributes["cluster"] == 1].double()
    assert float(x.mean()) == pytest.approx(math.sqrt(3 * n), rel=0.02)
    assert float(x.std()) == pytest.approx(math.sqrt(n), rel=0.02)
    rows = constant_baselines(load_dataset("clique", options=options).split(0))
    assert rows["base-1"] == pytest.approx(3 * n + 1, rel=0.02)
    assert rows["base-2"] == pytest.approx(1.0, rel=0.05)


def test_no_better_constant_per_cluster_exists():
    split = load_dataset("barbell", options=ClusterOptions(num_test=2000)).split(1)
    y = split.test.tensors["y"].double()[:, 0]
    best = float(y.var(unbiased=False))
    assert best <= constant_baselines(split)["base-2"] <= best * 1.01


def test_parts_have_streams_of_their_own():
    first = load_dataset("barbell").split(0)
    x = [getattr(first, part)[0].x for part in PARTS]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(x, 2))
    other = load_dataset("barbell", options=ClusterOptions(num_train=7, num_val=3)).split(0)
    assert torch.equal(other.test.tensors["x"], first.test.tensors["x"])


# Tree-NeighborsMatch


@given(depth=st.integers(2, 5), seed=st.integers(0, 10**6), edges=st.sampled_from(("up", "both")))
def test_the_answer_is_the_value_at_the_key(depth, seed, edges):
    options = TreeOptions(
        depth=depth, max_permutations=5, edges="to-root" if edges == "up" else "undirected"
    )
    dataset = load_dataset("tree-neighborsmatch", options=options)
    split, leaves = dataset.split(seed), 2**depth
    assert dataset.out_channels == leaves
    for data in (split.train[0], split.val[0], split.test[-1]):
        assert data.num_nodes == 2 * leaves - 1
        assert data.mask.nonzero().tolist() == [[0]]
        graph = to_networkx(data)
        kids = {v: [u for u, w in graph.in_edges(v) if u > v] for v in graph}
        ends = [v for v in graph if not kids[v]]
        assert sorted(data.x[ends, 1].tolist()) == list(range(1, leaves + 1))
        assert sorted(data.x[ends, 0].tolist()) == list(range(1, leaves + 1))
        (leaf,) = (v for v in ends if data.x[v, 0] == data.x[0, 0])
        assert data.y[0] == data.x[leaf, 1] - 1
        inner = [v for v in graph if kids[v] and v]
        assert not data.x[inner].any()
        assert data.x[0, 1] == 0


def test_the_tree():
    both = load_dataset("tree-neighborsmatch", options=TreeOptions(depth=3)).split(0).train[0]
    graph = to_networkx(both, to_undirected=True)
    assert nx.is_tree(graph)
    assert sorted(d for _, d in graph.degree) == sorted([2] + [3] * 6 + [1] * 8)
    assert set(nx.single_source_shortest_path_length(graph, 0).values()) == {0, 1, 2, 3}
    options = TreeOptions(depth=3, edges="to-root")
    up = to_networkx(load_dataset("tree-neighborsmatch", options=options).split(0).train[0])
    assert sum(u == v for u, v in up.edges) == 15
    up.remove_edges_from(list(nx.selfloop_edges(up)))
    assert nx.is_arborescence(up.reverse())
    assert up.out_degree(0) == 0


@pytest.mark.parametrize(
    ("depth", "permutations"),
    [(2, 24), (3, 1000), (4, 1000), (5, 1000), (6, 500), (7, 250), (8, 125)],
)
def test_the_published_number_of_examples(depth, permutations):
    options = TreeOptions(depth=depth)
    assert options.num_permutations == permutations
    assert options.num_examples == permutations * 2**depth
    split = load_dataset("tree-neighborsmatch", options=options).split(0)
    sizes = [len(getattr(split, part)) for part in PARTS]
    assert sizes[0] == int(0.8 * options.num_examples)
    assert sum(sizes) == options.num_examples
    assert 0 <= sizes[2] - sizes[1] <= 1
    everything = torch.cat([getattr(split, part).examples for part in PARTS])
    assert torch.equal(everything.sort().values, torch.arange(options.num_examples))
    table = split.train.permutations
    assert torch.equal(table.sort(1).values[0], torch.arange(1, 2**depth + 1))
    assert len(table.unique(dim=0)) == permutations


@given(depth=st.integers(2, 4), fraction=st.floats(0.2, 0.9), seed=st.integers(0, 100))
def test_every_answer_is_equally_frequent_in_every_part(depth, fraction, seed):
    options = TreeOptions(depth=depth, max_permutations=20, train_fraction=fraction)
    split = load_dataset("tree-neighborsmatch", options=options).split(seed)
    answers = split.train.collate(torch.arange(len(split.train)))
    counts = torch.bincount(answers.y[answers.mask], minlength=2**depth)
    assert counts.max() - counts.min() <= 1


def test_tree_options_that_leave_nothing_are_refused():
    with pytest.raises(ValueError, match=r"^max_examples=100; a permutation at depth 7 makes 128"):
        TreeOptions(depth=7, max_examples=100)
    with pytest.raises(ValueError, match=r"^train_fraction=0.99; .* use a less extreme one"):
        TreeOptions(depth=2, train_fraction=0.99)


# Minesweeper


@given(height=st.integers(1, 9), width=st.integers(1, 9))
def test_cells_are_joined_as_a_king_moves(height, width):
    edges = {tuple(edge) for edge in board_edges(height, width).T.tolist()}
    cells = list(itertools.product(range(height), range(width)))
    near = {
        (r * width + c, s * width + d)
        for (r, c), (s, d) in itertools.product(cells, cells)
        if max(abs(r - s), abs(c - d)) == 1
    }
    assert edges == near


@given(
    height=st.integers(4, 12),
    width=st.integers(5, 12),
    mines=st.floats(0.2, 0.8),
    hidden=st.floats(0.1, 0.9),
    seed=st.integers(0, 1000),
)
def test_a_board_has_the_shares_it_was_asked_for(height, width, mines, hidden, seed):
    options = BoardOptions(height, width, mines, hidden)
    data = load_dataset("minesweeper-board", options=options).split(seed).train[0]
    n = height * width
    assert data.y.sum() == round(mines * n)
    assert data.x[:, 0].sum() == round(hidden * n)
    assert torch.equal(data.x.sum(1), torch.ones(n))
    dense = torch.zeros(n, n)
    dense[data.edge_index[0], data.edge_index[1]] = 1
    count = (dense @ data.y).clamp(max=5)
    shown = data.x[:, 0] == 0
    assert torch.equal(data.x[shown, 1:].argmax(1).float(), count[shown])
    for kind in (0.0, 1.0):
        cells = data.y == kind
        sizes = [int((data[f"{part}_mask"] & cells).sum()) for part in PARTS]
        total = int(cells.sum())
        assert sizes == [total // 2, total // 4, total - total // 2 - total // 4]
        assert min(sizes) > 0


def test_a_board_without_enough_mines_is_refused():
    with pytest.raises(ValueError, match=r"^mine_fraction=0.2; of 3 x 3 cells it makes 2 mines"):
        BoardOptions(3, 3)


def test_the_generator_makes_what_the_benchmark_has():
    root = real_root("minesweeper")
    real = np.load(root / DATASETS["minesweeper"].files[0])
    features, mine = torch.from_numpy(real["node_features"]), torch.from_numpy(real["node_labels"])
    ours = load_dataset("minesweeper-board").split(0).train[0]
    pairs = torch.from_numpy(real["edges"]).sort(1).values
    half = ours.edge_index[:, ours.edge_index[0] < ours.edge_index[1]].T
    assert {tuple(pair) for pair in pairs.tolist()} == {tuple(pair) for pair in half.tolist()}
    # The rule: from the mines and the hidden cells of the file to its features, exactly.
    rule = board_features(mine.bool(), features[:, 0].bool(), ours.edge_index)
    assert torch.equal(rule, features)
    # The numbers that are exact, and those that vary from board to board.
    assert ours.y.sum() == mine.sum()
    assert ours.x[:, 0].sum() == features[:, 0].sum()
    spread = 5 * features.sum(0).clamp(min=1).sqrt() + 1
    assert ((ours.x.sum(0) - features.sum(0)).abs() <= 2 * spread).all()
    for part in PARTS:
        mask = torch.from_numpy(real[f"{part}_masks"][0])
        assert ours[f"{part}_mask"].sum() == mask.sum()
        assert ours.y[ours[f"{part}_mask"]].sum() == mine[mask].sum()


def test_no_key_and_no_value_are_embedded_at_zero_and_learned():
    encoder = KeyValueEncoder(4, 8)
    nodes = torch.tensor([[0, 0], [2, 0], [0, 3]])
    for _ in range(2):
        none, key, value = encoder(nodes)
        assert not none.any()
        assert key.all()
        assert value.all()
        encoder.reset_parameters()
    encoder(nodes[:1]).sum().backward()
    assert all(weight.grad[0].all() for weight in encoder.parameters())
