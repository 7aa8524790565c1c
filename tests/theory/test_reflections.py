"""Orthogonal matrices taken apart into reflections, and put together again."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bunn import FlatBundle
from bunn.theory.reflections import as_parameters, reflections

dims = st.integers(1, 10)
seeds = st.integers(0, 2**31)


def orthogonal(d, seed, determinant):
    generator = torch.Generator().manual_seed(seed)
    matrix, _ = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64, generator=generator))
    if float(torch.linalg.det(matrix)) * determinant < 0:
        matrix[:, -1] *= -1
    return matrix


def product(vectors):
    """``H_1 ... H_k``, each as a dense matrix."""
    identity = torch.eye(vectors.size(1), dtype=torch.float64)
    result = identity
    for vector in vectors:
        result = result @ (identity - 2 * torch.outer(vector, vector))
    return result


def through_bundle(vectors):
    """By the one of two bundles that has an even or odd number of reflections with ``vectors``."""
    k, d = vectors.shape
    parity = (d - k) % 2
    params = torch.ones(1, 2, d, d, dtype=torch.float64)
    params[0, parity] = as_parameters(vectors)
    return FlatBundle(params.flatten(2), maps="householder", bundle_dim=d).matrices()[0, parity]


def check(matrix, atol=1e-12):
    vectors = reflections(matrix)
    d = len(matrix)
    assert len(vectors) <= d
    assert (-1) ** len(vectors) == round(float(torch.linalg.det(matrix)))
    ones = torch.ones(len(vectors), dtype=torch.float64)
    torch.testing.assert_close(vectors.norm(dim=1), ones)
    torch.testing.assert_close(product(vectors), matrix, rtol=0, atol=atol)
    torch.testing.assert_close(through_bundle(vectors), matrix, rtol=0, atol=atol)
    return len(vectors)


@given(d=dims, seed=seeds, determinant=st.sampled_from([1, -1]))
def test_random_matrices_of_both_determinants(d, seed, determinant):
    check(orthogonal(d, seed, determinant))


@given(order=dims.flatmap(lambda d: st.permutations(range(d))))
def test_permutation_is_as_many_as_its_transpositions(order):
    d = len(order)
    matrix = torch.eye(d, dtype=torch.float64)[list(order)]
    cycles = round(d - float(torch.linalg.matrix_rank(matrix - torch.eye(d, dtype=torch.float64))))
    assert check(matrix) == d - cycles


@given(signs=st.lists(st.sampled_from([1.0, -1.0]), min_size=1, max_size=10))
def test_signs_on_the_diagonal_take_one_for_every_minus(signs):
    assert check(torch.diag(torch.tensor(signs, dtype=torch.float64))) == signs.count(-1.0)


@given(
    d=st.integers(2, 10),
    plane=st.sampled_from([(0, 1), (0, -1), (-2, -1)]),
    angle=st.floats(-math.pi, math.pi) | st.sampled_from([1e-9, -1e-9, 1e-6, 1e-3, math.pi - 1e-9]),
)
def test_rotation_in_a_plane_by_any_angle(d, plane, angle):
    matrix = torch.eye(d, dtype=torch.float64)
    i, j = (axis % d for axis in plane)
    matrix[i, i] = matrix[j, j] = math.cos(angle)
    matrix[i, j], matrix[j, i] = math.sin(angle), -math.sin(angle)
    assert check(matrix) in (0, 2)


@pytest.mark.parametrize("d", [1, 2, 7])
def test_identity_takes_none(d):
    vectors = reflections(torch.eye(d, dtype=torch.float64))
    assert vectors.shape == (0, d)
    assert vectors.dtype == torch.float64


@pytest.mark.parametrize("noise", [1e-9, 1e-11])
def test_matrix_that_is_orthogonal_up_to_noise(noise):
    """Below the noise that is refused, the product is off by no more than the noise."""
    matrix = orthogonal(3, 0, 1)
    generator = torch.Generator().manual_seed(1)
    noisy = matrix + noise * torch.randn(3, 3, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(product(reflections(noisy)), matrix, rtol=0, atol=100 * noise)


def test_matrix_next_to_the_identity():
    upper = [[5.066, -5.602, 2.114], [0.0, -14.508, -9.403], [0.0, 0.0, -15.437]]
    skew = torch.zeros(4, 4, dtype=torch.float64)
    skew[:3, 1:] = 1e-13 * torch.tensor(upper, dtype=torch.float64)
    check(torch.eye(4, dtype=torch.float64) + skew - skew.T)


@pytest.mark.parametrize(
    "matrix",
    [torch.ones(3, 3), 2 * torch.eye(2), torch.zeros(1, 1), torch.eye(4) + 1e-6],
    ids=["ones", "scaled", "zero", "almost"],
)
def test_matrix_that_is_not_orthogonal_is_an_error(matrix):
    with pytest.raises(ValueError, match=r"shape \(\d, \d\) is not orthogonal: .QᵀQ − I. = \d"):
        reflections(matrix.double())


@pytest.mark.parametrize("shape", [(1, 3), (3, 1), (2, 3), (3, 2)])
def test_matrix_that_is_not_square_is_an_error(shape):
    with pytest.raises(ValueError, match=rf"shape \({shape[0]}, {shape[1]}\) is not orthogonal"):
        reflections(torch.eye(*shape, dtype=torch.float64))
