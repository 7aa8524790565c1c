"""GatedGCN against its formula, written out edge by edge."""

import pytest
import torch
from hypothesis import given, settings
from torch import nn

from bunn.baselines.gatedgcn import GatedGCNBlock, GatedGCNLayer, GatedGCNOptions
from bunn.theory import graphs as shapes
from tests.baselines.variants import batch_of, build, livened, some_graphs
from tests.graphs import graphs

WIDTH = 8


def block_of(**options):
    return livened(GatedGCNBlock(GatedGCNOptions(WIDTH, act="tanh", **options))).double()


def gated(layer, x, edge_index, edge_attr):
    """Nodes before their norm, and the scores of edges, one after the other."""
    A, B, D, E = layer.lin_nodes.weight.view(4, WIDTH, WIDTH)
    a, b, d, e = layer.lin_nodes.bias.view(4, WIDTH)
    C, c = layer.lin_edges.weight, layer.lin_edges.bias
    pairs = edge_index.T.tolist()
    scores = [
        D @ x[v] + d + E @ x[u] + e + C @ f + c for (u, v), f in zip(pairs, edge_attr, strict=True)
    ]
    gates, rows = [1 / (1 + torch.exp(-score)) for score in scores], []
    for v, own in enumerate(x):
        arriving = [
            (u, gate) for (u, target), gate in zip(pairs, gates, strict=True) if target == v
        ]
        total = sum((gate for _, gate in arriving), torch.zeros(WIDTH)) + 1e-6
        h = A @ own + a
        for u, gate in arriving:
            h = h + gate / total * (B @ x[u] + b)
        rows.append(h)
    return torch.stack(rows), torch.stack(scores) if scores else edge_attr


def features(n, edge_index):
    x = torch.randn(n, WIDTH, dtype=torch.float64)
    return x, torch.randn(edge_index.size(1), WIDTH, dtype=torch.float64)


@settings(max_examples=15)
@given(graph=graphs())
def test_gatedgcn_is_its_formula(graph):
    edge_index, _, n = graph
    block, (x, f) = block_of(), features(n, edge_index)
    nn.init.uniform_(block.layer.edges.norm.weight)
    nn.init.uniform_(block.nodes.norm.bias)
    h, scores = gated(block.layer, x, edge_index, f)
    y, g = block(x, edge_index, None, None, f)
    torch.testing.assert_close(y, x + torch.tanh(block.nodes.norm(h)))
    torch.testing.assert_close(g, f + torch.tanh(block.layer.edges.norm(scores)))


def test_gatedgcn_is_its_formula_on_directed_and_repeated_edges():
    edge_index = torch.tensor([[0, 0, 1, 2, 2, 2], [1, 1, 0, 2, 1, 3]])
    block, (x, f) = block_of(norm=None), features(4, edge_index)
    h, scores = gated(block.layer, x, edge_index, f)
    y, g = block(x, edge_index, None, None, f)
    torch.testing.assert_close(y, x + torch.tanh(h))
    torch.testing.assert_close(g, f + torch.tanh(scores))


def test_gatedgcn_is_its_formula_on_a_batch():
    batch = batch_of(some_graphs(WIDTH, torch.float64))
    _, f = features(1, batch.edge_index)
    block, start = block_of(norm=None, residual=False), 0
    y, _ = block(batch.x, batch.edge_index, None, batch.batch, f)
    for item, part in zip(batch.to_data_list(), y.split(batch.ptr.diff().tolist()), strict=True):
        of_edges = f[start : start + item.num_edges]
        h, _ = gated(block.layer, item.x, item.edge_index, of_edges)
        torch.testing.assert_close(part, torch.tanh(h))
        start += item.num_edges


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("order", ["norm_first", "norm_residual"])
def test_gatedgcn_with_the_norm_elsewhere(residual, order):
    graph = shapes.random(9, seed=4)
    block, (x, f) = block_of(residual=residual, **{order: True}), features(9, graph.edge_index)
    of_nodes, of_edges = block.nodes.norm, block.layer.edges.norm
    z = (of_nodes(x), of_edges(f)) if order == "norm_first" else (x, f)
    h, scores = gated(block.layer, z[0], graph.edge_index, z[1])
    y, g = residual * x + torch.tanh(h), residual * f + torch.tanh(scores)
    if order == "norm_residual":
        y, g = of_nodes(y), of_edges(g)
    found = block(x, graph.edge_index, None, None, f)
    torch.testing.assert_close(found, (y, g))


def test_gates_of_a_node_add_up_to_one():
    """Where all neighbours send the same, that is what arrives, whatever the gates."""
    graph, layer = shapes.random(9, seed=4), GatedGCNLayer(GatedGCNOptions(WIDTH)).double()
    x, f = features(9, graph.edge_index)
    with torch.no_grad():
        layer.lin_nodes.weight[: 2 * WIDTH] = 0  # A and B: biases alone are sent
    h, _ = layer(x, graph.edge_index, None, None, f)
    expected = layer.lin_nodes.bias[:WIDTH] + layer.lin_nodes.bias[WIDTH : 2 * WIDTH]
    torch.testing.assert_close(h, expected.expand(9, -1), rtol=1e-5, atol=1e-5)


def test_norms_are_of_the_nodes_and_of_the_edges():
    graph, block = shapes.random(9, seed=4), block_of(norm="batch")
    (x, f), seen = features(9, graph.edge_index), []
    for norm in (block.nodes.norm, block.layer.edges.norm):
        norm.reset_parameters()
        norm.register_forward_hook(lambda module, inputs, output: seen.append(output))
    block(x, graph.edge_index, None, None, f)
    assert {output.size(0) for output in seen} == {9, graph.edge_index.size(1)}
    for output in seen:
        torch.testing.assert_close(output.mean(0), output.new_zeros(WIDTH), atol=1e-6, rtol=0)


def test_batch_norm_learns_nothing_from_a_graph_without_edges():
    model = livened(build("gatedgcn", norm="batch"))
    assert model(torch.randn(4, 3), torch.zeros(2, 0).long()).isfinite().all()
    statistics = model.blocks[0].layer.edges.norm.running_mean
    assert torch.equal(statistics, torch.zeros(WIDTH))


@pytest.mark.parametrize("norm_first", [True, False])
def test_the_last_block_has_nothing_that_nobody_reads(norm_first):
    model = livened(build("gatedgcn", norm_first=norm_first))
    names = [sorted(dict(block.layer.edges.named_parameters())) for block in model.blocks]
    both = ["norm.bias", "norm.weight"]
    assert names == [both, both if norm_first else []]
    graph = shapes.random(9, seed=4)
    f = torch.randn(graph.edge_index.size(1), WIDTH)
    _, g = model.blocks[1](torch.randn(9, WIDTH), graph.edge_index, None, None, f)
    assert g is f


def test_dropout_is_last_and_in_both_streams():
    graph = shapes.random(40, seed=4)
    x, f = features(40, graph.edge_index)
    block = block_of(dropout=0.5, residual=False)
    for found in block(x, graph.edge_index, None, None, f):
        assert 0.3 < (found == 0).double().mean() < 0.7
    block.eval()
    for found in block(x, graph.edge_index, None, None, f):
        assert not (found == 0).any()


def test_the_default_is_the_order_of_the_paper():
    assert not GatedGCNOptions().norm_first
    with pytest.raises(ValueError, match="norm_residual=True normalises after the layer"):
        GatedGCNOptions(norm_first=True, norm_residual=True)
