"""Dense products of 16 bits on tensor cores, summed in float32.

They are for features of 16 bits alone, whose rounding is far above what is lost in sums: tensor
cores cut off what does not fit into a sum, term by term, instead of rounding it. Products of
float32 are put together from several of 16 bits in :mod:`bunn.kernels.patches`, which adds up only
a few terms in this way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from bunn.calling import apply
from bunn.graph.components import ALIGNED


def filled_up(matrix: Tensor) -> Tensor:
    """Stacked matrices ``(m, s, s)`` with zeros up to a multiple of :data:`ALIGNED`, which tensor
    cores want."""
    missing = -matrix.size(-1) % ALIGNED
    return pad(matrix, (0, missing, 0, missing))


def multiply_16_bits(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` for stacks of 16 bits, in float32."""
    if not a.is_cuda:
        return a.float() @ b.float()
    if a.size(0) == 1:
        return torch.mm(a[0], b[0], out_dtype=torch.float32).unsqueeze(0)
    return torch.bmm(a, b, out_dtype=torch.float32)


class _NarrowProduct(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, matrix: Tensor) -> Tensor:
        size, missing = x.size(-2), matrix.size(-1) - x.size(-2)
        return multiply_16_bits(matrix, pad(x, (0, 0, 0, missing)))[:, :size].to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return narrow_product(ctx.saved_tensors[0].mT, grad), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        return narrow_product(ctx.saved_tensors[0], tangent)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, matrix: Tensor
    ) -> tuple[Tensor, int]:
        """Columns are independent: a batch is more of them."""
        if in_dims[1] is not None or in_dims[0] is None:
            raise ValueError("vmap over graphs is not supported; batch them block-diagonally")
        columns = x.movedim(in_dims[0], 2)
        return narrow_product(matrix, columns.flatten(2)).unflatten(2, columns.shape[2:]), 2


def narrow_product(matrix: Tensor, x: Tensor) -> Tensor:
    """``H x`` for stacked features ``x: (m, s, c)`` of 16 bits, differentiable in ``x``.

    Args:
        matrix: ``(m, s', s')`` in the type of ``x``, from :func:`filled_up`.
        x: The features.
    """
    y: Tensor = apply(_NarrowProduct, x, matrix)
    return y
