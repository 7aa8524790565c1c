"""Which rows a block has and which neighbours they share, as :mod:`bunn.kernels.blocks` reads it.

Built on the host, once for a graph.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch import Tensor

from bunn import kernels
from bunn.kernels import Blocks

#: Rows of a block.
ROWS = 64
#: Neighbours that are gathered at once.
CHUNK = 32
#: Chunks of the longest block that is summed in one piece.
LONGEST = 96
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


def group_rows(crow: Tensor, col: Tensor, degree: Tensor, root: Tensor) -> Blocks | None:
    """The blocks of a graph whose weights are all one, if it gains by them.

    Args:
        crow: ``(n + 1,)`` row pointers.
        col: ``(nnz,)`` column indices, no two of them equal in a row.
        degree: ``(n,)`` the degrees.
        root: ``(n,)`` float32 their roots, up to a factor of each component.
    """
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
    """Blocks in the order of Cuthill and McKee, and entries over rows of features to be read.

    Args:
        crow: As for :func:`group_rows`, like what follows.
        col: Column indices.
        degree: Degrees.
        root: Roots of degrees.
        rows: Rows of a block: a power of two, 16 at least, 32 for chunks of 64.
        chunk: 32 or 64.
        longest: Chunks of the longest piece.
    """
    n, pointers, column = degree.numel(), crow.cpu().numpy(), col.cpu().numpy()
    pattern = csr_array((np.ones(len(column), np.int8), column, pointers), shape=(n, n))
    order = reverse_cuthill_mckee(pattern, symmetric_mode=True)
    place = np.empty(n, np.int64)
    place[order] = np.arange(n)
    place = np.repeat(place, np.diff(pointers))
    block, lane = place // rows, place % rows

    shared, which = np.unique(block * n + column, return_inverse=True)
    owner, neighbour = np.divmod(shared, n)
    sizes = np.bincount(owner)
    lengths = -(-sizes // chunk)
    ends = np.cumsum(lengths)
    slots = np.arange(len(shared)) + np.repeat((ends - lengths) * chunk - _starts(sizes), sizes)
    ids = np.repeat(neighbour[_starts(sizes)], lengths * chunk)
    ids[slots] = neighbour
    words = np.zeros((ends[-1], chunk // 32, rows), np.uint32)
    at, bit = np.divmod(slots[which], chunk)
    # Every bit is set once, so that they can be added up.
    flat = (at * (chunk // 32) + bit // 32) * rows + lane
    words += _added(flat, np.left_shift(1, bit % 32), words.size).reshape(words.shape)

    head = np.zeros((chunk // 32, chunk), np.uint32)
    head[np.arange(chunk) // 32, np.arange(chunk)] = np.left_shift(1, np.arange(chunk) % 32)
    table = np.zeros((1 + ends[-1], chunk + rows * chunk // 32), np.uint32)
    table[0, : head.size] = head.ravel()
    table[1:, :chunk] = ids.reshape(-1, chunk)
    table[1:, chunk:] = words.reshape(len(words), -1)

    padded = np.full(len(lengths) * rows, -1)
    padded[:n] = order
    pieces = _pieces(lengths, longest)
    pieces = np.concatenate((pieces, padded.reshape(-1, rows)[pieces[:, 3]]), axis=1)
    scales = torch.stack((root, 1 / root, 1 / degree.to(root.dtype), root / degree.to(root.dtype)))
    found = Blocks(_on(table.view(np.int32), crow), _on(pieces.astype(np.int32), crow), scales)
    return found, len(column) / len(shared)


def _starts(sizes: Any) -> Any:
    return np.cumsum(sizes) - sizes


def _added(where: Any, what: Any, size: int) -> Any:
    """Sums of integers below ``2**32``, which float64 holds."""
    return np.bincount(where, what, size).astype(np.uint32)


def _pieces(lengths: Any, longest: int) -> Any:
    """First chunk, number of chunks, number of pieces at the first of a block else 0, and block.

    Those of blocks that are cut come first, then the others, the longest at the front.
    """
    count = -(-lengths // longest)
    block = np.repeat(np.arange(len(lengths)), count)
    part = np.arange(len(block)) - np.repeat(_starts(count), count)
    begin = part * lengths[block] // count[block]
    end = (part + 1) * lengths[block] // count[block]
    first = 1 + _starts(lengths)[block] + begin
    pieces = np.stack((first, end - begin, np.where(part == 0, count[block], 0), block), axis=1)
    whole = count[block] == 1
    return pieces[np.lexsort((np.where(whole, begin - end, np.arange(len(block))), whole))]


def _on(array: Any, like: Tensor) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(like.device)
