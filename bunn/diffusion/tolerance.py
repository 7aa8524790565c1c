"""Polynomials of the Laplacian to a tolerance: what rounding takes of it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bunn import kernels
from bunn.diffusion.limit import null_part
from bunn.diffusion.options import Options, Time
from bunn.diffusion.polynomial import DEGREES, FROM_TIME, Polynomial, error_of_sums, heat
from bunn.graph.interval import Interval
from bunn.laplacian import Laplacian

#: How much of ``tol`` may be left to the rounding of the operator in float32.
ROUNDING_SHARE = 0.75


def polynomial_heat(
    x: Tensor, lap: Laplacian, time: Time, recurrence: str, options: Options
) -> Tensor:
    """:func:`heat` at a :class:`Time`, of the degree that ``options`` ask for.

    A product that is off by some share of the features, by :func:`product_error`, moves a heat
    kernel by ``t`` times that. That much of ``tol`` is left to it, up to three quarters of it;
    where it could take more, the null space, which feels it most, is treated apart, exactly, and
    where it could take all, the recurrence runs in float64. (Uniformization does so at a half: a
    subtraction would cost it what it is for.) Terms, too: rounded to float32, those of features
    that hardly change would add up to as much, all rounded the same way.
    """
    degree, tol = FROM_TIME if options.degree is None else options.degree, options.tol
    unknown = recurrence in DEGREES and degree == FROM_TIME and time.upper is None
    if unknown and lap.dtype == torch.float32:  # the time may be anything
        if not (kernels.serve(x, lap.operator.value) or torch.compiler.is_compiling()):
            wide = x.double()
            return polynomial_heat(wide, lap.matching(wide), time, recurrence, options).to(x.dtype)
        tol /= 2
    if recurrence in DEGREES and degree == FROM_TIME and time.upper is not None:
        rounding = time.upper * product_error(x, lap)
        apart = recurrence == "chebyshev"
        if lap.dtype != torch.float64:
            if rounding > (tol if apart else tol / 2):
                wide, left = x.double(), max(tol - _of_the_result(x), tol / 2)
                options = replace(options, tol=left)
                heated = polynomial_heat(wide, lap.matching(wide), time, recurrence, options)
                return heated.to(x.dtype)
            apart = apart and rounding > ROUNDING_SHARE * tol
            rest = tol / 2 if apart else tol - rounding
            tol = max(rest - _of_the_result(x), rest / 2)
        else:
            apart = apart and rounding > tol
        if apart:
            even = null_part(x.to(lap.dtype), lap)
            uneven = _recurrence(x - even, lap, time, recurrence, degree, tol, options.interval)
            return (even + uneven).to(x.dtype)
    return _recurrence(x, lap, time, recurrence, degree, tol, options.interval)


def product_error(x: Tensor, lap: Laplacian) -> float:
    """What a product with ``S`` may be off by, relative to the features, in the 2-norm.

    Its entries are rounded, by half the precision ``eps`` at most. Our kernels lose hardly more in
    their sums, a few halves of ``eps`` now and then; torch adds up one term after the other, and
    where terms are alike each is rounded the same way: a row of ``m`` loses up to ``m / 4`` halves.
    """
    half = torch.finfo(lap.dtype).eps / 2
    if lap.dtype == torch.float64 or kernels.serve(x, lap.operator.value):
        return half
    return half + error_of_sums(lap.longest_row)


def _of_the_result(x: Tensor) -> float:
    """What it costs to round the result to float32; 16 bits are rounded on top of ``tol``."""
    return torch.finfo(x.dtype).eps / 2 if x.dtype == torch.float32 else 0.0


def _recurrence(
    x: Tensor,
    lap: Laplacian,
    time: Time,
    recurrence: str,
    degree: int,
    tol: float,
    interval: Interval | None,
) -> Tensor:
    if not isinstance(time.value, Tensor):
        polynomial = Polynomial(recurrence, degree, tol, time.value, *(interval or ()))
        return heat(x, None, lap.operator, polynomial)
    if degree == FROM_TIME and x.device.type != "cpu":  # saves the operation a look at the times
        if time.degree is not None and recurrence == "chebyshev":
            degree = time.degree
        elif time.upper is not None:
            degree = DEGREES[recurrence](time.upper, tol)
    return heat(x, time.value, lap.operator, Polynomial(recurrence, degree, tol, 0.0))
