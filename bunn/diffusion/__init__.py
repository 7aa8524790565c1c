r"""Heat on a graph, :math:`e^{-tL} x`: one function, one registry, one method per file.

A method is a function of differentiable torch operations ``(x, lap, time, options) -> y`` on
``x: (n, c)``. To add one, write its file and name it in :data:`METHODS`: :func:`diffuse` then
offers it and the contract suite in ``tests/contracts`` tests it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bunn.diffusion.auto import choose
from bunn.diffusion.chebyshev import chebyshev_degree
from bunn.diffusion.dense import dense as _dense
from bunn.diffusion.limit import component_mean
from bunn.diffusion.limit import limit as _limit
from bunn.diffusion.options import Method, Options, Time
from bunn.diffusion.polynomial import FROM_TIME, Polynomial, heat
from bunn.diffusion.spectral import spectral as _spectral
from bunn.laplacian import Laplacian
from bunn.operator import exact_arithmetic

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
    degree = FROM_TIME if options.degree is None else options.degree
    return _polynomial(x, lap, time, "chebyshev", degree, options.tol)


def _taylor(x: Tensor, lap: Laplacian, time: Time, options: Options) -> Tensor:
    if options.degree is None:
        raise ValueError(
            "method='taylor' needs degree=K, the degree of its polynomial; to meet tol instead, "
            "use method='auto' or 'chebyshev'"
        )
    return _polynomial(x, lap, time, "taylor", options.degree, options.tol)


def _polynomial(
    x: Tensor, lap: Laplacian, time: Time, recurrence: str, degree: int, tol: float
) -> Tensor:
    if isinstance(time.value, Tensor):
        return heat(x, time.value, lap.operator, Polynomial(recurrence, degree, tol, 0.0))
    return heat(x, None, lap.operator, Polynomial(recurrence, degree, tol, time.value))


METHODS: dict[str, Method] = {
    "taylor": _taylor,
    "chebyshev": _chebyshev,
    "spectral": _spectral,
    "dense": _dense,
    "limit": _limit,
}

#: The methods that take each optional argument.
_TAKES = {"degree": ("taylor", "chebyshev"), "num_eigs": ("spectral",)}


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
    ``"rw"``, the 2-norm for ``"sym"``, on top of what the precision of ``x`` rounds. Differentiable
    in ``x`` and ``time``, any number of times; no intermediate is stored, so memory does not depend
    on the degree.

    Args:
        x: ``(n, ...)`` features in any floating-point type; sums are formed in float32 or float64.
        lap: The graph.
        time: A number ``>= 0``, ``inf``, or a tensor of times that broadcasts to ``x.shape[1:]``.
        method: ``"auto"`` (the cheapest that meets ``tol``), or a name in :data:`METHODS`.
            (default: ``"auto"``)
        tol: The tolerance. (default: ``1e-5``)
        degree: Degree of the polynomial for ``"taylor"``, which needs it, and for ``"chebyshev"``,
            which then no longer looks at the times. (default: derived from ``tol``)
        num_eigs: Number of eigenpairs for ``"spectral"``. (default: as many as ``tol`` asks for)

    Shapes:
        - **x:** ``(n, ...)``
        - **time:** broadcasts to ``x.shape[1:]``: ``(b, 1, 1)`` is one per bundle of ``(n, b, d,
        p)``
        - **output:** ``(n, ...)``, in the type of ``x``
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"x is a {type(x).__name__}; pass a tensor of shape (num_nodes, ...)")
    if not isinstance(lap, Laplacian):
        raise TypeError(
            f"lap is a {type(lap).__name__}; build it once with bunn.Laplacian(edge_index)"
        )
    if method != "auto" and method not in METHODS:
        raise ValueError(f"method={method!r} is unknown; use 'auto' or one of {list(METHODS)}")
    for name, given in (("degree", degree), ("num_eigs", num_eigs)):
        if given is not None and method not in _TAKES[name]:
            raise ValueError(
                f"{name}={given} is not used by method={method!r}; it is for {_TAKES[name]}"
            )
    options = Options(tol, degree, num_eigs)
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
    if time.upper == 0 and not isinstance(time.value, Tensor):
        return x.clone()
    if time.upper == math.inf and method != "taylor":
        if time.lower == math.inf:
            with exact_arithmetic(x):
                return component_mean(x, lap)
        return _some_infinite(x, lap, time, method, options)
    if method == "auto":
        method = choose(x, lap, time, options)
    with exact_arithmetic(x):
        return METHODS[method](x, lap, time, options)


def _some_infinite(x: Tensor, lap: Laplacian, time: Time, method: str, options: Options) -> Tensor:
    """Columns of finite and of infinite times side by side."""
    assert isinstance(time.value, Tensor)
    infinite = torch.isinf(time.value)
    finite = time.value.masked_fill(infinite, 0.0)
    lower, upper = (float(bound) for bound in torch.aminmax(finite.detach()))
    y = solve(x, lap, Time(finite, lower, upper), method, options)
    return torch.where(infinite, component_mean(x, lap), y)


def heat_kernel(lap: Laplacian, time: float) -> Tensor:
    """The heat kernel ``H(t) = exp(-t L)`` as a dense ``(n, n)`` matrix, ``H[v, u]``.

    For ``"rw"`` row ``v`` is where the walker from ``v`` is after time ``t``; rows sum to one.
    """
    identity = torch.eye(lap.num_nodes, dtype=lap.dtype, device=lap.device)
    return diffuse(identity, lap, time, method="auto", tol=torch.finfo(lap.dtype).eps)
