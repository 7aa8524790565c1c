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

from bunn import kernels
from bunn.calling import apply, plain


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


def _mirror(x: Tensor, turned: int) -> Tensor:
    """Conjugates all bundles but the first ``turned``, in place."""
    if turned < x.size(1):
        x[:, turned:, 1].neg_()
    return x


def _inverse(sin: Tensor, turned: int) -> Tensor:
    """A rotation is undone by the opposite angle, a reflection by itself."""
    if turned == sin.size(1):
        return -sin
    return torch.cat((-sin[:, :turned], sin[:, turned:]), dim=1)


class _PlaneMap(torch.autograd.Function):
    """Bilinear in ``x`` and ``(cos, sin)``, so its derivatives are maps and dot products again.

    Shapes: ``x: (n, b, 2, p)``, ``cos, sin: (n, b)``; the first ``turned`` bundles are rotated, the
    rest reflected. Arithmetic has the precision of ``cos``.
    """

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, cos: Tensor, sin: Tensor, turned: int
    ) -> tuple[Tensor, int]:
        """Every node has a map of its own, so a batch is more nodes."""
        size, nodes = info.batch_size, x.size(1 if in_dims[0] == 0 else 0)
        x, cos, sin = (
            value.unsqueeze(0).expand(size, *value.shape) if dim is None else value.movedim(dim, 0)
            for value, dim in zip((x, cos, sin), in_dims, strict=False)
        )
        y = plane_map(x.flatten(0, 1), cos.flatten(0, 1), sin.flatten(0, 1), turned)
        return y.unflatten(0, (size, nodes)), 0

    @staticmethod
    def forward(x: Tensor, cos: Tensor, sin: Tensor, turned: int) -> Tensor:
        if kernels.serve_maps(x, cos):
            return kernels.turn(x, cos, sin, turned)
        return _mirror(_rotate(x.to(cos.dtype), cos, sin), turned).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.turned = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, cos, sin = ctx.saved_tensors
        grad_x = None
        by_maps = any(ctx.needs_input_grad[1:3])
        # All at once, unless the gradient is to be differentiated itself.
        if by_maps and kernels.serve_maps(x, cos) and not torch.is_grad_enabled() and plain(grad):
            return *kernels.turn_back(grad, x, cos, sin, ctx.turned), None
        if ctx.needs_input_grad[0]:
            grad_x = plane_map(grad, cos, _inverse(sin, ctx.turned), ctx.turned)
        if not by_maps:
            return grad_x, None, None, None
        grad, x = grad.to(cos.dtype), x.to(cos.dtype)
        if ctx.turned < x.size(1):
            grad = _mirror(grad.clone(), ctx.turned)
        if x.size(-1) == 1:
            (g0, g1), (x0, x1) = grad.squeeze(-1).unbind(-1), x.squeeze(-1).unbind(-1)
            return grad_x, g0 * x0 + g1 * x1, g0 * x1 - g1 * x0, None
        products = grad @ x.mT
        grad_cos = products[..., 0, 0] + products[..., 1, 1]
        return grad_x, grad_cos, products[..., 0, 1] - products[..., 1, 0], None

    @staticmethod
    def jvp(
        ctx: Any, x_: Tensor | None, cos_: Tensor | None, sin_: Tensor | None, _: None
    ) -> Tensor:
        x, cos, sin = ctx.saved_tensors
        parts = [] if x_ is None else [plane_map(x_, cos, sin, ctx.turned)]
        if cos_ is not None or sin_ is not None:
            cos_ = torch.zeros_like(cos) if cos_ is None else cos_
            sin_ = torch.zeros_like(sin) if sin_ is None else sin_
            parts.append(plane_map(x, cos_, sin_, ctx.turned))
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]


