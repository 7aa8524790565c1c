r"""A polynomial of the operator as a product of factors, in an order that keeps rounding small.

A real polynomial is a product of linear factors :math:`S - \rho`, one to a real root, and of
quadratic ones :math:`(S - \rho)^2 + \sigma^2`, one to a pair of complex roots
:math:`\rho \pm i \sigma`. One after the other, a linear factor reads the features once and writes
them once, and a quadratic one takes two products and five such passes, where the recurrence of
Chebyshev takes four to a product: it keeps a sum besides. Most roots of heat are real at large
times, and its traffic is a half.

The order decides whether that is any good. With :math:`q` the product of the factors so far, an
error of relative size :math:`u` that is made after them ends as one of

.. math::
    u \, \max_{[-1, 1]} |q| \, \max_{[-1, 1]} |p / q|,

which is :math:`u` times the largest value of :math:`p` at best, if both have theirs at the same
place. From left to right it is :math:`10^{16} u` at :math:`t = 100`. :func:`factorize` spreads the
roots evenly and then moves one after the other to where the sum of all errors is least. For heat
that ends near one to a factor, at tol 1e-5 closer than at 1e-3: about :math:`u K` in all, where the
recurrence has up to :math:`u t / 2`. What is rounded inside of a factor, whose terms cancel near
its root, is not part of that sum: tests and ``benchmarks/rounding.py`` look at all of it.

How factors are scaled is free, and decides what happens to features that are alike: on a regular
graph they are rounded the same way at every node, which no average undoes. With a power of two at
:math:`s = 1`, where the null space is, they come out of a factor with the digits they had.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.polynomial.chebyshev import chebroots, chebval

from bunn.kernels.arguments import Factor

#: The highest degree that is factorized: to find an order takes up to a second there.
HIGHEST_DEGREE = 128
#: Roots whose imaginary part is below, relative to their size, are real.
REAL = 1e-9
#: How far the product may be from the polynomial, relative to its largest value.
EXACT = 1e-10
#: Up to so much growth of errors to a factor an order is good, and so good that it can stay.
STABLE, GOOD = 4.0, 1.1
#: How often all factors are moved, at most.
SWEEPS = 30

Array = np.ndarray[Any, np.dtype[np.float64]]


@lru_cache(maxsize=1024)
def factorize(coefficients: tuple[float, ...]) -> tuple[Factor, ...] | None:
    r"""The factors of :math:`\sum_k c_k T_k`.

    Each is scaled such that products up to it are a power of two at 1, and peak between a half and
    one.

    Args:
        coefficients: ``K + 1`` of them.

    Returns:
        The factors in the order in which they are to be multiplied; :obj:`None` if no order was
        found that keeps rounding small, or if the degree is 0 or beyond :data:`HIGHEST_DEGREE`.
    """
    series = np.trim_zeros(np.asarray(coefficients), "b")
    degree = len(series) - 1
    if not 1 <= degree <= HIGHEST_DEGREE:
        return None
    with np.errstate(all="ignore"):
        if not np.isfinite(series / series[-1]).all():  # of which the roots are found
            return None
    roots = _upper_roots(series)
    points = np.cos(np.linspace(0.0, np.pi, 8 * degree + 65))
    order, growth = _stable_order(roots, points)
    if not growth <= STABLE * len(order):
        return None
    roots = roots[order]
    values = np.where(
        roots.imag[:, None] == 0,
        points - roots.real[:, None],
        np.abs(points - roots[:, None]) ** 2,
    )
    wanted, products = chebval(points, series), np.cumsum(_log(values), axis=0)
    halvings = _halvings(products.max(axis=1) - products[:, 0])  # the first point is one
    scales = np.exp(np.diff(-products[:, 0] - halvings * np.log(2), prepend=0.0))
    product, top = np.prod(values * scales[:, None], axis=0), int(np.abs(wanted).argmax())
    off = product * (wanted[top] / product[top]) - wanted
    if not np.abs(off).max() <= EXACT * abs(wanted[top]):
        return None
    found = list(map(build_factor, scales.tolist(), roots.tolist()))
    # Coefficients are rounded: the last factor makes up for that where the polynomial is largest.
    rounded = np.prod([value(factor, points[top]) for factor in found])
    return *found[:-1], build_factor(scales[-1] * wanted[top] / rounded, roots[-1])


def build_factor(scale: float, root: complex) -> Factor:
    r"""The factor :math:`\alpha (S - \rho)`, or :math:`\alpha [(S - \rho)^2 + \sigma^2]`.

    Its coefficients are rounded to float32, in which kernels read them. The first of two steps is
    scaled to leave features no larger, since roots may lie far away and float16 has no room, and
    to be a power of two at one.

    Args:
        scale: :math:`\alpha`.
        root: :math:`\rho + i \sigma`.
    """
    shift, at_one = root.real, abs(1 - root.real)
    if root.imag == 0:
        return Factor((_rounded(scale, 0.0, -scale * shift),))
    size = 1 + abs(shift)
    if at_one > 0:
        size = at_one * 2.0 ** _halvings(np.log(size / at_one))
    last = _rounded(scale * size, scale * root.imag**2, -scale * size * shift)
    return Factor((_rounded(1 / size, 0.0, -shift / size), last))


def _halvings(excess: Any) -> Any:
    """How often a number is to be halved, to be below one by a factor with such a logarithm."""
    return np.ceil(excess / np.log(2) - EXACT)


def _rounded(*numbers: float) -> Any:
    return tuple(np.asarray(numbers, np.float32).tolist())


def value(factor: Factor, point: Any) -> Any:
    """A factor of a number, or of several, in place of the operator."""
    now, then = np.ones_like(point), 0.0
    for a, b, c in factor.steps:
        now, then = (a * point + c) * now + b * then, now
    return now


def _upper_roots(series: Array) -> Any:
    """The real roots and one of every complex pair, from left to right."""
    roots = np.asarray(chebroots(series), dtype=complex)
    real = np.abs(roots.imag) <= REAL * np.maximum(1.0, np.abs(roots))
    found = np.concatenate((roots[real].real, roots[~real & (roots.imag > 0)]))
    return found[np.argsort(found.real)]


def _stable_order(roots: Any, points: Array) -> tuple[list[int], float]:
    """An order of the factors in which errors grow little, and the sum of what they grow by.

    Args:
        roots: ``(f,)`` roots, from left to right.
        points: ``(m,)`` numbers between -1 and 1.
    """
    pair = roots.imag != 0
    # Halfway through a quadratic factor there is one of (S - rho), which is to come once more.
    sizes = _log(points - roots[:, None]) * np.where(pair, 2, 1)[:, None]
    halves = np.where(pair[:, None], _log(points - roots.real[:, None]), -np.inf)
    total = sizes.sum(axis=0)

    def growth(before: Array, factors: list[int]) -> Array:
        """What errors in some factors grow by, each with the product of those before it."""
        after = total - before - sizes[factors]
        peak = (before + sizes[factors]).max(-1) + after.max(-1)
        half = (before + halves[factors]).max(-1) + (after + halves[factors]).max(-1)
        found: Array = np.exp(peak - total.max()) + np.exp(half - total.max())
        return found

    # Multiples of the golden ratio, modulo one, are spread evenly however many there are.
    spread = np.arange(len(roots)) * (np.sqrt(5) - 1) / 2 % 1
    order, least = np.argsort(np.argsort(spread)).tolist(), np.inf
    good = GOOD * (len(roots) + pair.sum())
    for _ in range(SWEEPS):
        best = least
        for factor in order:
            others = [k for k in order if k != factor]
            products = np.cumsum(np.vstack((np.zeros_like(total), sizes[others])), axis=0)
            # At a place, those before it come without the factor, those behind it with it.
            without = np.cumsum(growth(products[:-1], others))
            with_it = np.cumsum(growth(products[:-1] + sizes[factor], others)[::-1])[::-1]
            costs = growth(products, [factor] * len(order))
            costs += np.append(0.0, without) + np.append(with_it, 0.0)
            place = int(costs.argmin())
            if costs[place] < least:
                order, least = [*others[:place], factor, *others[place:]], float(costs[place])
            if least < good:
                return order, least
        if least > 0.999 * best:
            break
    return order, least


def _log(values: Any) -> Array:
    """The logarithm of sizes, not below that of what counts as nothing."""
    found: Array = np.log(np.maximum(np.abs(values), 1e-100))
    return found
