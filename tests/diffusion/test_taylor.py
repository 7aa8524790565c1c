"""The Taylor polynomial by those of Chebyshev."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.polynomial.chebyshev import chebval

from bunn.diffusion.taylor import taylor_coefficients


@given(time=st.floats(0, 10), degree=st.integers(1, 20), s=st.floats(-1, 1))
def test_coefficients_are_those_of_the_polynomial(time, degree, s):
    found = taylor_coefficients(time, degree)
    assert len(found) == degree + 1
    terms = [(-time * (1 - s)) ** k / math.factorial(k) for k in range(degree + 1)]
    largest = np.abs([*terms, *found]).max()  # at s = 1 large coefficients cancel
    assert abs(chebval(s, found) - math.fsum(terms)) <= 1e-13 * max(1, largest) * degree
