r"""Products with a matrix most of whose entries are zero, or none, by blocks of rows.

.. math::
    y_v = \sum_{u \in C} H_{vu} x_u, \qquad v \in R

for blocks of rows :math:`R`, each with the columns :math:`C` in which one of them has an entry. The
rows :math:`x_u` are gathered once for the whole block, a chunk of them at a time, and multiplied by
the tensor cores.

Features of 16 bits are multiplied by entries of their type. Those of float32 are divided by a power
of two above the largest of their column and split into two float16 numbers, :math:`x = x_1 + x_2`
with 22 digits, and so is the matrix, once. Of the four products, the one of both remainders is
below the last digit and left out:

.. math::
    H x \approx (H_2 x_1 + H_1 x_2) + H_1 x_1.

Products of float16 are exact in float32. Tensor cores add them up in it, but cut off what does not
fit, term by term, instead of rounding it: errors of one sign, which add up. So only a chunk is
added up there, from the smaller terms to the larger, then by the float32 units those of a piece of
the columns, and the pieces of a block that has several last, in float64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bunn.kernels.arguments import BITS, EVEN, Patches, even
from bunn.kernels.halves import add_patches, find_largest, multiply_patches, split_halves
from bunn.kernels.launching import launch, parts

#: The smallest exponent of a column, as float32 has it, whose inverse is a number of float32.
LOWEST = 15
#: Rows and columns that are split by a program.
SPLIT_ROWS, SPLIT_WIDTH, SPLIT_WARPS = 64, 128, 4
#: Columns whose pieces are added up by a program.
ADD_WIDTH, ADD_WARPS = 32, 4


class PatchTiling(NamedTuple):
    """How the work is cut up.

    Args:
        width: Columns of a program.
        stages: Steps from the load of nodes to the product.
        warps: Groups of 32 threads of a program.
    """

    width: int
    stages: int
    warps: int


#: For blocks of up to 64 rows, and of more.
FEW_ROWS, MANY_ROWS = PatchTiling(128, 6, 4), PatchTiling(64, 5, 4)


def split(x: Tensor, before: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """``before * x`` for features ``(n, c)`` of float32 in two parts, and the largest of every
    column, as its bits."""
    n, width = x.shape
    largest = x.new_zeros(width, dtype=torch.int32)
    high, low = (x.new_empty(n, width, dtype=torch.float16) for _ in range(2))
    grid = (parts(width, SPLIT_WIDTH), parts(n, SPLIT_ROWS))
    tile, sizes = {"AT_ONCE": SPLIT_ROWS, "WIDTH": SPLIT_WIDTH}, (n, width, x.stride(0))
    scaled = {"BEFORE": before is not None}
    launch(find_largest, grid, (x, before, largest, *sizes), SPLIT_WARPS, **scaled, **tile)
    launch(
        split_halves,
        grid,
        (x, before, largest, high, low, *sizes),
        SPLIT_WARPS,
        **{**scaled, "LOWEST": LOWEST, "BITS": BITS, **tile},
    )
    return high, low, largest


def multiply(
    x: Tensor,
    patches: Patches,
    out: Tensor | None = None,
    before: Tensor | None = None,
    after: Tensor | None = None,
    tiling: PatchTiling | None = None,
) -> Tensor:
    """:func:`bunn.kernels.multiply_patches`."""
    if x.size(1) % EVEN:
        y = multiply(even(x), patches, None, before, after, tiling)[:, : x.size(1)]
        return y.contiguous() if out is None else out.copy_(y)
    if x.size(1) > 1 and x.stride(1) != 1:
        x = x.contiguous()
    wide = x.dtype == torch.float32
    (n, width), (_, rows, chunk) = x.shape, patches.entries.shape
    tiling = tiling or (FEW_ROWS if rows <= 64 else MANY_ROWS)
    if out is None:
        out = torch.empty(n, width, dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    pieces, cut, num_sums = patches.spans
    partial = out.new_empty(num_sums, rows, width, dtype=torch.float32) if num_sums else None
    high, low, largest = split(x, before) if wide else (x, None, None)
    launch(
        multiply_patches,
        (parts(width, tiling.width) * pieces.size(0),),
        (
            *(high, low, out, partial, patches.entries, patches.rest, patches.nodes, patches.rows),
            *(pieces, largest, after, width, high.stride(0), out.stride(0)),
        ),
        tiling.warps,
        **{"SPLIT": wide, "AFTER": after is not None, "CUT": num_sums > 0, "LOWEST": LOWEST},
        **{"BITS": BITS, "ROWS": rows, "CHUNK": chunk, "WIDTH": tiling.width},
        **{"STAGES": tiling.stages},
    )
    if partial is not None:
        grid = (parts(width, ADD_WIDTH), cut.size(0))
        arguments = (partial, out, cut, patches.rows, width, out.stride(0))
        launch(add_patches, grid, arguments, ADD_WARPS, ROWS=rows, WIDTH=ADD_WIDTH)
    return out
