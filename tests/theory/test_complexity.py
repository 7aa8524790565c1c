"""Products counted from outside, and the degrees that polynomials need."""

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bunn import Laplacian, diffuse
from bunn.diffusion import chebyshev_degree
from bunn.theory.claims.complexity import products, taylor_degree
from bunn.theory.graphs import cycle


def taylor_error(time: int, degree: int) -> mpmath.mpf:
    """``|p_K(2) - e^(-2t)|`` of the Taylor polynomial of ``e^(-t x)``."""
    with mpmath.workdps(60 + 2 * time):
        terms = ((-2 * mpmath.mpf(time)) ** k / mpmath.factorial(k) for k in range(degree + 1))
        return abs(mpmath.fsum(terms) - mpmath.exp(-2 * time))


@pytest.mark.parametrize("time", [0.0, 0.02, 0.7, 3, 42.0, 600])
@pytest.mark.parametrize("tol", [1e-2, 1e-5, 1e-9, 1e-13])
def test_products_of_chebyshev_are_its_degree(time, tol):
    assert products(time, "chebyshev", tol=tol) == chebyshev_degree(time, tol)


@given(time=st.floats(1e-3, 60.0), exponent=st.integers(-14, -1))
def test_products_of_chebyshev_at_any_time(time, exponent):
    tol = 10.0**exponent
    assert products(time, "chebyshev", tol=tol) == chebyshev_degree(time, tol)


@pytest.mark.parametrize("method", ["taylor", "chebyshev"])
@pytest.mark.parametrize("degree", [1, 3, 17, 60])
@pytest.mark.parametrize("time", [0.3, 5.0])
def test_products_are_a_degree_that_is_given(method, degree, time):
    assert products(time, method, degree=degree) == degree


@given(time=st.integers(1, 60), exponent=st.integers(-12, -1))
def test_taylor_degree_is_enough_and_no_smaller_one_is(time, exponent):
    tol = 10.0**exponent
    degree = taylor_degree(time, tol)
    assert taylor_error(time, degree) <= tol
    assert all(taylor_error(time, k) > tol for k in range(max(0, degree - 3), degree))


@pytest.mark.parametrize("time", [1, 4, 9])
def test_no_degree_below_it_comes_as_close_by_chance(time):
    tol = 1e-3
    degree = taylor_degree(time, tol)
    assert all(taylor_error(time, k) > tol for k in range(degree))


@pytest.mark.parametrize("time", [1, 2, 4])
def test_taylor_degree_is_what_a_graph_with_the_eigenvalue_two_needs(time):
    """Alternating signs on an even cycle are an eigenvector."""
    tol = 1e-7
    lap = Laplacian(cycle(10).edge_index).to(torch.float64)
    x = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(5).unsqueeze(1)
    exact = x * float(mpmath.exp(-2 * time))

    def error(degree):
        y = diffuse(x, lap, float(time), method="taylor", degree=degree)
        return float((y - exact).abs().max())

    degree = taylor_degree(time, tol)
    assert error(degree) <= tol < error(degree - 1)


def test_no_time_needs_no_degree():
    assert taylor_degree(0, 1e-6) == 0
