"""The models of the heterophilous benchmark, against matrices written out in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bunn.baselines import BASELINES, propagation
from bunn.theory import graphs as shapes
from tests.baselines.variants import livened

WIDTH, HEADS = 8, 2


@st.composite
def any_graphs(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Edges, directed or not, and ``A[v, u] = 1`` for ``u -> v``; the last node has no edges."""
    n = draw(st.integers(2, 9))
    pairs = st.tuples(st.integers(0, n - 2), st.integers(0, n - 2))
    edges = draw(st.sets(pairs, max_size=3 * n))
    if draw(st.booleans()):
        edges |= {(v, u) for u, v in edges}
    edge_index = torch.tensor(sorted(edges), dtype=torch.long).reshape(-1, 2).T
    matrix = torch.zeros(n, n, dtype=torch.float64)
    matrix[edge_index[1], edge_index[0]] = 1.0
    return edge_index, matrix


def affine(linear: nn.Module, x: Tensor) -> Tensor:
    return x @ linear.weight.T + (0 if linear.bias is None else linear.bias)


def network(layer: nn.Module, x: Tensor) -> Tensor:
    """Linear, GELU, linear."""
    h = affine(layer.network[0], x)
    return affine(layer.network[3], h * (1 + torch.erf(h / math.sqrt(2))) / 2)


def with_loops(a: Tensor) -> Tensor:
    return a.clone().fill_diagonal_(1.0)


def attended(scores: Tensor, a: Tensor, values: Tensor) -> Tensor:
    """``(h, n, n)`` scores of target and source and ``(n, c)`` values to ``(n, c)``."""
    weights = scores.exp() * a
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-300)
    return torch.cat([w @ v for w, v in zip(weights, values.chunk(HEADS, -1), strict=True)], -1)


def gcn(layer: nn.Module, x: Tensor, a: Tensor) -> Tensor:
    a = with_loops(a)
    root = a.sum(1).rsqrt()
    return network(layer, root[:, None] * (a @ (root[:, None] * x)))


def sage(layer: nn.Module, x: Tensor, a: Tensor) -> Tensor:
    return network(layer, torch.cat((x, a @ x / a.sum(1, keepdim=True).clamp(min=1)), 1))


def gat(layer: nn.Module, x: Tensor, a: Tensor, separate: bool = False) -> Tensor:
    z = affine(layer.lin_in, x)
    source, target = affine(layer.lin_source, z), affine(layer.lin_target, z)
    scores = (target.T[:, :, None] + source.T[:, None, :]).double()
    scores = torch.where(scores > 0, scores, 0.2 * scores)
    if separate:
        return network(layer, torch.cat((x, attended(scores, a, z)), 1))
    return network(layer, attended(scores, with_loops(a), z))


