"""Connected components: what ``t = infinity`` averages over, and the blocks dense methods work in.

A batch of graphs is one block-diagonal graph, and so is any graph with several components. Dense
objects (eigenvectors, heat kernels) are therefore kept per component, components of equal size
stacked, so that a batch of small graphs costs ``sum s_i^2`` and not ``n^2``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from typing import TypeVar

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor
from torch.nn.functional import pad

from bunn.graph.operator import for_keeps
from bunn.graph.spans import ranges, starts
from bunn.kernels.arguments import Tiles

Number = TypeVar("Number", int, Tensor)

#: Components are stacked where their sizes, over this, are rounded up to the same number.
SIMILAR = 32
#: Tensor cores are fed 16 bytes at a time: sizes are filled up to a multiple of this.
ALIGNED = 8
#: Rows of a component that a kernel multiplies together, and with how many columns at a time, or
#: with twice as many.
TOGETHER, AT_A_TIME = 64, 32


#: Places in which a GPU adds up the rows of one component, and of all components together.
PLACES, ALL_PLACES = 256, 2**14


def usual_degrees(labels: Tensor, degree: Tensor, volumes: Tensor) -> Tensor:
    """By what the features of each component are scaled: the median of its degrees, so that on a
    nearly regular graph most nodes have a scale of one, which costs no digits; and a quarter of
    their mean at least, so that hubs do not overflow.

    Args:
        labels: ``(n,)`` the component of every node.
        degree: ``(n,)`` degrees.
        volumes: ``(num_components,)`` their sums.
    """
    sizes = torch.bincount(labels, minlength=volumes.numel())
    order = degree.argsort()
    order = order[labels[order].argsort(stable=True)]
    middle = sizes.cumsum(0) - 1 - sizes // 2
    return torch.maximum(degree[order[middle]], volumes / (4 * sizes))


def sums_over(labels: Tensor, count: int, rows: Tensor) -> Tensor:
    """The sum over each component of ``rows: (n, c)``, for all of its nodes: ``(n, c)``, or ``(1,
    c)`` where there is one component.

    Additions to one place wait for each other on a GPU, and nearly all nodes may be of one
    component. There they are made in several places, whose sums are then added up; so they are in
    the gradient.

    Args:
        labels: ``(n,)`` the component of every node.
        count: The number of components.
        rows: What is added up.
    """
    if count == 1:
        return rows.sum(0, keepdim=True)
    places = _places(count) if rows.is_cuda else 1
    if places > 1:
        labels = labels * places + torch.arange(labels.numel(), device=labels.device) % places
    columns = rows.size(1)
    apart = rows.new_zeros(count * places, columns).index_add(0, labels, rows)
    sums = apart.view(count, places, columns).sum(1, keepdim=True)
    # The gradient of ``index_select`` is not sorted, as that of indexing is.
    return sums.expand(-1, places, -1).reshape(-1, columns).index_select(0, labels)


def _places(count: int) -> int:
    return min(PLACES, max(1, ALL_PLACES // count))


def component_labels(crow: Tensor, col: Tensor) -> tuple[Tensor, int]:
    """The component of every node, ``(n,)`` int64, and the number of components.

    Components are numbered in the order of their first nodes.
    """
    if crow.is_cuda:
        return hooked_labels(crow, col)
    n = crow.numel() - 1
    pattern = csr_array(
        (np.ones(col.numel(), dtype=np.int8), col.cpu().numpy(), crow.cpu().numpy()), shape=(n, n)
    )
    count, labels = connected_components(pattern, directed=False)
    return torch.from_numpy(labels).long().to(crow.device), int(count)


def hooked_labels(crow: Tensor, col: Tensor) -> tuple[Tensor, int]:
    """The same by operations that a GPU is good at.

    Every node points to one of its component that comes no later. In a round, what nodes point to
    is hooked to the first that their neighbours point to, and all follow to the end.
    """
    n = crow.numel() - 1
    nodes = torch.arange(n, device=crow.device)
    row = torch.repeat_interleave(nodes, crow.long().diff())
    leader = nodes
    while True:
        hooked = leader.scatter_reduce(0, leader[row], leader[col], "amin")
        while not torch.equal(further := hooked[hooked], hooked):
            hooked = further
        if torch.equal(hooked, leader):
            break
        leader = hooked
    first, labels = torch.unique(leader, return_inverse=True)
    return labels, first.numel()


@dataclass(frozen=True)
class Blocks:
    """The nodes ordered so that components, and components of equal size, lie together.

    Args:
        order: ``(n,)`` the nodes, by size of their component, then component, then index.
        rank: ``(n,)`` the inverse permutation.
        shapes: ``(m, s)`` for each size: ``m`` components of ``s`` nodes.
        local: ``(n,)`` the place of a node inside its component.
    """

    order: Tensor
    rank: Tensor
    shapes: tuple[tuple[int, int], ...]
    local: Tensor

    @classmethod
    def of(cls, labels: Tensor, count: int) -> Blocks:
        sizes = torch.bincount(labels, minlength=count)
        order = torch.argsort(sizes[labels] * count + labels, stable=True)
        rank = torch.empty_like(order)
        rank[order] = torch.arange(order.numel(), device=order.device)
        first = torch.full_like(sizes, order.numel()).scatter_reduce(0, labels, rank, "amin")
        size, multiplicity = torch.unique(sizes, return_counts=True)
        shapes = tuple(zip(multiplicity.tolist(), size.tolist(), strict=True))
        return cls(order, rank, shapes, rank - first[labels])

    @property
    def largest(self) -> int:
        """The number of nodes of the largest component."""
        return self.shapes[-1][1]

    @cached_property
    def area(self) -> int:
        """``sum s_i^2``: the number of entries of a block-diagonal matrix."""
        return self._area_in(1, 1)

    @cached_property
    def filled_area(self) -> int:
        """The same with sides filled up to multiples of :data:`ALIGNED`, as a kernel reads them."""
        return self._area_in(ALIGNED, ALIGNED)

    @cached_property
    def tiled_area(self) -> int:
        """The same in whole tiles, as a kernel multiplies them."""
        return self._area_in(TOGETHER, AT_A_TIME)

    def _area_in(self, rows: int, columns: int) -> int:
        return sum(m * round_up(s, rows) * round_up(s, columns) for m, s in self.shapes)

    @cached_property
    def num_groups(self) -> int:
        """The number of stacks of :attr:`merged`."""
        return len({similar(*shape) for shape in self.shapes})

    @cached_property
    def merged(self) -> Merged:
        """Components of about the same size stacked, too."""
        with for_keeps():
            return Merged.of(self)

    @cached_property
    def tiles(self) -> Tiles:
        """Matrices of components, filled up to multiples of :data:`ALIGNED`, for a kernel."""
        with for_keeps():
            return tiles_of(self)

    def split(self, x: Tensor) -> list[Tensor]:
        """``x: (n, c)`` as one ``(m, s, c)`` stack per component size."""
        if len(self.shapes) == 1 and self.shapes[0][0] == 1:
            return [x.unsqueeze(0)]
        pieces = x[self.order].split([m * s for m, s in self.shapes])
        return _shaped(pieces, self.shapes)

    def join(self, stacks: Sequence[Tensor]) -> Tensor:
        """The inverse of :meth:`split`."""
        if len(self.shapes) == 1 and self.shapes[0][0] == 1:
            return stacks[0].squeeze(0)
        return torch.cat(_flat(stacks, self.shapes))[self.rank]

    def dense(self, row: Tensor, col: Tensor, value: Tensor) -> Iterator[Tensor]:
        """A block-diagonal sparse matrix as one dense ``(m, s, s)`` stack per component size."""
        place, order = torch.sort(self.rank[row], stable=True)
        column, value = self.local[col][order], value[order]
        begin = torch.tensor([0, *(m * s for m, s in self.shapes)]).cumsum(0)
        entries = torch.searchsorted(place, begin.to(place.device)).tolist()
        found = zip(begin.tolist(), pairwise(entries), strict=False)
        for (m, s), (start, (first, last)) in zip(self.shapes, found, strict=True):
            at = (place[first:last] - start) * s + column[first:last]
            yield value.new_zeros(m * s * s).index_put_((at,), value[first:last]).view(m, s, s)


def similar(m: int, s: int) -> int:
    """The same number for components, ``m`` of ``s`` nodes each, that are stacked."""
    return -(-s // SIMILAR)


@dataclass(frozen=True)
class Merged:
    """Components of about the same size stacked, filled up with zeros to a common one.

    A batch of graphs of any sizes is a few products then, instead of one for every size.

    Args:
        counts: For each stack, how many of the sizes of components are in it.
        shapes: ``(M, S)`` for each stack: ``M`` components, filled up to ``S`` nodes.
        index: ``(sum M S,)`` the nodes, ``n`` where there is none.
        place: ``(n,)`` where they lie in it.
    """

    counts: tuple[int, ...]
    shapes: tuple[tuple[int, int], ...]
    index: Tensor
    place: Tensor

    @classmethod
    def of(cls, blocks: Blocks) -> Merged:
        groups = [list(group) for _, group in groupby(blocks.shapes, lambda shape: similar(*shape))]
        shapes = tuple(
            (sum(m for m, _ in group), -(-group[-1][1] // ALIGNED) * ALIGNED) for group in groups
        )
        # Components, and so the places where they begin, come in the order of the nodes.
        widths = [s for (_, s), group in zip(shapes, groups, strict=True) for _ in group]
        table = [(m, s, width) for (m, s), width in zip(blocks.shapes, widths, strict=True)]
        count, size, width = torch.tensor(table, device=blocks.order.device).unbind(1)
        widths_of = torch.repeat_interleave(width, count)
        first = torch.repeat_interleave(starts(widths_of), torch.repeat_interleave(size, count))
        place = first[blocks.rank] + blocks.local
        index = torch.full((sum(m * s for m, s in shapes),), place.numel(), device=place.device)
        index[place] = torch.arange(place.numel(), device=place.device)
        return cls(tuple(map(len, groups)), shapes, index, place)

    @property
    def whole(self) -> bool:
        """Whether there is one component alone."""
        return len(self.shapes) == 1 and self.shapes[0][0] == 1

    def split(self, x: Tensor) -> list[Tensor]:
        """``x: (n, c)`` as one ``(M, S, c)`` stack per group."""
        if self.whole:
            return [pad(x, (0, 0, 0, self.shapes[0][1] - x.size(0))).unsqueeze(0)]
        pieces = pad(x, (0, 0, 0, 1))[self.index].split([m * s for m, s in self.shapes])
        return _shaped(pieces, self.shapes)

    def join(self, stacks: Sequence[Tensor]) -> Tensor:
        """The inverse of :meth:`split`."""
        if self.whole:
            return stacks[0][0, : self.place.numel()]
        return torch.cat(_flat(stacks, self.shapes))[self.place]

    def fill(self, stacks: Sequence[Tensor]) -> list[Tensor]:
        """``(m, s, ...)`` for every size of a component as ``(M, S, ...)``, all but the first
        dimension filled up."""
        remaining, found = iter(stacks), []
        for count, (_, size) in zip(self.counts, self.shapes, strict=True):
            group = [next(remaining) for _ in range(count)]
            missing = [size - stack.size(1) for stack in group]
            filled = [
                pad(stack, (stack.dim() - 1) * (0, more))
                for stack, more in zip(group, missing, strict=True)
            ]
            found.append(torch.cat(filled))
        return found


Shapes = Sequence[tuple[int, int]]


# Gradients that are batched have rules for these, and none for flatten and unflatten.
def _shaped(pieces: Sequence[Tensor], shapes: Shapes) -> list[Tensor]:
    return [p.reshape(*shape, p.size(1)) for p, shape in zip(pieces, shapes, strict=True)]


def _flat(stacks: Sequence[Tensor], shapes: Shapes) -> list[Tensor]:
    return [s.reshape(m * n, s.size(2)) for s, (m, n) in zip(stacks, shapes, strict=True)]


def round_up(number: Number, step: int) -> Number:
    """The next multiple of ``step``."""
    return (number + step - 1) // step * step


def sent(table: Tensor, device: torch.device) -> Tensor:
    """Numbers that the host knows, on a device; nobody waits for their arrival."""
    return ready_to_send(table, device).to(device, non_blocking=True)


def ready_to_send(table: Tensor, device: torch.device) -> Tensor:
    """The same numbers in memory from which a device takes them without anybody waiting."""
    return table.pin_memory() if device.type == "cuda" and not table.is_cuda else table


def tiles_of(blocks: Blocks, rows: int = TOGETHER) -> Tiles:
    """The rows of all components, the largest of which are taken first."""
    count, size = torch.tensor(blocks.shapes).unbind(1)  # on the host, which knows them
    sizes = torch.repeat_interleave(size, count)
    begin = starts(round_up(sizes, ALIGNED).square())
    table, _ = cut_into_tiles(sizes, starts(sizes), begin, rows)
    table = sent(table.flip(0).to(torch.int32).contiguous(), blocks.order.device)
    return Tiles(table, blocks.order.to(torch.int32), rows)


def cut_into_tiles(sizes: Tensor, first: Tensor, begin: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """The rows of components, so many at a time.

    Args:
        sizes: ``(c,)`` nodes of every component.
        first: ``(c,)`` where they begin.
        begin: ``(c,)`` where the matrices of components do.
        rows: At a time.

    Returns:
        ``(t, 5)`` the table of :class:`bunn.kernels.arguments.Tiles`, a component after the other,
        and ``(c,)`` in how many tiles each is cut.
    """
    parts = round_up(sizes, rows) // rows
    part, owner = ranges(torch.zeros_like(parts), parts, int(parts.sum()))
    sides = round_up(sizes, ALIGNED) // ALIGNED
    places = torch.stack((begin // ALIGNED**2, sides, first, sizes), 1)
    return torch.cat((places[owner], part.unsqueeze(1)), 1), parts
