"""Packs: a batch of some graphs is what PyG makes of them, wherever it comes from."""

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data

import bunn
from bunn.data.dataset import GraphList, Split
from bunn.data.pack import Pack, PackedGraphs
from bunn.data.transforms import DegreeEncoding, LaplacianEncoding, RandomWalkEncoding
from bunn.sharing import laplacian_of
from bunn.theory import graphs as shapes
from bunn.training import Encoding
from bunn.training.encode import encode


def some_data():
    """Graphs of several sizes and components, one of one node, one without edges."""
    pairs = [
        (shapes.random(9, seed=1).edge_index, 9),
        (shapes.cycle(4).edge_index, 6),
        (torch.zeros(2, 0, dtype=torch.long), 1),
        (shapes.path(5).edge_index, 5),
        (torch.zeros(2, 0, dtype=torch.long), 3),
        (shapes.complete(5).edge_index, 5),
    ]
    generator = torch.Generator().manual_seed(0)
    return [
        Data(
            x=torch.randn(n, 3, generator=generator),
            edge_index=edges,
            edge_attr=torch.randn(edges.size(1), 2, generator=generator),
            y=torch.randn(1, 4, generator=generator),
        )
        for edges, n in pairs
    ]


def packed(listed):
    pack = Pack.of(listed)
    assert (set(pack.nodes), set(pack.edges), set(pack.graphs)) == ({"x"}, {"edge_attr"}, {"y"})
    return pack


LISTED = some_data()
FIELDS = ("x", "edge_index", "edge_attr", "y")


@given(chosen=st.lists(st.integers(0, len(LISTED) - 1), min_size=1, max_size=8))
def test_a_batch_is_that_of_pyg(chosen):
    graphs = PackedGraphs(packed(LISTED), torch.arange(len(LISTED)))
    ours = graphs.collate(torch.tensor(chosen))
    theirs = Batch.from_data_list([LISTED[i] for i in chosen])
    for name in (*FIELDS, "batch"):
        assert torch.equal(ours[name], theirs[name]), name
    assert ours.batch_size == len(chosen)


def test_members_are_graphs():
    graphs = PackedGraphs(packed(LISTED), torch.tensor([3, 0, 2]))
    assert len(graphs) == 3
    assert graphs.num_nodes().tolist() == [5, 9, 1]
    for place, index in enumerate((3, 0, 2)):
        data = graphs[place]
        assert data.num_nodes == LISTED[index].num_nodes
        assert "batch" not in data
        assert all(torch.equal(data[name], LISTED[index][name]) for name in FIELDS)
    assert torch.equal(graphs[-1].x, LISTED[2].x)
    with pytest.raises(IndexError):
        graphs[3]
    with pytest.raises(ValueError, match="at least one graph"):
        graphs.collate(torch.empty(0, dtype=torch.long))


def test_a_batch_knows_its_laplacian():
    graphs = PackedGraphs(packed(LISTED), torch.arange(6))
    batch = graphs.collate(torch.tensor([5, 1, 1]))
    lap = laplacian_of(batch.edge_index, None, batch.num_nodes, "rw")
    assert lap.origin is not None
    x = torch.randn(batch.num_nodes, 3)
    anew = bunn.Laplacian(batch.edge_index, num_nodes=batch.num_nodes)
    assert torch.equal(lap @ x, anew @ x)
    whole = graphs.pack.union.whole("rw")
    other = graphs.collate(torch.tensor([0, 3]))
    origin = laplacian_of(other.edge_index, None, other.num_nodes, "rw").origin
    assert origin.whole is whole  # which is built once


@pytest.mark.parametrize(
    "transform",
    [LaplacianEncoding(3), RandomWalkEncoding(4), DegreeEncoding(), DegreeEncoding(attr=None)],
)
def test_a_transform_of_all_is_that_of_each(transform):
    graphs = PackedGraphs(packed(LISTED).transformed(transform), torch.arange(6))
    for ours, data in zip(graphs, LISTED, strict=True):
        theirs = transform(data.clone())
        assert ours.to_dict().keys() == theirs.to_dict().keys()
        for name in theirs.to_dict():
            torch.testing.assert_close(ours[name], theirs[name])


