"""Householder reflections (Appendix E.1): every orthogonal matrix from at most d of them."""

from __future__ import annotations

import torch
from torch import Tensor


def reflections(matrix: Tensor) -> Tensor:
    r"""Vectors :math:`v_1, \dots, v_k`, ``k <= d``, whose reflections multiply to ``matrix``.

    .. math::
        Q = H_1 \cdots H_k, \qquad H_i = I - 2 v_i v_i^\top / \|v_i\|^2

    Column by column: :math:`v = Q e_j - e_j` reflects the ``j``-th column onto its axis and leaves
    the axes before it alone; a column that is there already needs none (Cartan and Dieudonné). A
    reflection turns the determinant around, so ``k`` is even or odd with it. A matrix that is
    orthogonal only to rounding is taken for the orthogonal one next to it.

    Args:
        matrix: ``(d, d)`` orthogonal, in float64.

    Returns:
        ``(k, d)`` unit vectors.
    """
    d, shape = matrix.size(-1), tuple(matrix.shape)
    if shape != (d, d):
        raise ValueError(f"matrix of shape {shape} is not orthogonal; it must be square")
    error = float((matrix.mT @ matrix - torch.eye(d, dtype=matrix.dtype)).abs().max())
    if not error <= 1e-8:  # NaN included
        raise ValueError(f"matrix of shape {shape} is not orthogonal: |QᵀQ − I| = {error:.0e}")
    rest, vectors = matrix.clone(), []
    for j in range(d):
        vector = rest[:, j].clone()
        vector[:j] = 0.0  # where rounding alone is left
        beyond, along = vector[j + 1 :].norm(), vector[j].clone()
        if along > 0 and beyond < torch.finfo(matrix.dtype).eps:
            continue
        size = torch.hypot(beyond, along)
        # along - size, without cancellation where the column is next to its axis.
        vector[j] = along - size if along <= 0 else -beyond.square() / (along + size)
        unit = vector / vector.norm()
        rest = rest - 2 * unit[:, None] * (unit @ rest)
        vectors.append(unit)
    return torch.stack(vectors) if vectors else matrix.new_zeros(0, d)


def as_parameters(vectors: Tensor) -> Tensor:
    """``(d, d)`` parameters of a ``"householder"`` map that is the product of ``k`` reflections.

    It takes d reflections, or d - 1, whichever is even or odd with ``k``; the rest are pairs of
    equal ones, which cancel.
    """
    k, d = vectors.shape
    axis = torch.eye(d, dtype=vectors.dtype)[:1]
    return torch.cat((vectors, axis.expand(d - k, d)))
