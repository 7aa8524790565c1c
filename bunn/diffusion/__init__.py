r"""Heat on a graph, :math:`e^{-tL} x`: one function, one registry, one method per file.

A method is a function of differentiable torch operations ``(x, lap, time, options) -> y`` on
``x: (n, c)``. To add one, write its file and name it in :data:`METHODS`: :func:`diffuse` then
offers it and the contract suite in ``tests/contracts`` tests it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bunn.diffusion.auto import decide, saturate
from bunn.diffusion.chebyshev import chebyshev_degree
from bunn.diffusion.dense import dense as _dense
from bunn.diffusion.limit import component_mean
from bunn.diffusion.limit import limit as _limit
from bunn.diffusion.options import Method, Options, Time
from bunn.diffusion.spectral import spectral as _spectral
from bunn.diffusion.tolerance import polynomial_heat
from bunn.graph.operator import exact_arithmetic
from bunn.laplacian import Laplacian, check_laplacian

__all__ = [
    "METHODS",
    "Method",
    "Options",
    "Time",
    "chebyshev_degree",
    "diffuse",
    "heat_kernel",
    "solve",
]


def _chebyshev(x: Tensor, lap: Laplacian, time: Time, options: Options) -> Tensor:
    return polynomial_heat(x, lap, time, "chebyshev", options)


def _taylor(x: Tensor, lap: Laplacian, time: Time, options: Options) -> Tensor:
    if time.upper == math.inf or time.infinite is not None:
        raise ValueError("time is inf, where a Taylor polynomial is too; use method='auto'")
    return polynomial_heat(x, lap, time, "taylor", options)


def _uniformization(x: Tensor, lap: Laplacian, time: Time, options: Options) -> Tensor:
    return polynomial_heat(x, lap, time, "uniformization", options)


METHODS: dict[str, Method] = {
    "taylor": _taylor,
    "chebyshev": _chebyshev,
    "uniformization": _uniformization,
    "spectral": _spectral,
    "dense": _dense,
    "limit": _limit,
}


def diffuse(
    x: Tensor,
    lap: Laplacian,
    time: float | Tensor,
    *,
    method: str = "auto",
    tol: float = 1e-5,
    degree: int | None = None,
    num_eigs: int | None = None,
) -> Tensor:
    r"""Lets the features ``x`` diffuse over the graph for a time: :math:`y = e^{-tL} x`.

    Every method but ``"taylor"`` meets ``tol``, a bound on the relative error in the norm in which
    :math:`L` is symmetric: :math:`\|D^{1/2}(y - y^*)\| \le \mathrm{tol}\, \|D^{1/2} x\|` for
    ``"rw"``, the 2-norm for ``"sym"``; features of 16 bits are rounded to their type on top, and so
    is heat by ``t * eps / 2`` in float32 where a compiler hides the time. Differentiable in ``x``
    and ``time``, any number of times; no intermediate is stored, so memory does not depend on the
    degree.

    Args:
        x: ``(n, ...)`` features in any floating-point type; sums are formed in float32 or float64.
        lap: The graph.
        time: A number ``>= 0``, ``inf``, or a tensor of times that broadcasts to ``x.shape[1:]``.
        method: ``"auto"`` (the cheapest that meets ``tol``), or a name in :data:`METHODS`.
            (default: ``"auto"``)
        tol: The tolerance; for ``x`` of 16 bits at least a sixteenth of their ``eps``. (default:
            ``1e-5``)
        degree: Degree of the polynomial for ``"taylor"``, which needs it, and for ``"chebyshev"``
            and ``"uniformization"``, which then look neither at ``tol`` nor at the times; their
            derivative by the time stays that of exact heat. (default: derived from ``tol``)
        num_eigs: Number of eigenpairs for ``"spectral"``. (default: as many as ``tol`` asks for)

    Shapes:
        - **x:** ``(n, ...)``
        - **time:** broadcasts to ``x.shape[1:]``: ``(b, 1, 1)`` is one per bundle of ``(n, b, d,
          p)``
        - **output:** ``(n, ...)``, in the type of ``x``
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"x is a {type(x).__name__}; pass a tensor of shape (num_nodes, ...)")
    check_laplacian(lap)
    options = Options(tol, degree, num_eigs)
    options.check(method, METHODS)
    lap = lap.matching(x)
    if isinstance(time, Tensor) and time.device != x.device:
        if time.numel() != 1 or time.device.type != "cpu":
            raise ValueError(f"time is on {time.device} and x on {x.device}; move one of them")
        time = time.to(x.device)
    times = Time.of(time, x.shape[1:])
    columns = x.reshape(lap.num_nodes, math.prod(x.shape[1:]))
    return solve(columns, lap, times, method, options).view(x.shape)


def solve(x: Tensor, lap: Laplacian, time: Time, method: str, options: Options) -> Tensor:
    """:func:`diffuse` for ``x: (n, c)``, once the arguments are known to be good."""
    options = options.for_precision(x.dtype)
    with exact_arithmetic(x):
        if method == "taylor":
            return _taylor(x, lap, time, options)
        if not isinstance(time.value, Tensor) and time.value == 0:
            return x.clone()
        if time.lower == math.inf:
            return component_mean(x, lap)
        if method == "auto":
            time = saturate(time, lap, options.tol)
            method, options = decide(x, lap, time, options)
            if method == "limit":
                return component_mean(x, lap)
        y = METHODS[method](x, lap, time, options)
        if time.infinite is None:
            return y
        return torch.where(time.infinite, component_mean(x, lap), y)


def heat_kernel(lap: Laplacian, time: float) -> Tensor:
    """The heat kernel ``H(t) = exp(-t L)`` as a dense ``(n, n)`` matrix, ``H[v, u]``.

    For ``"rw"`` row ``v`` is where the walker from ``v`` is after time ``t``; rows sum to one.
    """
    check_laplacian(lap)
    identity = torch.eye(lap.num_nodes, dtype=lap.dtype, device=lap.device)
    method = "limit" if time == math.inf else "chebyshev"
    return diffuse(identity, lap, time, method=method, tol=torch.finfo(lap.dtype).eps)
