r"""Rotations and reflections of planes, in one pass over the features.

.. math::
    y_0 = c\, x_0 + s\, x_1, \qquad y_1 = \pm (c\, x_1 - s\, x_0),

with a minus for reflections; and its three gradients, in another pass. Features are read and
written in their own type, numbers in between are float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bunn.kernels.launching import launch, parts, power_of_two
from bunn.kernels.steps import turn_pairs, turn_pairs_back

#: Vectors of a program, of the widest row of them, and warps of a program.
TILE, WIDEST, WARPS = 1024, 256, 4


def turn_planes(x: Tensor, cos: Tensor, sin: Tensor, turned: int) -> Tensor:
    """:func:`bunn.kernels.turn`."""
    x, out = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    bundles, size = x.size(1), x.size(3)
    rows, width = _tile(size)
    maps = cos.numel()
    if x.numel() > 0:
        launch(
            turn_pairs,
            (parts(maps, rows), parts(size, width)),
            (x, out, cos.contiguous(), sin.contiguous(), maps, bundles, turned, size),
            WARPS,
            ROWS=rows,
            WIDTH=width,
        )
    return out


def turn_planes_back(
    grad: Tensor, x: Tensor, cos: Tensor, sin: Tensor, turned: int
) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`bunn.kernels.turn_back`."""
    grad, x = grad.contiguous(), x.contiguous()
    grad_x = torch.empty_like(x)
    grad_cos, grad_sin = (torch.empty(cos.shape, device=x.device) for _ in range(2))
    bundles, size = x.size(1), x.size(3)
    rows, width = _tile(size)
    maps = cos.numel()
    if maps > 0:
        launch(
            turn_pairs_back,
            (parts(maps, rows),),
            (
                *(grad, x, grad_x, cos.contiguous(), sin.contiguous(), grad_cos, grad_sin),
                *(maps, bundles, turned, size),
            ),
            WARPS,
            ROWS=rows,
            WIDTH=width,
        )
    return grad_x, grad_cos, grad_sin


def _tile(size: int) -> tuple[int, int]:
    """Maps of a program, and how many of their vectors it takes at once."""
    width = min(power_of_two(max(size, 1)), WIDEST)
    return TILE // width, width
