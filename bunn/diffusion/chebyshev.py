r"""Chebyshev expansion of the heat kernel: any time, any tolerance, ``O(sqrt(t))`` products.

On the symmetric operator :math:`S`, whose spectrum lies in :math:`[-1, 1]`,

.. math::
    e^{-t(I - S)} = e^{-t} \Big[ I_0(t) + 2 \sum_{k \ge 1} I_k(t)\, T_k(S) \Big],

with modified Bessel functions :math:`I_k`. All terms are positive at the eigenvalue 1, so cutting
the sum at degree :math:`K` costs exactly :math:`2 e^{-t} \sum_{k > K} I_k(t)` in the operator norm:
the degree is known beforehand and grows like :math:`\sqrt{t \log(1/\mathrm{tol})}`, where the
Taylor expansion needs more than :math:`t` terms, and cancels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from scipy.special import erfcinv, ive
from torch import Tensor

#: More products than anybody waits for.
MOST_PRODUCTS = 10**7


def check_degree(degree: int, time: float) -> None:
    """Raises an error for a polynomial that would take hours, or never end."""
    if degree > MOST_PRODUCTS:
        raise ValueError(
            f"time={time:g} takes {degree:,} products, more than {MOST_PRODUCTS:,}; use "
            "method='auto', which takes the limit as soon as it is exact, or time=inf"
        )


@lru_cache(maxsize=4096)
def chebyshev_degree(time: float, tol: float) -> int:
    r"""The lowest degree whose expansion of :math:`e^{-tL}` is within ``tol`` for every graph.

    It is the smallest :math:`K` with :math:`2 e^{-t} \sum_{k > K} I_k(t) \le \mathrm{tol}`.

    Args:
        time: A finite diffusion time ``t >= 0``.
        tol: The bound on the error in the operator norm, ``> 0``.
    """
    if not (math.isfinite(time) and time >= 0):
        raise ValueError(f"time={time}; a Chebyshev degree needs a finite time >= 0")
    if not tol > 0:
        raise ValueError(f"tol={tol}; it must be positive")
    if time == 0 or tol >= 2:
        return 0
    if time > 1e7:  # by now a Gaussian to all digits: the tail beyond K is erfc(K / sqrt(2 t))
        return max(0, math.ceil(math.sqrt(2 * time) * float(erfcinv(tol))))
    # Far enough for the tail beyond to be negligible: I_k(t) e^-t falls like exp(-k^2 / 2t) up to
    # k ~ t, then faster than exponentially.
    decades = math.log(4) - math.log(tol) + 40
    reach = math.ceil(math.sqrt(2 * time * decades) + decades) + 2
    terms = ive(np.arange(reach + 1), time)
    tails = 2 * np.cumsum(terms[::-1])[::-1]  # tails[k] = 2 sum of the terms from k on
    return int(np.argmax(tails[1:] <= tol))


def chebyshev_coefficients(time: Tensor, degree: int) -> Tensor:
    r"""The coefficients :math:`e^{-t} I_0(t), 2 e^{-t} I_1(t), \dots, 2 e^{-t} I_K(t)`.

    Computed as the cosine transform of :math:`e^{t(\cos\theta - 1)}`, whose values never leave
    :math:`[0, 1]`: nothing overflows or underflows at any time, and it runs on any device.

    Args:
        time: ``(c,)`` times.
        degree: The degree ``K``.

    Returns:
        ``(K + 1, c)`` float64.
    """
    points = 2 * degree + 16
    if time.device.type == "cpu":  # enough for every digit, even if the degree is too low for them
        points = max(points, 2 * chebyshev_degree(float(time.max()), 1e-16))
    angle = torch.linspace(0, math.pi, points + 1, dtype=torch.float64, device=time.device)
    # cos(a) - 1 = -2 sin^2(a / 2), without the cancellation that large times would magnify.
    samples = torch.exp(-2 * time.double().unsqueeze(1) * torch.sin(angle / 2).square())
    coefficients: Tensor = torch.fft.hfft(samples, n=2 * points)[:, : degree + 1].T / points
    coefficients[0] /= 2
    return coefficients.contiguous()


@lru_cache(maxsize=64)
def host_coefficients(time: float, degree: int) -> tuple[float, ...]:
    """:func:`chebyshev_coefficients` of one time, as numbers."""
    times = torch.tensor([time], dtype=torch.float64)
    return tuple(chebyshev_coefficients(times, degree)[:, 0].tolist())


def coefficients_for(time: float | Tensor, degree: int, x: Tensor) -> tuple[float, ...] | Tensor:
    """The coefficients as a kernel reads them: numbers, which it rounds to float32, or
    ``(K + 1, c)``.

    Args:
        time: One time, or a tensor of one or ``c`` of them.
        degree: The degree ``K``.
        x: ``(n, c)`` the features.
    """
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    if not isinstance(time, Tensor):
        if dtype == torch.float32:
            return host_coefficients(time, degree)
        time = torch.full((1,), time, dtype=dtype, device=x.device)
    return chebyshev_coefficients(time, degree).to(dtype).expand(-1, x.size(1)).contiguous()


def chebyshev(z: Tensor, s: Tensor, time: float | Tensor, degree: int) -> Tensor:
    """The expansion of degree ``K``, in the frame where the operator is symmetric.

    Args:
        z: ``(n, c)`` features; overwritten.
        s: ``(n, n)`` sparse CSR operator ``S``.
        time: One time, or ``(c,)`` of them.
        degree: The degree ``K``.
    """
    if not isinstance(time, Tensor):
        return series(z, s, host_coefficients(time, degree))
    distinct, owner = time, None
    if time.device.type == "cpu":  # few times for many columns: a small table
        distinct, owner = torch.unique(time, return_inverse=True)
    table = chebyshev_coefficients(distinct, degree).to(z.dtype)
    return series(z, s, [row if owner is None else row[owner] for row in table])


def series(z: Tensor, s: Tensor, weights: Sequence[float | Tensor]) -> Tensor:
    """A sum of Chebyshev polynomials of ``S``, from their weights.

    Args:
        z: ``(n, c)`` features; overwritten.
        s: ``(n, n)`` sparse CSR operator ``S``.
        weights: ``K + 1`` numbers, or tensors that broadcast to ``(c,)``.
    """
    result = z * weights[0]
    if len(weights) == 1:
        return result
    previous, current = z, s @ z
    for k, weight in enumerate(weights[1:], start=1):
        if isinstance(weight, Tensor):
            result.addcmul_(current, weight)
        else:
            result.add_(current, alpha=weight)
        if k + 1 < len(weights):  # T_{k+1} = 2 S T_k - T_{k-1}, in the buffer of T_{k-1}
            torch.addmm(previous, s, current, beta=-1, alpha=2, out=previous)
            previous, current = current, previous
    return result
