r"""Products with a matrix for every component, and heat from the eigenvectors of each.

Where a GPU multiplies components where they lie (:mod:`bunn.kernels.grouped`), a dense product is
one pass and heat from eigenvectors two:

.. math::
    c = e^{-t\Lambda} R^\top x, \qquad y = L c, \qquad
    L = D^{-1/2} \Phi, \quad R = D^{1/2} \Phi.

Coefficients lie at the nodes of their component, as good a place as any. Backwards, with
:math:`h = L^\top g`, the gradient by :math:`x` is :math:`R\, e^{-t\Lambda} h`, two passes again,
and that by the time of a column :math:`-\sum_i \lambda_i c_i h_i`, summed in the first of them.
For whoever watches, a transform or another derivative, there are the same sums by torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from bunn import kernels
from bunn.batches.selection import ComponentsOf
from bunn.calling import plain
from bunn.graph.components import ALIGNED, Blocks, round_up
from bunn.kernels import TERMS
from bunn.kernels.arguments import Decay, even


def lost_in_sums(size: int) -> float:
    """What products of float32 with components of so many nodes are off by at most, relative to the
    sums of magnitudes.

    Tensor cores cut off what does not fit into a sum, term by term: each of :data:`TERMS` may lose
    a unit in the last place of the largest. The float32 units add these sums up, and may lose half
    a unit with each.
    """
    return (TERMS + size / TERMS / 2) * torch.finfo(torch.float32).eps


@dataclass(frozen=True, eq=False)
class BlockMatrix:
    """A block-diagonal matrix.

    Args:
        entries: Those of all components, filled up to multiples of :data:`ALIGNED`, one after the
            other.
        blocks: The components.
        transposed: Whether the transpose is meant.
    """

    entries: Tensor
    blocks: Blocks
    transposed: bool = False

    @classmethod
    def of(cls, stacks: Sequence[Tensor], blocks: Blocks, dtype: torch.dtype) -> BlockMatrix:
        """One ``(m, s, s)`` stack per component size, for features of a type."""
        missing = [round_up(s, ALIGNED) - s for _, s in blocks.shapes]
        pairs = zip(stacks, missing, strict=True)
        filled = [pad(stack.to(dtype), (0, more, 0, more)).flatten() for stack, more in pairs]
        return cls(torch.cat(filled), blocks)

    def adjoint(self) -> BlockMatrix:
        """The transpose; nothing is copied."""
        return replace(self, transposed=not self.transposed)

    def part(self, place: Tensor | None, blocks: Blocks) -> BlockMatrix:
        """The matrices of some components, whose entries are at ``place``, or stay where they
        are."""
        entries = self.entries if place is None else self.entries[place]
        return BlockMatrix(entries, blocks, self.transposed)

    def stacks(self) -> list[Tensor]:
        """One ``(m, s, s)`` stack per component size."""
        shapes = [(m, s, round_up(s, ALIGNED)) for m, s in self.blocks.shapes]
        pieces = zip(
            self.entries.split([m * side**2 for m, _, side in shapes]), shapes, strict=True
        )
        found = [piece.view(m, side, side)[:, :s, :s] for piece, (m, s, side) in pieces]
        return [stack.mT for stack in found] if self.transposed else found

    def times(self, x: Tensor, decay: Decay | None = None) -> Tensor:
        """The product with ``x: (n, c)`` by a kernel, times ``decay``."""
        tiles = self.blocks.tiles
        return kernels.multiply_components(x, self.entries, tiles, self.transposed, decay)

    def times_back(self, x: Tensor, decay: Decay, other: Tensor) -> tuple[Tensor, Tensor]:
        """The same, and its sums with ``other``: :func:`bunn.kernels.multiply_components_back`."""
        tiles = self.blocks.tiles
        return kernels.multiply_components_back(
            x, self.entries, tiles, self.transposed, decay, other
        )


class _BlockProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: BlockMatrix) -> Tensor:
        ctx.matrix = matrix
        return matrix.times(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return block_product(ctx.matrix.adjoint(), grad), None


def block_product(matrix: BlockMatrix, x: Tensor) -> Tensor:
    """``M x`` for ``x: (n, c)`` in the type of the matrix, differentiable in ``x``."""
    if plain(x):
        y: Tensor = _BlockProduct.apply(even(x), matrix)  # type: ignore[no-untyped-call]
        return _cut(y, x.size(1))
    blocks = matrix.blocks
    exact = torch.float32 if x.dtype.itemsize == 2 else torch.float64  # whatever TF32 is told
    parts = zip(matrix.stacks(), blocks.split(x.to(exact)), strict=True)
    return blocks.join([stack.to(exact) @ part for stack, part in parts]).to(x.dtype)


def _cut(y: Tensor, columns: int) -> Tensor:
    return y if y.size(1) == columns else y[:, :columns].contiguous()


class Basis(NamedTuple):
    """The eigenvectors of every component.

    Args:
        left: ``D^-1/2 Phi``, what coefficients are multiplied with.
        right: ``D^1/2 Phi``, whose transpose features are multiplied with.
        values: ``(n,)`` the eigenvalues, those of a component at its nodes.
    """

    left: BlockMatrix
    right: BlockMatrix
    values: Tensor

    @classmethod
    def of(
        cls,
        values: Sequence[Tensor],
        vectors: Sequence[Tensor],
        root: Tensor | None,
        blocks: Blocks,
        dtype: torch.dtype,
    ) -> Basis:
        """From all eigenpairs by component size and ``root: (n, 1)``, for features of a type."""
        placed = torch.cat([value.flatten() for value in values])[blocks.rank]
        if root is None:
            matrix = BlockMatrix.of(vectors, blocks, dtype)
            return cls(matrix, matrix, placed)
        pairs = list(zip(vectors, blocks.split(root), strict=True))
        left = BlockMatrix.of([vector / factor for vector, factor in pairs], blocks, dtype)
        right = BlockMatrix.of([vector * factor for vector, factor in pairs], blocks, dtype)
        return cls(left, right, placed)

    def part(self, of: ComponentsOf) -> Basis:
        """The eigenvectors of some components."""
        place, blocks = of.squares(), of.blocks
        left = self.left.part(place, blocks)
        right = left if self.right is self.left else self.right.part(place, blocks)
        return Basis(left, right, self.values[of.chosen.nodes])


class _BasisHeat(torch.autograd.Function):
    """Heat, and the coefficients, through which a gradient by the times is differentiated again."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, times: Tensor | None, time: float, basis: Basis
    ) -> tuple[Tensor, Tensor]:
        found = basis.right.adjoint().times(x, _decay(basis, times, time, x.size(1)))
        ctx.set_materialize_grads(False)
        ctx.time, ctx.basis = time, basis
        ctx.save_for_backward(times, found if ctx.needs_input_grad[1] else None)
        return basis.left.times(found), found

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, more: Tensor | None) -> tuple[Tensor | None, ...]:
        times, found = ctx.saved_tensors
        basis, rate = ctx.basis, None
        back = basis.left.adjoint()
        if more is None and grad is not None and not torch.is_grad_enabled() and plain(grad):
            decay = _decay(basis, times, ctx.time, grad.size(1))
            if found is None:
                decayed = back.times(grad, decay)
            else:
                decayed, rate = back.times_back(grad, decay, found)
        else:
            parts = [] if grad is None else [block_product(back, grad)]
            whole = sum(parts if more is None else [*parts, more])
            factors = decay_factors(basis.values, ctx.time if times is None else times)
            decayed = (factors * whole).to(basis.left.entries.dtype)
            if found is not None:
                rate = -(basis.values.unsqueeze(1) * found * whole).sum(0)
        by_x = block_product(basis.right, decayed) if ctx.needs_input_grad[0] else None
        if rate is None:
            return by_x, None, None, None
        by_times = rate.sum(0, keepdim=True) if times.numel() == 1 else rate
        return by_x, by_times.to(times.dtype), None, None


