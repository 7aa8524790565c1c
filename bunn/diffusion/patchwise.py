r"""Heat kernels by blocks of nodes that are close together, and the nodes that these reach.

A polynomial of degree :math:`K` in :math:`S` has entries between nodes at most :math:`K` edges
apart, and exact zeros beyond. Nodes that are close to each other reach almost the same ones: 64 of
them on a long chain, at t = 1, little more than a hundred. So the kernel is a stack of small dense
matrices, and heat one pass of products with them: a row of features is gathered once for a block,
instead of once for each of its edges in each of :math:`K` products. Where all is within reach, it
is one dense product, cut up.

How features are multiplied, and why those of float32 keep their digits:
:mod:`bunn.kernels.patches`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bunn import kernels
from bunn.calling import apply, batched
from bunn.diffusion.polynomial import Polynomial, heat
from bunn.graph.operator import SymmetricOperator, for_keeps, random_walk
from bunn.graph.ordering import close_together
from bunn.graph.spans import starts
from bunn.kernels.arguments import Patches, Spans, joined_matrix, split_matrix
from bunn.laplacian import Laplacian

#: Rows of a block, and how many where features of float32 are multiplied with :data:`MANY` columns.
ROWS, MORE_ROWS = 64, 128
MANY = 2048
#: Columns that are gathered at a time.
CHUNK = 32
#: Blocks by which it is found out how far they reach.
SAMPLED = 64
#: Degrees up to which that is looked at; beyond, all is taken to be within reach.
FARTHEST = 128
#: The share of all nodes within reach of one from which on it is no use to look for close ones.
EVERYWHERE = 0.5
#: Entries that are formed at a time.
FORMED_ENTRIES = 2**27
#: What products of float32 are off by at most, relative to the sums of magnitudes: by numbers of 22
#: digits, by sums of chunks that are cut off, and by rounding sums of pieces, and of all. The
#: smallest ``tol`` that leaves a polynomial enough beside them.
LOST_IN_SUMS, LEAST_TOL = 6e-6, 1e-5


@dataclass(frozen=True, eq=False)
class PatchMatrix:
    """``after M before``, and its transpose.

    For features of float32 the matrix is symmetric, and diagonals are kept apart: its entries are
    at most one, whatever the degrees, and what is lost is lost in the norm in which ``L`` is
    symmetric. For those of 16 bits there is one matrix for each direction, and no diagonals.

    Args:
        patches: The matrix.
        transposed: Its transpose, which may be the same.
        before: ``(n, 1)`` what rows of features are multiplied with first.
        after: ``(n, 1)`` what those of the result are multiplied with.
    """

    patches: Patches
    transposed: Patches
    before: Tensor | None = None
    after: Tensor | None = None

    def adjoint(self) -> PatchMatrix:
        """The transpose; nothing is copied."""
        return PatchMatrix(self.transposed, self.patches, self.after, self.before)

    @property
    def num_bytes(self) -> int:
        tensors = (self.patches.entries, self.patches.rest)
        size = sum(t.numel() * t.element_size() for t in tensors if t is not None)
        return size if self.patches is self.transposed else 2 * size

    def times(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """The product with ``x: (n, c)`` by a kernel, into ``out`` if that is given."""
        return kernels.multiply_patches(x, self.patches, out, self.before, self.after)


@for_keeps()
def order(lap: Laplacian) -> Tensor:
    """The nodes ``(n,)``, those that are close in the graph next to each other; cached."""
    known = lap.patchwork
    if known.order is None:
        crow, col, *_ = lap.operator
        found = close_together(crow.cpu().numpy(), col.cpu().numpy())
        known.order = torch.from_numpy(found).to(lap.device)
    return known.order


@for_keeps()
def spread(lap: Laplacian) -> float:
    """How many times as large as the smallest the largest degree is, over those of their components
    on average; cached."""
    known = lap.patchwork
    if known.spread is None:
        if capturing(lap):
            return math.inf  # nothing can be found out now
        root = lap.operator.before
        low, high = (1.0, 1.0) if root is None else (float(end) for end in torch.aminmax(root))
        known.spread = (high / low) ** 2
    return known.spread


def capturing(lap: Laplacian) -> bool:
    """Whether nothing can be found out or formed now."""
    return lap.device.type == "cuda" and torch.cuda.is_current_stream_capturing()


@for_keeps()
def reach(lap: Laplacian, degree: int) -> float:
    """How many nodes a block reaches along so many edges, on average, in whole chunks; cached.

    All of them, where there is no time to find out. Where one node reaches most of the others, so
    does a block, and it is of no use to know which nodes are close.
    """
    if degree > FARTHEST:
        return float(lap.num_nodes)
    known = lap.patchwork.reaches
    if degree not in known:
        if capturing(lap):
            return float(lap.num_nodes)
        nodes = torch.arange(0, lap.num_nodes, -(-lap.num_nodes // SAMPLED), device=lap.device)
        found = _reached(lap, nodes.split(1), degree)
        if found <= EVERYWHERE * lap.num_nodes:
            found = _reached(lap, order(lap).split(ROWS), degree)
        known[degree] = found
    return known[degree]


def _reached(lap: Laplacian, blocks: Sequence[Tensor], degree: int) -> float:
    """The same for some blocks, by :data:`SAMPLED` of them."""
    sampled = blocks[:: -(-len(blocks) // SAMPLED)]
    there = torch.zeros(lap.num_nodes, len(sampled), dtype=lap.dtype, device=lap.device)
    for column, block in enumerate(sampled):
        there[block, column] = 1.0
    for _ in range(degree):
        there = (there + lap.aggregate(there) > 0).to(there.dtype)
    return float((torch.ceil(there.sum(0) / CHUNK) * CHUNK).mean())


def rows_of_blocks(lap: Laplacian, degree: int, dtype: torch.dtype) -> int:
    """How many rows a block has that reaches as far, for features of a type."""
    return MORE_ROWS if dtype == torch.float32 and reach(lap, degree) > MANY else ROWS


#: A matrix that has exact zeros between nodes that are far apart, by its product with columns.
Symmetric = Callable[[Tensor], Tensor]


@for_keeps()
def heat_patches(
    lap: Laplacian, time: float, degree: int, dtype: torch.dtype, rows: int
) -> PatchMatrix:
    """The Chebyshev polynomial of a degree, in blocks of rows, for features of a type."""
    operator = lap.matching(lap.null_vector).operator  # in float64: as exact as can be
    bare = operator._replace(before=None, after=None)
    polynomial = Polynomial("chebyshev", degree, 0.0, time)
    near = reach(lap, degree) <= EVERYWHERE * lap.num_nodes
    nodes = order(lap) if near else torch.arange(lap.num_nodes, device=lap.device)
    found = bare if dtype == torch.float32 else operator
    matrix = _form(nodes, found, lambda x: heat(x, None, bare, polynomial), dtype, rows)
    if dtype != torch.float32:
        return matrix
    return replace(matrix, before=lap.operator.before, after=lap.operator.after)


@for_keeps()
def mean_patches(lap: Laplacian, dtype: torch.dtype) -> PatchMatrix:
    """The mean of the neighbours, in blocks of rows, for features of 16 bits."""
    operator = lap.matching(lap.null_vector).aggregation("mean")
    bare = operator._replace(before=None, after=None)
    return _form(order(lap), operator, lambda x: random_walk(x, bare), dtype, ROWS)


def _form(
    nodes: Tensor,
    operator: SymmetricOperator,
    symmetric: Symmetric,
    dtype: torch.dtype,
    rows: int,
) -> PatchMatrix:
    """``after M before`` for a symmetric matrix ``M``, and its transpose, by nodes in an order."""
    before, after, n = operator.before, operator.after, nodes.numel()
    count = -(-n // rows)
    blocks = torch.cat((nodes, nodes.new_full((count * rows - n,), -1))).view(count, rows)
    at_once = max(1, FORMED_ENTRIES // (n * rows))
    formed = [
        _Formed.of(some, n, symmetric, before, after, dtype) for some in blocks.split(at_once)
    ]
    tables = (
        torch.cat([part.nodes for part in formed]).int(),
        blocks.int(),
        Spans.of(torch.cat([part.lengths for part in formed]), kernels.LONGEST // CHUNK),
    )
    patches = _joined([part.entries for part in formed], *tables)
    if before is None:
        return PatchMatrix(patches, patches)
    return PatchMatrix(patches, _joined([part.transposed for part in formed], *tables))


def _joined(
    parts: list[tuple[Tensor, Tensor | None]], nodes: Tensor, rows: Tensor, spans: Spans
) -> Patches:
    rest = [more for _, more in parts if more is not None]
    entries = torch.cat([first for first, _ in parts])
    return Patches(entries, torch.cat(rest) if rest else None, nodes, rows, spans)


class _Formed(NamedTuple):
    """Some blocks.

    Args:
        nodes: Those that are reached, in whole chunks, those of the block itself last.
        lengths: The number of chunks of every block.
        entries: ``(m, rows, CHUNK)``, and what is missing to them.
        transposed: Those of the transpose, likewise.
    """

    nodes: Tensor
    lengths: Tensor
    entries: tuple[Tensor, Tensor | None]
    transposed: tuple[Tensor, Tensor | None]

    @classmethod
    def of(
        cls,
        rows: Tensor,
        n: int,
        symmetric: Symmetric,
        before: Tensor | None,
        after: Tensor | None,
        dtype: torch.dtype,
    ) -> _Formed:
        """Those with rows ``(count, rows)``, -1 for none."""
        (count, side), at = rows.shape, rows.clamp(min=0)
        columns = torch.zeros(n, count * side, dtype=torch.float64, device=rows.device)
        columns.scatter_(0, at.view(1, -1), (rows >= 0).double().view(1, -1))
        own = (columns != 0).view(n, count, side).any(2)
        columns = symmetric(columns).view(n, count, side)

        block, node = (columns != 0).any(2).T.nonzero(as_tuple=True)
        # The block's own nodes last: what stays is the largest term, to which no others are added.
        last = torch.argsort(2 * block + own[node, block], stable=True)
        block, node = block[last], node[last]
        sizes = torch.bincount(block, minlength=count)
        lengths = -(-sizes // CHUNK)
        first = starts(sizes)
        place = torch.arange(block.numel(), device=rows.device) - first[block]
        place += (starts(lengths) * CHUNK)[block]
        nodes = torch.repeat_interleave(node[first], lengths * CHUNK)
        nodes[place] = node

        def kept(before: Tensor | None, after: Tensor | None) -> tuple[Tensor, Tensor | None]:
            entries = columns[node, block]
            if before is not None and after is not None:
                entries = entries * before[node] * after.squeeze(1)[at[block]]
            tiles = entries.new_zeros(nodes.numel(), side)
            tiles[place] = entries
            stack = tiles.view(-1, CHUNK, side).mT.contiguous()
            return split_matrix(stack) if dtype == torch.float32 else (stack.to(dtype), None)

        entries = kept(before, after)
        return cls(nodes, lengths, entries, entries if before is None else kept(after, before))


class _PatchProduct(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, matrix: PatchMatrix) -> Tensor:
        return matrix.times(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.matrix = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return patch_product(ctx.matrix.adjoint(), grad), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return patch_product(ctx.matrix, tangent)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, matrix: PatchMatrix
    ) -> tuple[Tensor, int]:
        """Columns are independent: a batch is more of them."""
        columns = x.movedim(in_dims[0] or 0, 1)
        return patch_product(matrix, columns.flatten(1)).unflatten(1, columns.shape[1:]), 1


def patch_product(matrix: PatchMatrix, x: Tensor) -> Tensor:
    """``H x`` for ``x: (n, c)`` of the type that the matrix was formed for, differentiable."""
    if batched(x) or torch._C._len_torch_dispatch_stack() > 0:
        return _by_torch(matrix, x)
    y: Tensor = apply(_PatchProduct, x, matrix)
    return y


def _by_torch(matrix: PatchMatrix, x: Tensor) -> Tensor:
    """The same by operations of torch, for whoever looks at each of them."""
    entries, rest, nodes, rows, spans = matrix.patches
    exact = torch.float32 if x.dtype.itemsize == 2 else torch.float64  # whatever TF32 is told
    tiles = entries.to(exact) if rest is None else joined_matrix(entries, rest)
    field = x.to(exact) if matrix.before is None else x.to(exact) * matrix.before
    gathered = field[nodes.long()].view(tiles.size(0), tiles.size(2), x.size(1))
    sums = tiles @ gathered  # of every chunk
    block, _, count, _ = spans.pieces[spans.pieces[:, 1].argsort()].long().unbind(1)
    owner = torch.repeat_interleave(block, count)
    total = sums.new_zeros(rows.size(0), *sums.shape[1:]).index_add(0, owner, sums)
    flat = rows.flatten()
    place = torch.empty(x.size(0), dtype=torch.long, device=x.device)
    place[flat[flat >= 0].long()] = (flat >= 0).nonzero().squeeze(1)
    y = total.view(flat.numel(), x.size(1))[place]
    return (y if matrix.after is None else y * matrix.after).to(x.dtype)
