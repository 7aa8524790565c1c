import math

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ive

from bunn import Laplacian, diffuse
from bunn.diffusion import chebyshev_degree
from bunn.diffusion.chebyshev import chebyshev_coefficients
from tests.graphs import edges_of

OPTIMUM = {
    1: {1e-3: 4, 1e-6: 7, 1e-12: 11},
    10: {1e-3: 11, 1e-6: 17, 1e-12: 26},
    100: {1e-3: 33, 1e-6: 49, 1e-12: 73},
    1000: {1e-3: 104, 1e-6: 155, 1e-12: 226},
}


def tail(time: float, degree: int) -> float:
    """The error of the expansion, summed from the small terms up."""
    terms = ive(np.arange(degree + 1, degree + 4000), time)
    return 2 * float(np.sum(terms[::-1]))


@pytest.mark.parametrize("time", OPTIMUM)
def test_degree_is_the_published_optimum(time):
    assert {tol: chebyshev_degree(time, tol) for tol in OPTIMUM[time]} == OPTIMUM[time]


@given(time=st.floats(1e-6, 1e5), exponent=st.floats(0, 13))
def test_degree_is_the_lowest_that_meets_tol(time, exponent):
    tol = 10**-exponent
    degree = chebyshev_degree(time, tol)
    assert tail(time, degree) <= tol * (1 + 1e-9)
    assert degree == 0 or tail(time, degree - 1) > tol * (1 - 1e-9)


def test_degree_goes_on_smoothly_where_bessel_functions_become_gaussian():
    for tol in (1e-3, 1e-6, 1e-12):
        below, above = chebyshev_degree(1e7, tol), chebyshev_degree(1e7 * (1 + 1e-6), tol)
        assert 0 <= above - below <= 2


def test_degree_of_extreme_arguments():
    assert chebyshev_degree(0.0, 1e-12) == 0
    assert chebyshev_degree(5.0, 2.0) == 0
    assert chebyshev_degree(1e8, 1.5) == 0
    assert chebyshev_degree(1.0, 1e-320) < 300
    assert chebyshev_degree(1e16, 1e-6) < 1e9
    with pytest.raises(ValueError, match="time=inf; a Chebyshev degree needs a finite time"):
        chebyshev_degree(math.inf, 1e-6)
    with pytest.raises(ValueError, match="tol=0; it must be positive"):
        chebyshev_degree(1.0, 0)


@given(time=st.floats(0, 1e4), degree=st.integers(0, 300))
def test_coefficients_are_scaled_bessel_functions(time, degree):
    found = chebyshev_coefficients(torch.tensor([time], dtype=torch.float64), degree)
    expected = 2 * ive(np.arange(degree + 1), time)
    expected[0] /= 2
    np.testing.assert_allclose(found[:, 0].numpy(), expected, rtol=0, atol=1e-14)


def test_influence_reaches_as_many_hops_as_the_degree():
    """At finite tol a far node's influence below tol is exactly zero."""
    edge_index, n = edges_of(nx.path_graph(30))
    lap = Laplacian(edge_index).to(torch.float64)
    source = torch.zeros(n, 1, dtype=torch.float64)
    source[0] = 1
    reached = diffuse(source, lap, 1.0, method="chebyshev", tol=1e-6).flatten() != 0
    degree = chebyshev_degree(1.0, 1e-6)
    assert reached[: degree + 1].all()
    assert not reached[degree + 1 :].any()


def test_no_overflow_or_underflow_in_float32():
    edge_index, n = edges_of(nx.path_graph(200))
    lap = Laplacian(edge_index)
    x = torch.randn(n, 2)
    for time, rounding in ((1e-6, 1e-5), (1e4, 1e-5), (1e6, 1e-4)):  # grows with the degree
        y = diffuse(x, lap, time, method="chebyshev", tol=1e-6)
        exact = diffuse(x.double(), lap, time, method="spectral")
        torch.testing.assert_close(y.double(), exact, rtol=0, atol=rounding)


def test_fixed_degree():
    """With a degree of its own the method no longer looks at tol."""
    edge_index, _ = edges_of(nx.cycle_graph(9))
    lap = Laplacian(edge_index).to(torch.float64)
    x = torch.randn(9, 2, dtype=torch.float64)
    exact = diffuse(x, lap, 3.0, tol=1e-13)
    errors = [
        float((diffuse(x, lap, 3.0, method="chebyshev", degree=k) - exact).norm())
        for k in (1, 4, 8, 16)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-9


@pytest.mark.parametrize("method", ["chebyshev", "dense", "uniformization"])
@pytest.mark.parametrize("time", [1e14, 1e300])
def test_more_products_than_anybody_waits_for_are_refused(method, time):
    lap = Laplacian(torch.tensor([[0, 1], [1, 0]]))
    with pytest.raises(ValueError, match=r"time=1e\+\d+ takes .* products, .*method='auto'"):
        diffuse(torch.randn(2, 1), lap, time, method=method)
    assert diffuse(torch.randn(2, 1), lap, time).isfinite().all()
