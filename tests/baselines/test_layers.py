"""What is special to a layer: its formula, and that it is PyG's."""

import pytest
import torch
from hypothesis import given, settings
from torch import nn
from torch_geometric.nn import (
    GATConv,
    GatedGraphConv,
    GCNConv,
    GINConv,
    GPSConv,
    SAGEConv,
)

from bunn.baselines import propagation
from bunn.baselines.gat import GATLayer, GATOptions
from bunn.baselines.gcn import GCNLayer, GCNOptions
from bunn.baselines.ggnn import GatedUnit, GGNNLayer, GGNNOptions
from bunn.baselines.gin import GINLayer, GINOptions
from bunn.baselines.global_attention import GlobalAttention
from bunn.baselines.gps import GPSBlock, GPSOptions
from bunn.baselines.padding import Padding
from bunn.baselines.propagation import gather, neighbor_sum, scatter_sum
from bunn.baselines.sage import SAGELayer, SAGEOptions
from bunn.theory import graphs as shapes
from tests.baselines.variants import batch_of, build, livened, some_graphs
from tests.graphs import graphs

CLIQUE = shapes.complete(20)


@pytest.mark.parametrize("depth", [1, 3])
def test_gcn_cannot_tell_the_nodes_of_a_clique_apart(depth):
    """The reason for its row in the paper's synthetic table."""
    x = 10 * torch.randn(CLIQUE.num_nodes, 1)
    bare = {"in_channels": 1, "hidden_channels": 64, "num_layers": depth, "norm": None}
    y = livened(build("gcn", residual=False, **bare))(x, CLIQUE.edge_index)
    assert (y - y.mean(0)).abs().max() < 1e-4 * y.abs().max()
    for other in (build("gcn", residual=True, **bare), build("sage", residual=False, **bare)):
        y = livened(other)(x, CLIQUE.edge_index)
        assert (y - y.mean(0)).abs().max() > 1e-2 * y.abs().max()


@pytest.mark.parametrize(("loops", "improved"), [(True, False), (True, True), (False, False)])
def test_gcn_is_its_formula(loops, improved):
    graph, x = shapes.random(9, seed=4), torch.randn(9, 8, dtype=torch.float64)
    layer = livened(GCNLayer(GCNOptions(8, self_loops=loops, improved=improved))).double()
    a = graph.adjacency + loops * (1 + improved) * torch.eye(9)
    root = a.sum(1).rsqrt()
    expected = root[:, None] * a * root @ x @ layer.conv.lin.weight.T + layer.conv.bias
    edges = layer.prepare(graph.edge_index, None, 9, torch.float64)
    torch.testing.assert_close(layer(x, *edges), expected)


PAIRS = {
    "gcn": (GCNLayer(GCNOptions(8)), GCNConv(8, 8)),
    "gcn bare": (GCNLayer(GCNOptions(8, self_loops=False)), GCNConv(8, 8, add_self_loops=False)),
    "sage": (SAGELayer(SAGEOptions(8)), SAGEConv(8, 8)),
    "sage sum": (SAGELayer(SAGEOptions(8, aggr="sum")), SAGEConv(8, 8, aggr="sum")),
    "gat": (GATLayer(GATOptions(8, heads=4)), GATConv(8, 2, heads=4)),
    "gin": (
        GINLayer(GINOptions(8)),
        GINConv(
            nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Identity(), nn.Linear(8, 8)),
            train_eps=True,
        ),
    ),
    "ggnn": (GGNNLayer(GGNNOptions(8, steps=2, tied=False)), GatedGraphConv(8, 2)),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("size", [0, 1000])
@settings(max_examples=10)
@given(graph=graphs())
def test_layers_are_those_of_pyg(name, size, graph):
    """With PyG's own propagation against ours, by edges (0) and by matrices (1000)."""
    layer, reference = (module.double() for module in PAIRS[name])
    livened(layer)
    reference.load_state_dict(layer.conv.state_dict())
    edge_index, weight, n = graph
    x = torch.randn(n, 8, dtype=torch.float64)
    weights = () if weight is None or not layer.weighted else (weight,)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(propagation, "DENSE_SIZE", size)
        edges = layer.prepare(edge_index, *(weights or (None,)), n, torch.float64)
        torch.testing.assert_close(layer(x, *edges), reference(x, edge_index, *weights))


@settings(max_examples=20)
@given(graph=graphs())
def test_gather_and_scatter_are_adjoint(graph):
    edge_index, _, n = graph
    x = torch.randn(n, 2, 3, dtype=torch.float64)
    y = torch.randn(edge_index.size(1), 2, 3, dtype=torch.float64)
    there, back = gather(x, edge_index[0]), scatter_sum(y, edge_index[0], n)
    torch.testing.assert_close((there * y).sum(), (x * back).sum())
    assert torch.equal(there, x[edge_index[0]])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_sums_at_a_hub_go_beyond_what_16_bits_can_count_to(dtype, device):
    """One by one, ones in bfloat16 add up to 256 and no further."""
    hub = torch.zeros(5000, dtype=torch.long, device=device)
    x = torch.ones(2, 3, dtype=dtype, device=device, requires_grad=True)
    messages = gather(x, hub)
    (grad,) = torch.autograd.grad(messages, x, torch.ones_like(messages))
    total = scatter_sum(messages.detach(), hub, 2)
    for found in (grad, total):
        assert found.dtype == dtype
        assert found[0].tolist() == pytest.approx([5000.0] * 3, rel=torch.finfo(dtype).eps)
        assert not found[1].any()


