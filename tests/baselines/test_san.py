"""SAN against its formula, written out node by node."""

import math

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from bunn.baselines import BASELINES, SANOptions, propagation
from bunn.baselines.san import Pairs, SANBlock, SANLayer
from bunn.theory import graphs as shapes
from tests.baselines.variants import batch_of, livened, some_graphs
from tests.graphs import graphs

WIDTH, HEADS = 8, 2


def layer_of(**options) -> SANLayer:
    return livened(SANLayer(SANOptions(WIDTH, heads=HEADS, **options))).double()


def attended(scores: list[Tensor], values: list[Tensor]) -> Tensor:
    """The softmax of scalar scores, clamped, and the sum of values; zero for none."""
    if not scores:
        return torch.zeros(WIDTH // HEADS, dtype=torch.float64)
    weights = torch.stack(scores).clamp(-5, 5).softmax(0)
    return (weights[:, None] * torch.stack(values)).sum(0)


def formula(layer: SANLayer, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
    """One graph, pair by pair."""
    n, size = x.size(0), WIDTH // HEADS
    maps = layer.lin_in.weight.view(5, HEADS, size, WIDTH)
    joined = {(int(i), int(j)): k for k, (j, i) in enumerate(edge_index.T)}
    of_edges = edge_attr @ layer.lin_edge.weight.T + layer.lin_edge.bias
    rows = []
    for i in range(n):
        parts = []
        for h in range(HEADS):
            channels = slice(h * size, (h + 1) * size)
            query, key, value, far_query, far_key = maps[:, h]
            near, far = ([], []), ([], [])
            for j in range(n):
                if (i, j) in joined:
                    factor = of_edges[joined[i, j], channels]
                    score = (query @ x[i]) @ (key @ x[j] * factor)
                elif i != j:
                    score = (far_query @ x[i]) @ (far_key @ x[j] * layer.apart[channels])
                else:
                    continue
                scores, values = near if (i, j) in joined else far
                scores.append(score / math.sqrt(size))
                values.append(value @ x[j])
            parts.append((attended(*near) + layer.gamma * attended(*far)) / (1 + layer.gamma))
        rows.append(torch.cat(parts))
    return torch.stack(rows) @ layer.lin_out.weight.T + layer.lin_out.bias


@pytest.mark.parametrize("size", [0, 1000])
@pytest.mark.parametrize("scale", [1.0, 20.0])  # with 20, many scores are clamped
@settings(max_examples=12)
@given(graph=graphs(max_nodes=7))
def test_the_layer_is_its_formula(size, scale, graph):
    edge_index, _, n = graph
    layer, x = layer_of(gamma=0.7), scale * torch.randn(n, WIDTH, dtype=torch.float64)
    x.requires_grad_()
    edge_attr = torch.randn(edge_index.size(1), WIDTH, dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(propagation, "DENSE_SIZE", size)
        edges, _ = layer.prepare(edge_index, None, n, torch.float64)
        y, same = layer(x, edges, None, None, edge_attr)
    assert same is edge_attr
    expected = formula(layer, x, edge_index, edge_attr)
    torch.testing.assert_close(y, expected)
    seed = torch.randn_like(y)
    # Plus nothing: the formula of a node alone does not read it.
    losses = [(z * seed).sum() + 0 * x.sum() for z in (y, expected)]
    found, wanted = (torch.autograd.grad(loss, x)[0] for loss in losses)
    torch.testing.assert_close(found, wanted)


def test_a_batch_is_its_graphs_one_by_one_with_edge_features():
    layer, items = layer_of(), some_graphs(WIDTH, torch.float64)
    for item in items:
        item.edge_attr = torch.randn(item.num_edges, WIDTH, dtype=torch.float64)
    batch = batch_of(items)
    edges, _ = layer.prepare(
        batch.edge_index, None, batch.num_nodes, torch.float64, batch=batch.batch
    )
    y, _ = layer(batch.x, edges, None, batch.batch, batch.edge_attr)
    alone = [formula(layer, item.x, item.edge_index, item.edge_attr) for item in items]
    torch.testing.assert_close(y, torch.cat(alone))


def test_the_block_normalises_after_residual_connections():
    graph, x = shapes.random(9, seed=4), torch.randn(9, WIDTH, dtype=torch.float64)
    edge_attr = torch.randn(graph.edge_index.size(1), WIDTH, dtype=torch.float64)
    block = livened(SANBlock(SANOptions(WIDTH, heads=HEADS))).double()
    edges, _ = block.prepare(graph.edge_index, None, 9, torch.float64)
    y, same = block(x, edges, None, None, edge_attr)
    assert same is edge_attr
    attention = formula(block.attention.layer, x, graph.edge_index, edge_attr)
    z = block.attention.norm(x + attention)
    first, second = block.mlp.layer.network[0], block.mlp.layer.network[3]
    hidden = (z @ first.weight.T + first.bias).relu()
    assert hidden.shape == (9, 2 * WIDTH)
    expected = block.mlp.norm(z + hidden @ second.weight.T + second.bias)
    torch.testing.assert_close(y, expected)


def test_pairs_are_joined_or_apart_and_never_padding():
    items = some_graphs()
    batch = batch_of(items)
    pairs = Pairs.of(batch.edge_index, batch.num_nodes, batch.batch)
    assert pairs.apart.shape == (len(items), 1, 9, 9)
    for item, apart in zip(items, pairs.apart.squeeze(1), strict=True):
        n = item.num_nodes
        expected = ~torch.eye(n, dtype=torch.bool)
        expected[item.edge_index[1], item.edge_index[0]] = False
        assert torch.equal(apart[:n, :n], expected)
        assert not apart[:n, n:].any()


def test_gamma_moves_weight_between_the_two_kinds_of_pairs():
    """On a directed path node 0 hears by no edge, node 2 by one, and both hear the rest."""
    edge_index, x = torch.tensor([[0, 1], [1, 2]]), torch.randn(3, WIDTH, dtype=torch.float64)
    edge_attr = torch.zeros(2, WIDTH, dtype=torch.float64)
    layers = {gamma: layer_of(gamma=gamma) for gamma in (1e-9, 1.0, 1e9)}
    state, found = layers[1.0].state_dict(), {}
    for gamma, layer in layers.items():
        layer.load_state_dict(state)
        edges, _ = layer.prepare(edge_index, None, 3, torch.float64)
        found[gamma] = layer(x, edges, None, None, edge_attr)[0]
    torch.testing.assert_close(found[1.0], (found[1e-9] + found[1e9]) / 2)
    torch.testing.assert_close(found[1e-9][0], layers[1.0].lin_out.bias.detach())
    value = layers[1.0].lin_in.weight[2 * WIDTH : 3 * WIDTH]
    torch.testing.assert_close(found[1e-9][2], layers[1.0].lin_out(value @ x[1]))


@pytest.mark.parametrize("gamma", [0.0, -1.0, math.inf, math.nan, True, "1"])
def test_bad_gamma(gamma):
    with pytest.raises(ValueError, match=r"gamma=.*; it must be a number > 0"):
        SANOptions(gamma=gamma)


def test_parameters_of_the_long_range_benchmark():
    """Four layers of 100 channels: 480,000 and some where the vector of pairs is a matrix."""
    options = SANOptions(100, 4, heads=4)
    with torch.device("meta"):
        blocks = BASELINES["san"].build(options, 9, 10).blocks
    own = sum(parameter.numel() for parameter in blocks.parameters())
    square = 100 * 100
    assert own == 4 * (11 * square + (100 + 100 + 100 + 200 + 100) + 4 * 100)
