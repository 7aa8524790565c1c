r"""The pass over the edges by blocks of rows, for graphs of many neighbours and weights of one.

Rows of a block share neighbours. A block gathers each of them once, ``CHUNK`` at a time, and adds
them up by products with tiles of zeros and ones on the tensor cores. A tile is formed from bits, a
word of them for each row and chunk.

The step is that of :mod:`bunn.kernels.walk`, with the adjacency matrix :math:`A` and factors
:math:`l` of its rows in place of :math:`S`:

.. math::
    y_v = \alpha \, l_v \sum_u A_{vu} x_u - p_v.

With :math:`l = 1 / d` that is a random walk :math:`P = D^{-1} A`. Tiles are exact; where neighbours
have factors, features are multiplied with them before, and rounded.

What is not finite in a node reaches all rows of the blocks that it is a neighbour of.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bunn.kernels.arguments import Blocks
from bunn.kernels.bits import add_pieces, scale_rows, walk_blocks
from bunn.kernels.launching import launch, parts
from bunn.kernels.walk import Coefficient

#: Rows of a block that a program adds up, where it was cut into pieces.
AT_ONCE = 8
#: Rows and columns of a program that multiplies features with factors.
SCALE_ROWS, SCALE_WIDTH = 4, 512


class BlockTiling(NamedTuple):
    """How the work is cut up.

    Args:
        width: Columns of a program.
        stages: Steps from the load of neighbours to the product: half of them lie between the
            load of their features and it.
        warps: Groups of 32 threads of a program.
    """

    width: int = 128
    stages: int = 7
    warps: int = 4


def walk_in_blocks(
    x: Tensor,
    blocks: Blocks,
    *,
    left: Tensor,
    alpha: float = 1.0,
    p: Tensor | None = None,
    minus: bool = True,
    y: Tensor | None = None,
    out: Tensor | None = None,
    r: Tensor | None = None,
    a: Coefficient = 1.0,
    b: Coefficient | None = None,
    c: Coefficient | None = None,
    gamma: Tensor | None = None,
    tiling: BlockTiling | None = None,
) -> None:
    """One step, into ``y`` and ``out``, as :func:`bunn.kernels.walk.walk` makes one.

    Args:
        x: What is gathered, in 16 bits.
        blocks: The graph.
        left: ``(n,)`` float32 factors of the sums.
        alpha: As there, like what follows.
        p: What is subtracted.
        minus: Whether it is.
        y: Where the sum goes.
        out: Where the combination goes.
        r: What it is added to.
        a: The coefficient of the sum.
        b: That of ``p``.
        c: That of ``x``.
        gamma: Factors of the rows of ``out``.
        tiling: How the work is cut up. (default: :class:`BlockTiling`)
    """
    n, width = x.shape
    if n == 0 or width == 0:
        return
    tiling, (chunks, pieces, _) = tiling or BlockTiling(), blocks
    rows = pieces.size(1) - 4
    chunk = chunks.size(1) * 32 // (32 + rows)
    # A block that is cut has two pieces or more: at most so many belong to such ones.
    cut = min(pieces.size(0), 2 * (pieces.size(0) - parts(n, rows)))
    partial = None
    if cut > 0:
        partial = torch.empty(cut, rows, width, dtype=torch.float32, device=x.device)
    flags = {
        **{"P": p is not None, "MINUS": minus, "Y": y is not None, "R": r is not None},
        **{"OUT": out is not None, "B": b is not None, "C": c is not None},
        "GAMMA": gamma is not None,
        "PER_COLUMN": isinstance(a, Tensor),
    }
    tiles = parts(width, tiling.width)
    numbers = (gamma, alpha, width, x.stride(0), width if out is None else out.stride(0))
    launch(
        walk_blocks,
        (pieces.size(0), tiles),
        (x, p, y, r, out, partial, chunks, pieces, a, b, c, left, *numbers),
        tiling.warps,
        **{"CUT": cut > 0, **flags, "ROWS": rows},
        **{"CHUNK": chunk, "WIDTH": tiling.width, "STAGES": tiling.stages},
    )
    if cut > 0:
        launch(
            add_pieces,
            (cut, tiles, rows // AT_ONCE),
            (x, p, y, r, out, partial, pieces, a, b, c, left, *numbers),
            4,
            **{**flags, "ROWS": rows, "AT_ONCE": AT_ONCE, "WIDTH": tiling.width},
        )


def block_product(
    x: Tensor, out: Tensor, blocks: Blocks, before: Tensor | None, after: Tensor | None
) -> None:
    """``after * S (before * x)``, into ``out``; exact but for sums if ``before`` is ``D^1/2``."""
    x = without_root(x, blocks, before)
    walk_in_blocks(x, blocks, left=blocks.scales[3], out=out, gamma=after)


def without_root(x: Tensor, blocks: Blocks, before: Tensor | None) -> Tensor:
    """``D^-1/2 before x``, rounded: what is added up in blocks in place of ``before x``."""
    if blocks.has_root(before):
        return x
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    n, width = x.shape
    if out.numel() > 0:
        grid = (parts(n, SCALE_ROWS), parts(width, SCALE_WIDTH))
        tile = {"OTHER": before is not None, "ROWS": SCALE_ROWS, "WIDTH": SCALE_WIDTH}
        launch(
            scale_rows, grid, (x, out, blocks.scales[1], before, n, width, x.stride(0)), 4, **tile
        )
    return out
