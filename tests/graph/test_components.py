"""What is said of each component of a graph."""

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bunn import Laplacian, diffuse
from bunn.graph import components
from bunn.graph.components import sums_over, usual_degrees
from tests.graphs import edges_of, graphs

#: Most nodes are of one component.
LOPSIDED = nx.disjoint_union_all([nx.path_graph(3), nx.cycle_graph(700), nx.empty_graph(2)])


def in_places(monkeypatch):
    """Sums as a GPU forms them, in several places: those are asked for where rows are there."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True))


def expected(labels, count, rows):
    one_hot = torch.nn.functional.one_hot(labels, count).to(rows.dtype)
    return one_hot @ (one_hot.T @ rows)


@given(graph=graphs())
def test_every_node_gets_the_sum_over_its_component(graph):
    lap = Laplacian(*graph)
    rows = torch.randn(lap.num_nodes, 3, dtype=torch.float64)
    found = sums_over(lap.components, lap.num_components, rows).expand(rows.shape)
    torch.testing.assert_close(found, expected(lap.components, lap.num_components, rows))


@pytest.mark.parametrize("places", [1, 7, 256])
def test_places_do_not_matter(places, monkeypatch):
    edge_index, n = edges_of(LOPSIDED)
    lap = Laplacian(edge_index, num_nodes=n)
    labels, count = lap.components, lap.num_components
    rows = torch.randn(n, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(n, 4, dtype=torch.float64)
    right = expected(labels, count, rows)
    gradient = torch.autograd.grad(right, rows, weight)[0]
    asked = []
    with monkeypatch.context() as patch:
        in_places(patch)
        patch.setattr(components, "_places", lambda count: asked.append(count) or places)
        found = sums_over(labels, count, rows)
        assert asked == [count]
        torch.testing.assert_close(found, right)
        torch.testing.assert_close(torch.autograd.grad(found, rows, weight)[0], gradient)
        assert torch.autograd.gradgradcheck(
            lambda x: sums_over(labels[:9], 2, x[:9]), rows[:9].detach().requires_grad_()
        )
        stacked = torch.func.vmap(lambda x: sums_over(labels, count, x))(torch.stack([rows] * 2))
    torch.testing.assert_close(stacked, torch.stack([right] * 2))


@pytest.mark.parametrize("count", [2, 100, 10_000, 100_000])
def test_places_of_many_components_fit(count):
    """Every component has one at least; all together no more than is worth it."""
    assert 1 <= components._places(count) <= components.PLACES
    assert count * components._places(count) <= max(count, components.ALL_PLACES)


@pytest.mark.gpu
@pytest.mark.parametrize("normalization", ["rw", "sym"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_limit_on_a_gpu(normalization, dtype):
    edge_index, n = edges_of(LOPSIDED)
    lap = Laplacian(edge_index, num_nodes=n, normalization=normalization)
    x = torch.randn(n, 5).to(dtype)
    right = diffuse(x.double(), lap.to(torch.float64), float("inf"))
    there, given = lap.to("cuda"), x.cuda().requires_grad_()
    found = diffuse(given, there, float("inf"))
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found.cpu().double(), right, rtol=eps, atol=eps)
    weight = torch.randn(n, 5).to(dtype)
    (gradient,) = torch.autograd.grad(found, given, weight.cuda())
    exact = x.double().requires_grad_()
    (wanted,) = torch.autograd.grad(
        diffuse(exact, lap.to(torch.float64), float("inf")), exact, weight.double()
    )
    torch.testing.assert_close(gradient.cpu().double(), wanted, rtol=eps, atol=eps)


@given(
    sizes=st.lists(st.integers(1, 9), max_size=5),
    seed=st.integers(0, 2**31),
    shift=st.floats(-6, 6),
)
def test_the_usual_degree_is_the_median_or_a_quarter_of_the_mean(sizes, seed, shift):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(
        torch.arange(len(sizes)), torch.tensor(sizes, dtype=torch.long)
    )
    labels = labels[torch.randperm(labels.numel(), generator=generator)]
    degree = torch.exp(shift * torch.randn(labels.numel(), generator=generator).double())
    volumes = torch.zeros(len(sizes), dtype=torch.float64).index_add_(0, labels, degree)
    found = usual_degrees(labels, degree, volumes)
    assert found.shape == (len(sizes),)
    for component, usual in enumerate(found.tolist()):
        own = degree[labels == component].numpy()
        median = np.quantile(own, 0.5, method="lower")
        assert usual == pytest.approx(max(median, own.mean() / 4))
