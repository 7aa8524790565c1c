"""Polynomials as products: the same polynomial, in an order that keeps rounding small."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.polynomial.chebyshev import chebfromroots, chebval

from bunn.diffusion import factors
from bunn.diffusion.chebyshev import chebyshev_coefficients, chebyshev_degree
from bunn.diffusion.factors import factorize, value
from bunn.diffusion.minimax import minimax
from bunn.diffusion.taylor import taylor_coefficients

POINTS = np.cos(np.linspace(0, np.pi, 4001))


def heat(time: float, tol: float) -> tuple[float, ...]:
    degree = chebyshev_degree(time, tol)
    table = chebyshev_coefficients(torch.tensor([time], dtype=torch.float64), degree)
    return tuple(table[:, 0].tolist())


@given(time=st.floats(1e-3, 300), tol=st.sampled_from([1e-3, 1e-5, 1e-7]))
@example(time=541.0, tol=1e-3)
def test_the_product_is_the_polynomial_and_errors_do_not_grow(time, tol):
    coefficients = heat(time, tol)
    found = factorize(coefficients)
    if len(coefficients) - 1 in (0, *range(factors.HIGHEST_DEGREE + 1, 1000)):
        assert found is None
        return
    assert sum(len(factor.steps) for factor in found) == len(coefficients) - 1
    parts = [value(factor, POINTS) for factor in found]
    products = list(itertools.accumulate(parts, np.multiply))
    # Coefficients in float32 move it by no more than entries of the operator do.
    rounding = 1e-6 + time * np.finfo(np.float32).eps / 2
    np.testing.assert_allclose(products[-1], chebval(POINTS, coefficients), atol=rounding)
    assert abs(products[-1][0] - chebval(1.0, coefficients)) <= 1e-6
    # What is rounded after any of the factors reaches the end hardly larger than it is.
    behind = list(itertools.accumulate(reversed(parts[1:]), np.multiply, initial=1.0))[::-1]
    growth = [np.abs(q).max() * np.abs(r).max() for q, r in zip(products, behind, strict=True)]
    assert sum(growth) <= factors.STABLE * len(found)
    assert all(0.49 <= np.abs(q).max() <= 1.01 for q in products[:-1])
    halvings = np.log2(np.abs([q[0] for q in products[:-1]]))
    np.testing.assert_allclose(halvings, np.round(halvings), atol=1e-4)


@pytest.mark.parametrize(("time", "degree"), [(0.1, 1), (1.0, 8), (10.0, 8), (3.0, 20)])
def test_taylor_polynomials_have_factors(time, degree):
    coefficients = taylor_coefficients(time, degree)
    wanted = chebval(POINTS, coefficients)
    product = np.prod([value(factor, POINTS) for factor in factorize(coefficients)], axis=0)
    np.testing.assert_allclose(product, wanted, atol=1e-6 * np.abs(wanted).max())


@pytest.mark.parametrize(
    "coefficients",
    [
        *((), (1.0,), (1.0, 0.0), (float("nan"), 1.0), (1.0, float("inf")), (1.0, 1e-310)),
        taylor_coefficients(1e-39, 8),
    ],
    ids=str,
)
def test_what_has_no_factors(coefficients):
    assert factorize(coefficients) is None


def test_a_polynomial_without_a_good_order():
    """Of one that is as large everywhere no part is."""
    assert factorize(tuple(np.random.default_rng(0).standard_normal(61).tolist())) is None


@pytest.mark.parametrize("time", [1.0, 10.0, 100.0, 300.0])
@pytest.mark.parametrize("tol", [1e-3, 1e-5])
def test_constant_features_stay_to_a_few_digits_of_float32(time, tol):
    """On a graph of degree two in float32, all of whose rounding is that of the factors."""
    y, start = torch.ones((), dtype=torch.float32), 0.0
    coefficients = heat(time, tol)
    for factor in factorize(coefficients):
        start = y
        for a, b, c in torch.tensor(factor.steps, dtype=torch.float32):
            y, start = a * y + b * start + c * y, y
    assert abs(float(y) - math.fsum(coefficients)) <= 4e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("time", "ends"),
    [
        *((1.0, None), (10.0, None), (100.0, None), (300.0, None)),
        *((10.0, (-0.53, 0.9999)), (10.0, (-0.71, 0.71)), (30.0, (-0.81, 0.81))),
    ],
)
def test_constant_features_are_rounded_once_in_16_bits(time, ends, dtype):
    """On a regular graph, however many factors there are; the last of them is not a power of two,
    but what the polynomial is at one, and numbers just below a power of two are twice as close."""
    coefficients = minimax(time, 1e-3, *ends) if ends else heat(time, 1e-3)
    constants = torch.linspace(0.1, 2.0, 257).to(dtype)
    y, then = constants, torch.zeros_like(constants)
    for factor in factorize(coefficients):
        then = y
        for a, b, c in torch.tensor(factor.steps, dtype=torch.float32):
            y, then = (a * y.float() + b * then.float() + c * y.float()).to(dtype), y
    off = (y.double() / constants.double() - math.fsum(coefficients)).abs().max()
    assert off <= torch.finfo(dtype).eps / 2


def test_roots_that_float64_cannot_tell_apart():
    """The roots of (S - 1/2)^24 come out on a circle; their product is the polynomial even so."""
    coefficients = tuple(chebfromroots([0.5] * 24).tolist())
    found = factorize(coefficients)
    assert np.ptp([-factor.steps[0][2] / factor.steps[0][0] for factor in found]) > 0.1
    wanted = chebval(POINTS, coefficients)
    product = np.prod([value(factor, POINTS) for factor in found], axis=0)
    np.testing.assert_allclose(product, wanted, atol=1e-6 * np.abs(wanted).max())
