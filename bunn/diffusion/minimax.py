r"""The polynomial of the lowest degree that is heat on the spectrum that a graph has.

:mod:`bunn.diffusion.chebyshev` is within ``tol`` on all of :math:`[-1, 1]`, for every graph. Where
it is known that the eigenvalues of :math:`S` are one, for the null space, or between two ends,

.. math::
    \min_{c \ge 0} \; \max_{s \in [a, b] \cup \{1\}}
    \Big| \sum_k c_k T_k(s) - e^{-t (1 - s)} \Big|
    \quad \text{with} \quad \sum_k k^2 c_k \le t

gets by with fewer products: on a random graph, whose eigenvalues other than one are small, with 12
instead of 15 at t = 10. Its maximum is found on a grid, by a linear program.

The coefficients are not negative, as those of heat are not, and no larger in their sum of
:math:`k^2 c_k`. So the polynomial is nowhere in :math:`[-1, 1]` larger than at one: an eigenvalue
that had been overlooked would do little harm. And a product that is off by :math:`\epsilon` moves
the result by :math:`t \epsilon` at most, as it does that of heat, since :math:`T_k` moves by
:math:`k^2 \epsilon`.
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
#: How many times as fine the grid is on which errors are looked at in the end, and the share of
#: ``tol`` that is left to what lies between its points.
FINER, BETWEEN = 16, 1e-3

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
    points = _points(low, high, 4 * degree + 33)
    values, slope = chebvander(points, degree), np.square(np.arange(degree + 1.0))
    # What is looked for is the difference to a polynomial that is nearly as good, over tol.
    known = np.asarray(host_coefficients(time, degree))
    missing = (np.exp(-time * (1 - points)) - values @ known) / tol
    error = np.ones_like(points)
    solution = linprog(
        np.append(np.zeros(degree + 1), 1.0),
        A_ub=np.vstack(
            (
                np.column_stack((values, -error)),
                np.column_stack((-values, -error)),
                np.append(slope, 0.0),
            )
        ),
        b_ub=np.concatenate((missing, -missing, [(time - slope @ known) / tol])),
        bounds=[(-value / tol, None) for value in known] + [(0.0, None)],
    )
    if not solution.success:
        return None
    found: Array = np.maximum(known + tol * solution.x[:-1], 0.0)
    closely = _points(low, high, FINER * points.size)
    off = np.abs(chebval(closely, found) - np.exp(-time * (1 - closely))).max()
    return found if off <= (1 - BETWEEN) * tol else None


def _points(low: float, high: float, count: int) -> Array:
    """Those between two ends where the extrema of a Chebyshev polynomial would be, and one."""
    nodes: Array = np.cos(np.linspace(0.0, np.pi, count))
    return np.append((low + high) / 2 + (high - low) / 2 * nodes, 1.0)
