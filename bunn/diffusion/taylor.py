r"""Taylor expansion of the heat kernel at zero: Algorithm 1 of the paper, to the letter.

.. math::
    y_K = \sum_{k=0}^{K} \frac{(-t L)^k}{k!}\, x

It is what it says, and no more: the error at ``t=1.5, K=4`` exceeds 1, at ``t=10, K=8`` it is
4.5e5. It exists for reproduction; :mod:`bunn.diffusion.chebyshev` meets a tolerance with fewer
products.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from numpy.polynomial.chebyshev import chebadd, chebmulx, chebsub
from torch import Tensor


@lru_cache(maxsize=64)
def taylor_coefficients(time: float, degree: int) -> tuple[float, ...]:
    r"""The same polynomial of :math:`S` by those of Chebyshev, ``K + 1`` coefficients.

    By Horner's rule, :math:`p \leftarrow 1 - \tfrac{t}{k} (1 - S) p` for ``k`` from ``K`` down.
    """
    found: Any = [1.0]
    for k in range(degree, 0, -1):
        found = chebadd([1.0], -time / k * chebsub(found, chebmulx(found)))
    return (*map(float, found), *[0.0] * (degree + 1 - len(found)))  # fewer at t = 0


def taylor(z: Tensor, s: Tensor, time: float | Tensor, degree: int) -> Tensor:
    """The Taylor polynomial of degree ``K``, in the frame where the operator is symmetric.

    Args:
        z: ``(n, c)`` features; overwritten.
        s: ``(n, n)`` sparse CSR operator ``S``, so that ``L = I - S``.
        time: One time, or ``(c,)`` of them.
        degree: The degree ``K``.
    """
    result = z.clone()
    term, spare = z, torch.empty_like(z)
    if isinstance(time, Tensor):
        time = time.to(z.dtype)
    for k in range(1, degree + 1):  # term <- -(t/k) L term
        torch.addmm(term, s, term, beta=-1, alpha=1, out=spare)
        spare.mul_(time / k)
        result.add_(spare)
        term, spare = spare, term
    return result
