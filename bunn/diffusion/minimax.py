r"""The polynomial of the lowest degree that is heat on the spectrum that a graph has.

:mod:`bunn.diffusion.chebyshev` is within ``tol`` on all of :math:`[-1, 1]`, for every graph. Where
it is known that the eigenvalues of :math:`S` are one, for the null space, or between two ends, the
polynomial

.. math::
    \min_p \; \max_{s \in [a, b] \cup \{1\}} \big| p(s) - e^{-t (1 - s)} \big|
    \quad \text{with} \quad |p| \le 1 \text{ on } [-1, 1], \quad p'(1) \le t

gets by with fewer products: on a random graph, whose eigenvalues other than one are small, with 12
instead of 15 at t = 10. Its maximum is found on a grid, by a linear program. An eigenvalue that had
been overlooked would do little harm by the first condition; by the second, rounding the operator
moves the result no more than that of heat.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.polynomial.chebyshev import chebval, chebvander
from scipy.optimize import linprog

from bunn.diffusion.chebyshev import chebyshev_degree, host_coefficients

#: The highest degree for which another polynomial is looked for.
HIGHEST_DEGREE = 64
#: How many times as fine the grid is on which errors are looked at in the end.
FINER = 4

Array = np.ndarray[Any, np.dtype[np.float64]]


@lru_cache(maxsize=1024)
def minimax(time: float, tol: float, low: float, high: float) -> tuple[float, ...] | None:
    r"""The coefficients :math:`c_0, \dots, c_K` of :math:`\sum_k c_k T_k(S)`.

    Args:
        time: A finite diffusion time ``t >= 0``.
        tol: The bound on the error at eigenvalues in ``[low, high]`` and at one.
        low: The lower end.
        high: The upper end.

    Returns:
        :obj:`None` if the degree would not be lower than that for every graph.
    """
    fails, enough, found = 0, chebyshev_degree(time, tol), None
    if enough > HIGHEST_DEGREE:
        return None
    while enough - fails > 1:
        degree = (fails + enough) // 2
        coefficients = _best(time, degree, tol, low, high)
        if coefficients is None:
            fails = degree
        else:
            enough, found = degree, coefficients
    return None if found is None else tuple(found.tolist())


def _best(time: float, degree: int, tol: float, low: float, high: float) -> Array | None:
    """The coefficients of the best polynomial of a degree, if it is within ``tol``."""
    count = 4 * degree + 33
    there = np.append(_points(low, high, count), 1.0)
    elsewhere = np.concatenate((_points(-1, low, count), _points(high, 1, count)))
    inside, outside = chebvander(there, degree), chebvander(elsewhere, degree)
    slope = np.square(np.arange(degree + 1.0))  # of every term, at one
    # What is looked for is the difference to a polynomial that is nearly as good, over tol.
    known = np.asarray(host_coefficients(time, degree))
    missing = (np.exp(-time * (1 - there)) - inside @ known) / tol
    beyond, room = outside @ known / tol, 1 / tol
    rows = [
        (inside, -1.0, missing),
        (-inside, -1.0, -missing),
        (outside, 0.0, room - beyond),
        (-outside, 0.0, room + beyond),
        (slope[None], 0.0, [(time - slope @ known) / tol]),
    ]
    solution = linprog(
        np.append(np.zeros(degree + 1), 1.0),
        A_ub=np.vstack([np.column_stack((a, np.full(len(a), b))) for a, b, _ in rows]),
        b_ub=np.concatenate([bound for *_, bound in rows]),
        bounds=[(None, None)] * (degree + 1) + [(0, None)],
    )
    if not solution.success:
        return None
    found: Array = known + tol * solution.x[:-1]
    closely = np.append(_points(low, high, FINER * count), 1.0)
    error = np.abs(chebval(closely, found) - np.exp(-time * (1 - closely))).max()
    return found if error <= tol else None


def _points(low: float, high: float, count: int) -> Array:
    """Those where the extrema of a Chebyshev polynomial would be."""
    nodes: Array = np.cos(np.linspace(0.0, np.pi, count))
    return (low + high) / 2 + (high - low) / 2 * nodes
