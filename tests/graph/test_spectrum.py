import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.linalg import ArpackNoConvergence
from torch_geometric.utils import erdos_renyi_graph, to_undirected

import bunn.graph.spectrum
from bunn import Laplacian
from tests.graphs import ZOO, edges_of, graphs, zoo_laplacian


def check(lap: Laplacian, num_eigs: int | None) -> None:
    """Orthonormal eigenvectors of ``I - S``, the lowest ones, with an exact null space."""
    values, vectors = lap.spectrum(num_eigs)
    count = lap.num_nodes if num_eigs is None else min(num_eigs, lap.num_nodes)
    assert values.shape == (count,)
    assert vectors.shape == (lap.num_nodes, count)
    symmetric = Laplacian(
        lap.edge_index, lap.edge_weight, lap.num_nodes, normalization="sym"
    ).dense()
    reference = torch.linalg.eigvalsh(symmetric)
    torch.testing.assert_close(values, reference[:count].clamp(min=0), rtol=0, atol=1e-9)
    assert (values[1:] >= values[:-1]).all()
    torch.testing.assert_close(symmetric @ vectors, vectors * values, rtol=0, atol=1e-7)
    torch.testing.assert_close(
        vectors.T @ vectors, torch.eye(count, dtype=vectors.dtype), rtol=0, atol=1e-9
    )
    null = min(count, lap.num_components)
    assert (values[:null] == 0).all()
    assert (values[null:] > 0).all()
    assert float((symmetric @ vectors[:, :null]).abs().max()) < 1e-14


@pytest.mark.parametrize("normalization", ["rw", "sym"])
@pytest.mark.parametrize("num_eigs", [1, 3, 20, 1000, None])
@pytest.mark.parametrize("graph", ZOO)
def test_zoo(graph, num_eigs, normalization):
    check(zoo_laplacian(graph, normalization).to(torch.float64), num_eigs)


@given(graph=graphs(), num_eigs=st.integers(1, 15))
def test_random_graphs(graph, num_eigs):
    check(Laplacian(*graph).to(torch.float64), num_eigs)


@pytest.fixture
def small_dense_limit(monkeypatch):
    """Lanczos for graphs of any size above a dozen nodes."""
    monkeypatch.setattr(bunn.graph.spectrum, "DENSE_SIZE", 12)


@pytest.mark.usefixtures("small_dense_limit")
@pytest.mark.parametrize("num_eigs", [1, 2, 8, 25])
def test_lanczos(num_eigs):
    parts = [nx.grid_2d_graph(9, 10), nx.cycle_graph(70), nx.star_graph(80), nx.path_graph(4)]
    edge_index, n = edges_of(nx.disjoint_union_all([*parts, nx.empty_graph(2)]))
    check(Laplacian(edge_index, num_nodes=n).to(torch.float64), num_eigs)


@pytest.mark.usefixtures("small_dense_limit")
def test_falls_back_and_says_so(monkeypatch):
    def never(*args, **kwargs):
        raise ArpackNoConvergence("no", [], [])

    monkeypatch.setattr(bunn.graph.spectrum, "eigsh", never)
    edge_index, n = edges_of(nx.grid_2d_graph(7, 8))
    lap = Laplacian(edge_index, num_nodes=n).to(torch.float64)
    with pytest.warns(UserWarning, match="falling back on a dense eigendecomposition"):
        lap.spectrum(5)
    check(lap, 5)


@pytest.mark.usefixtures("small_dense_limit")
def test_inverse_iteration_helps_lanczos_out(monkeypatch):
    """Where eigenvalues crowd at zero, as on a long path."""
    monkeypatch.setattr(bunn.graph.spectrum, "LANCZOS", 1)
    edge_index, n = edges_of(nx.path_graph(400))
    check(Laplacian(edge_index, num_nodes=n).to(torch.float64), 6)