@pytest.mark.parametrize("quantiles", [0, 3])
def test_encodings_among_features_are_those_of_each_graph(quantiles):
    encoding = Encoding(
        lap_pe=2, rwse=2, pe_as="features", flip_signs=False, degree=True, quantiles=quantiles
    )
    graphs = PackedGraphs(packed(LISTED), torch.arange(6))
    ours = encode(Split(graphs, graphs, graphs), encoding).train
    listed = GraphList([data.clone() for data in LISTED])
    theirs = encode(Split(listed, listed, listed), encoding).train
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.x, other.x)


def test_a_transform_that_changes_edges_is_refused():
    def without_edges(data):
        data.edge_index = data.edge_index[:, :0]
        return data

    with pytest.raises(ValueError, match=r"changes edges; apply it .* before they are packed"):
        packed(LISTED).transformed(without_edges)


def test_parts_of_a_split_share_what_was_encoded():
    pack = packed(LISTED)
    parts = [PackedGraphs(pack, torch.tensor(rows)) for rows in ([0, 3], [1], [2, 4, 5])]
    split = encode(Split(*parts), Encoding(rwse=3))
    assert split.train.pack is split.test.pack
    assert split.train.pack is not pack
    assert "rwse" not in pack.nodes
    listed = encode(Split(*[GraphList([LISTED[0], LISTED[3]])] * 3), Encoding(rwse=3))
    for ours, theirs in zip(split.train, listed.train, strict=True):
        torch.testing.assert_close(ours.rwse, theirs.rwse)
    assert split.train.pack.union is pack.union  # and so is its Laplacian


def test_moving_is_done_once():
    pack = packed(LISTED)
    assert pack.to("cpu") is pack
    assert PackedGraphs(pack, torch.arange(2)).to("cpu").pack is pack
    elsewhere = pack.to("meta")
    assert elsewhere is pack.to("meta")
    assert elsewhere.to("cpu") is pack
    other = pack.transformed(RandomWalkEncoding(2))  # as another seed encodes it
    assert other.to("meta").union is elsewhere.union


@pytest.mark.gpu
def test_on_a_gpu_a_batch_is_gathered_without_waiting():
    graphs = PackedGraphs(packed(LISTED), torch.arange(6)).to("cuda")
    assert graphs.pack is graphs.to("cuda").pack
    graphs.pack.union.whole("sym").lap.block_spectrum()
    first = graphs.collate(torch.tensor([0, 3]))  # which lays out the eigenvectors of all
    known = laplacian_of(first.edge_index, None, first.num_nodes, "sym")
    bunn.diffuse(torch.ones(first.num_nodes, 4, device="cuda"), known, 2.0, method="spectral")
    chosen = torch.tensor([5, 1, 0, 2])
    torch.cuda.synchronize()
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # "a prototype feature"
        torch.cuda.set_sync_debug_mode("error")
    try:
        batch = graphs.collate(chosen)
        lap = laplacian_of(batch.edge_index, None, batch.num_nodes, "sym")
        bunn.diffuse(torch.ones(batch.num_nodes, 4, device="cuda"), lap, 2.0, method="spectral")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    theirs = Batch.from_data_list([LISTED[i] for i in chosen.tolist()])
    assert all(torch.equal(batch[name].cpu(), theirs[name]) for name in FIELDS)
    x = torch.randn(batch.num_nodes, 4)
    anew = bunn.Laplacian(theirs.edge_index, num_nodes=theirs.num_nodes, normalization="sym")
    for method in ("spectral", "chebyshev"):
        y = bunn.diffuse(x.cuda(), lap, 2.0, method=method)
        torch.testing.assert_close(y.cpu(), bunn.diffuse(x, anew, 2.0), rtol=0, atol=1e-4)


def test_targets_may_belong_to_nodes():
    listed = [Data(x=data.x, edge_index=data.edge_index, y=data.x[:, 0] > 0) for data in LISTED]
    pack = Pack.of(listed)
    assert set(pack.nodes) == {"x", "y"}
    batch = PackedGraphs(pack, torch.arange(6)).collate(torch.tensor([3, 1]))
    assert torch.equal(batch.y, torch.cat((listed[3].y, listed[1].y)))


def test_a_pack_may_be_read_in_inference_mode():
    graphs = PackedGraphs(packed(LISTED), torch.arange(6))
    with torch.inference_mode():
        batch = graphs.collate(torch.tensor([0, 3]))
        y = bunn.BuNN(3, 8, 1, 2, num_bundles=2)(batch.x, batch.edge_index)
    assert y.shape == (14, 2)
