"""What a diffusion method is told: the time, and how exact to be."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad

from bunn.graph.interval import Interval
from bunn.laplacian import Laplacian


@dataclass(frozen=True)
class Options:
    """How exact to be.

    Args:
        tol: Bound on the relative error, in the norm in which ``L`` is symmetric.
        degree: Degree of a polynomial method, :obj:`None` to derive it from ``tol``.
        num_eigs: Eigenpairs of the spectral method, :obj:`None` for as many as ``tol`` asks for.
        interval: Where the eigenvalues of ``S`` lie, for polynomials that may know it.
    """

    tol: float
    degree: int | None = None
    num_eigs: int | None = None
    interval: Interval | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.tol, Real):
            raise TypeError(f"tol is a {type(self.tol).__name__}; pass a positive number")
        if not self.tol > 0:
            raise ValueError(f"tol={self.tol}; it must be positive, such as 1e-5")
        if self.degree is not None and (not _is_int(self.degree) or self.degree < 0):
            raise ValueError(f"degree={self.degree}; it must be an integer >= 0")
        if self.num_eigs is not None and (not _is_int(self.num_eigs) or self.num_eigs < 1):
            raise ValueError(f"num_eigs={self.num_eigs}; it must be an integer >= 1")

    def for_precision(self, dtype: torch.dtype) -> Options:
        """The same, with a ``tol`` that features of a type can tell from none.

        What 16 bits round is far above the usual ``tol``: a sixteenth of it is asked for.
        """
        if dtype.itemsize > 2:
            return self
        return replace(self, tol=max(self.tol, torch.finfo(dtype).eps / 16))

    def check(self, method: str, methods: Collection[str]) -> None:
        """Raises an error if ``method`` is unknown, lacks an option, or would ignore one."""
        if not isinstance(method, str) or (method != "auto" and method not in methods):
            raise ValueError(f"method={method!r} is unknown; use 'auto' or one of {list(methods)}")
        for name, given, users in (
            ("degree", self.degree, ("taylor", "chebyshev", "uniformization")),
            ("num_eigs", self.num_eigs, ("spectral",)),
        ):
            if given is not None and method not in users:
                raise ValueError(
                    f"{name}={given} is not used by method={method!r}; it is for {users}"
                )
        if method == "taylor" and self.degree is None:
            raise ValueError(
                "method='taylor' needs degree=K, the degree of its polynomial; to meet tol "
                "instead, use method='auto' or 'chebyshev'"
            )


@dataclass(frozen=True)
class Time:
    """A diffusion time per column, and what the host knows of it.

    One time that nobody differentiates by is always a number, never a tensor.

    Args:
        value: A number, or ``(1,)`` or ``(c,)`` finite times.
        lower: Lower bound on the times, :obj:`None` if only the device knows.
        upper: Upper bound on the times, likewise.
        infinite: ``(c,)`` marks the columns whose time is infinite, beside finite ones; ``value``
            is zero there.
        constant: Whether the times stay the same from call to call, so that what depends on them is
            worth keeping.
        degree: A Chebyshev degree that meets the tolerance at ``upper``, if it has been worked out
            beforehand.
    """

    value: float | Tensor
    lower: float | None
    upper: float | None
    infinite: Tensor | None = None
    constant: bool = True
    degree: int | None = None

    @classmethod
    def of(cls, time: object, channels: torch.Size) -> Time:
        """Reads the ``time`` of :func:`bunn.diffuse` for features of shape ``(n, *channels)``."""
        if isinstance(time, Real) and not isinstance(time, bool):
            number = float(time)
            if not number >= 0:  # NaN included
                raise ValueError(f"time={number}; it must be a number >= 0, or inf")
            return cls(number, number, number)
        if not isinstance(time, Tensor):
            raise TypeError(
                f"time is a {type(time).__name__}; pass a float, or a tensor that broadcasts to "
                f"x.shape[1:] = {tuple(channels)}"
            )
        if not time.is_floating_point():
            raise TypeError(f"time has dtype {time.dtype}; use a floating-point type")
        value = _per_column(time, channels)
        if not _readable(time):
            return cls(value, None, None)
        if time.numel() == 0:
            return cls(0.0, 0.0, 0.0)
        lower, upper = (float(bound) for bound in torch.aminmax(time.detach()))
        if not lower >= 0:  # NaN included
            raise ValueError(f"time holds {lower}; every time must be a number >= 0, or inf")
        if lower == math.inf or (value.numel() == 1 and not _differentiated(time)):
            return cls(lower, lower, lower)
        infinite = None
        if upper == math.inf:
            infinite = torch.isinf(value.detach())
            upper = float(value.detach()[~infinite].max())
            value = value.masked_fill(infinite, 0.0)
        return cls(value, lower, upper, infinite)

    @property
    def fixed(self) -> bool:
        """Whether the host knows every time, now and later, and nobody differentiates by one."""
        if not isinstance(self.value, Tensor) or not self.constant:
            return self.constant
        if torch.compiler.is_compiling() or self.lower is None:
            return False
        return not _differentiated(self.value)


def _per_column(time: Tensor, channels: torch.Size) -> Tensor:
    if time.numel() == 1 and time.dim() <= max(1, len(channels)):
        return time.reshape(1)
    try:
        return time.expand(channels).reshape(-1)
    except RuntimeError:
        raise ValueError(
            f"time has shape {tuple(time.shape)}; it must broadcast to x.shape[1:] = "
            f"{tuple(channels)}: one time per bundle is (b, 1, 1) for x of (n, b, d, p)"
        ) from None


class Method(Protocol):
    """One way to compute ``exp(-t L) x`` for ``x: (n, c)``, differentiable in ``x`` and ``t``."""

    def __call__(self, x: Tensor, lap: Laplacian, time: Time, options: Options) -> Tensor: ...


def _readable(time: Tensor) -> bool:
    """Whether reading the times is possible, and costs no synchronisation inside a capture."""
    if torch.compiler.is_compiling():
        return False
    inner = time
    while torch._C._functorch.is_functorch_wrapped_tensor(inner):
        if torch._C._functorch.is_batchedtensor(inner):
            return False
        inner = torch._C._functorch.get_unwrapped(inner)
    return not (time.is_cuda and torch.cuda.is_current_stream_capturing())


def _differentiated(time: Tensor) -> bool:
    """Whether a derivative by ``time`` is under way, in reverse or forward mode."""
    if time.requires_grad or torch._C._functorch.is_functorch_wrapped_tensor(time):
        return True
    return forward_ad.unpack_dual(time).tangent is not None


def _is_int(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
