"""Which rows a block has and which neighbours they share, as :mod:`bunn.kernels.blocks` reads it.

Built on the device of the graph, once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from bunn import kernels
from bunn.graph.spans import starts
from bunn.kernels.arguments import Blocks

#: Rows of a block.
ROWS = 64
#: Neighbours that are gathered at once.
CHUNK = 32
#: Chunks of the longest block that is summed in one piece.
LONGEST = 48
#: Permutations by which rows are ordered.
HASHES = 4
#: Graphs that can gain have so many entries, and so many in a row.
ENTRIES = (2**16, 5 * 10**7)
MEAN_DEGREE = 32
#: How many rows of features have to come down to one.
REUSE = 2.0
#: Factors of nodes are within this, and its inverse: float16 holds their squares.
FACTORS = 2.0**6.5


def wanted(like: Tensor) -> bool:
    """Whether there are kernels for blocks of rows on the device of a tensor."""
    return like.is_cuda and kernels.wanted()


def group_rows(
    crow: Tensor, col: Tensor, weight: Tensor | None, degree: Tensor, root: Tensor
) -> Blocks | None:
    """The blocks of a graph, where there are kernels for them and it gains by them.

    Args:
        crow: ``(n + 1,)`` row pointers.
        col: ``(nnz,)`` column indices, no two of them equal in a row.
        weight: ``(nnz,)`` weights, which have to be one, or :obj:`None`.
        degree: ``(n,)`` the degrees.
        root: ``(n,)`` their roots, up to a factor of each component, in the type of sums.
    """
    if root.dtype != torch.float32 or not wanted(root):
        return None
    if weight is not None and bool((weight != 1).any()):
        return None
    n, entries = degree.numel(), col.numel()
    if not ENTRIES[0] <= entries <= ENTRIES[1] or entries < MEAN_DEGREE * n:
        return None
    low, high = (float(bound) for bound in torch.aminmax(root))
    if low < 1 / FACTORS or high > FACTORS:
        return None
    blocks, reuse = cut_blocks(crow, col, degree, root)
    return blocks if reuse >= REUSE else None


def cut_blocks(
    crow: Tensor,
    col: Tensor,
    degree: Tensor,
    root: Tensor,
    rows: int = ROWS,
    chunk: int = CHUNK,
    longest: int = LONGEST,
) -> tuple[Blocks, float]:
    """Blocks of rows that share neighbours, and entries over rows of features to be read.

    Args:
        crow: As for :func:`group_rows`, like what follows.
        col: Column indices.
        degree: Degrees.
        root: Roots of degrees.
        rows: Rows of a block: a power of two, 16 at least, 32 for chunks of 64.
        chunk: 32 or 64.
        longest: Chunks of the longest piece.
    """
    n = degree.numel()
    length = crow.long().diff()
    row, column = torch.repeat_interleave(length), col.long()
    order = _order(row, column, n)
    place = torch.empty_like(order)
    place[order] = torch.arange(n, device=order.device)
    block, lane = place[row] // rows, place[row] % rows

    shared, which = torch.unique(block * n + column, return_inverse=True)
    owner, neighbour = shared // n, shared % n
    sizes = torch.bincount(owner)
    lengths = -(-sizes // chunk)
    begin = starts(lengths)
    slots = torch.arange(owner.numel(), device=owner.device) - starts(sizes)[owner]
    slots += begin[owner] * chunk
    ids = torch.repeat_interleave(neighbour[starts(sizes)], lengths * chunk)
    ids[slots] = neighbour
    total = ids.numel() // chunk
    at, bit = slots[which] // chunk, slots[which] % chunk
    # Every bit is set once, so that they can be added up.
    word = (at * (chunk // 32) + bit // 32) * rows + lane
    words = torch.zeros(total * (chunk // 32) * rows, dtype=torch.int64, device=col.device)
    words.scatter_add_(0, word, 1 << bit % 32)

    bits = torch.arange(chunk, device=col.device)
    table = torch.zeros(1 + total, chunk + rows * chunk // 32, dtype=torch.int64, device=col.device)
    table[0, bits // 32 * chunk + bits] = 1 << bits % 32
    table[1:, :chunk] = ids.view(total, chunk)
    table[1:, chunk:] = words.view(total, -1)

    padded = torch.full((lengths.numel() * rows,), -1, device=col.device)
    padded[:n] = order
    pieces = torch.from_numpy(_pieces(lengths.cpu().numpy(), longest)).to(col.device)
    pieces = torch.cat((pieces, padded.view(-1, rows)[pieces[:, 3]]), dim=1)
    scales = torch.stack((root, 1 / root, 1 / degree.to(root.dtype), root / degree.to(root.dtype)))
    found = Blocks(_as_words(table), pieces.to(torch.int32), scales)
    return found, column.numel() / shared.numel()


def _order(row: Tensor, column: Tensor, n: int) -> Tensor:
    """Rows that share neighbours next to each other: sorted by the smallest of their neighbours
    under random permutations, the first that counts."""
    generator = torch.Generator().manual_seed(0)
    order = torch.arange(n, device=row.device)
    for _ in range(HASHES):
        shuffled = torch.randperm(n, generator=generator).to(row.device)
        smallest = torch.full_like(order, n).scatter_reduce_(0, row, shuffled[column], "amin")
        order = order[torch.argsort(smallest[order], stable=True)]
    return order


def _as_words(numbers: Tensor) -> Tensor:
    """Integers below ``2**32`` as int32, the highest bit for a sign."""
    return torch.where(numbers < 2**31, numbers, numbers - 2**32).to(torch.int32)


def _pieces(lengths: Any, longest: int) -> Any:
    """First chunk, number of chunks, number of pieces at the first of a block else 0, and block.

    Those of blocks that are cut come first, then the others, the longest at the front.
    """
    count = -(-lengths // longest)
    block = np.repeat(np.arange(len(lengths)), count)
    part = np.arange(len(block)) - np.repeat(np.cumsum(count) - count, count)
    begin = part * lengths[block] // count[block]
    end = (part + 1) * lengths[block] // count[block]
    first = 1 + (np.cumsum(lengths) - lengths)[block] + begin
    pieces = np.stack((first, end - begin, np.where(part == 0, count[block], 0), block), axis=1)
    whole = count[block] == 1
    return pieces[np.lexsort((np.where(whole, begin - end, np.arange(len(block))), whole))]
