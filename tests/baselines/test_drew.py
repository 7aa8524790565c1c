"""DRew, against its formula written out node by node."""

import itertools
import math

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bunn.baselines.hops import Hops
from bunn.theory import graphs as shapes
from tests.baselines.variants import batch_of, build, livened, some_graphs


def distances(edge_index, n):
    """``{(u, v): distance}`` of all pairs that a path leads from one to the other of."""
    graph = nx.DiGraph(edge_index.T.tolist())
    graph.add_nodes_from(range(n))
    lengths = dict(nx.all_pairs_shortest_path_length(graph))
    return {(u, v): k for u, reached in lengths.items() for v, k in reached.items()}


def told(layer, ell, history, distance, nu, max_hops):
    """What layer ``ell`` adds to every node, before the non-linearity."""
    n = history[0].size(0)
    out = [layer.bias.clone() for _ in range(n)]
    for k in range(1, min(ell + 1, max_hops) + 1):
        read = history[ell - max(0, k - nu)]
        pairs = [pair for pair, length in distance.items() if length == k]
        for u, v in pairs:
            leaving = sum(source == u for source, _ in pairs)
            arriving = sum(target == v for _, target in pairs)
            out[v] = out[v] + read[u] @ layer.weight[k - 1] / math.sqrt(leaving * arriving)
    return torch.stack(out)


@st.composite
def any_graphs(draw):
    """Edges with loops, repetitions and directions, and how many nodes there are."""
    n = draw(st.integers(1, 9))
    pairs = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=2 * n))
    if draw(st.booleans()):
        pairs += [(v, u) for u, v in pairs]
    return torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T, n


@settings(max_examples=50)
@given(graph=any_graphs(), farthest=st.integers(1, 5))
def test_hops_are_the_pairs_at_every_distance(graph, farthest):
    edge_index, n = graph
    hops = Hops.of(edge_index, n, farthest, torch.float64)
    distance, starts = distances(edge_index, n), [0, *hops.within]
    assert len(hops.within) == farthest
    for k, (start, end) in enumerate(itertools.pairwise(starts), start=1):
        sources = (hops.source[start:end] - (k - 1) * n).tolist()
        found = list(zip(sources, hops.target[start:end].tolist(), strict=True))
        assert sorted(found) == sorted(pair for pair, length in distance.items() if length == k)


def test_nobody_is_found_again_around_a_directed_cycle():
    around = torch.stack((torch.arange(4), torch.arange(1, 5) % 4))
    assert Hops.of(around, 4, 6, torch.float64).within == [4, 8, 12, 12, 12, 12]


@pytest.mark.parametrize("nu", [1, 2, None])
@pytest.mark.parametrize("max_hops", [2, None])
@pytest.mark.parametrize("norm_first", [True, False])
@settings(max_examples=3)
@given(graph=any_graphs())
def test_the_model_is_its_formula(nu, max_hops, norm_first, graph):
    edge_index, n = graph
    options = {"nu": nu, "max_hops": max_hops, "norm_first": norm_first, "num_layers": 4}
    model = livened(build("drew", act="tanh", **options)).double()
    (stack,) = model.blocks
    distance, x = distances(edge_index, n), torch.randn(n, 3, dtype=torch.float64)
    h, read = torch.tanh(model.encoder[0](x)), []
    for ell, block in enumerate(stack.layers):
        read.append(block.norm(h) if norm_first else h)
        heard = told(block.layer, ell, read, distance, nu or 4, max_hops or 4)
        h = h + torch.tanh(heard if norm_first else block.norm(heard))
    expected = model.head(model.norm(h))
    torch.testing.assert_close(model(x, edge_index), expected)


def test_the_formula_in_a_batch():
    batch = batch_of(some_graphs(dtype=torch.float64))
    model = livened(build("drew", act="tanh", norm=None, num_layers=3)).double()
    distance = distances(batch.edge_index, batch.num_nodes)
    history = [torch.tanh(model.encoder[0](batch.x))]
    for ell, block in enumerate(model.blocks[0].layers):
        heard = told(block.layer, ell, history, distance, nu=1, max_hops=3)
        history.append(history[-1] + torch.tanh(heard))
    y = model(batch.x, batch.edge_index, batch=batch.batch)
    torch.testing.assert_close(y, model.head(history[-1]))


@pytest.mark.parametrize(("nu", "reach"), [(1, 4), (2, 7), (3, 9), (None, 10)])
def test_without_delay_layers_reach_farther(nu, reach):
    """Four layers on a path: a hop each with the longest delays, 1 + 2 + 3 + 4 without any, and
    1 + 2 + 2 + 2 or 1 + 2 + 3 + 3 where two or three hops are prompt."""
    path = torch.stack((torch.arange(14), torch.arange(1, 15)))
    model = livened(build("drew", nu=nu, num_layers=4, act="tanh"))
    x = torch.randn(15, 3, requires_grad=True)
    model(x, path)[-1].sum().backward()
    assert (x.grad.abs().sum(1) > 0).sum() == 1 + reach


def test_parameters_are_a_matrix_for_every_layer_and_distance():
    model = build("drew", num_layers=5, hidden_channels=16, max_hops=3)
    matrices = [block.layer.weight.shape for block in model.blocks[0].layers]
    assert matrices == [(hops, 16, 16) for hops in (1, 2, 3, 3, 3)]


def test_repeated_edges_and_loops_say_nothing():
    graph, x = shapes.random(9, seed=3), torch.randn(9, 3)
    model = livened(build("drew", num_layers=3))
    loops = torch.arange(9).expand(2, -1)
    more = torch.cat((graph.edge_index, graph.edge_index[:, :5], loops), dim=1)
    torch.testing.assert_close(model(x, more), model(x, graph.edge_index))
