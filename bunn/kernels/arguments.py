"""What kernels read: graphs, matrices and numbers as they lie in memory."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from bunn.graph.spans import ranges, starts

#: Numbers that are split into two of float16 are below two to this power, or twice that.
BITS = 14
#: Columns are filled up to a multiple of as many, to be read 16 bytes at a time: read a number at a
#: time they take several times as long.
EVEN = 16


def even(x: Tensor) -> Tensor:
    """``x`` with columns of zeros up to a multiple of :data:`EVEN`."""
    missing = -x.size(-1) % EVEN
    return pad(x, (0, missing)) if missing else x


class Blocks(NamedTuple):
    """Rows that are taken together, from :func:`bunn.kernels.grouping.group_rows`.

    Args:
        chunks: ``(1 + m, CHUNK + ROWS * CHUNK / 32)`` int32: neighbours of a block, ``CHUNK`` at a
            time, then words of bits that say whose they are. The first row has the bits by
            themselves.
        pieces: ``(s, 4 + ROWS)`` int32: first chunk, number of chunks, the number of pieces of the
            block where it is the first of them, else 0, block, and the rows, -1 for none.
        scales: ``(4, n)`` float32: ``D^1/2`` up to a factor of each component, its inverse,
            ``D^-1`` and the product of the first and the third.
    """

    chunks: Tensor
    pieces: Tensor
    scales: Tensor

    def has_root(self, before: Tensor | None) -> bool:
        """Whether factors are the root of the degrees: the same memory, which is not looked at."""
        return before is not None and before.data_ptr() == self.scales.data_ptr()


class Rows(NamedTuple):
    """``S`` as the kernels read it.

    Args:
        crow: ``(n + 1,)`` row pointers.
        col: ``(nnz,)`` column indices.
        value: ``(nnz,)`` entries, in the type that sums are formed in.
        segments: The pieces of long rows, from :func:`cut_long_rows`.
        blocks: Rows that share neighbours.
    """

    crow: Tensor
    col: Tensor
    value: Tensor
    segments: Tensor | None
    blocks: Blocks | None = None


class Tiles(NamedTuple):
    """Square matrices, one for every component, cut into rows that are multiplied together.

    Args:
        table: ``(t, 5)`` int32: where the matrix begins, over the square of
            :data:`bunn.graph.components.ALIGNED`; its side, filled up to a multiple of that, over
            that; where the nodes of the component begin in ``order``; how many they are; and the
            first of the rows, over ``rows``.
        order: ``(n,)`` int32 the nodes, by component.
        rows: How many rows are taken together.
    """

    table: Tensor
    order: Tensor
    rows: int


class Spans(NamedTuple):
    """Blocks of chunks, of which long ones are taken piece by piece.

    Args:
        pieces: ``(p, 4)`` int32, the longest first: the block, the first chunk, how many, and which
            of the sums to be added up is that of the piece, -1 where it is a whole block.
        cut: ``(k, 3)`` int32 the blocks in several pieces: which, the first of their sums, and how
            many.
        num_sums: Those of all such pieces.
    """

    pieces: Tensor
    cut: Tensor
    num_sums: int

    @classmethod
    def of(cls, lengths: Tensor, most: int) -> Spans:
        """Those of blocks one after the other.

        Args:
            lengths: ``(blocks,)`` the number of chunks of each.
            most: Chunks of a piece.
        """
        number = (-(-lengths // most)).clamp(min=1)
        sums = torch.where(number > 1, number, 0)
        part, block = ranges(torch.zeros_like(number), number, int(number.sum()))
        begin, end = (lengths[block] * at // number[block] for at in (part, part + 1))
        place = torch.where(sums[block] > 0, starts(sums)[block] + part, -1)
        pieces = torch.stack((block, starts(lengths)[block] + begin, end - begin, place), 1)
        pieces = pieces[pieces[:, 2].argsort(descending=True, stable=True)]
        which = sums.nonzero().squeeze(1)
        cut = torch.stack((which, starts(sums)[which], sums[which]), 1)
        return cls(pieces.int(), cut.int(), int(sums.sum()))


class Patches(NamedTuple):
    """A matrix by blocks of rows, each with the columns in which one of them has an entry.

    Args:
        entries: ``(m, ROWS, CHUNK)`` those of a block, ``CHUNK`` columns at a time: in 16 bits for
            features of such, else in float16 by :func:`split_matrix`.
        rest: What is missing to those of float32, likewise.
        nodes: ``(m * CHUNK,)`` int32 the columns.
        rows: ``(blocks, ROWS)`` int32 the rows, -1 for none.
        spans: Where the chunks of the blocks are.
    """

    entries: Tensor
    rest: Tensor | None
    nodes: Tensor
    rows: Tensor
    spans: Spans


class Decay(NamedTuple):
    """Factors ``exp(-t_j lambda_i)`` of the rows and columns of a product.

    Args:
        values: ``(n,)`` float32.
        times: One number, or ``(c,)`` float32.
    """

    values: Tensor
    times: float | Tensor


class Listing(NamedTuple):
    """The edges at every node, all that arrive there or all that leave.

    Args:
        pointer: ``(n + 1,)`` where those of a node begin.
        other: ``(e,)`` their other ends.
        place: ``(e,)`` which edges they are, :obj:`None` if they are in order.
    """

    pointer: Tensor
    other: Tensor
    place: Tensor | None = None


class Factor(NamedTuple):
    """A factor of a real polynomial of ``S``: one for each real root, and for each pair of them.

    Args:
        steps: Coefficients of the steps ``y = a S x + b p + c x`` that it takes: one on what is
            multiplied, or one on that and one on its result, with ``p`` what is multiplied.
    """

    steps: tuple[tuple[float, float, float], ...]


class Dropout(NamedTuple):
    """What is dropped.

    Args:
        rate: The share of entries.
        seeds: Integers on the device.
        place: Which of them is the seed.
    """

    rate: float
    seeds: Tensor | None
    place: int = 0


def split_matrix(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Entries of at most one in two parts, as they are multiplied with features of float32."""
    scaled = matrix.double() * 2.0**BITS
    high = scaled.half()
    return high, (scaled - high).half()


def joined_matrix(high: Tensor, low: Tensor) -> Tensor:
    """The entries again, in float64."""
    return (high.double() + low) * 2.0**-BITS