def attention(layer: nn.Module, x: Tensor, a: Tensor, separate: bool = False) -> Tensor:
    query, key, value = affine(layer.lin_in, x).chunk(3, -1)
    pairs = zip(query.chunk(HEADS, -1), key.chunk(HEADS, -1), strict=True)
    scores = torch.stack([q @ k.T for q, k in pairs]) / math.sqrt(WIDTH // HEADS)
    if separate:
        return affine(layer.lin_out, torch.cat((x, attended(scores, a, value)), 1))
    return affine(layer.lin_out, attended(scores, with_loops(a), value))


FORMULAS = {
    "resnet": lambda layer, x, a: network(layer, x),
    "gcn": gcn,
    "sage": sage,
    "gat": gat,
    "gat-sep": lambda layer, x, a: gat(layer, x, a, separate=True),
    "gt": attention,
    "gt-sep": lambda layer, x, a: attention(layer, x, a, separate=True),
}


def model_of(name: str, heads: int = HEADS, **options):
    own = {"feed_forward": True} if name in {"gcn", "sage", "gat"} else {}
    own |= {"heads": heads} if name in {"gat", "gat-sep", "gt", "gt-sep"} else {}
    baseline = BASELINES[name]
    options = {"hidden_channels": WIDTH, "act": "gelu", "norm": "layer", **own, **options}
    return baseline.build(baseline.options(**options), 3, 2)


def layer_of(name: str) -> nn.Module:
    block = model_of(name, num_layers=1).blocks[0]
    return livened(getattr(block, "attention", block).layer).double()


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("size", [0, 1000])
@settings(max_examples=15)
@given(graph=any_graphs())
def test_the_layer_is_its_formula(name, size, graph):
    """By edges or the operator of a Laplacian (0), and by matrices (1000)."""
    edge_index, a = graph
    layer, n = layer_of(name), a.size(0)
    x = torch.randn(n, WIDTH, dtype=torch.float64, requires_grad=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(propagation, "DENSE_SIZE", size)
        edges, weight = layer.prepare(edge_index, None, n, torch.float64)
        y = layer(x, edges, weight)
    expected = FORMULAS[name](layer, x, a)
    torch.testing.assert_close(y, expected)
    if name in {"gcn", "sage"}:
        assert (edges.operator is not None) == (size == 0 and torch.equal(a, a.T))
    seed = torch.randn_like(y)
    found, wanted = (torch.autograd.grad((z * seed).sum(), x)[0] for z in (y, expected))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("name", FORMULAS)
def test_the_model_is_residual_blocks_of_the_layer(name):
    graph, x = shapes.random(10, seed=2), torch.randn(10, 3, dtype=torch.float64)
    model = livened(model_of(name, num_layers=2)).double()
    gelu, h = nn.functional.gelu, x
    h = gelu(affine(model.encoder[0], h))
    for block in model.blocks:
        if name.startswith("gt"):
            first, second = block.attention, block.mlp
            h = h + FORMULAS[name](first.layer, first.norm(h), graph.adjacency)
            h = h + network(second.layer, second.norm(h))
        else:
            h = h + FORMULAS[name](block.layer, block.norm(h), graph.adjacency)
    expected = affine(model.head[0], model.norm(h))
    torch.testing.assert_close(model(x, graph.edge_index), expected)


SQUARE = 512 * 512 + 512
NETWORK, WIDE_NETWORK = 2 * SQUARE, 2 * SQUARE + 512 * 512
SCORES = (512 * 8 + 8) + 512 * 8
PARAMETERS = {
    "resnet": 1024 + NETWORK,
    "gcn": 1024 + NETWORK,
    "sage": 1024 + WIDE_NETWORK,
    "gat": 1024 + SQUARE + SCORES + NETWORK,
    "gat-sep": 1024 + SQUARE + SCORES + WIDE_NETWORK,
    "gt": 2 * 1024 + 4 * SQUARE + NETWORK,
    "gt-sep": 2 * 1024 + 4 * SQUARE + 512 * 512 + NETWORK,
}


@pytest.mark.parametrize("name", FORMULAS)
def test_the_parameters_of_five_layers_of_512(name):
    with torch.device("meta"):
        model = model_of(name, hidden_channels=512, num_layers=5, heads=8)
    outside = (3 * 512 + 512) + 1024 + (512 * 2 + 2)
    found = sum(parameter.numel() for parameter in model.parameters())
    assert found == outside + 5 * PARAMETERS[name]


KEYS = {
    "gcn": {"bias", "lin.weight"},
    "sage": {"lin_l.weight", "lin_l.bias", "lin_r.weight"},
    "gat": {"att_src", "att_dst", "bias", "lin.weight"},
}


@pytest.mark.parametrize("name", KEYS)
def test_layers_without_a_network_have_the_names_they_had(name):
    block = BASELINES[name].build(BASELINES[name].options(num_layers=1), 3, 2).blocks[0]
    own = {key for key in block.state_dict() if key.startswith("layer.")}
    assert own == {f"layer.conv.{key}" for key in KEYS[name]}


@pytest.mark.parametrize("name", FORMULAS)
def test_dropout_inside_the_network_and_after_it(name):
    graph = shapes.random(10, seed=2)
    block = livened(model_of(name, hidden_channels=64, dropout=0.5, residual=False).blocks[0])
    edges, _ = block.prepare(graph.edge_index, None, 10, torch.float32)
    x = torch.randn(10, 64)
    y = block(x, edges)
    assert 0.3 < (y == 0).float().mean() < 0.7
    last = getattr(block, "mlp", block)
    last.dropout.p = 0.0
    if hasattr(block, "attention"):
        block.attention.dropout.p = 0.0
    assert not (block(x, edges) == 0).any()
    assert not torch.equal(block(x, edges), block(x, edges))
    block.eval()
    assert torch.equal(block(x, edges), block(x, edges))


@pytest.mark.parametrize("name", ["gcn", "sage"])
def test_repeated_edges_count_as_often_with_and_without_an_operator(name, monkeypatch):
    layer, x = layer_of(name), torch.randn(4, WIDTH, dtype=torch.float64)
    edge_index = torch.tensor([[0, 1, 1, 2, 0, 1], [1, 0, 2, 1, 1, 0]])
    results = []
    for size in (0, 1000):
        monkeypatch.setattr(propagation, "DENSE_SIZE", size)
        edges, _ = layer.prepare(edge_index, None, 4, torch.float64)
        assert edges.operator is None
        results.append(layer(x, edges))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("improved", [False, True])
def test_gcn_with_heavier_loops(improved, monkeypatch):
    monkeypatch.setattr(propagation, "DENSE_SIZE", 0)
    graph, x = shapes.random(9, seed=4), torch.randn(9, WIDTH, dtype=torch.float64)
    layer = livened(model_of("gcn", improved=improved).blocks[0].layer).double()
    edges, _ = layer.prepare(graph.edge_index, None, 9, torch.float64)
    assert edges.operator is not None
    a = graph.adjacency + (1 + improved) * torch.eye(9)
    root = a.sum(1).rsqrt()
    torch.testing.assert_close(layer(x, edges), network(layer, root[:, None] * a * root @ x))


@pytest.mark.parametrize("name", ["gat", "gt"])
def test_scores_may_be_large(name):
    """The softmax of a node is that of its scores less the largest."""
    graph, x = shapes.random(9, seed=4), 1e4 * torch.randn(9, WIDTH, dtype=torch.float64)
    layer = layer_of(name)
    edges, _ = layer.prepare(graph.edge_index, None, 9, torch.float64)
    assert layer(x, edges).isfinite().all()


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("size", [0, 1000])
def test_features_of_16_bits_travel_as_such(name, size, monkeypatch):
    """Under autocast rows of features are gathered in 16 bits, and sums formed in 32."""
    monkeypatch.setattr(propagation, "DENSE_SIZE", size)
    seen, gather = [], propagation.gather
    for module in ("attention", "propagation"):
        monkeypatch.setattr(
            f"bunn.baselines.{module}.gather",
            lambda x, index: seen.append(x.dtype) or gather(x, index),
        )
    graph, x = shapes.star(300), torch.randn(301, WIDTH)
    layer = layer_of(name).float()
    edges, _ = layer.prepare(graph.edge_index, None, 301, torch.float32)
    exact = layer(x, edges)
    seen.clear()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x, edges)
    assert y.dtype == torch.bfloat16
    assert set(seen) <= {torch.bfloat16}
    assert (y - exact).abs().max() < 0.05 * exact.abs().max()
