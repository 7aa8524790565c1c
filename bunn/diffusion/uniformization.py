r"""Uniformization: heat as the mean over random walks of a random number of steps.

.. math::
    e^{-tL} x = \sum_{k=0}^{\infty} e^{-t} \frac{t^k}{k!}\, P^k x, \qquad P = I - L

A walker makes a Poisson number of steps, ``t`` on average. No term is negative where ``x`` is not,
so nothing cancels: the error *at every node* is a few roundings of :math:`H(t)|x|` there, and an
entry of the kernel is exact relative to itself, however small. Other methods are exact relative to
the largest. It is not to be confused with :mod:`bunn.diffusion.taylor`, which expands in :math:`L`
and cancels. It takes about ``t`` products, :mod:`bunn.diffusion.chebyshev` about :math:`\sqrt t`;
ask for it where what is tiny matters.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from bunn.diffusion.chebyshev import check_degree


def uniformization_degree(time: float, tol: float) -> int:
    r"""The smallest degree :math:`K \ge t` for which the tail bound meets ``tol``:

    .. math::
        \sum_{k > K} e^{-t} \frac{t^k}{k!} \le
        \frac{e^{-t} t^{K+1}}{(K+1)!} \Big/ \Big(1 - \frac{t}{K+2}\Big) \le \mathrm{tol}

    Args:
        time: A finite diffusion time ``t >= 0``.
        tol: The bound on the error in the operator norm, ``> 0``, as small as one likes.
    """
    if time == 0 or tol >= 1:
        return 0
    check_degree(math.ceil(time), time)  # it is no less

    def misses(degree: int) -> bool:
        k = degree + 1
        log_term = k * math.log(time) - time - math.lgamma(k + 1)
        return log_term - math.log1p(-time / (k + 1)) > math.log(tol)

    low = math.ceil(time) - 1
    step = 1
    while misses(low + step):
        step *= 2
    high = low + step
    while high - low > 1:  # the bound falls from t on
        middle = (low + high) // 2
        low, high = (middle, high) if misses(middle) else (low, middle)
    return high


def uniformization(z: Tensor, s: Tensor, time: float | Tensor, degree: int) -> Tensor:
    """The sum of degree ``K``, in the frame where the operator is symmetric.

    Args:
        z: ``(n, c)`` features; overwritten.
        s: ``(n, n)`` sparse CSR operator ``S``.
        time: One time, or ``(c,)`` of them.
        degree: The degree ``K``.
    """
    weights = poisson_weights(time, degree)
    weights = weights.to(z.dtype) if isinstance(weights, Tensor) else weights
    result = z * weights[0]
    walked, spare = z, torch.empty_like(z)
    for k in range(1, degree + 1):
        torch.mm(s, walked, out=spare)
        result += spare * weights[k]
        walked, spare = spare, walked
    return result


def poisson_weights(time: float | Tensor, degree: int) -> list[float] | Tensor:
    """The chances ``e^-t t^k / k!`` of ``k = 0 .. K`` steps: numbers, or ``(K + 1, c)``."""
    if isinstance(time, Tensor):
        steps = torch.arange(degree + 1, dtype=torch.float64, device=time.device).unsqueeze(1)
        log_weights = torch.xlogy(steps, time.double()) - time.double() - torch.lgamma(steps + 1)
        return log_weights.exp()
    return _host_weights(time, degree)


@lru_cache(maxsize=64)
def _host_weights(time: float, degree: int) -> list[float]:
    """From the likeliest number of steps outwards, each from its neighbour; all sum to one."""
    likeliest = int(time)
    last = max(degree, uniformization_degree(time, 1e-17))
    more = np.cumprod(time / np.arange(likeliest + 1, last + 1))
    fewer = np.cumprod(np.arange(likeliest, 0, -1) / time) if likeliest else np.empty(0)
    weights = np.concatenate((fewer[::-1], [1.0], more))
    chances: list[float] = (weights / weights.sum())[: degree + 1].tolist()
    return chances
