import copy

import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.loader import DataLoader
from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE, Compose
from torch_geometric.utils import scatter, to_dense_adj

import bunn
import bunn.data.transforms.graph
import bunn.data.transforms.laplacian_encoding
import bunn.data.transforms.random_walk_encoding
import bunn.graph.spectrum
from bunn.data.transforms import (
    CachedSpectrum,
    DegreeEncoding,
    DiskCache,
    LaplacianEncoding,
    QuantileEncoding,
    RandomSignFlip,
    RandomWalkEncoding,
    flip_signs,
    known_laplacian,
)
from bunn.data.transforms.eigenbasis import settled_eigenvectors
from tests.graphs import ZOO, edges_of, graphs


def data_of(edge_index, weight=None, num_nodes=None) -> Data:
    """The graph with float64 features, so that encodings are float64."""
    x = torch.ones(num_nodes, 1, dtype=torch.float64)
    return Data(x=x, edge_index=edge_index, edge_weight=weight)


def zoo_data(name: str) -> Data:
    edge_index, *weight, n = ZOO[name]()
    return data_of(edge_index, *weight, num_nodes=n)


def networkx_data(graph: nx.Graph) -> Data:
    edge_index, n = edges_of(graph)
    return data_of(edge_index, num_nodes=n)


def part_of(data: Data, nodes: torch.Tensor) -> Data:
    """One component as a graph of its own."""
    mask = torch.zeros(data.num_nodes, dtype=torch.bool)
    mask[nodes] = True
    inside = mask[data.edge_index[0]]
    edges = (mask.long().cumsum(0) - 1)[data.edge_index[:, inside]]
    weight = None if data.edge_weight is None else data.edge_weight[inside]
    return data_of(edges, weight, nodes.numel())


def components(data: Data) -> list[torch.Tensor]:
    lap = bunn.Laplacian(data.edge_index, data.edge_weight, data.num_nodes)
    return [(lap.components == c).nonzero().squeeze(1) for c in range(lap.num_components)]


def transition_matrix(data: Data) -> torch.Tensor:
    """``D^-1 A`` with zero rows for isolated nodes, from the edges alone."""
    matrix = torch.zeros(data.num_nodes, data.num_nodes, dtype=torch.float64)
    weight = torch.ones(data.num_edges) if data.edge_weight is None else data.edge_weight
    matrix[data.edge_index[0], data.edge_index[1]] = weight.double()
    degree = matrix.sum(1, keepdim=True)
    return torch.where(degree > 0, matrix / degree, 0.0)


@pytest.fixture
def few_are_many(monkeypatch):
    """A component of more than a dozen nodes is a large one."""
    for module in (
        bunn.graph.spectrum,
        bunn.data.transforms.graph,
        bunn.data.transforms.laplacian_encoding,
        bunn.data.transforms.random_walk_encoding,
    ):
        monkeypatch.setattr(module, "DENSE_SIZE", 12)


LARGE = nx.disjoint_union_all(
    [
        nx.grid_2d_graph(9, 10),
        nx.gnp_random_graph(70, 0.1, seed=1),
        nx.star_graph(30),
        nx.path_graph(5),
        nx.complete_graph(4),
        nx.empty_graph(2),
    ]
)


# Laplacian eigenvectors


def check_encoding(data: Data, k: int, normalization: str) -> None:
    """Each component has its own first eigenvectors, without the null vector, and zeros."""
    encoded = LaplacianEncoding(k, normalization=normalization)(data)
    assert encoded.lap_pe.shape == encoded.lap_eigenvalues.shape == (data.num_nodes, k)
    for nodes in components(data):
        part = part_of(data, nodes)
        lap = bunn.Laplacian(
            part.edge_index, part.edge_weight, nodes.numel(), normalization=normalization
        )
        matrix = lap.to(torch.float64).dense()
        count = min(k, nodes.numel() - 1)
        vectors, values = encoded.lap_pe[nodes], encoded.lap_eigenvalues[nodes]
        assert (values == values[0]).all()
        reference = torch.linalg.eigvals(matrix).real.sort().values  # "rw" is not symmetric
        torch.testing.assert_close(values[0, :count], reference[1 : 1 + count], rtol=0, atol=1e-7)
        assert (values[:, :count] > 0).all()
        assert not values[:, count:].any()
        assert not vectors[:, count:].any()
        found = vectors[:, :count]
        torch.testing.assert_close(matrix @ found, found * values[0, :count], rtol=0, atol=1e-7)
        torch.testing.assert_close(found.norm(dim=0), torch.ones(count).double())
        if count:
            assert torch.linalg.matrix_rank(found) == count
            sizes = found.abs()
            first = (sizes >= sizes.amax(0) * (1 - 1e-9)).byte().argmax(0)
            assert (found[first, range(count)] > 0).all()


