"""Householder reflections (Appendix E.1): every orthogonal matrix from at most d of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from bunn.bundle import FlatBundle
from bunn.theory.claim import Erratum, Evidence, at_least, at_most, claim


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


def _random_orthogonal(d: int, determinant: int, generator: torch.Generator) -> Tensor:
    matrix, _ = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64, generator=generator))
    if torch.linalg.det(matrix) * determinant < 0:
        matrix[:, 0] = -matrix[:, 0]
    q: Tensor = matrix
    return q


def _orthogonal(d: int, generator: torch.Generator) -> list[Tensor]:
    """Random ones of both determinants, and those at the corners: ``I``, ``-I``, a permutation."""
    identity = torch.eye(d, dtype=torch.float64)
    drawn = [_random_orthogonal(d, sign, generator) for sign in (1, -1) for _ in range(5)]
    return [*drawn, identity, -identity, identity[torch.randperm(d, generator=generator)]]


@claim("householder", "Appendix E.1", "an orthogonal matrix is a product of at most d reflections")
def householder(dims: Sequence[int] = (1, 2, 3, 4, 5, 8), seed: int = 0) -> Iterator[Evidence]:
    """Matrices of both determinants taken apart, and put together again by the library's maps."""
    generator = torch.Generator().manual_seed(seed)
    products, counts, maps = [], [], []
    for d in dims:
        for matrix in _orthogonal(d, generator):
            vectors = reflections(matrix)
            product = torch.eye(d, dtype=torch.float64)
            for vector in vectors:
                product = product - 2 * (product @ vector)[:, None] * vector
            products.append(float((product - matrix).abs().max()))
            counts.append(len(vectors) - d)
            maps.append(float((_through_bundle(vectors) - matrix).abs().max()))
    yield at_most(
        "product of the reflections against the matrix, both determinants", products, 1e-12
    )
    yield at_most("number of reflections minus d", [float(c) for c in counts], 0.0)
    yield at_most("the same through FlatBundle(maps='householder')", maps, 1e-12)
    yield _parity_erratum(dims, generator)


def _through_bundle(vectors: Tensor) -> Tensor:
    """The product by the bundle of its parity: of two, the first has d reflections."""
    k, d = vectors.shape
    which = (d - k) % 2
    params = torch.ones(1, 2, d * d, dtype=torch.float64)
    params[0, which] = as_parameters(vectors).flatten()
    return FlatBundle(params, "householder", d).matrices()[0, which]


def _parity_erratum(dims: Sequence[int], generator: torch.Generator) -> Erratum:
    """Products of exactly ``d`` non-zero reflections, against matrices of the other determinant."""
    spread, distance = [], []
    for d in dims:
        params = torch.randn(200, 1, d * d, dtype=torch.float64, generator=generator)
        found = FlatBundle(params, "householder", d).matrices()[:, 0]
        spread.append(float((torch.linalg.det(found) - (-1) ** d).abs().max()))
        other = _random_orthogonal(d, -((-1) ** d), generator)
        distance.append(float(torch.linalg.matrix_norm(found - other, 2).min()))
    return Erratum(
        name="The determinant of d reflections",
        printed="all orthogonal matrices are products of d Householder matrices",
        counterexample=(
            "d reflections with v_i ≠ 0 have determinant (−1)^d: of 200 random products in each "
            f"dimension none comes closer than {min(distance):.3f} to a matrix of the other one, "
            "in the operator norm"
        ),
        corrected=(
            "of at most d: d reflections reach the half of O(d) with determinant (−1)^d, d − 1 the "
            "other half"
        ),
        refutation=at_least("distance to a matrix of the other determinant", distance, 2 - 1e-9),
        verification=(at_most("determinant of d reflections minus (−1)^d", spread, 1e-10),),
    )