def test_null_space_survives_a_vanishing_gap():
    """Two triangles joined by an edge of weight 1e-13: a second eigenvalue of that size."""
    edge_index, n = edges_of(nx.barbell_graph(3, 0))
    bridge = (edge_index[0] < 3) != (edge_index[1] < 3)
    weight = torch.where(bridge, 1e-13, 1.0).double()
    lap = Laplacian(edge_index, weight, n)
    values, vectors = lap.spectrum()
    assert values[0] == 0
    null = lap.degree.sqrt() / lap.degree.sum().sqrt()
    torch.testing.assert_close(vectors[:, 0].abs(), null, rtol=1e-14, atol=0)
    torch.testing.assert_close(
        vectors.T @ vectors, torch.eye(n, dtype=torch.float64), rtol=0, atol=1e-13
    )


def test_is_cached_and_grows():
    lap = zoo_laplacian("grid", "sym").to(torch.float32)
    few = lap.spectrum(4)[1]
    assert lap.spectrum(4)[1].data_ptr() == few.data_ptr()
    assert lap.spectrum(9)[1].shape == (72, 9)
    assert lap.spectrum(4)[1].dtype == torch.float32


def test_block_spectrum_is_the_spectrum_of_a_batch():
    """Components of equal size are stacked; together they give every eigenvalue of the batch."""
    sizes = (5, 9, 5, 5, 1)
    parts = [nx.gnp_random_graph(size, 0.7, seed=seed) for seed, size in enumerate(sizes)]
    edge_index, n = edges_of(nx.disjoint_union_all(parts))
    lap = Laplacian(edge_index, num_nodes=n).to(torch.float64)
    spectrum = lap.block_spectrum()
    merged = torch.cat([values.flatten() for values in spectrum.values]).sort().values
    torch.testing.assert_close(merged, lap.spectrum()[0], rtol=0, atol=1e-12)
    for values, vectors in zip(spectrum.values, spectrum.vectors, strict=True):
        assert vectors.shape == (*values.shape, values.size(1))


def test_gap():
    edge_index, n = edges_of(nx.disjoint_union(nx.complete_graph(5), nx.cycle_graph(8)))
    lap = Laplacian(edge_index, num_nodes=n + 2)
    cycle = 1 - torch.cos(torch.tensor(2 * torch.pi / 8))
    assert lap.spectral_gap() == pytest.approx(float(cycle), rel=1e-6)
    assert Laplacian(torch.zeros(2, 0).long(), num_nodes=3).spectral_gap() == float("inf")


def test_bad_number():
    with pytest.raises(ValueError, match="num_eigs=0; ask for at least one eigenpair"):
        zoo_laplacian("star", "rw").spectrum(0)


@pytest.mark.slow
def test_large_graph():
    torch.manual_seed(0)
    edge_index = to_undirected(erdos_renyi_graph(4000, 0.002))
    lap = Laplacian(edge_index, num_nodes=4000).to(torch.float64)
    values, vectors = lap.spectrum(20)
    residual = vectors - vectors * values
    symmetric = Laplacian(edge_index, num_nodes=4000, normalization="sym").to(torch.float64)
    torch.testing.assert_close(symmetric @ vectors, vectors - residual, rtol=0, atol=1e-8)
    assert int((values == 0).sum()) == min(20, lap.num_components)


def test_many_components_are_diagonalised_by_all_cores(monkeypatch):
    """The same eigenpairs; and the main thread keeps its threads."""
    sizes = [3, 5, 5, 7, 1] * 4
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    paths = [
        torch.stack((torch.arange(s - 1), torch.arange(1, s))) + start
        for s, start in zip(sizes, starts, strict=True)
    ]
    half = torch.cat(paths, 1)
    lap = Laplacian(torch.cat((half, half.flip(0)), 1), num_nodes=sum(sizes))
    threads = torch.get_num_threads()
    one_by_one = bunn.graph.spectrum.block_spectrum(lap)
    monkeypatch.setattr(bunn.graph.spectrum, "MANY", 2)
    by_cores = bunn.graph.spectrum.block_spectrum(lap)
    assert torch.get_num_threads() == threads
    for ours, theirs in zip(by_cores.values, one_by_one.values, strict=True):
        torch.testing.assert_close(ours, theirs)
    for values, vectors in zip(*by_cores, strict=True):
        identity = torch.eye(vectors.size(1)).expand_as(vectors)
        torch.testing.assert_close(vectors.mT @ vectors, identity, rtol=0, atol=1e-6)
        assert vectors.shape == (*values.shape, values.size(1))
