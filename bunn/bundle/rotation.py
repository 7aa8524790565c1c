r"""Two-dimensional maps, applied as complex numbers of modulus one.

A vector :math:`(x_0, x_1)` is the number :math:`x_0 + i x_1`; then :math:`r(a)` multiplies by
:math:`e^{-ia}`, and :math:`r^*(a)` does the same and conjugates:

.. math::
    r(a) = \begin{pmatrix} \cos a & \sin a \\ -\sin a & \cos a \end{pmatrix}, \qquad
    r^*(a) = \begin{pmatrix} \cos a & \sin a \\ \sin a & -\cos a \end{pmatrix}.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Each number times ``cos - i sin``."""
    if x.size(-1) == 1 and x.dtype in (torch.float32, torch.float64):
        number = torch.view_as_complex(x.squeeze(-1).contiguous())
        return torch.view_as_real(number * torch.complex(cos, -sin)).unsqueeze(-1)
    y = x * cos[..., None, None]
    sin = sin.unsqueeze(-1)
    y.select(-2, 0).add_(sin * x.select(-2, 1))
    y.select(-2, 1).sub_(sin * x.select(-2, 0))
    return y


class _Rotation(torch.autograd.Function):
    """Bilinear in ``x`` and ``(cos, sin)``, so its derivatives are rotations and dot products.

    Shapes: ``x: (n, b, 2, p)``, ``cos, sin: (n, b)``.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return _rotate(x, cos, sin)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, cos, sin = ctx.saved_tensors
        grad_x = rotate(grad, cos, -sin) if ctx.needs_input_grad[0] else None
        if not any(ctx.needs_input_grad[1:]):
            return grad_x, None, None
        if x.size(-1) == 1:
            (g0, g1), (x0, x1) = grad.squeeze(-1).unbind(-1), x.squeeze(-1).unbind(-1)
            return grad_x, g0 * x0 + g1 * x1, g0 * x1 - g1 * x0
        products = grad @ x.mT
        grad_cos = products[..., 0, 0] + products[..., 1, 1]
        return grad_x, grad_cos, products[..., 0, 1] - products[..., 1, 0]

    @staticmethod
    def jvp(ctx: Any, x_: Tensor | None, cos_: Tensor | None, sin_: Tensor | None) -> Tensor:
        x, cos, sin = ctx.saved_tensors
        parts = [] if x_ is None else [rotate(x_, cos, sin)]
        if cos_ is not None or sin_ is not None:
            cos_ = torch.zeros_like(cos) if cos_ is None else cos_
            sin_ = torch.zeros_like(sin) if sin_ is None else sin_
            parts.append(rotate(x, cos_, sin_))
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``r(a) x`` for ``x: (n, b, 2, p)`` and the cosines and sines ``(n, b)`` of the angles."""
    if torch.compiler.is_compiling():  # a compiler fuses the plain formula better than we can
        first, second = x.unbind(-2)
        cos, sin = cos.unsqueeze(-1), sin.unsqueeze(-1)
        return torch.stack((cos * first + sin * second, cos * second - sin * first), dim=-2)
    y: Tensor = _Rotation.apply(x, cos, sin)  # type: ignore[no-untyped-call]
    return y


class PlaneMap:
    """Rotations for the first bundles, reflections for the rest.

    Args:
        angle: ``(n, b)`` the angles.
        num_rotations: How many of the ``b`` bundles rotate.
    """

    def __init__(self, angle: Tensor, num_rotations: int) -> None:
        self.cos, self.sin = torch.cos(angle), torch.sin(angle)
        self.sign: Tensor | None = None  # (b, 1): 1 for a rotation, -1 for a reflection
        if num_rotations < angle.size(1):
            self.sign = angle.new_ones(angle.size(1), 1)
            self.sign[num_rotations:] = -1

    def sync(self, x: Tensor) -> Tensor:
        return self._apply(x, self.sin)

    def desync(self, x: Tensor) -> Tensor:
        # A rotation is undone by the opposite angle, a reflection by itself.
        return self._apply(x, -self.sin if self.sign is None else -self.sin * self.sign.squeeze(1))

    def _apply(self, x: Tensor, sin: Tensor) -> Tensor:
        y = rotate(x, self.cos.to(x.dtype), sin.to(x.dtype))
        if self.sign is None:
            return y
        conjugation = torch.stack((torch.ones_like(self.sign), self.sign), dim=1)  # (b, 2, 1)
        return y * conjugation.to(x.dtype)
