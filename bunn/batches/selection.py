"""Some graphs of many: a batch, gathered with all that is known of its graphs.

Thousands of small graphs are kept one after the other, as one block-diagonal graph, whose Laplacian
is built once. The Laplacian of a batch is a part of it: rows, components, eigenvectors and all that
is computed from them are gathered, never computed again. The host knows the sizes of all graphs, so
that it waits for nothing that a device does.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bunn.graph.components import ALIGNED, Blocks, round_up, sent
from bunn.graph.operator import before_compiling, for_keeps
from bunn.graph.spans import ranges, starts
from bunn.graph.spectrum import BlockSpectrum, Eigenpairs
from bunn.kernels import cut_long_rows, longest
from bunn.laplacian import Laplacian, Normalization

#: Bytes of eigenvectors that are kept for all graphs; on a GPU an eighth of what it has.
MEMORY = 2**32
#: Nodes of the largest component whose eigenvectors are computed for the sake of others.
LARGEST = 2048


def _sent(rows: Sequence[Tensor], device: torch.device) -> Tensor:
    """Rows of numbers that the host knows, as a table on a device."""
    return sent(torch.stack(tuple(rows)), device)


class Union:
    """Graphs one after the other, as one graph.

    Args:
        edge_index: ``(2, e)`` both directions of all edges, those of a graph together.
        num_nodes: ``(g,)`` of every graph, on the host.
        num_edges: ``(g,)`` of every graph, on the host.
    """

    def __init__(self, edge_index: Tensor, num_nodes: Tensor, num_edges: Tensor) -> None:
        self.edge_index, self.num_nodes, self.num_edges = edge_index, num_nodes, num_edges
        self.total_nodes = int(num_nodes.sum())
        self.node_starts, self.edge_starts = starts(num_nodes), starts(num_edges)
        self._wholes: dict[Normalization, Whole] = {}
        self._by_device = {edge_index.device: self}
        self._with_spare: dict[tuple[int, int], Union] = {}

    def __len__(self) -> int:
        return self.num_nodes.numel()

    def to(self, device: torch.device) -> Union:
        """The same on another device, moved there once: what is known there stays known."""
        if device not in self._by_device:
            moved = Union(self.edge_index.to(device), self.num_nodes, self.num_edges)
            moved._by_device = self._by_device
            self._by_device[device] = moved
        return self._by_device[device]

    def whole(self, normalization: Normalization) -> Whole:
        """The Laplacian of all graphs; built once."""
        if normalization not in self._wholes:
            lap = Laplacian(
                self.edge_index, num_nodes=self.total_nodes, normalization=normalization
            )
            self._wholes[normalization] = Whole(lap, self.num_nodes)
        return self._wholes[normalization]

    def any_whole(self) -> Whole:
        """The Laplacian of some normalisation, for what all of them have in common."""
        return next(iter(self._wholes.values()), None) or self.whole("rw")

    def with_spare(self, nodes: int, edges: int) -> Union:
        """The same with one more graph to fill up batches with, of so many nodes or more; built
        once, if nobody asks for more.

        Its nodes are isolated, and its edges loops of the first, which are as good as none: heat
        stays there.
        """
        for spare, union in self._with_spare.items():
            if spare[0] >= nodes and spare[1] >= edges:
                return union
        loops = self.edge_index.new_full((2, edges), self.total_nodes)
        union = self._with_spare[nodes, edges] = Union(
            torch.cat((self.edge_index, loops), 1),
            torch.cat((self.num_nodes, torch.tensor([nodes]))),
            torch.cat((self.num_edges, torch.tensor([edges]))),
        )
        return union

    def select(self, members: Tensor) -> Selection:
        """Some of the graphs.

        Args:
            members: ``(k,)`` int64 on the host, in any order; one may be there twice.
        """
        return Selection(self, members)


class Selection:
    """Some graphs of a union, one after the other.

    Attributes:
        graphs: ``(k,)`` which.
        nodes: ``(n,)`` those of the union that are theirs.
        batch: ``(n,)`` the graph of every node, counted within the selection.
        edges: ``(e,)`` those of the union that are theirs.
    """

    def __init__(self, union: Union, members: Tensor) -> None:
        num_nodes, num_edges = union.num_nodes[members], union.num_edges[members]
        self.union, self.members = union, members
        self.num_nodes = int(num_nodes.sum())
        first, edge_first = union.node_starts[members], union.edge_starts[members]
        self.graphs, start, count, edge_start, edge_count, self.shift = _sent(
            (members, first, num_nodes, edge_first, num_edges, first - starts(num_nodes)),
            union.edge_index.device,
        )
        self.nodes, self.batch = ranges(start, count, self.num_nodes)
        self.edges, self._owner = ranges(edge_start, edge_count, int(num_edges.sum()))

    def edge_index(self) -> Tensor:
        """``(2, e)`` the edges themselves, a new tensor: caches live as long as it does."""
        edges: Tensor = self.union.edge_index[:, self.edges] - self.shift[self._owner]
        return edges

    @for_keeps()
    def laplacian(self, normalization: Normalization) -> Laplacian:
        """Their Laplacian, a part of that of the union."""
        return self.union.whole(normalization).part(self)

    def entries(self, whole: Whole) -> tuple[Tensor, Tensor]:
        """``(nnz,)`` the entries of a Laplacian that are theirs, and whose they are."""
        rows = (whole.first_entries[self.members], whole.num_entries[self.members])
        first, count = _sent(rows, self.nodes.device)
        return ranges(first, count, int(rows[1].sum()))

    def longest_row(self, whole: Whole) -> int:
        """The largest number of entries in a row."""
        return int(whole.longest_rows[self.members].max())

    def components(self, whole: Whole) -> ComponentsOf:
        """Their components in a Laplacian."""
        return ComponentsOf(whole, self)


class Whole:
    """The Laplacian of a union, and where in it the rows and components of graphs lie.

    Attributes:
        has_room: Whether the eigenvectors of all graphs may be computed, and kept.

    Args:
        lap: The Laplacian.
        num_nodes: ``(g,)`` of every graph, on the host.
    """

    def __init__(self, lap: Laplacian, num_nodes: Tensor) -> None:
        self.lap, self._num_nodes = lap, num_nodes
        self._siblings = {lap.dtype: self}
        crow = lap._crow.cpu().long()
        ends = num_nodes.cumsum(0)
        self.first_entries = crow[ends - num_nodes]
        self.num_entries = crow[ends] - self.first_entries
        # Components are numbered by their first nodes: those of a graph come together.
        labels = lap.components.cpu()
        self.sizes = torch.bincount(labels, minlength=lap.num_components)
        owner = torch.repeat_interleave(torch.arange(num_nodes.numel()), num_nodes)
        first = torch.full((lap.num_components,), len(labels)).scatter_reduce(
            0, labels, torch.arange(len(labels)), "amin"
        )
        self.num_components = torch.bincount(owner[first], minlength=num_nodes.numel())
        self.first_components = starts(self.num_components)
        self.by_component = torch.argsort(lap.components, stable=True)
        order = torch.argsort(self.sizes, stable=True)
        self.rank = torch.empty_like(order)
        self.rank[order] = torch.arange(order.numel())
        self.component_starts = starts(self.sizes)
        self.has_room = self._has_room()
        self.row_lengths = lap._crow.diff().long()
        self.longest_rows = torch.zeros_like(num_nodes).scatter_reduce(
            0, owner, crow.diff(), "amax"
        )

    def _has_room(self) -> bool:
        device, area, room = self.lap.device, int(self.sizes.square().sum()), MEMORY
        if device.type == "cuda":
            room = torch.cuda.get_device_properties(device).total_memory // 8
        return self.largest <= LARGEST and area * self.lap.dtype.itemsize <= room

    @cached_property
    def local(self) -> Tensor:
        """``(n,)`` the place of a node inside its component."""
        (sizes,) = _sent([self.sizes], self.lap.device)
        place, _ = ranges(torch.zeros_like(sizes), sizes, self.by_component.numel())
        local = torch.empty_like(place)
        local[self.by_component] = place
        return local

    @cached_property
    def largest(self) -> int:
        """Nodes of the largest component."""
        return int(self.sizes.max())

    @cached_property
    def longest_row(self) -> int:
        """Entries of the longest row."""
        return int(self.longest_rows.max())

    @cached_property
    def squares(self) -> tuple[Tensor, Tensor]:
        """``(c,)`` where the matrices of components begin, and their areas, on the host: filled up
        to multiples of :data:`ALIGNED`, they lie one after the other, by size of component."""
        areas = round_up(self.sizes, ALIGNED).square()
        by_size = torch.empty_like(areas)
        by_size[self.rank] = areas
        return starts(by_size)[self.rank], areas

    def to(self, dtype: torch.dtype) -> Whole:
        """The same in another precision; built once."""
        if dtype not in self._siblings:
            sibling = Whole(self.lap.to(dtype), self._num_nodes)
            sibling._siblings = self._siblings
            self._siblings[dtype] = sibling
        return self._siblings[dtype]

    def part(self, chosen: Selection) -> Laplacian:
        """The Laplacian of some graphs."""
        whole, nodes = self.lap, chosen.nodes
        entries, owner = chosen.entries(self)
        count = entries.numel()
        crow = torch.zeros(nodes.numel() + 1, dtype=torch.int64, device=nodes.device)
        torch.cumsum(self.row_lengths[nodes], 0, out=crow[1:])
        walk = whole.aggregation("mean")
        assert walk.before is not None
        root = walk.before[nodes]
        place = chosen.components(self)

        lap = copy.copy(whole)
        index = torch.int32 if max(count, nodes.numel()) < 2**31 else torch.int64
        lap.num_nodes, lap.longest_row = nodes.numel(), chosen.longest_row(self)
        lap._crow = crow.to(index)
        lap._col = (whole._col[entries].long() - chosen.shift[owner]).to(index)
        lap._weight = None if whole._weight is None else whole._weight[entries]
        for name in ("_degree", "_isolated", "_rounded_degree", "null_vector"):
            setattr(lap, name, getattr(whole, name)[nodes])
        lap.components, lap.num_components = place.labels, place.count
        segments = None
        if nodes.is_cuda and lap.longest_row > longest(nodes.numel(), count):
            segments = cut_long_rows(lap._crow)
        value = whole.operator.value[entries]
        lap._set_operator(value, root, segments)
        lap._forget()
        lap._blocks = place.blocks
        lap.eigenpairs = PartOfEigenpairs(place)
        lap.origin = place
        return lap


@dataclass(frozen=True, eq=False)
class ComponentsOf:
    """The components of some graphs, and where they are in the union.

    Args:
        whole: Of the union.
        chosen: The graphs.
    """

    whole: Whole
    chosen: Selection

    @cached_property
    def ids(self) -> Tensor:
        """``(c,)`` those of the union, on the host."""
        whole, members = self.whole, self.chosen.members
        count = whole.num_components[members]
        return ranges(whole.first_components[members], count, int(count.sum()))[0]

    @cached_property
    def sizes(self) -> Tensor:
        """``(c,)`` their numbers of nodes, on the host."""
        return self.whole.sizes[self.ids]

    @property
    def count(self) -> int:
        """Their number."""
        return self.sizes.numel()

    @cached_property
    def order(self) -> Tensor:
        """``(c,)`` the components by size, on the host."""
        return torch.argsort(self.sizes, stable=True)

    @cached_property
    def labels(self) -> Tensor:
        """``(n,)`` the component of every node."""
        whole, chosen = self.whole, self.chosen
        count = whole.num_components[chosen.members]
        (shift,) = _sent(
            [whole.first_components[chosen.members] - starts(count)], chosen.nodes.device
        )
        labels: Tensor = whole.lap.components[chosen.nodes] - shift[chosen.batch]
        return labels

    @cached_property
    def blocks(self) -> Blocks:
        """As :meth:`bunn.graph.components.Blocks.of` finds them."""
        whole, chosen, device = self.whole, self.chosen, self.chosen.nodes.device
        count = whole.num_components[chosen.members]
        owner = torch.repeat_interleave(torch.arange(count.numel()), count)[self.order]
        ids, sizes = self.ids[self.order], self.sizes[self.order]
        first, count, graph = _sent((whole.component_starts[ids], sizes, owner), device)
        places, component = ranges(first, count, chosen.num_nodes)
        order = whole.by_component[places] - chosen.shift[graph][component]
        rank, local = torch.empty_like(order), torch.empty_like(order)
        rank[order] = torch.arange(order.numel(), device=device)
        local[order] = torch.arange(order.numel(), device=device) - starts(count)[component]
        size, many = torch.unique(sizes, return_counts=True)
        return Blocks(order, rank, tuple(zip(many.tolist(), size.tolist(), strict=True)), local)

    def squares(self) -> Tensor | None:
        """Where the matrices of the components are among those of the union, to be gathered from
        there; :obj:`None` if :attr:`blocks` find them where they are."""
        first, areas = self.whole.squares
        ids = self.ids[self.order]
        start, count = _sent((first[ids], areas[ids]), self.chosen.nodes.device)
        return ranges(start, count, int(areas[ids].sum()))[0]

    def stacks(self) -> list[tuple[int, Tensor]]:
        """For each size of a component which stack of the union they are in, and where in it."""
        _, count = torch.unique(self.whole.sizes, return_counts=True)
        ranks = self.whole.rank[self.ids[self.order]]
        stack = torch.bucketize(ranks, count.cumsum(0), right=True)
        (place,) = _sent([ranks - starts(count)[stack]], self.chosen.nodes.device)
        which, many = torch.unique(stack, return_counts=True)
        return list(zip(which.tolist(), place.split(many.tolist()), strict=True))


class PartOfEigenpairs(Eigenpairs):
    """Those of the union, computed there for all graphs at once, and gathered.

    Args:
        place: The components.
    """

    def __init__(self, place: ComponentsOf) -> None:
        super().__init__()
        self._place = place

    @property
    def known(self) -> bool:
        return self.blocks is not None or self._place.whole.lap.eigenpairs.known

    def by_blocks(self, lap: Laplacian) -> BlockSpectrum:
        if self.blocks is None and not self._place.whole.has_room:
            return super().by_blocks(lap)
        if self.blocks is None:
            self.blocks = before_compiling(self._gathered)
        return self.blocks

    def _gathered(self) -> BlockSpectrum:
        values, vectors = self._place.whole.lap.block_spectrum()
        stacks = self._place.stacks()
        return BlockSpectrum(
            tuple(values[stack][place] for stack, place in stacks),
            tuple(vectors[stack][place] for stack, place in stacks),
        )
