"""Attention along edges through the kernels, against the same through torch in float64."""

import pytest
import torch
from torch import Tensor

from bunn import kernels
from bunn.baselines.attention import AttentionEdges
from bunn.baselines.gat import GATFeedForward, GATSepOptions
from bunn.baselines.gt import GTLayer, GTOptions
from bunn.baselines.nsd import NSDLayer, NSDOptions
from bunn.baselines.sheaf import paired_edges
from bunn.kernels import attention
from tests.baselines.variants import livened
from tests.kernels.test_walk import DEVICE

N = 7


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    monkeypatch.setattr(attention, "TILE", 16)
    monkeypatch.setattr(attention, "AT_ONCE", 4)


def edge_index() -> Tensor:
    """A directed graph with a hub, into which more edges run than fit a tile, and a lone node."""
    source = [0, 1, 2, 4, 5, 1, 3, 3, 0, 5, 2]
    target = [3, 3, 3, 3, 3, 0, 1, 5, 5, 4, 2]
    return torch.tensor([source, target], device=DEVICE)


@pytest.fixture
def served(monkeypatch):
    """Counts what the kernels were asked for; a CPU asks them, too."""
    calls = []
    for name in ("multiply", "add", "softmax", "softmax_back"):
        real = getattr(attention, name)
        monkeypatch.setattr(
            attention,
            name,
            lambda *given, name=name, real=real: calls.append(name) or real(*given),
        )
    known = kernels.serve_attention

    def serve(*tensors):
        return known(*tensors) or all(x.dtype in kernels.DTYPES for x in tensors)

    monkeypatch.setattr(kernels, "serve_attention", serve)
    return calls


def attend(edges: AttentionEdges, query: Tensor, key: Tensor, values: Tensor) -> Tensor:
    return edges.weighted_sum(values, edges.softmax(edges.products(query, key)))


CASES = {
    "float32": (torch.float32, 2, 3, True),
    "bfloat16": (torch.bfloat16, 3, 4, False),
    "float16": (torch.float16, 1, 20, True),
}


@pytest.mark.parametrize(("dtype", "heads", "size", "self_loops"), CASES.values(), ids=CASES)
def test_attention_and_its_gradients(dtype, heads, size, self_loops, served):
    edges = AttentionEdges.of(edge_index(), N, self_loops)
    packed = 0.5 * torch.randn(N, 3, heads, size, device=DEVICE)
    packed, seed = packed.to(dtype).requires_grad_(), torch.randn(N, heads, size, device=DEVICE)
    y = attend(edges, *packed.unbind(1))
    assert y.dtype == dtype
    (found,) = torch.autograd.grad((y * seed).sum(), packed)
    assert served[:3] == ["multiply", "softmax", "add"]
    assert sorted(served[3:]) == ["add", "add", "add", "multiply", "softmax_back"]
    exact = packed.double()
    reference = attend(edges, *exact.unbind(1))
    (wanted,) = torch.autograd.grad((reference * seed).sum(), packed)
    tolerance = 1e-5 if dtype == torch.float32 else 20 * torch.finfo(dtype).eps
    for mine, theirs in ((y, reference), (found, wanted)):
        assert (mine - theirs).abs().max() <= tolerance * theirs.abs().max()


def test_sums_of_two_numbers_are_not_rounded():
    """In 16 bits one and a thousandth would be one."""
    edges = AttentionEdges.of(edge_index(), N, False)
    one = torch.ones(N, 2, dtype=torch.bfloat16, device=DEVICE)
    found = edges.sums(one, one / 1024)
    assert found.dtype == torch.float32
    assert (found == 1 + 1 / 1024).all()


def test_large_scores_and_no_edges(served):
    scores = 1e30 * torch.randn(11, 2, device=DEVICE)
    edges = AttentionEdges.of(edge_index(), N, False)
    alpha = edges.softmax(scores)
    reference = edges.softmax(scores.double())
    torch.testing.assert_close(alpha.double(), reference)
    none = AttentionEdges.of(edge_index()[:, :0], N, False)
    x = torch.randn(N, 2, 4, device=DEVICE, requires_grad=True)
    y = attend(none, x, x, x)
    y.sum().backward()
    assert not y.any()
    assert not x.grad.any()


def test_derivatives_of_derivatives(served):
    edges = AttentionEdges.of(edge_index(), N, True)
    x = torch.randn(N, 3, 1, 4, device=DEVICE, requires_grad=True)
    seed = torch.randn(N, 1, 4, device=DEVICE)
    found = []
    for z in (x, x.double()):
        y = attend(edges, *z.unbind(1))
        (first,) = torch.autograd.grad((y * seed).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        found.append((first, second))
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "layer", [GTLayer(GTOptions(8, heads=2)), GATFeedForward(GATSepOptions(8, heads=2))]
)
def test_layers(layer, served):
    livened(layer).to(DEVICE)
    edges, _ = layer.prepare(edge_index(), None, N, torch.float32)
    x = torch.randn(N, 8, device=DEVICE)
    y = layer(x, edges)
    y.square().sum().backward()
    assert {"multiply", "add", "softmax", "softmax_back"} == set(served)
    mine = [y, *(parameter.grad.clone() for parameter in layer.parameters())]
    layer.zero_grad()
    reference = layer.double()(x.double(), edges)
    reference.square().sum().backward()
    theirs = [reference, *(parameter.grad for parameter in layer.parameters())]
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


SHEAVES = {
    "orthogonal": {},
    "of dimension 3": {"stalk_dim": 3, "orthogonal": "cayley"},
    "diagonal": {"maps": "diagonal", "map_channels": 5},
    "general": {"maps": "general", "steps": 2},
}


@pytest.mark.parametrize("options", SHEAVES.values(), ids=SHEAVES)
def test_sheaves(options, served, monkeypatch):
    monkeypatch.setattr("bunn.baselines.sheaf.DENSE_SIZE", 0)
    monkeypatch.setattr("bunn.baselines.propagation.DENSE_SIZE", 0)
    layer = livened(NSDLayer(NSDOptions(12, **options))).to(DEVICE)
    both = torch.cat((edge_index(), edge_index().flip(0)), dim=1)
    edges, _ = layer.prepare(both, None, N, torch.float32)
    x = torch.randn(N, 12, device=DEVICE, requires_grad=True)

    def run(z: Tensor) -> list[Tensor]:
        layer.zero_grad()
        y = layer(z, edges)
        (by_x,) = torch.autograd.grad(y.square().sum(), x, retain_graph=True)
        y.square().sum().backward(inputs=list(layer.parameters()))
        return [y, by_x, *(parameter.grad.clone() for parameter in layer.parameters())]

    mine = run(x)
    assert set(served) == {"multiply", "add"}
    count = len(served)
    layer.double()
    for one, other in zip(mine, run(x.double()), strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=1e-4, atol=1e-4)
    assert len(served) == count  # float64 goes another way


def test_edges_in_their_order():
    both = torch.cat((edge_index(), edge_index().flip(0)), dim=1)
    edges, _ = paired_edges(both, None, N)
    source, target = edges.edge_index
    for listing, at, other in (
        (edges.arriving, target, source),
        (edges.leaving, source, target),
    ):
        for node in range(N):
            there = slice(*listing.pointer[node : node + 2].tolist())
            assert set(listing.place[there].tolist()) == set((at == node).nonzero()[:, 0].tolist())
        assert torch.equal(listing.other, other[listing.place])
