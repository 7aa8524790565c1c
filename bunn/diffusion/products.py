r"""Dense products in float32 on tensor cores, which multiply 16 bits.

A matrix is kept as the sum of two float16 matrices, :math:`H = H_1 + 2^{-11} H_2`, and features are
split in the same way when they come, each column divided by a power of two above its largest entry.
Of the four products, the one of both remainders is below the last digit of float32 and left out:

.. math::
    H x \approx H_1 x_1 + 2^{-11} (H_1 x_2 + H_2 x_1).

Products of float16 are exact in float32. Tensor cores add them up in it, sixteen at a time, but cut
off what does not fit instead of rounding: over thousands of terms such errors, all of one sign, are
what is left, 1.2e-5 on 24,000 nodes at t = 1. So :data:`PART` terms are added up there, and what
they give by the float32 units: errors stay below half of :data:`FINEST`, at three products of the
tensor cores, where the float32 units take many times as long and TF32 keeps three digits. For
features of 16 bits a matrix of their own type does, in one product: rounding its entries is no
worse than rounding the features.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from bunn.calling import apply
from bunn.components import ALIGNED

#: The remainder of a float16 number, of 11 bits, is as large as the number when it is multiplied.
REST = 2.0**11
#: Terms that tensor cores add up.
PART = 2048
#: The finest ``tol`` for which products in float32 are formed so: twice the largest error of sums.
FINEST = 8e-6
#: Exponents below which a column is not scaled any further.
LOWEST = -100


class SplitMatrix(NamedTuple):
    """Stacked matrices in two parts, or in one.

    Args:
        high: ``(m, s', s')`` the entries rounded to 16 bits; ``s'`` is ``s`` rounded up to a
            multiple of :data:`ALIGNED`.
        low: ``(m, s', s')`` float16, what is missing, times :data:`REST`; :obj:`None` for a matrix
            that is multiplied with features of 16 bits.
    """

    high: Tensor
    low: Tensor | None

    @classmethod
    def of(cls, matrix: Tensor, dtype: torch.dtype = torch.float32) -> SplitMatrix:
        """Matrices ``(m, s, s)`` with entries of at most one, for features of a type."""
        missing = -matrix.size(-1) % ALIGNED
        matrix = pad(matrix, (0, missing, 0, missing))
        return cls(*_split(matrix)) if dtype == torch.float32 else cls(matrix.to(dtype), None)

    @property
    def adjoint(self) -> SplitMatrix:
        """Every matrix transposed; nothing is copied."""
        return SplitMatrix(self.high.mT, None if self.low is None else self.low.mT)


def _split(x: Tensor) -> tuple[Tensor, Tensor]:
    high = x.half()
    return high, ((x - high) * REST).half()


def multiply_16_bits(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` for stacks of 16 bits, in float32."""
    if not a.is_cuda:
        return a.float() @ b.float()
    if a.size(0) == 1:
        return torch.mm(a[0], b[0], out_dtype=torch.float32).unsqueeze(0)
    return torch.bmm(a, b, out_dtype=torch.float32)


def multiply_in_parts(a: Tensor, b: Tensor) -> Tensor:
    """The same, of which tensor cores add up :data:`PART` terms each."""
    parts = zip(a.split(PART, 2), b.split(PART, 1), strict=True)
    total = multiply_16_bits(*next(parts))
    for terms in parts:
        total += multiply_16_bits(*terms)
    return total


class _SplitProduct(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, high: Tensor, low: Tensor | None) -> Tensor:
        size, missing = x.size(-2), high.size(-1) - x.size(-2)
        if low is None:
            return multiply_16_bits(high, pad(x, (0, 0, 0, missing)))[:, :size].to(x.dtype)
        largest = x.abs().amax(-2, keepdim=True)
        exponent = torch.frexp(largest).exponent.clamp(min=LOWEST)
        scaled = torch.ldexp(pad(x, (0, 0, 0, missing)), -exponent)
        first, rest = _split(scaled)
        cross = multiply_16_bits(high, rest) + multiply_16_bits(low, first)
        y = multiply_in_parts(high, first).add_(cross, alpha=1 / REST)
        return torch.ldexp(y[:, :size], exponent)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return split_product(SplitMatrix(*ctx.saved_tensors).adjoint, grad), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        return split_product(SplitMatrix(*ctx.saved_tensors), tangent)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, high: Tensor, low: Tensor | None
    ) -> tuple[Tensor, int]:
        """Columns are independent: a batch is more of them."""
        if in_dims[1:] != (None, None) or in_dims[0] is None:
            raise ValueError("vmap over graphs is not supported; batch them block-diagonally")
        columns = x.movedim(in_dims[0], 2)
        y = split_product(SplitMatrix(high, low), columns.flatten(2))
        return y.unflatten(2, columns.shape[2:]), 2


def split_product(matrix: SplitMatrix, x: Tensor) -> Tensor:
    """``H x`` for stacked features ``x: (m, s, c)``, differentiable in ``x``.

    They are float32 where the matrix is in two parts, and have the type of it where it is in one.
    """
    y: Tensor = apply(_SplitProduct, x, *matrix)
    return y
