"""Householder reflections (Appendix E.1): what at most d of them reach, and exactly d do not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from bunn.bundle import FlatBundle
from bunn.theory.claim import Erratum, Evidence, at_least, at_most, claim
from bunn.theory.reflections import as_parameters, reflections


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