def basis_heat(x: Tensor, time: float | Tensor, basis: Basis) -> Tensor:
    """``L exp(-t Lambda) R^T x`` for ``x: (n, c)`` in the type of the basis.

    It is differentiable in ``x`` and in times ``(1,)`` or ``(c,)``.
    """
    times, number = (time, 0.0) if isinstance(time, Tensor) else (None, time)
    if plain(x) and (times is None or plain(times)):
        if times is not None and times.numel() > 1:
            times = even(times)
        y: Tensor
        y, _ = _BasisHeat.apply(even(x), times, number, basis)  # type: ignore[no-untyped-call]
        return _cut(y, x.size(1))
    found = decay_factors(basis.values, time) * block_product(basis.right.adjoint(), x)
    return block_product(basis.left, found.to(x.dtype))


def decay_factors(values: Tensor, time: float | Tensor) -> Tensor:
    """``exp(-t lambda)``: ``(..., k, 1)`` for one time, ``(..., k, c)`` for one per column."""
    if not isinstance(time, Tensor):
        return torch.exp(-time * values).unsqueeze(-1)
    return torch.exp(-values.unsqueeze(-1) * time.to(values.dtype))


def _decay(basis: Basis, times: Tensor | None, time: float, width: int) -> Decay:
    """The same as a kernel reads it."""
    if times is None:
        return Decay(basis.values, time)
    return Decay(basis.values, times.float().expand(width).contiguous())
