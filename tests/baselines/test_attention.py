"""Attention along edges by sparse matrices, against gathered messages."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bunn.baselines import head_products
from bunn.baselines.attention import AttentionEdges


def attend(edges: AttentionEdges, packed: Tensor) -> Tensor:
    query, key, values = packed.unbind(1)
    weight = edges.products(query, key).tanh()
    return edges.weighted_sum(values, weight) - edges.weighted_sum(query, weight, back=True)


@st.composite
def cases(draw):
    """A directed graph, with loops and repeated edges, and features for it."""
    n, heads, size = (draw(st.integers(1, most)) for most in (9, 3, 4))
    node = st.integers(0, n - 1)
    pairs = draw(st.lists(st.tuples(node, node), min_size=1, max_size=25))
    edge_index = torch.tensor(pairs, dtype=torch.long).view(-1, 2).t()
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    packed = torch.randn(n, 3, heads, size, generator=generator, dtype=torch.float64)
    build = draw(st.sampled_from(("of", "in order")))
    if build == "of":
        return AttentionEdges.of(edge_index, n, draw(st.booleans())), packed
    return AttentionEdges.in_order(edge_index, n), packed


@given(cases())
def test_equal_to_gathered_messages(case):
    edges, packed = case
    packed.requires_grad_()
    found = []
    for sparse in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not sparse:
                patch.setattr(head_products, "serve", lambda *_: False)
            y = attend(edges, packed)
            (first,) = torch.autograd.grad(y.square().sum(), packed, create_graph=True)
            (second,) = torch.autograd.grad(first.square().sum(), packed)
        found.append((y, first, second))
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs)


@given(cases(), st.sampled_from((torch.bfloat16, torch.float16, torch.float32)))
def test_rounded_once(case, dtype):
    """Products and sums are as exact as float32, also where autocast would round them."""
    edges, packed = case
    query, key, values = packed.to(dtype).unbind(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        products = edges.products(query, key)
        summed = edges.weighted_sum(values, products)
    assert products.dtype == torch.float32
    assert summed.dtype == dtype
    exact = edges.products(query.double(), key.double())
    torch.testing.assert_close(products.double(), exact, rtol=1e-5, atol=1e-5)
    wanted = edges.weighted_sum(values.double(), products.double())
    slack = {"rtol": torch.finfo(dtype).eps, "atol": 1e-4}
    torch.testing.assert_close(summed.double(), wanted, **slack)


def test_no_messages_are_formed():
    """Sixty thousand edges of 512 channels would take 120 MB."""
    n = 300
    edges = AttentionEdges.of(torch.randint(n, (2, 100_000)).unique(dim=1), n, False)
    packed = torch.randn(n, 3, 2, 256, requires_grad=True)
    with torch.profiler.profile(profile_memory=True) as profile:
        attend(edges, packed).sum().backward()
    largest = max(event.cpu_memory_usage for event in profile.events())
    assert 0 < largest < 20e6
