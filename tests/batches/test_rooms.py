"""Batches that are filled up: the graphs in them do not notice."""

import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bunn
from bunn import kernels
from bunn.batches import selection as selection_module
from bunn.batches.rooms import Filled, Plan, Room, Size, isolated, spare_for
from bunn.graph.components import TOGETHER
from bunn.theory import graphs as shapes
from tests.batches.test_selection import GRAPHS, batch_of, union_of

#: One of them is larger than a tile.
PAIRS = [*GRAPHS, (shapes.cycle(150).edge_index, 152)]


def room_for(graphs: int, pairs=PAIRS, device: str = "cpu") -> Room:
    union = union_of(pairs).to(torch.device(device))
    size = Size.of(union, torch.arange(len(pairs)), graphs)
    return Room(union.with_spare(*spare_for([size])), size)


def filled(room: Room, chosen: list[int]) -> Filled:
    plan = room.plan(torch.tensor(chosen))
    assert plan is not None
    device = room.union.edge_index.device
    return Filled(room, Plan(*(part.to(device) for part in plan)))


def test_isolated_nodes_are_counted():
    assert isolated(union_of(GRAPHS)).tolist() == [0, 2, 1, 0, 0, 3, 0]


@given(data=st.data(), graphs=st.integers(1, len(PAIRS)), norm=st.sampled_from(["rw", "sym"]))
@settings(max_examples=40)
def test_the_first_nodes_are_those_of_the_graphs(data, graphs, norm):
    drawn = st.permutations(range(len(PAIRS))).map(lambda order: order[:graphs])
    chosen, room = data.draw(drawn), room_for(graphs)
    plan = room.plan(torch.tensor(chosen))
    edges, n = batch_of([PAIRS[i] for i in chosen])
    if plan is None:  # three deviations are not always enough
        assert graphs < len(PAIRS)
        return
    selection = Filled(room, plan)
    e = edges.size(1)
    assert selection.nodes.shape == (room.size.nodes,)
    assert selection.counts[room.size.nodes] == n < room.size.nodes
    assert selection.counts[room.size.edges] == e
    assert torch.equal(selection.edge_index()[:, :e], edges)
    source, target = selection.edge_index()[:, e:]
    assert torch.equal(source, target)  # loops, as many at each node that fills up
    at_each = torch.bincount(source - n, minlength=room.size.nodes - n)
    assert at_each.max() - at_each.min() <= 1
    assert selection.graphs[:-1].tolist() == list(chosen)
    assert (selection.batch[n:] == graphs).all()
    lap = selection.laplacian(norm)
    anew = bunn.Laplacian(edges, num_nodes=n, normalization=norm)
    assert lap.num_nodes == room.size.nodes
    assert torch.equal(lap.components[:n], anew.components)
    assert torch.unique(lap.components).numel() == anew.num_components + room.size.nodes - n
    for name in ("degree", "null_vector"):
        assert torch.equal(getattr(lap, name)[:n], getattr(anew, name)), name
    blocks = lap.blocks
    assert torch.equal(blocks.order[blocks.rank], torch.arange(room.size.nodes))
    assert torch.equal(blocks.local[:n], anew.blocks.local)
    x = torch.randn(room.size.nodes, 3)
    torch.testing.assert_close((lap @ x)[:n], anew @ x[:n], rtol=0, atol=1e-6)
    assert not (lap @ x)[n:].any()  # heat stays where it is
    for reduce in ("mean", "sum"):
        torch.testing.assert_close(lap.aggregate(x, reduce)[:n], anew.aggregate(x[:n], reduce))
    for time in (1.0, torch.tensor([0.1, 1.0, 10.0])):
        y = bunn.diffuse(x, lap, time, method="chebyshev")
        torch.testing.assert_close(y[:n], bunn.diffuse(x[:n], anew, time), rtol=0, atol=1e-4)
        torch.testing.assert_close(y[n:], x[n:])
    torch.testing.assert_close(
        bunn.diffuse(x, lap, float("inf"))[:n], bunn.diffuse(x[:n], anew, float("inf"))
    )


def test_tiles_cover_every_row_once():
    room, chosen = room_for(4), [7, 4, 1, 2]
    tiles = filled(room, chosen).laplacian("rw").blocks.tiles
    assert tiles.table.shape == (room.num_tiles, 5)
    covered = [
        node
        for _, _, first, size, part in tiles.table.tolist()
        for node in tiles.order[first:][:size][part * TOGETHER :][:TOGETHER].tolist()
    ]
    assert sorted(covered) == list(range(room.size.nodes))


def test_what_is_too_large_has_no_room():
    room = room_for(2, [*GRAPHS, *GRAPHS, *GRAPHS, *GRAPHS, (shapes.cycle(150).edge_index, 150)])
    many = torch.tensor([28, 0])
    assert room.plan(many) is None
    assert room.plan(torch.tensor([0, 1])) is not None


def test_rooms_serve_where_kernels_do(monkeypatch):
    assert room_for(4).serves
    large = (shapes.cycle(150).edge_index, 150)
    assert not room_for(1, [*GRAPHS * 30, large]).serves  # larger than the room
    monkeypatch.setattr(kernels, "LARGEST", 100)
    assert not room_for(4).serves
    monkeypatch.undo()
    monkeypatch.setattr(selection_module, "MEMORY", 100)  # for eigenvectors
    assert not room_for(4).serves
    monkeypatch.undo()
    monkeypatch.setattr(kernels, "SHORT", 2)
    assert not room_for(4).serves


def test_a_room_is_forgotten():
    room = room_for(4)
    assert room.usual_area(1, 1) > 0
    gone = [weakref.ref(room), weakref.ref(room.union)]
    del room
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


def test_stacks_are_not_to_be_had():
    lap = filled(room_for(2), [0, 1]).laplacian("rw")
    with pytest.raises(RuntimeError, match="multiplied by kernels alone"):
        lap.eigenpairs.by_blocks(lap)


def test_a_spare_graph_is_built_once():
    union = union_of(GRAPHS)
    assert union.with_spare(9, 4) is union.with_spare(9, 4)
    assert union.with_spare(9, 4).total_nodes == union.total_nodes + 9
    assert union.with_spare(3, 2) is union.with_spare(9, 4)  # enough, and more
    assert union.with_spare(3, 8) is not union.with_spare(9, 4)
    assert len(union.with_spare(3, 2)) == len(union) + 1
