r"""Products with a matrix for every component, where the components lie, in one pass.

.. math::
    y_{vj} = e^{-t_j \lambda_v} \sum_{u \sim v} M_{vu} x_{uj}

with nodes :math:`u \sim v` of one component; :math:`M` may be transposed, and the factor left out.
A program takes some rows of a component and some columns, and gathers the features of the component
a few nodes at a time: nothing is laid side by side, filled up or brought back. Features of 16 bits
are multiplied by matrices of their type in one product of the tensor cores. Those of float32, and
their matrices, are split into two TF32 numbers each in registers, for three products: the error is
about :math:`2^{-22}`, and the range that of float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bunn.kernels import Decay, Tiles
from bunn.kernels.launching import launch, parts
from bunn.kernels.squares import multiply_squares


class SquareTiling(NamedTuple):
    """How the work is cut up.

    Args:
        width: Columns of a program.
        chunk: Nodes whose features are gathered at a time.
        stages: Steps from the load of nodes to the product.
        warps: Groups of 32 threads of a program.
        precision: How numbers of float32 are multiplied.
    """

    width: int
    chunk: int
    stages: int = 3
    warps: int = 4
    precision: str = "tf32x3"


#: For features of float32, and of 16 bits.
WIDE, NARROW = SquareTiling(64, 32), SquareTiling(128, 64)


def multiply_grouped(
    x: Tensor,
    matrices: Tensor,
    tiles: Tiles,
    transposed: bool,
    decay: Decay | None = None,
    tiling: SquareTiling | None = None,
) -> Tensor:
    """:func:`bunn.kernels.multiply_components`."""
    return _multiply(x, matrices, tiles, transposed, decay, None, None, tiling)


def multiply_grouped_back(
    x: Tensor,
    matrices: Tensor,
    tiles: Tiles,
    transposed: bool,
    decay: Decay,
    other: Tensor,
    tiling: SquareTiling | None = None,
) -> tuple[Tensor, Tensor]:
    """:func:`bunn.kernels.multiply_components_back`."""
    sums = torch.empty(tiles.table.size(0), x.size(1), dtype=torch.float32, device=x.device)
    y = _multiply(x, matrices, tiles, transposed, decay, other.contiguous(), sums, tiling)
    return y, sums.sum(0)


def _multiply(
    x: Tensor,
    matrices: Tensor,
    tiles: Tiles,
    transposed: bool,
    decay: Decay | None,
    other: Tensor | None,
    sums: Tensor | None,
    tiling: SquareTiling | None,
) -> Tensor:
    if x.size(1) > 1 and x.stride(1) != 1:
        x = x.contiguous()
    n, width = x.shape
    out = torch.empty(n, width, dtype=x.dtype, device=x.device)
    tiling = tiling or (WIDE if x.dtype == torch.float32 else NARROW)
    values, times = decay or (None, None)
    if out.numel() > 0:
        launch(
            multiply_squares,
            (tiles.table.size(0), parts(width, tiling.width)),
            (
                *(x, out, matrices, tiles.table, tiles.order, values, times, other, sums),
                *(width, x.stride(0)),
            ),
            tiling.warps,
            **{"TRANSPOSED": transposed, "DECAY": decay is not None},
            **{"PER_COLUMN": isinstance(times, Tensor), "SUMS": sums is not None},
            **{"PRECISION": tiling.precision, "ROWS": tiles.rows, "CHUNK": tiling.chunk},
            **{"WIDTH": tiling.width, "STAGES": tiling.stages},
        )
    return out