def test_edge_weights_can_be_learned():
    graph, x = shapes.random(6, seed=1), torch.randn(6, 2, dtype=torch.float64)
    weight = torch.rand(graph.edge_index.size(1), dtype=torch.float64, requires_grad=True)
    with pytest.MonkeyPatch.context() as patch:
        for size in (0, 100):
            patch.setattr(propagation, "DENSE_SIZE", size)
            assert torch.autograd.gradcheck(
                lambda w: neighbor_sum(x, graph.edge_index, w), (weight,)
            )


def test_the_gated_unit_is_the_one_of_torch():
    unit, reference = GatedUnit(4, 4), nn.GRUCell(4, 4)
    reference.load_state_dict(unit.state_dict())
    message, state = torch.randn(2, 5, 4)
    torch.testing.assert_close(unit(message, state), reference(message, state))


def test_tied_steps_repeat_one_step():
    tied, graph = GGNNLayer(GGNNOptions(8, steps=3)), shapes.cycle(6)
    once = GGNNLayer(GGNNOptions(8))
    once.load_state_dict(tied.state_dict())
    x = y = torch.randn(6, 8)
    for _ in range(3):
        y = once(y, graph.edge_index)
    torch.testing.assert_close(tied(x, graph.edge_index), y)
    untied = GGNNLayer(GGNNOptions(8, steps=3, tied=False))
    assert untied.conv.weight.shape == (3, 8, 8)


def _reference_attention(attention: GlobalAttention, channels: int) -> nn.MultiheadAttention:
    reference = nn.MultiheadAttention(channels, attention.heads, batch_first=True)
    with torch.no_grad():
        reference.in_proj_weight.copy_(attention.lin_in.weight)
        reference.in_proj_bias.copy_(attention.lin_in.bias)
        reference.out_proj.weight.copy_(attention.lin_out.weight)
        reference.out_proj.bias.copy_(attention.lin_out.bias)
    return reference


@pytest.mark.parametrize("fused", [True, False])
def test_attention_is_the_one_of_torch_within_each_graph(fused, monkeypatch):
    monkeypatch.setattr("bunn.baselines.global_attention.FUSED_SIZE", 0 if fused else 512)
    attention = livened(GlobalAttention(8, 2))
    reference = _reference_attention(attention, 8)
    batch = torch.tensor([0, 3, 0, 1, 3, 3, 0, 1])  # in any order, and graph 2 has no nodes
    x = torch.randn(8, 8, requires_grad=True)
    y = attention(x, Padding.of(batch))
    for graph in (0, 1, 3):
        part = x[batch == graph]
        alone, _ = reference(part[None], part[None], part[None], need_weights=False)
        torch.testing.assert_close(y[batch == graph], alone[0])
        torch.testing.assert_close(attention(part), alone[0])
    y[3].sum().backward()
    assert (x.grad.abs().sum(1) > 0).tolist() == (batch == 1).tolist()
    assert attention.lin_in.weight.grad.isfinite().all()


def test_gps_is_the_layer_of_pyg():
    graph, x = shapes.random(9, seed=5), torch.randn(9, 8)
    block = livened(GPSBlock(GPSOptions(8)))
    reference = GPSConv(8, GCNConv(8, 8), heads=2, norm="layer_norm", norm_kwargs={"mode": "node"})
    reference.conv.load_state_dict(block.local.conv.state_dict())
    reference.attn = _reference_attention(block.attention, 8)
    reference.mlp[0].load_state_dict(block.mlp[0].state_dict())
    reference.mlp[3].load_state_dict(block.mlp[3].state_dict())
    norms = (block.norm_local, block.norm_global, block.norm_mlp)
    for theirs, ours in zip(
        (reference.norm1, reference.norm2, reference.norm3), norms, strict=True
    ):
        theirs.load_state_dict(ours.state_dict())
    edges = block.prepare(graph.edge_index, None, 9, torch.float32)
    torch.testing.assert_close(block(x, *edges), reference(x, graph.edge_index))


@pytest.mark.parametrize("local", ["gcn", "sage", "gat", "gin", None])
@pytest.mark.parametrize("residual", [True, False])
def test_gps_before_norm_is_its_formula(local, residual):
    graph, x = shapes.random(9, seed=5), torch.randn(9, 8)
    block = livened(GPSBlock(GPSOptions(8, norm_first=True, local=local, residual=residual)))
    edges, weight = block.prepare(graph.edge_index, None, 9, torch.float32)
    z = block.norm_global(x)
    heard = block.local(z, edges.local, weight) if local else 0
    y = block.attention(z) + (x if residual else 0) + heard
    out = block.mlp(block.norm_mlp(y)) + (y if residual else 0)
    torch.testing.assert_close(block(x, edges, weight), out)


def test_gps_hears_far_nodes_of_its_own_graph_only():
    batch = batch_of(some_graphs())
    model = livened(build("gps", num_layers=1, act="tanh"))
    x = batch.x.clone().requires_grad_()
    model(x, batch.edge_index, batch=batch.batch)[0].sum().backward()
    assert ((x.grad.abs().sum(1) > 0) == (batch.batch == 0)).all()


def test_attention_dropout_is_there_in_training_only():
    for variant in ("gps", "gat"):
        model, x = build(variant, attention_dropout=0.5), torch.randn(20, 3)
        assert not torch.equal(model(x, CLIQUE.edge_index), model(x, CLIQUE.edge_index))
        model.eval()
        assert torch.equal(model(x, CLIQUE.edge_index), model(x, CLIQUE.edge_index))
