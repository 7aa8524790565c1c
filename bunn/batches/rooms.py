"""Batches of graphs that are filled up to a fixed size, so that a step on them can be recorded.

A CUDA graph replays the same work on the same memory. Batches that are drawn anew have other sizes
every time; but if each is filled up with isolated nodes to the size of a *room*, all that differs
is a table of which graphs they are. The table is copied to the device, and everything else, the
gathering of features, edges, Laplacian and eigenvectors included, is part of what is replayed.

What fills a batch up is one more graph, the last of its union: nothing that keeps to nodes, their
neighbours and their graphs can tell. A BatchNorm is told (:mod:`bunn.nn.norm`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from bunn import kernels
from bunn.batches.selection import ComponentsOf, Selection, Union, Whole
from bunn.graph.components import ALIGNED, TOGETHER, Blocks, cut_into_tiles, round_up
from bunn.graph.spans import ranges, starts
from bunn.kernels.arguments import Tiles

#: Room that there is, in standard deviations of a batch that is drawn: one in some hundreds has to
#: do without.
SPARE = 3.0
#: Sizes are multiples of this.
STEP = 64


class Size(NamedTuple):
    """How large a room is.

    Args:
        graphs: Those of a batch, less the one that fills it up.
        nodes: All of them.
        edges: Likewise.
        entries: Of the Laplacian.
    """

    graphs: int
    nodes: int
    edges: int
    entries: int

    @classmethod
    def of(cls, union: Union, members: Tensor, graphs: int) -> Size:
        """For batches of so many graphs, drawn from ``members`` without repetition."""
        nodes, edges = union.num_nodes[members], union.num_edges[members]
        # A row has an entry for each edge at most, or one if it has none.
        more = (edges + isolated(union)[members] - nodes).clamp(min=0)
        of_nodes = round_up(_room_for(nodes, graphs) + 1, STEP)
        of_edges = round_up(_room_for(edges, graphs), STEP)
        of_entries = of_nodes + round_up(_room_for(more, graphs), STEP)
        of_edges += STEP if of_edges == of_nodes else 0  # by which rows are told apart
        return cls(graphs, of_nodes, of_edges, of_entries)


def spare_for(sizes: Sequence[Size]) -> tuple[int, int]:
    """Nodes and edges that a union needs, to fill up any batch with."""
    return max(size.entries for size in sizes), max(size.edges for size in sizes)


def isolated(union: Union) -> Tensor:
    """``(g,)`` how many nodes of every graph have no edge, on the host."""
    edged = torch.zeros(union.total_nodes, dtype=torch.long, device=union.edge_index.device)
    edged[union.edge_index[0]] = 1
    ends = torch.cat((edged.new_zeros(1), edged.cumsum(0))).cpu()
    return union.num_nodes - (ends[union.node_starts + union.num_nodes] - ends[union.node_starts])


def _room_for(counts: Tensor, graphs: int) -> int:
    """Enough for most batches."""
    many, graphs = counts.numel(), min(graphs, counts.numel())
    spread = float(counts.double().std(correction=0)) * (graphs * (1 - graphs / many)) ** 0.5
    most = int(counts.sort(descending=True).values[:graphs].sum())
    return min(most, int(graphs * float(counts.double().mean()) + SPARE * spread) + 1)


class Plan(NamedTuple):
    """Which graphs a batch has, in numbers for the device.

    Args:
        table: ``(9, graphs + 1)`` int64, a column for every graph: which it is, where its nodes
            begin and how many there are, its edges and its entries likewise, how far its nodes come
            after their places in the batch, and its components.
        tiles: ``(t, 5)`` int32 of :class:`bunn.kernels.arguments.Tiles`.
    """

    table: Tensor
    tiles: Tensor


class Room:
    """Where batches of one size are put together.

    Args:
        union: All graphs, the last of which fills up:
            :meth:`bunn.batches.selection.Union.with_spare`.
        size: How much there is room for.
    """

    def __init__(self, union: Union, size: Size) -> None:
        self.union, self.size = union, size
        self._areas: dict[tuple[int, int], int] = {}

    @cached_property
    def serves(self) -> bool:
        """Whether there are kernels for all components, none of which has to be cut, and memory for
        their eigenvectors."""
        whole, size = self.union.any_whole(), self.size
        short = whole.longest_row <= kernels.longest(size.nodes, size.entries)
        small = whole.largest <= kernels.LARGEST and whole.largest < size.nodes
        return short and small and whole.has_room

    @cached_property
    def tiling(self) -> Tiling:
        """The tiles of all graphs."""
        return Tiling.of(self.union.any_whole())

    @cached_property
    def num_tiles(self) -> int:
        """As many as there are in a batch, with those that fill it up."""
        own = self.tiling.count[:-1]  # of all graphs, not only of those that are drawn
        spread = float(own.double().std(correction=0)) * self.size.graphs**0.5
        usual = self.size.graphs * float(own.double().mean())
        return round_up(int(usual + 2 * SPARE * spread) + self.size.nodes // TOGETHER + 1, STEP)

    def usual_area(self, rows: int, columns: int) -> int:
        """That of the components of a batch, by and large, in tiles of so many rows and columns."""
        if (rows, columns) not in self._areas:
            whole = self.union.any_whole()
            sizes = whole.sizes[: int(whole.first_components[-1])]
            areas = round_up(sizes, rows) * round_up(sizes, columns)
            mean = int(areas.sum()) / (len(self.union) - 1)
            self._areas[rows, columns] = int(self.size.graphs * mean)
        return self._areas[rows, columns]

    def plan(self, members: Tensor) -> Plan | None:
        """The batch of some graphs, ``(k,)`` on the host; :obj:`None` if it has no room."""
        union, size, whole = self.union, self.size, self.union.any_whole()
        chosen = torch.cat((members, torch.tensor([len(union) - 1])))
        nodes, edges = union.num_nodes[chosen], union.num_edges[chosen]
        entries = whole.num_entries[chosen]
        left = size.nodes - int(nodes[:-1].sum())
        nodes[-1], edges[-1] = left, size.edges - int(edges[:-1].sum())
        entries[-1] = size.entries - int(entries[:-1].sum())
        if left < 1 or int(edges[-1]) < 0 or int(entries[-1]) < left:
            return None
        of_nodes, of_edges = union.node_starts[chosen], union.edge_starts[chosen]
        shift = of_nodes - starts(nodes)
        first = whole.first_components[chosen] - starts(whole.num_components[chosen])
        filling = range(size.nodes - left, size.nodes)
        tiles = self.tiling.rows(members, shift, filling, self.num_tiles)
        if tiles is None:
            return None
        of_entries = whole.first_entries[chosen]
        rows = (chosen, of_nodes, nodes, of_edges, edges, of_entries, entries, shift, first)
        return Plan(torch.stack(rows), tiles)


@dataclass(frozen=True)
class Tiling:
    """The tiles of every graph of a union, on the host.

    Args:
        table: ``(t, 5)`` int64, those of a graph together.
        first: ``(g,)`` where those of a graph begin.
        count: ``(g,)`` how many there are.
        spare: Where the matrix of a component of the last graph begins.
    """

    table: Tensor
    first: Tensor
    count: Tensor
    spare: int

    @classmethod
    def of(cls, whole: Whole) -> Tiling:
        begin, _ = whole.squares
        table, parts = cut_into_tiles(whole.sizes, whole.component_starts, begin, TOGETHER)
        ends = torch.cat((parts.new_zeros(1), parts.cumsum(0)))
        first = ends[whole.first_components]
        count = ends[whole.first_components + whole.num_components] - first
        return cls(table, first, count, int(begin[-1]) // ALIGNED**2)

    def rows(self, members: Tensor, shift: Tensor, filling: range, total: int) -> Tensor | None:
        """``(total, 5)`` int32 for some graphs, the largest first, and for what fills them up.

        Args:
            members: ``(k,)`` the graphs.
            shift: ``(k,)`` how far their nodes come after their places in the batch.
            filling: The nodes of the batch that fill it up.
            total: Room for tiles; :obj:`None` is returned if there are more.
        """
        count = self.count[members]
        place, owner = ranges(self.first[members], count, int(count.sum()))
        own = self.table[place]
        own[:, 2] -= shift[owner]
        own = own[own[:, 3].argsort(descending=True, stable=True)]
        first = torch.arange(filling.start, filling.stop, TOGETHER)
        missing = total - own.size(0) - first.numel()
        if missing < 0:
            return None
        # The matrix of one node serves many: what they get is read by nobody, but is finite.
        begin, size = torch.full_like(first, self.spare), (filling.stop - first).clamp(max=TOGETHER)
        ones, zeros = torch.ones_like(first), torch.zeros_like(first)
        filled = torch.stack((begin, ones, first, size, zeros), 1)
        nothing = torch.zeros(missing, 5, dtype=torch.long)
        return torch.cat((own, filled, nothing)).to(torch.int32)


class Filled(Selection):
    """The graphs of a plan, filled up to the size of a room; nobody waits for the device.

    Args:
        room: The room.
        plan: The graphs, on the device of the union.
    """

    def __init__(self, room: Room, plan: Plan) -> None:
        self.union, self.room, self.tiles = room.union, room, plan.tiles
        self.graphs, start, count, edge_start, edge_count, *rest = plan.table
        self._entry_start, self._entry_count, self.shift, self.first = rest
        self.num_nodes, self._filling = room.size.nodes, count[-1]
        self.nodes, self.batch = ranges(start, count, room.size.nodes)
        self.edges, self._owner = ranges(edge_start, edge_count, room.size.edges)
        #: Of all nodes, and of all edges, how many count: ``()`` each, by how many there are.
        self.counts = {
            room.size.nodes: count[:-1].sum(),
            room.size.edges: edge_count[:-1].sum(),
        }

    def edge_index(self) -> Tensor:
        """``(2, e)`` the edges themselves; those that fill up are loops of all nodes that do.

        At one node, thousands of them would add up layer by layer to more than a number can be.
        """
        place = torch.arange(self.edges.numel(), device=self.edges.device)
        loops = self.num_nodes - 1 - place % self._filling
        return torch.where(self._owner == self.room.size.graphs, loops, super().edge_index())

    def entries(self, whole: Whole) -> tuple[Tensor, Tensor]:
        return ranges(self._entry_start, self._entry_count, self.room.size.entries)

    def longest_row(self, whole: Whole) -> int:
        return whole.longest_row

    def components(self, whole: Whole) -> ComponentsOf:
        return FilledComponents(whole, self)


@dataclass(frozen=True, eq=False)
class FilledComponents(ComponentsOf):
    """Components of a batch with room: the device alone knows them, and where they are."""

    chosen: Filled

    @property
    def count(self) -> int:
        """As many as there may be."""
        return self.chosen.num_nodes

    @cached_property
    def labels(self) -> Tensor:
        chosen = self.chosen
        labels: Tensor = self.whole.lap.components[chosen.nodes] - chosen.first[chosen.batch]
        return labels

    @cached_property
    def blocks(self) -> Blocks:
        whole, chosen = self.whole, self.chosen
        # The nodes of a graph are in the same places whether or not they are ordered by component.
        order = whole.by_component[chosen.nodes] - chosen.shift[chosen.batch]
        rank = torch.empty_like(order)
        rank[order] = torch.arange(order.numel(), device=order.device)
        return FilledBlocks(order, rank, (), whole.local[chosen.nodes], chosen.tiles, chosen.room)

    def squares(self) -> None:
        """Where they are is what the tiles say."""

    def stacks(self) -> NoReturn:
        raise RuntimeError(
            "a batch that is filled up is multiplied by kernels alone, where its components lie; "
            "put together one of these graphs alone, with Union.select"
        )


@dataclass(frozen=True)
class FilledBlocks(Blocks):
    """The components of a batch with room, as kernels read them; costs are those of most batches.

    Args:
        table: ``(t, 5)`` int32, of :class:`bunn.kernels.arguments.Tiles`, for the matrices of the
            union, which are read where they are.
        room: The room.
    """

    table: Tensor
    room: Room

    @property
    def largest(self) -> int:
        return self.room.union.any_whole().largest

    def _area_in(self, rows: int, columns: int) -> int:
        return self.room.usual_area(rows, columns)

    @cached_property
    def tiles(self) -> Tiles:
        return Tiles(self.table, self.order.to(torch.int32), TOGETHER)