@pytest.mark.parametrize("normalization", ["rw", "sym"])
@pytest.mark.parametrize("graph", ZOO)
def test_eigenvectors_of_each_component(graph, normalization):
    check_encoding(zoo_data(graph), 6, normalization)


@given(graph=graphs(), k=st.integers(1, 14), normalization=st.sampled_from(["rw", "sym"]))
def test_eigenvectors_of_random_graphs(graph, k, normalization):
    check_encoding(data_of(*graph), k, normalization)


@pytest.mark.usefixtures("few_are_many")
@pytest.mark.parametrize("normalization", ["rw", "sym"])
def test_eigenvectors_of_large_components(normalization):
    check_encoding(networkx_data(LARGE), 7, normalization)


@given(graph=graphs(), k=st.integers(1, 5))
def test_a_disconnected_graph_is_encoded_component_by_component(graph, k):
    data, transform = data_of(*graph), LaplacianEncoding(k)
    whole = transform(data)
    for nodes in components(data):
        alone = transform(part_of(data, nodes))
        torch.testing.assert_close(whole.lap_pe[nodes], alone.lap_pe, rtol=0, atol=1e-7)


ENCODINGS = [LaplacianEncoding(4), RandomWalkEncoding(6), DegreeEncoding()]


@pytest.mark.parametrize("transform", ENCODINGS, ids=repr)
@given(parts=st.lists(graphs(max_nodes=8).filter(lambda graph: graph[1] is None), min_size=1))
def test_a_batch_is_encoded_graph_by_graph(transform, parts):
    parts = [data_of(*graph) for graph in parts]
    together = transform(Batch.from_data_list(parts))
    alone = Batch.from_data_list([transform(part) for part in parts])
    torch.testing.assert_close(together[transform.attr], alone[transform.attr], rtol=0, atol=1e-7)
    assert torch.equal(together.batch, alone.batch)


def test_many_small_graphs_are_handled_a_few_at_a_time(monkeypatch):
    parts = [networkx_data(nx.gnp_random_graph(n, 0.3, seed=n)) for n in range(3, 15)]
    batch = Batch.from_data_list(parts)
    at_once = LaplacianEncoding(5)(batch), RandomWalkEncoding(5)(batch)
    monkeypatch.setattr(bunn.data.transforms.graph, "DENSE_ENTRIES", 200)
    lap = bunn.Laplacian(batch.edge_index, num_nodes=batch.num_nodes)
    cut = list(bunn.data.transforms.graph.pieces(lap))
    assert len(cut) > 3
    assert torch.equal(torch.cat([nodes for nodes, _ in cut]).sort().values, torch.arange(102))
    torch.testing.assert_close(LaplacianEncoding(5)(batch).lap_pe, at_once[0].lap_pe)
    torch.testing.assert_close(RandomWalkEncoding(5)(batch).rwse, at_once[1].rwse)


def test_a_single_null_vector_too_few_is_an_encoding_of_nothing():
    """On two paths PyG's first column is a null vector; ours are eigenvectors of both paths."""
    data = networkx_data(nx.disjoint_union(nx.path_graph(6), nx.path_graph(7)))
    ours = LaplacianEncoding(2)(data)
    dense = bunn.Laplacian(data.edge_index, num_nodes=13, normalization="sym").dense().double()
    theirs = AddLaplacianEigenvectorPE(2, attr_name="pe", is_undirected=True)(data).pe.double()
    assert (dense @ theirs[:, 0]).norm() < 1e-6
    assert (dense @ ours.lap_pe[:, 0]).norm() > 0.1


