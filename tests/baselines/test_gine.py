"""GINE against its formula, written out edge by edge."""

import pytest
import torch
from hypothesis import given, settings
from torch import nn
from torch_geometric.nn import GINEConv

from bunn.baselines import FrameOptions
from bunn.baselines.frame import Block
from bunn.baselines.gin import GINLayer, GINOptions
from bunn.baselines.gine import GINELayer, GINEOptions
from bunn.theory import graphs as shapes
from tests.baselines.variants import batch_of, livened, some_graphs
from tests.graphs import graphs

WIDTH = 8


def layer_of(**options):
    return livened(GINELayer(GINEOptions(WIDTH, **options))).double()


def formula(layer, x, edge_index, edge_attr):
    """One node after the other."""
    network, rows = layer.conv.nn, []
    for v, own in enumerate(x):
        h = (1 + layer.conv.eps) * own
        for (u, target), e in zip(edge_index.T.tolist(), edge_attr, strict=True):
            if target == v:
                h = h + (x[u] + e).clamp(min=0)
        h = torch.tanh(network[0].weight @ h + network[0].bias)
        rows.append(network[3].weight @ h + network[3].bias)
    return torch.stack(rows)


@pytest.mark.parametrize("learn_eps", [True, False])
@settings(max_examples=15)
@given(graph=graphs())
def test_gine_is_its_formula(learn_eps, graph):
    edge_index, _, n = graph
    layer, x = layer_of(act="tanh", learn_eps=learn_eps), torch.randn(n, WIDTH).double()
    edge_attr = torch.randn(edge_index.size(1), WIDTH, dtype=torch.float64)
    y, edges = layer(x, edge_index, None, None, edge_attr)
    torch.testing.assert_close(y, formula(layer, x, edge_index, edge_attr))
    assert edges is edge_attr


def test_gine_is_its_formula_on_directed_and_repeated_edges():
    edge_index = torch.tensor([[0, 0, 1, 2, 2, 2], [1, 1, 0, 2, 1, 3]])
    layer, x = layer_of(act="tanh"), torch.randn(4, WIDTH).double()
    edge_attr = torch.randn(6, WIDTH).double()
    y, _ = layer(x, edge_index, None, None, edge_attr)
    torch.testing.assert_close(y, formula(layer, x, edge_index, edge_attr))


def test_gine_is_the_layer_of_pyg_on_a_batch():
    batch = batch_of(some_graphs(WIDTH, torch.float64))
    edge_attr = torch.randn(batch.num_edges, WIDTH, dtype=torch.float64)
    layer = layer_of(learn_eps=True)
    parts = (nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Identity(), nn.Linear(WIDTH, WIDTH))
    reference = GINEConv(nn.Sequential(*parts), train_eps=True).double()
    reference.load_state_dict(layer.conv.state_dict())
    y, _ = layer(batch.x, batch.edge_index, None, batch.batch, edge_attr)
    torch.testing.assert_close(y, reference(batch.x, batch.edge_index, edge_attr))


def test_gine_is_gin_where_messages_are_positive_and_edges_say_nothing():
    graph, x = shapes.random(9, seed=4), torch.rand(9, WIDTH, dtype=torch.float64)
    layer, gin = layer_of(), GINLayer(GINOptions(WIDTH, learn_eps=False)).double()
    gin.load_state_dict(layer.state_dict())
    edge_attr = x.new_zeros(graph.edge_index.size(1), WIDTH)
    y, _ = layer(x, graph.edge_index, None, None, edge_attr)
    torch.testing.assert_close(y, gin(x, graph.edge_index))
    y, _ = layer(-x, graph.edge_index, None, None, edge_attr)
    assert not torch.allclose(y, gin(-x, graph.edge_index))


def test_gine_weighs_nodes_as_the_paper_does_unless_it_learns_to():
    assert not GINEOptions().learn_eps
    assert "conv.eps" not in dict(layer_of().named_parameters())
    layer = GINELayer(GINEOptions(WIDTH, learn_eps=True))
    assert layer.conv.eps.tolist() == [0.0]


def test_a_block_hands_the_edges_on():
    graph, x = shapes.random(9, seed=4), torch.randn(9, WIDTH, dtype=torch.float64)
    layer = layer_of()
    block = Block(layer, FrameOptions(WIDTH, norm=None, act="tanh")).double()
    edge_attr = torch.randn(graph.edge_index.size(1), WIDTH, dtype=torch.float64)
    y, edges = block(x, graph.edge_index, None, None, edge_attr)
    h, _ = layer(x, graph.edge_index, None, None, edge_attr)
    torch.testing.assert_close(y, x + torch.tanh(h))
    assert edges is edge_attr


@pytest.mark.parametrize("outer_act", [True, False])
def test_the_non_linearity_may_end_with_the_network(outer_act):
    options = GINEOptions(8, 1, act="tanh", norm=None, outer_act=outer_act)
    block = Block(GINELayer(options), options)
    graph = shapes.random(7, seed=5)
    x, e = torch.randn(7, 8), torch.randn(graph.edge_index.size(1), 8)
    y, _ = block(x, graph.edge_index, None, None, e)
    h, _ = block.layer(x, graph.edge_index, None, None, e)
    torch.testing.assert_close(y, x + (torch.tanh(h) if outer_act else h))