def plane_map(x: Tensor, cos: Tensor, sin: Tensor, turned: int) -> Tensor:
    """``r(a) x`` for the first ``turned`` bundles, ``r*(a) x`` for the rest.

    Args:
        x: ``(n, b, 2, p)`` fields, in the type of ``cos`` or one of 16 bits.
        cos: ``(n, b)`` cosines of the angles.
        sin: ``(n, b)`` sines of the angles.
        turned: How many bundles rotate.
    """
    if torch.compiler.is_compiling():  # a compiler fuses the plain formula better than we can
        first, second = x.to(cos.dtype).unbind(-2)
        cos, sin = cos.unsqueeze(-1), sin.unsqueeze(-1)
        sign = torch.ones(x.size(1), 1, dtype=cos.dtype, device=x.device)
        sign[turned:] = -1
        turned_pairs = (cos * first + sin * second, sign * (cos * second - sin * first))
        return torch.stack(turned_pairs, dim=-2).to(x.dtype)
    y: Tensor = apply(_PlaneMap, x, cos, sin, turned)
    return y


class _AngleMap(torch.autograd.Function):
    """The same from the angles, whose sines and cosines exist inside of a kernel alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, angle: Tensor, turned: int, inverse: bool) -> Tensor:
        ctx.turned, ctx.inverse = turned, inverse
        ctx.save_for_backward(x, angle)
        return kernels.turn_by(x, angle, turned, inverse)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, angle = ctx.saved_tensors
        turned, inverse = ctx.turned, ctx.inverse
        if torch.is_grad_enabled() or not plain(grad):  # more than numbers
            cos, sin = _numbers(angle.float())
            grad_x = plane_map(grad, cos, sin if inverse else _inverse(sin, turned), turned)
            slope = plane_map(x, -sin, _inverse(cos, turned) if inverse else cos, turned)
            by_angle = (grad.to(cos.dtype) * slope.to(cos.dtype)).sum((-2, -1))
            return grad_x, by_angle.to(angle.dtype), None, None
        if ctx.needs_input_grad[1]:
            return *kernels.turn_by_back(grad, x, angle, turned, inverse), None, None
        return kernels.turn_by(grad, angle, turned, not inverse), None, None, None


def _numbers(angle: Tensor) -> tuple[Tensor, Tensor]:
    return torch.cos(angle), torch.sin(angle)


class PlaneMaps:
    """Rotations for the first bundles, reflections for the rest.

    Args:
        angle: ``(n, b)`` the angles, in any type.
        turned: How many of the ``b`` bundles rotate.
    """

    #: Features of 16 bits are read as they are, and rounded once.
    any_precision = True

    def __init__(self, angle: Tensor, turned: int) -> None:
        self.angle, self.turned = angle, turned
        self._wide: dict[bool, Tensor] = {}
        self._numbers = None if kernels.serve_angles(angle, angle) else _numbers(self._widened())

    def sync(self, x: Tensor) -> Tensor:
        return self._apply(x, False)

    def desync(self, x: Tensor) -> Tensor:
        return self._apply(x, True)

    def _apply(self, x: Tensor, inverse: bool) -> Tensor:
        # Gradients by all that was turned are added up in the type of the angles: where features
        # have more digits than these, or numbers could be too large, in float32.
        narrow = x.dtype == self.angle.dtype == torch.bfloat16
        angle = self.angle if narrow else self._widened()
        if kernels.serve_angles(x, angle):
            y: Tensor = _AngleMap.apply(x, angle, self.turned, inverse)  # type: ignore[no-untyped-call]
            return y
        # Not kept: what is computed without gradients now may be asked for them later.
        numbers = _numbers(self._widened()) if self._numbers is None else self._numbers
        dtype = torch.float32 if x.dtype.itemsize == 2 else x.dtype
        cos, sin = (number.to(dtype) for number in numbers)
        return plane_map(x, cos, _inverse(sin, self.turned) if inverse else sin, self.turned)

    def _widened(self) -> Tensor:
        """The angles in float32 at least: the same tensor for all who ask with gradients, and for
        all who ask without."""
        if self.angle.dtype.itemsize > 2:
            return self.angle
        if not plain(self.angle):
            return self.angle.float()
        kind = torch.is_grad_enabled()
        if kind not in self._wide:
            self._wide[kind] = self.angle.float()
        return self._wide[kind]