def test_agrees_with_pyg_on_a_connected_graph_up_to_sign():
    data = networkx_data(nx.path_graph(30))
    ours = LaplacianEncoding(5)(data).lap_pe
    theirs = AddLaplacianEigenvectorPE(5, attr_name="pe", is_undirected=True)(data).pe
    torch.testing.assert_close(ours.abs(), theirs.double().abs(), rtol=0, atol=1e-5)


@given(seed=st.integers(0, 2**31), normalization=st.sampled_from(["rw", "sym"]))
def test_relabelled_nodes_have_relabelled_encodings(seed, normalization):
    """Weights in general position, so that neither eigenvalues nor entries tie."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.rand(9, 9, generator=generator, dtype=torch.float64) + 0.1
    weight, edges = weight + weight.T, torch.ones(9, 9).triu(1)
    edges = (edges + edges.T).nonzero().T
    permutation = torch.randperm(9, generator=generator)
    moved = data_of(permutation[edges], weight[edges[0], edges[1]], 9)
    transform = LaplacianEncoding(4, normalization=normalization)
    pe = transform(data_of(edges, weight[edges[0], edges[1]], 9)).lap_pe
    gaps = transform(moved).lap_eigenvalues[0].diff()
    top = pe.abs().sort(dim=0).values
    if gaps.min() > 1e-4 and (top[-1] - top[-2]).min() > 1e-4:
        torch.testing.assert_close(transform(moved).lap_pe[permutation], pe, rtol=0, atol=1e-9)


@given(
    multiplicities=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    seed=st.integers(0, 2**31),
    data=st.data(),
)
def test_the_basis_of_an_eigenspace_depends_on_the_space_alone(multiplicities, seed, data):
    """Mixing the vectors of each space, signs included, changes nothing."""
    generator = torch.Generator().manual_seed(seed)

    def orthogonal(n):
        return torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))[0]

    size = sum(multiplicities)
    count = data.draw(st.integers(1, size))
    values = torch.tensor([0.3 * i for i, m in enumerate(multiplicities, 1) for _ in range(m)])
    noise = 1e-14 * torch.rand(size, generator=generator, dtype=torch.float64)
    values = (values.double() + noise).sort().values
    vectors = orthogonal(20)[:, :size]
    mixed = vectors @ torch.block_diag(*[orthogonal(m) for m in multiplicities])
    ours = settled_eigenvectors(values, vectors, count)
    torch.testing.assert_close(settled_eigenvectors(values, mixed, count), ours, rtol=0, atol=1e-9)
    torch.testing.assert_close(ours.T @ ours, torch.eye(count).double(), rtol=0, atol=1e-9)
    for vector, value in zip(ours.T, values, strict=False):
        own = vectors[:, (values - value).abs() < 0.1]
        torch.testing.assert_close(own @ (own.T @ vector), vector, rtol=0, atol=1e-9)


def test_a_slow_path_keeps_its_eigenvectors_apart():
    """Eigenvalues near zero that differ by little differ by much relatively."""
    values = torch.tensor([4.9e-10, 2.0e-9, 4.4e-9], dtype=torch.float64)
    vectors = torch.eye(5, 3, dtype=torch.float64)[:, [2, 0, 1]]
    assert torch.equal(settled_eigenvectors(values, vectors, 3), vectors)


@pytest.mark.parametrize(
    "graph", [nx.grid_2d_graph(12, 12), nx.cycle_graph(60)], ids=["grid", "cycle"]
)
def test_both_solvers_give_one_encoding(graph, request):
    """Also where eigenvalues are double, as on a square and a cycle, and k cuts a pair."""
    data = networkx_data(graph)
    dense = [LaplacianEncoding(k)(data).lap_pe for k in (4, 5, 6)]
    request.getfixturevalue("few_are_many")
    for k, expected in zip((4, 5, 6), dense, strict=True):
        lanczos = LaplacianEncoding(k)(data).lap_pe
        torch.testing.assert_close(lanczos, expected, rtol=0, atol=1e-7)
    assert torch.equal(dense[0], dense[2][:, :4])


def test_stores_what_it_is_asked_for():
    data = zoo_data("grid")
    both = LaplacianEncoding(3, attr="pe", eigenvalues_attr="values")(data)
    assert set(both.keys()) - set(data.keys()) == {"pe", "values"}
    assert "lap_eigenvalues" not in LaplacianEncoding(3, eigenvalues_attr=None)(data)
    assert set(data.keys()) == {"x", "edge_index"}


# Random signs


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    k=st.integers(1, 4),
    seed=st.integers(0, 2**31),
)
def test_one_sign_per_graph_and_eigenvector(sizes, k, seed):
    pe = torch.rand(sum(sizes), k, dtype=torch.float64) + 0.1
    batch = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    kept = pe.clone()
    flipped = flip_signs(pe, batch, torch.Generator().manual_seed(seed))
    assert torch.equal(pe, kept)
    signs = flipped / pe
    assert set(signs.unique().tolist()) <= {-1.0, 1.0}
    for graph in signs.split(sizes):
        assert (graph == graph[0]).all()
    again = flip_signs(pe, batch, torch.Generator().manual_seed(seed), batch_size=len(sizes))
    assert torch.equal(again, flipped)


def test_signs_are_fair_and_independent():
    signs = flip_signs(torch.ones(4000, 3), torch.arange(4000), torch.Generator().manual_seed(0))
    assert (signs.mean(0).abs() < 0.06).all()
    correlation = signs.T @ signs / 4000
    assert ((correlation - torch.eye(3)).abs() < 0.06).all()


def test_the_generator_can_be_saved():
    generator = torch.Generator().manual_seed(5)
    data = LaplacianEncoding(8)(Batch.from_data_list([zoo_data("grid"), zoo_data("star")]))
    transform = RandomSignFlip(generator=generator)
    transform(data)
    state = generator.get_state()
    draws = [transform(data).lap_pe for _ in range(3)]
    assert not torch.equal(draws[0], draws[1])
    generator.set_state(state)
    for draw in draws:
        assert torch.equal(transform(data).lap_pe, draw)


def test_flips_do_not_touch_torchs_own_randomness_when_given_a_generator():
    state = torch.get_rng_state()
    flip_signs(torch.ones(3, 2), generator=torch.Generator())
    assert torch.equal(torch.get_rng_state(), state)
    flip_signs(torch.ones(3, 2))
    assert not torch.equal(torch.get_rng_state(), state)


def test_a_loader_flips_each_graph_on_its_own():
    parts = [LaplacianEncoding(6)(zoo_data("grid")) for _ in range(12)]
    batch = next(iter(DataLoader(parts, batch_size=12)))
    flipped = RandomSignFlip(generator=torch.Generator().manual_seed(1))(batch)
    agreement = scatter(flipped.lap_pe * batch.lap_pe, batch.batch)  # norms are one
    assert torch.allclose(agreement.abs(), torch.ones(12, 6).double())
    assert len({tuple(row) for row in agreement.sign().tolist()}) > 6


def test_bad_encodings_and_batches_are_named():
    with pytest.raises(ValueError, match="attr='lap_pe'; the data has no such tensor"):
        RandomSignFlip()(zoo_data("grid"))
    with pytest.raises(ValueError, match=r"pe has shape \(3,\)"):
        flip_signs(torch.ones(3))
    with pytest.raises(ValueError, match=r"batch has shape \(2,\)"):
        flip_signs(torch.ones(3, 1), torch.zeros(2, dtype=torch.long))


# Random walks


def check_walks(data: Data, steps: int | range) -> None:
    matrix = transition_matrix(data)
    numbers = range(1, steps + 1) if isinstance(steps, int) else steps
    expected = [torch.linalg.matrix_power(matrix, k).diagonal() for k in numbers]
    found = RandomWalkEncoding(steps)(data).rwse
    torch.testing.assert_close(found, torch.stack(expected, dim=1), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("steps", [1, 2, 3, 20, range(4, 12, 3)])
@pytest.mark.parametrize("graph", ZOO)
def test_walks_return_as_matrix_powers_say(graph, steps):
    check_walks(zoo_data(graph), steps)


@given(graph=graphs(), steps=st.integers(1, 9))
def test_walks_on_random_graphs(graph, steps):
    check_walks(data_of(*graph), steps)


@pytest.mark.usefixtures("few_are_many")
@pytest.mark.parametrize("chunk", [1, 7, 1000])
@pytest.mark.parametrize("steps", [1, 4, 9])
def test_walks_on_large_components(chunk, steps, monkeypatch):
    """Within a ball for few steps, on the whole graph for many."""
    monkeypatch.setattr(bunn.data.transforms.random_walk_encoding, "CHUNK", chunk)
    check_walks(networkx_data(LARGE), steps)


@pytest.mark.usefixtures("few_are_many")
def test_few_columns_of_a_small_ball_are_followed(monkeypatch):
    """On a long path with weights, no product is anywhere near the size of the graph."""
    module, sizes = bunn.data.transforms.random_walk_encoding, []
    exact = module._chunk_diagonals

    def watched(s, nodes, length):
        sizes.append((s.shape[0], nodes.size))
        return exact(s, nodes, length)

    monkeypatch.setattr(module, "_chunk_diagonals", watched)
    data = networkx_data(nx.path_graph(600))
    weight = torch.rand(data.num_nodes, dtype=torch.float64) + 0.5
    data.edge_weight = weight[data.edge_index.amin(0)]
    check_walks(data, 10)
    assert max(rows for rows, _ in sizes) <= module.CHUNK + 2 * 5
    assert sum(columns for _, columns in sizes) == 600


@pytest.mark.parametrize("graph", ["grid", "star", "barbell", "complete", "disconnected"])
def test_walks_agree_with_pyg(graph):
    data = zoo_data(graph)
    theirs = AddRandomWalkPE(8, attr_name="theirs")(data).theirs
    torch.testing.assert_close(RandomWalkEncoding(8)(data).rwse.float(), theirs)


def test_no_walk_leaves_an_isolated_node():
    loop = torch.tensor([[1], [1]])
    found = RandomWalkEncoding(3)(data_of(loop, num_nodes=2)).rwse
    assert found.tolist() == [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]


# Spectra


def heat(model, data, edge_index):
    with torch.no_grad():
        return model(data.x, edge_index, batch=data.get("batch"))


@pytest.fixture
def no_eigenvalues(monkeypatch):
    """From here on, nothing is diagonalised."""

    def arm():
        def refuse(*args):
            raise AssertionError("a spectrum was computed")

        monkeypatch.setattr(bunn.graph.spectrum, "block_spectrum", refuse)
        monkeypatch.setattr(bunn.graph.spectrum, "lowest_eigenpairs", refuse)

    return arm


@given(parts=st.lists(graphs(max_nodes=7).filter(lambda g: g[1] is not None), min_size=1))
def test_a_batch_gets_its_spectrum_from_its_graphs(parts):
    parts = [data_of(*graph) for graph in parts]
    batch = Batch.from_data_list([CachedSpectrum()(part) for part in parts])
    given = known_laplacian(batch).matching(batch.x).known_block_spectrum
    lap = bunn.Laplacian(batch.edge_index, batch.edge_weight, batch.num_nodes).to(torch.float64)
    expected = lap.block_spectrum()
    assert given is not None
    for ours, theirs in zip(given.values, expected.values, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
    field = torch.randn(batch.num_nodes, 1, dtype=torch.float64)
    rebuilt = [
        vectors @ (values.unsqueeze(-1) * (vectors.mT @ part))
        for values, vectors, part in zip(*given, lap.blocks.split(field), strict=True)
    ]
    symmetric = field - lap.operator.before * (
        (field / lap.operator.before) - lap @ (field / lap.operator.before)
    )
    torch.testing.assert_close(lap.blocks.join(rebuilt), symmetric, rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("normalization", ["rw", "sym"])
def test_a_model_uses_the_spectrum_of_a_batch(dtype, normalization, no_eigenvalues):
    parts = [networkx_data(nx.gnp_random_graph(n, 0.3, seed=n)) for n in (5, 9, 5, 12)]
    for part in parts:
        part.x = torch.randn(part.num_nodes, 3, dtype=dtype)
    model = bunn.BuNN(3, 4, 2, 2, time=2.0, method="spectral", normalization=normalization)
    model = model.to(dtype)
    plain = Batch.from_data_list(parts)
    expected = heat(model, plain, plain.edge_index)
    batch = Batch.from_data_list([CachedSpectrum()(part) for part in parts])
    no_eigenvalues()
    lap = known_laplacian(batch, normalization=normalization)
    for graph in (lap, batch.edge_index):
        torch.testing.assert_close(heat(model, batch, graph), expected)
    assert known_laplacian(batch, normalization=normalization) is lap
    with pytest.raises(AssertionError, match="a spectrum was computed"):
        heat(model, plain, plain.edge_index.clone())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_uses_the_lowest_eigenpairs(dtype, no_eigenvalues):
    data = zoo_data("grid")
    data.x = torch.randn(data.num_nodes, 3, dtype=dtype)
    options = {"method": "spectral", "num_eigs": 10, "tol": float("inf")}
    model = bunn.BuNN(3, 4, 2, 2, time=2.0, **options).to(dtype)
    expected = heat(model, data, data.edge_index.clone())
    data = CachedSpectrum(10)(data)
    assert data.spectrum.shape == (1 + data.num_nodes, 10)
    assert data.spectrum.dtype == dtype
    no_eigenvalues()
    known_laplacian(data)
    torch.testing.assert_close(heat(model, data, data.edge_index), expected)


def test_without_a_spectrum_it_is_the_laplacian_of_the_data():
    data = zoo_data("weighted")
    lap = known_laplacian(data, normalization="sym")
    assert lap.normalization == "sym"
    assert lap.known_block_spectrum is None
    expected = bunn.Laplacian(data.edge_index, data.edge_weight, 40, normalization="sym")
    torch.testing.assert_close(lap.dense(), expected.dense())


@pytest.mark.parametrize("num_eigs", [None, 4])
def test_the_spectrum_of_another_graph_is_refused(num_eigs):
    data = CachedSpectrum(num_eigs)(networkx_data(nx.path_graph(9)))
    moved = copy.copy(data)
    moved.edge_index = 8 - torch.tensor([0, 2, 1, 3, 4, 5, 6, 7, 8])[data.edge_index]
    with pytest.raises(ValueError, match=r"spectrum is off by .* belongs to another graph"):
        known_laplacian(moved)
    data.edge_weight = torch.linspace(1, 2, 9)[data.edge_index].sum(0)
    with pytest.raises(ValueError, match=r"spectrum is off by .* belongs to another graph"):
        known_laplacian(data)
    data.x, data.edge_weight = torch.ones(12, 1), None
    with pytest.raises(ValueError, match=r"spectrum has .* belongs to another graph"):
        known_laplacian(data)


def test_the_lowest_eigenpairs_are_for_a_single_graph():
    parts = [zoo_data("grid"), zoo_data("star")]
    with pytest.raises(ValueError, match="num_eigs=3"):
        CachedSpectrum(3)(Batch.from_data_list(parts))
    batch = Batch.from_data_list([CachedSpectrum(3)(part) for part in parts])
    with pytest.raises(ValueError, match="use num_eigs=None for graphs that are batched"):
        known_laplacian(batch)


def test_a_spectrum_met_in_inference_mode_serves_training():
    data = CachedSpectrum()(zoo_data("grid"))
    with torch.inference_mode():
        lap = known_laplacian(data)
    x = torch.randn(data.num_nodes, 2, dtype=torch.float64, requires_grad=True)
    bunn.diffuse(x, lap, torch.tensor(2.0, requires_grad=True), method="spectral").sum().backward()
    torch.testing.assert_close(x.grad.sum(), torch.tensor(2.0 * data.num_nodes).double())


# Degrees


@given(graph=graphs())
def test_degrees_are_row_sums_of_the_adjacency(graph):
    data = data_of(*graph)
    dense = to_dense_adj(data.edge_index, edge_attr=data.edge_weight, max_num_nodes=data.num_nodes)
    found = DegreeEncoding()(data).degree
    torch.testing.assert_close(found.expm1(), dense[0].sum(1, keepdim=True).to(found.dtype))


def test_an_isolated_node_has_degree_zero():
    found = DegreeEncoding(attr="log_degree")(data_of(torch.tensor([[0, 1], [1, 0]]), num_nodes=3))
    assert found.log_degree.expm1().flatten().tolist() == pytest.approx([1.0, 1.0, 0.0])


def test_the_degree_as_a_last_feature():
    data = data_of(torch.tensor([[0, 1], [1, 0]]), num_nodes=3)
    beside = DegreeEncoding(attr=None)(data).x
    torch.testing.assert_close(beside, torch.cat((data.x, DegreeEncoding()(data).degree), dim=1))
    assert data.x.size(1) == 1  # the graph is left alone


# Features


def features(x: torch.Tensor) -> Data:
    return Data(x=x, edge_index=torch.zeros(2, 0, dtype=torch.long))


@given(values=st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=40), bins=st.integers(1, 6))
def test_quantiles_fill_up_in_order(values, bins):
    x = torch.tensor(values, dtype=torch.float64).unsqueeze(1)
    transform = QuantileEncoding.fit([features(x)], bins)
    found, edges = transform(features(x)).x, transform.edges[0]
    assert found.shape == (len(values), bins)
    assert bool(((found >= 0) & (found <= 1)).all())
    wide = edges.diff() > 0
    assert bool((found[:, ~wide] == 0).all())
    # A bin is filled before the next begins, and a value is where its bins say.
    full = found[:, wide]
    assert bool(((full[:, 1:] == 0) | (full[:, :-1] == 1)).all())
    back = edges[0] + (found * edges.diff()).sum(1)
    torch.testing.assert_close(back, x[:, 0], rtol=1e-9, atol=1e-9)


def test_bins_have_the_same_number_of_values():
    x = torch.randn(1000, 2, generator=torch.Generator().manual_seed(0)).exp()
    found = QuantileEncoding.fit([features(x[:400]), features(x[400:])], 5)(features(x)).x
    counts = (found.view(1000, 2, 5) == 1).sum(0)  # those from the upper edge on
    assert torch.equal(counts, torch.tensor([[801, 601, 401, 201, 1]] * 2))


def test_two_values_keep_one_column():
    x = torch.tensor([[0.0], [1.0], [0.0], [0.0]])
    found = QuantileEncoding.fit([features(x)], 8)(features(x)).x
    assert int((found != 0).any(dim=0).sum()) == 1
    assert found.sum(1).tolist() == [0, 1, 0, 0]


def test_what_quantiles_refuse():
    x = torch.ones(3, 2)
    with pytest.raises(ValueError, match=r"bins=0; use one or more"):
        QuantileEncoding.fit([features(x)], 0)
    with pytest.raises(ValueError, match="column 1 that are not finite"):
        QuantileEncoding.fit([features(torch.tensor([[0.0, torch.nan], [1.0, 1.0]]))], 2)
    with pytest.raises(ValueError, match=r"data\.x is torch\.int64 \(3, 2\); pass"):
        QuantileEncoding.fit([features(x.long())], 2)
    with pytest.raises(ValueError, match="x has 2 columns; these are the edges of 3"):
        QuantileEncoding(torch.arange(2.0).expand(3, 2))(features(x))
    with pytest.raises(ValueError, match="rows that do not ascend"):
        QuantileEncoding(torch.tensor([[1.0, 0.0]]))
    with pytest.raises(TypeError, match=r"edges=4; .*QuantileEncoding\.fit"):
        QuantileEncoding(4)


# What all have in common

TRANSFORMS = [
    LaplacianEncoding(4),
    LaplacianEncoding(4, normalization="rw"),
    RandomWalkEncoding(5),
    CachedSpectrum(),
    CachedSpectrum(4),
]


def with_cache(transform, cache):
    cached = copy.copy(transform)
    cached.cache = cache
    return cached


@pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)
def test_is_loaded_from_the_cache(transform, tmp_path, monkeypatch):
    data, cached = zoo_data("weighted"), with_cache(transform, DiskCache(tmp_path))
    expected = transform(data)
    first = cached(data)
    files = sorted(tmp_path.rglob("*.npz"))
    assert len(files) == 1
    monkeypatch.setattr(bunn.data.transforms.graph.Graph, "laplacian", None)  # nobody computes
    again = cached(data)
    assert set(first.keys()) == set(again.keys()) == set(expected.keys()) > set(data.keys())
    for key in expected.keys():  # noqa: SIM118
        assert torch.equal(first[key], expected[key])
        assert torch.equal(again[key], expected[key])


@pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)
def test_everything_it_depends_on_is_in_the_key(transform, tmp_path):
    cache = DiskCache(tmp_path)
    data = zoo_data("weighted")
    heavier, larger, other = (copy.copy(data) for _ in range(3))
    heavier.edge_weight = data.edge_weight * (1 + data.edge_index.sum(0))
    larger.x = torch.ones(data.num_nodes + 1, 1, dtype=torch.float64)
    other.edge_index, other.edge_weight = data.edge_index[:, :0], data.edge_weight[:0]
    for variant in (data, heavier, larger, other):
        found, expected = with_cache(transform, cache)(variant), transform(variant)
        for key in expected.keys():  # noqa: SIM118
            assert torch.equal(found[key], expected[key])
    assert len(list(tmp_path.rglob("*.npz"))) == 4


def test_options_are_in_the_key(tmp_path):
    cache, data = DiskCache(tmp_path), zoo_data("grid")
    LaplacianEncoding(3, cache=cache)(data)
    LaplacianEncoding(4, cache=cache)(data)
    LaplacianEncoding(4, normalization="rw", cache=cache)(data)
    RandomWalkEncoding(4, cache=cache)(data)
    RandomWalkEncoding(range(2, 6), cache=cache)(data)
    CachedSpectrum(cache=cache)(data)
    CachedSpectrum(3, cache=cache)(data)
    data.x = data.x.float()
    CachedSpectrum(3, cache=cache)(data)
    assert len(list(tmp_path.rglob("*.npz"))) == 8


@pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)
def test_leaves_its_input_alone(transform):
    data = zoo_data("grid")
    kept = {key: value.clone() for key, value in data.to_dict().items()}
    out = transform(data)
    assert out is not data
    assert data.to_dict().keys() == kept.keys()
    assert all(torch.equal(data[key], value) for key, value in kept.items())


@pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.long])
def test_has_the_precision_of_the_features(transform, dtype):
    data = zoo_data("grid")
    data.x = data.x.to(dtype)
    out = transform(data)
    expected = torch.float64 if dtype == torch.float64 else torch.float32
    for key in set(out.keys()) - set(data.keys()):
        assert out[key].dtype == expected
    del data.x
    data.num_nodes = 72
    assert transform(data)[transform.attr].dtype == torch.float32


@pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)
def test_bad_data_is_named(transform):
    with pytest.raises(TypeError, match="data is a HeteroData"):
        transform(HeteroData())
    with pytest.raises(ValueError, match="edge_index=None"):
        transform(Data(x=torch.ones(3, 1)))
    with pytest.raises(ValueError, match="to_undirected"):
        transform(data_of(torch.tensor([[0], [1]]), num_nodes=2))


def test_bad_options_are_named():
    for k in (0, -1, 2.5):
        with pytest.raises(ValueError, match=f"k={k}"):
            LaplacianEncoding(k)
        with pytest.raises(ValueError, match=f"num_eigs={k}"):
            CachedSpectrum(k)
    with pytest.raises(ValueError, match="normalization='none'"):
        LaplacianEncoding(2, normalization="none")
    for steps in (0, [], [0, 1], [1.5]):
        with pytest.raises(ValueError, match="steps="):
            RandomWalkEncoding(steps)


def test_composes_in_a_loader():
    transform = Compose([LaplacianEncoding(3), RandomWalkEncoding(4), CachedSpectrum()])
    parts = [networkx_data(nx.cycle_graph(n)) for n in (3, 4, 5, 6)]
    batch = next(iter(DataLoader([transform(part) for part in parts], batch_size=4)))
    assert batch.lap_pe.shape == batch.lap_eigenvalues.shape == (18, 3)
    assert batch.rwse.shape == (18, 4)
    assert known_laplacian(batch).matching(batch.x).known_block_spectrum is not None
    assert repr(transform.transforms[0]) == "LaplacianEncoding(3, normalization='sym')"


@pytest.mark.gpu
@pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)
def test_cuda(transform):
    data = zoo_data("weighted")
    out, expected = transform(data.to("cuda")), transform(data.cpu())
    assert out[transform.attr].is_cuda
    torch.testing.assert_close(out[transform.attr].cpu(), expected[transform.attr])
    if isinstance(transform, CachedSpectrum):
        assert known_laplacian(out).device.type == "cuda"
    flipped = flip_signs(out[transform.attr].view(-1, 1), generator=torch.Generator())
    assert flipped.is_cuda
