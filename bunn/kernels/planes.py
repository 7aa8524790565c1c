r"""Rotations and reflections of planes, in one pass over the features.

.. math::
    y_0 = c\, x_0 + s\, x_1, \qquad y_1 = \pm (c\, x_1 - s\, x_0),

with a minus for reflections; and its gradients, in another pass. Features are read and written in
their own type, numbers in between are float32. Maps are given by their angles, whose sines and
cosines stay in registers, or by those.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bunn.kernels.launching import launch, parts, power_of_two
from bunn.kernels.turns import turn_pairs, turn_pairs_back

#: Vectors of a program, of the widest row of them, and warps of a program.
TILE, WIDEST, WARPS = 1024, 256, 4


def turn_planes(
    x: Tensor, cos: Tensor, sin: Tensor | None, turned: int, inverse: bool = False
) -> Tensor:
    """:func:`bunn.kernels.turn`; without a sine, ``cos`` is the angle."""
    x, out = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    bundles, size = x.size(1), x.size(3)
    rows, width = _tile(size)
    maps = cos.numel()
    if x.numel() > 0:
        launch(
            turn_pairs,
            (parts(maps, rows), parts(size, width)),
            (x, out, *_contiguous(cos, sin), maps, bundles, turned, size),
            WARPS,
            **{"ANGLE": sin is None, "INVERSE": inverse, "SINGLE": size == 1},
            **{"ROWS": rows, "WIDTH": width},
        )
    return out


def turn_planes_back(
    grad: Tensor, x: Tensor, cos: Tensor, sin: Tensor | None, turned: int, inverse: bool = False
) -> tuple[Tensor, ...]:
    """:func:`bunn.kernels.turn_back`; without a sine, the gradients by ``x`` and the angle."""
    grad, x = grad.contiguous(), x.contiguous()
    grad_x = torch.empty_like(x)
    grad_cos = torch.empty(cos.shape, dtype=cos.dtype, device=x.device)
    grad_sin = None if sin is None else torch.empty_like(grad_cos)
    bundles, size = x.size(1), x.size(3)
    rows, width = _tile(size)
    maps = cos.numel()
    if maps > 0:
        launch(
            turn_pairs_back,
            (parts(maps, rows),),
            (
                *(grad, x, grad_x, *_contiguous(cos, sin), grad_cos, grad_sin),
                *(maps, bundles, turned, size),
            ),
            WARPS,
            **{"ANGLE": sin is None, "INVERSE": inverse, "SINGLE": size == 1},
            **{"ROWS": rows, "WIDTH": width},
        )
    return (grad_x, grad_cos) if grad_sin is None else (grad_x, grad_cos, grad_sin)


def _contiguous(cos: Tensor, sin: Tensor | None) -> tuple[Tensor, Tensor | None]:
    return cos.contiguous(), None if sin is None else sin.contiguous()


def _tile(size: int) -> tuple[int, int]:
    """Maps of a program, and how many of their vectors it takes at once."""
    width = min(power_of_two(max(size, 1)), WIDEST)
    return TILE // width, width
