import copy
import pickle

import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.utils import to_undirected

from bunn import Laplacian, diffuse
from bunn.graph.components import component_labels, hooked_labels
from tests.graphs import ZOO, edges_of, graphs, zoo_laplacian


def dense_adjacency(edge_index, weight, n):
    adjacency = torch.zeros(n, n, dtype=torch.float64)
    values = torch.ones(edge_index.size(1)).double() if weight is None else weight
    return adjacency.index_put_(tuple(edge_index), values)


@given(graph=graphs(), normalization=st.sampled_from(["rw", "sym"]))
def test_dense_is_the_definition(graph, normalization):
    edge_index, weight, n = graph
    adjacency = dense_adjacency(edge_index, weight, n)
    degree = adjacency.sum(1)
    isolated = degree == 0
    degree = torch.where(isolated, 1.0, degree)
    adjacency = adjacency + torch.diag(isolated.double())
    scaled = adjacency / degree[:, None]
    if normalization == "sym":
        scaled = adjacency / (degree[:, None] * degree).sqrt()
    lap = Laplacian(edge_index, weight, n, normalization=normalization).to(torch.float64)
    expected = torch.eye(n, dtype=torch.float64) - scaled
    torch.testing.assert_close(lap.dense(), expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(lap.degree, degree)
    x = torch.randn(n, 2, 3, dtype=torch.float64)
    torch.testing.assert_close(
        lap @ x, torch.einsum("vu,uij->vij", expected, x), rtol=1e-10, atol=1e-12
    )


@given(seed=st.integers(0, 10**6), n=st.integers(1, 60), share=st.floats(0, 2))
def test_components_as_a_gpu_finds_them(seed, n, share):
    """On graphs with few edges, and on a path whose nodes are shuffled."""
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(n, (2, int(share * n)), generator=generator)
    path = torch.randperm(n, generator=generator)
    for edges in (ends, torch.stack((path[:-1], path[1:]))):
        both = to_undirected(edges, num_nodes=n)
        crow, col, *_ = Laplacian(both, num_nodes=n).operator
        labels, count = hooked_labels(crow, col)
        expected, expected_count = component_labels(crow, col)
        assert count == expected_count
        assert torch.equal(labels, expected)


@given(graph=graphs())
def test_components_are_the_connected_components(graph):
    edge_index, weight, n = graph
    lap = Laplacian(edge_index, weight, n)
    reference = nx.Graph(edge_index.T.tolist())
    reference.add_nodes_from(range(n))
    parts = {frozenset(part) for part in nx.connected_components(reference)}
    found = {
        frozenset((lap.components == label).nonzero().flatten().tolist())
        for label in range(lap.num_components)
    }
    assert found == parts


@given(graph=graphs())
def test_aggregation_is_the_mean_or_sum_of_the_neighbours(graph):
    edge_index, weight, n = graph
    adjacency = dense_adjacency(edge_index, weight, n)
    x = torch.randn(n, 3, dtype=torch.float64)
    for normalization in ("rw", "sym"):
        lap = Laplacian(edge_index, weight, n, normalization=normalization)
        torch.testing.assert_close(lap.aggregate(x, "sum"), adjacency @ x)
        degree = adjacency.sum(1, keepdim=True)
        mean = torch.where(degree > 0, adjacency @ x / degree.clamp(min=1e-30), 0.0)
        torch.testing.assert_close(lap.aggregate(x, "mean"), mean)


def test_product_and_aggregation_differentiate():
    lap = zoo_laplacian("weighted", "rw")
    x = torch.randn(lap.num_nodes, 2, dtype=torch.float64, requires_grad=True)
    for function in (lambda x: lap @ x, lap.aggregate, lambda x: lap.aggregate(x, "sum")):
        assert torch.autograd.gradcheck(function, (x,))
        assert torch.autograd.gradgradcheck(function, (x,))
        jacobian = torch.func.jacrev(function)(x)
        torch.testing.assert_close(jacobian, torch.func.jacfwd(function)(x))


def test_aggregation_of_half_precision_is_rounded_once():
    """The sum over a hub of 70,000 neighbours passes the largest float16 on its way."""
    hub = torch.zeros(70_000).long()
    leaves = torch.arange(1, 70_001)
    edges = torch.stack((torch.cat((hub, leaves)), torch.cat((leaves, hub))))
    x = torch.full((70_001, 1), 0.5).half()
    lap = Laplacian(edges)
    assert float(lap.aggregate(x, "sum")[0]) == pytest.approx(35_000, rel=5e-3)
    assert float(lap.aggregate(x, "mean")[0]) == pytest.approx(0.5, rel=5e-3)
    with pytest.raises(ValueError, match="reduce='max'; use 'mean' or 'sum'"):
        lap.aggregate(x, "max")


def test_indices_are_32_bit():
    lap = zoo_laplacian("grid", "rw")
    assert lap.operator.crow.dtype == lap.operator.col.dtype == torch.int32


def test_float64_is_exact_whatever_it_was_before():
    edge_index, n = edges_of(nx.star_graph(7))
    weight = torch.full((edge_index.size(1),), 0.1, dtype=torch.float64)
    lap = Laplacian(edge_index, weight, n, normalization="sym")
    again = lap.to(torch.float32).to(torch.float64)
    assert torch.equal(again.dense(), lap.dense())
    assert float((lap.to(torch.float32).dense().double() - lap.dense()).abs().max()) > 1e-10


def test_precision_follows_the_features():
    lap = Laplacian(ZOO["grid"]()[0])
    assert lap.dtype == torch.float32
    x = torch.randn(lap.num_nodes, 2, dtype=torch.float64)
    y = diffuse(x, lap, 2.0, tol=1e-13)
    torch.testing.assert_close(y, diffuse(x, lap.to(torch.float64), 2.0, tol=1e-13), rtol=0, atol=0)
    assert lap.to(torch.bfloat16).dtype == torch.float32
    assert lap.to(torch.float32) is lap
    with pytest.raises(TypeError, match=r"a Laplacian has no dtype torch\.int64"):
        lap.to(torch.int64)
    assert lap.matching(x) is lap.matching(x)


@pytest.mark.parametrize(
    "trip", [copy.copy, copy.deepcopy, lambda lap: pickle.loads(pickle.dumps(lap))]
)
def test_copies_and_pickles(trip):
    lap = zoo_laplacian("disconnected", "rw")
    x = torch.randn(lap.num_nodes, 2, dtype=torch.float64)
    expected = diffuse(x, lap, 3.0, tol=1e-12)
    lap.spectrum()
    twin = trip(lap)
    torch.testing.assert_close(diffuse(x, twin, 3.0, tol=1e-12), expected)
    assert repr(twin) == repr(lap)


def test_repr_counts_edges_as_given():
    lap = Laplacian(torch.tensor([[0, 1], [1, 0]]), num_nodes=4)
    assert repr(lap) == (
        "Laplacian(num_nodes=4, num_edges=2, normalization='rw', dtype=torch.float32, device='cpu')"
    )
    assert lap.edge_index.tolist() == [[0, 1], [1, 0]]


def test_bad_features():
    lap = zoo_laplacian("star", "rw")
    with pytest.raises(TypeError, match=r"x has dtype torch.int64; use a floating-point type"):
        diffuse(torch.ones(21, 2).long(), lap, 1.0)
    with pytest.raises(ValueError, match=r"x has shape \(20, 2\), but the graph has 21 nodes"):
        diffuse(torch.ones(20, 2), lap, 1.0)
    with pytest.raises(ValueError, match="x is on meta and the Laplacian on cpu"):
        diffuse(torch.ones(21, 2, device="meta"), lap, 1.0)


def test_registered_operators_are_well_formed():
    lap = zoo_laplacian("weighted", "rw")
    x = torch.randn(lap.num_nodes, 3, dtype=torch.float64)
    torch.library.opcheck(torch.ops.bunn.random_walk.default, (x, *lap.operator))
    for times in (None, torch.rand(3, dtype=torch.float64)):
        arguments = (x, times, *lap.operator, "chebyshev", -1, 1e-6, 1.5, -1.0, 1.0)
        torch.library.opcheck(torch.ops.bunn.heat.default, arguments)
