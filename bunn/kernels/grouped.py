r"""Products with a matrix for every component, where the components lie, in one pass.

.. math::
    y_{vj} = e^{-t_j \lambda_v} \sum_{u \sim v} M_{vu} x_{uj}

with nodes :math:`u \sim v` of one component; :math:`M` may be transposed, and the factor left out.
A program takes some rows of a component and some columns, and gathers the features of the component
a few nodes at a time: nothing is laid side by side, filled up or brought back. Features of 16 bits
are multiplied by matrices of their type in one product of the tensor cores. Those of float32, and
their matrices, are split into three bfloat16 numbers each, for six products, or two of TF32 for
three: the error is about :math:`2^{-22}` at most, and the range that of float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from bunn.graph.components import ALIGNED
from bunn.kernels import TERMS
from bunn.kernels.arguments import Decay, Tiles
from bunn.kernels.chains import add_up_parts
from bunn.kernels.launching import launch, parts
from bunn.kernels.squares import multiply_squares

_VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])


class SquareTiling(NamedTuple):
    """How the work is cut up.

    Args:
        width: Columns of a program.
        chunk: Nodes whose features are gathered at a time.
        stages: Steps from the load of nodes to the product.
        warps: Groups of 32 threads of a program.
        precision: How numbers of float32 are multiplied. (default: the best there is)
    """

    width: int
    chunk: int
    stages: int = 3
    warps: int = 4
    precision: str | None = None


#: For features of float32, and of 16 bits.
WIDE, NARROW = SquareTiling(64, TERMS), SquareTiling(128, 64)


def multiply_grouped(
    x: Tensor,
    matrices: Tensor,
    tiles: Tiles,
    transposed: bool,
    decay: Decay | None = None,
    tiling: SquareTiling | None = None,
) -> Tensor:
    """:func:`bunn.kernels.multiply_components`."""
    return _multiply(x, matrices, tiles, transposed, decay, None, tiling)[0]


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
    y, sums = _multiply(x, matrices, tiles, transposed, decay, other, tiling)
    return y, add_up_parts(sums)


def _multiply(
    x: Tensor,
    matrices: Tensor,
    tiles: Tiles,
    transposed: bool,
    decay: Decay | None,
    other: Tensor | None,
    tiling: SquareTiling | None,
) -> tuple[Tensor, Tensor]:
    """The product, and for every tile the sums that ``other`` asks for."""
    if x.size(1) > 1 and x.stride(1) != 1:
        x = x.contiguous()
    tiling = tiling or (WIDE if x.dtype == torch.float32 else NARROW)
    (n, width), num_tiles = x.shape, tiles.table.size(0)
    out = torch.empty(n, width, dtype=x.dtype, device=x.device)
    sums = x.new_empty(0 if other is None else num_tiles, width, dtype=torch.float32)
    values, times = decay or (None, None)
    if out.numel() > 0:
        launch(
            multiply_squares,
            (num_tiles, parts(width, tiling.width)),
            (
                *(x, out, matrices, tiles.table, tiles.order, values, times),
                *(None if other is None else other.contiguous(), sums, width, x.stride(0)),
            ),
            tiling.warps,
            **{"TRANSPOSED": transposed, "DECAY": decay is not None},
            **{"PER_COLUMN": isinstance(times, Tensor), "SUMS": other is not None},
            **{"PRECISION": tiling.precision or _precision(x), "ROWS": tiles.rows},
            **{"CHUNK": tiling.chunk, "WIDTH": tiling.width, "STAGES": tiling.stages},
            **{"ALIGNED": ALIGNED},
        )
    return out, sums


def _precision(x: Tensor) -> str:
    """Products of bfloat16 are faster than those of TF32, where Triton forms them."""
    return "bf16x6" if x.is_cuda and _VERSION >= (3, 6) else "tf32x3"
