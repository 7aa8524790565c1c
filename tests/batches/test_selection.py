"""Parts of a union of graphs: whatever is gathered equals what would be computed anew."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bunn
from bunn.batches import selection as selection_module
from bunn.batches.selection import Union
from bunn.diffusion.blockwise import Basis
from bunn.graph.spans import ranges
from bunn.keeping import lasting
from bunn.sharing import known_edges, laplacian_of
from bunn.theory import graphs as shapes

#: Graphs of several components, of one node, without edges; some of them alike.
GRAPHS = [
    (shapes.random(9, seed=1).edge_index, 9),
    (shapes.cycle(4).edge_index, 6),
    (torch.zeros(2, 0, dtype=torch.long), 1),
    (shapes.star(5).edge_index, shapes.star(5).num_nodes),
    (torch.cat((shapes.path(3).edge_index, shapes.cycle(4).edge_index + 3), 1), 7),
    (torch.zeros(2, 0, dtype=torch.long), 3),
    (shapes.complete(5).edge_index, 5),
]


def union_of(pairs):
    num_nodes = torch.tensor([n for _, n in pairs])
    num_edges = torch.tensor([edges.size(1) for edges, _ in pairs])
    starts = (num_nodes.cumsum(0) - num_nodes).tolist()
    shifted = [edges + start for (edges, _), start in zip(pairs, starts, strict=True)]
    return Union(torch.cat(shifted, 1), num_nodes, num_edges)


def batch_of(pairs):
    whole = union_of(pairs)
    return whole.edge_index, whole.total_nodes


choices = st.lists(st.integers(0, len(GRAPHS) - 1), min_size=1, max_size=9)


@given(counts=st.lists(st.integers(0, 4), min_size=1, max_size=6), data=st.data())
def test_ranges(counts, data):
    starts = data.draw(st.lists(st.integers(0, 50), min_size=len(counts), max_size=len(counts)))
    index, owner = ranges(torch.tensor(starts), torch.tensor(counts), sum(counts))
    pairs = list(zip(starts, counts, strict=True))
    assert index.tolist() == [start + i for start, count in pairs for i in range(count)]
    assert owner.tolist() == [k for k, count in enumerate(counts) for _ in range(count)]


@given(chosen=choices, normalization=st.sampled_from(["rw", "sym"]))
@settings(max_examples=40)
def test_a_part_is_the_laplacian_of_its_graphs(chosen, normalization):
    """Any graphs in any order, also twice."""
    selection = union_of(GRAPHS).select(torch.tensor(chosen))
    edges, n = batch_of([GRAPHS[i] for i in chosen])
    assert torch.equal(selection.edge_index(), edges)
    part, anew = selection.laplacian(normalization), None
    anew = bunn.Laplacian(edges, num_nodes=n, normalization=normalization)
    assert part.num_nodes == n
    assert part.longest_row == anew.longest_row
    assert part.num_components == anew.num_components
    for name in ("components", "degree", "null_vector", "edge_index", "edge_weight"):
        assert torch.equal(getattr(part, name), getattr(anew, name)), name
    assert all(
        torch.equal(ours, theirs)
        for ours, theirs in zip(part.operator[:5], anew.operator[:5], strict=True)
        if ours is not None
    )
    assert (part.operator.before is None) == (normalization == "sym")
    assert part.blocks.shapes == anew.blocks.shapes
    for name in ("order", "rank", "local"):
        assert torch.equal(getattr(part.blocks, name), getattr(anew.blocks, name)), name
    x = torch.randn(n, 3)
    assert torch.equal(part @ x, anew @ x)
    for reduce in ("mean", "sum"):
        assert torch.equal(part.aggregate(x, reduce), anew.aggregate(x, reduce))
    torch.testing.assert_close(part.dense(), anew.dense())
    torch.testing.assert_close(
        part.to(torch.float64) @ x.double(), anew.to(torch.float64) @ x.double()
    )


@given(chosen=choices, normalization=st.sampled_from(["rw", "sym"]))
@settings(max_examples=25)
def test_heat_on_a_part_is_that_of_its_graphs(chosen, normalization):
    union = union_of(GRAPHS)
    part = union.select(torch.tensor(chosen)).laplacian(normalization)
    edges, n = batch_of([GRAPHS[i] for i in chosen])
    anew = bunn.Laplacian(edges, num_nodes=n, normalization=normalization)
    x, times = torch.randn(n, 4), torch.tensor([0.1, 1.0, 10.0, 1000.0])
    for time in (1.0, 50.0, float("inf"), times):
        exact = bunn.diffuse(x.double(), anew.to(torch.float64), time, tol=1e-12).float()
        for method in ("auto", "spectral", "chebyshev"):
            if time is float("inf") and method != "auto":
                continue
            y = bunn.diffuse(x, part, time, method=method)
            root = anew.degree.sqrt().unsqueeze(1) if normalization == "rw" else torch.ones(n, 1)
            error = (root * (y - exact)).norm(dim=0) / (root * x).norm(dim=0)
            assert error.max() <= 1.1e-5  # tol, and the rounding of what is exact


def test_eigenvectors_are_computed_once_for_all_graphs(monkeypatch):
    union, calls = union_of(GRAPHS), []
    eigh = torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda a: (calls.append(a.shape), eigh(a))[1])
    for chosen in ([0, 3], [6, 4, 1], [2, 5]):
        part = union.select(torch.tensor(chosen)).laplacian("sym")
        assert part.eigenpairs.known == bool(calls)
        values, vectors = part.block_spectrum()
        for (many, size), at, basis in zip(part.blocks.shapes, values, vectors, strict=True):
            assert at.shape == (many, size)
            assert basis.shape == (many, size, size)
    sizes = set(union.whole("sym").sizes.tolist())
    assert len(calls) == len(sizes)


def test_a_basis_of_a_part_is_that_of_its_components():
    """What a GPU multiplies where it lies."""
    whole = union_of(GRAPHS).whole("rw").lap
    root, blocks = whole.operator.before, whole.blocks
    basis = Basis.of(*whole.block_spectrum(), root, blocks, torch.float32)
    chosen = torch.tensor([4, 0, 6, 1, 4])
    part = union_of(GRAPHS).select(chosen).laplacian("rw")
    found = basis.part(part.origin)
    anew = Basis.of(*part.block_spectrum(), part.operator.before, part.blocks, torch.float32)
    assert torch.equal(found.left.entries, anew.left.entries)
    assert torch.equal(found.right.entries, anew.right.entries)
    assert torch.equal(found.values, anew.values)
    for ours, theirs in zip(found.left.stacks(), anew.left.stacks(), strict=True):
        assert torch.equal(ours, theirs)


def test_training_takes_eigenvectors_where_they_are_cheaper():
    """Large times take many products; in a training, eigenvectors are soon paid back."""
    many = union_of([(shapes.path(40).edge_index, 40)] * 6)
    part = many.select(torch.arange(4)).laplacian("sym")
    x, times = torch.randn(160, 64), torch.full((64,), 3000.0)
    bunn.diffuse(x, part, times)
    assert not part.eigenpairs.known
    with lasting():
        y = bunn.diffuse(x, part, times)
    assert many.whole("sym").lap.eigenpairs.known
    exact = bunn.diffuse(x.double(), part.to(torch.float64), 3000.0)
    torch.testing.assert_close(y, exact.float(), rtol=0, atol=1e-5)


def test_copies_and_pickles_stand_alone():
    part = union_of(GRAPHS).select(torch.tensor([0, 4])).laplacian("rw")
    x = torch.randn(part.num_nodes, 2)
    part.block_spectrum()
    for other in (copy.deepcopy(part), pickle.loads(pickle.dumps(part))):
        assert torch.equal(other @ x, part @ x)
        torch.testing.assert_close(
            bunn.diffuse(x, other, 3.0, method="spectral"),
            bunn.diffuse(x, part, 3.0, method="spectral"),
        )
    assert pickle.loads(pickle.dumps(part)).origin is None


def test_edges_that_are_written_to_are_read_anew():
    selection = union_of(GRAPHS).select(torch.tensor([0, 3]))
    edges = selection.edge_index()
    known_edges(edges, selection.laplacian)
    lap = laplacian_of(edges, None, selection.num_nodes, "rw")
    assert lap.origin is not None
    assert laplacian_of(edges, None, selection.num_nodes, "rw") is lap
    assert laplacian_of(edges, None, selection.num_nodes, "sym").normalization == "sym"
    assert laplacian_of(edges, torch.ones(edges.size(1)), lap.num_nodes, "rw").origin is None
    assert laplacian_of(edges, None, lap.num_nodes + 1, "rw").num_nodes == lap.num_nodes + 1
    edges.copy_(edges.flip(1))
    assert laplacian_of(edges, None, lap.num_nodes, "rw").origin is None


@pytest.mark.parametrize("normalization", ["rw", "sym"])
def test_gradients(normalization):
    selection = union_of(GRAPHS).select(torch.tensor([4, 1, 0]))
    part = selection.laplacian(normalization)
    x = torch.randn(part.num_nodes, 3, dtype=torch.float64, requires_grad=True)
    times = torch.tensor([0.5, 2.0, 30.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x, t: bunn.diffuse(x, part, t, method="spectral", tol=1e-10), (x, times)
    )


def test_nothing_outlives_its_edges():
    selection = union_of(GRAPHS).select(torch.tensor([0, 3]))
    edges = selection.edge_index()
    known_edges(edges, selection.laplacian)
    lap = weakref.ref(laplacian_of(edges, None, selection.num_nodes, "rw"))
    reference = weakref.ref(edges)
    del edges
    gc.collect()
    assert reference() is None
    assert lap() is None


def test_eigenvectors_of_all_graphs_that_take_too_much_are_not_kept(monkeypatch):
    """Each batch has its own then; and unasked none are computed."""
    monkeypatch.setattr(selection_module, "MEMORY", 100)
    union = union_of(GRAPHS)
    part = union.select(torch.tensor([0, 4])).laplacian("sym")
    x = torch.randn(part.num_nodes, 3)
    with lasting():
        y = bunn.diffuse(x, part, torch.full((3,), 5000.0))
        assert not part.eigenpairs.known
        z = bunn.diffuse(x, part, 5000.0, method="spectral")
    assert part.eigenpairs.known
    assert not union.whole("sym").lap.eigenpairs.known
    torch.testing.assert_close(y, z, rtol=0, atol=1e-4)


def test_one_large_component_is_not_diagonalised_for_others(monkeypatch):
    monkeypatch.setattr(selection_module, "LARGEST", 8)
    union = union_of(GRAPHS)  # one of which has nine nodes
    part = union.select(torch.tensor([4, 6])).laplacian("sym")
    x = torch.randn(part.num_nodes, 2)
    with lasting():
        bunn.diffuse(x, part, torch.full((2,), 5000.0))
        bunn.diffuse(x, part, 3.0, method="spectral")
    assert not union.whole("sym").lap.eigenpairs.known


def test_other_precisions_are_parts_too():
    union = union_of(GRAPHS)
    for chosen in ([0, 4], [6, 1]):
        part = union.select(torch.tensor(chosen)).laplacian("rw")
        x = torch.randn(part.num_nodes, 3, dtype=torch.float64)
        wide = part.matching(x)
        assert wide.dtype == torch.float64
        assert wide.origin.whole is union.whole("rw").to(torch.float64)  # built once
        edges, n = batch_of([GRAPHS[i] for i in chosen])
        anew = bunn.Laplacian(edges, num_nodes=n).to(torch.float64)
        torch.testing.assert_close(wide @ x, anew @ x, rtol=1e-14, atol=1e-14)
        for method in ("spectral", "chebyshev"):
            y = bunn.diffuse(x, part, 7.0, method=method, tol=1e-12)
            exact = bunn.diffuse(x, anew, 7.0, method="spectral", tol=1e-12)
            torch.testing.assert_close(y, exact, rtol=0, atol=1e-11)


@pytest.mark.parametrize("method", ["auto", "spectral", "chebyshev"])
def test_a_part_is_opaque_to_compilers(method):
    part = union_of(GRAPHS).select(torch.tensor([0, 4])).laplacian("rw")
    conv = bunn.BuNNConv(4, 4, num_bundles=2, method=method)
    x = torch.randn(part.num_nodes, 4)
    expected = conv(x, part)  # once without, for what the graph alone determines
    faster = torch.compile(conv, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(faster(x, part), expected)
