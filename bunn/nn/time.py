"""The diffusion time of a layer: fixed or learned, one for all bundles or one for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from bunn.diffusion import Time, chebyshev_degree


def log_spaced_times(num_bundles: int) -> tuple[float, ...]:
    """A multi-scale start, one time per bundle: ``10^(k - b/2)`` for ``k = 0 .. b-1``."""
    return tuple(10.0 ** (k - num_bundles / 2) for k in range(num_bundles))


class DiffusionTime(nn.Module):
    r"""One non-negative time per bundle, or one for all.

    A learned time is :math:`t = e^{\tau}` with the parameter :math:`\tau` (``log_time``): positive
    by construction, and a step of the optimiser changes it by a factor, at every scale alike.

    A polynomial method needs a bound on the times to choose its degree. On a CPU it reads the
    times. On a GPU that would stall the device, so the degree comes from a bound kept on the host,
    twice the largest time seen; :meth:`refresh` looks again and raises it when needed. Eager code
    refreshes by itself after every optimiser step; code compiled or captured as a CUDA graph calls
    it between steps.

    Args:
        time: A number ``>= 0``, ``inf``, or ``num_bundles`` of them; the start if it is learned.
        num_bundles: The number of bundles ``b``.
        learn: Whether to learn one time per bundle.
        tol: The tolerance that the degree has to meet. (default: ``1e-5``)
    """

    fixed_time: Tensor

    def __init__(
        self,
        time: float | Sequence[float],
        num_bundles: int,
        learn: bool = False,
        tol: float = 1e-5,
    ) -> None:
        super().__init__()
        self.start = _read(time, num_bundles)
        self.learn, self.tol = learn, tol
        self._seen = -1
        if learn:
            if not all(0 < start < math.inf for start in self.start):
                raise ValueError(
                    f"time={time}; a learned time (learn_time=True) starts at a finite value > 0"
                )
            start = self.start * (num_bundles // len(self.start))
            self.log_time = nn.Parameter(torch.empty(num_bundles))
            self._log_start = tuple(map(math.log, start))
            self.reset_parameters()
        elif len(self.start) > 1:
            self.register_buffer("fixed_time", self._fixed(), persistent=False)
        self._raise_bound(2 * max(self.start) if learn else max(self.start))

    def _raise_bound(self, bound: float) -> None:
        self._bound = bound
        self._degree = chebyshev_degree(bound, self.tol) if math.isfinite(bound) else None

    def reset_parameters(self) -> None:
        if self.learn:
            with torch.no_grad():
                self.log_time.copy_(torch.tensor(self._log_start, dtype=torch.float64))

    def forward(self) -> float | Tensor:
        """A number, or ``(b, 1, 1)`` times for a field of shape ``(n, b, d, p)``."""
        if self.learn:
            return self.log_time.exp().view(-1, 1, 1)
        if len(self.start) == 1:
            return self.start[0]
        return self.fixed_time

    def per_column(self, channels: torch.Size) -> Time:
        """The time as the diffusion methods take it, for fields of shape ``(n, *channels)``."""
        time = self()
        if isinstance(time, Tensor) and not self.learn:
            value = time.expand(channels).reshape(-1)
            return Time(value, min(self.start), max(self.start))
        if isinstance(time, Tensor) and time.is_cuda:
            return Time(time.expand(channels).reshape(-1), None, None)
        return Time.of(time, channels)

    def degree(self) -> int | None:
        """The degree for times on a GPU; :obj:`None` where the method may read the times."""
        if self.learn:
            if not self.log_time.is_cuda:
                return None
            if not (torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing()):
                self.refresh()
        elif len(self.start) == 1 or not self.fixed_time.is_cuda:
            return None
        return self._degree

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def refresh(self) -> None:
        """Raises the bound on the learned times if one has outgrown it."""
        if self.learn and self._seen != self.log_time._version:
            self._seen = self.log_time._version
            largest = math.exp(float(self.log_time.detach().max()))
            if not largest <= self._bound:
                self._raise_bound(2 * largest)

    def _fixed(self) -> Tensor:
        return torch.tensor(self.start, dtype=torch.float64).view(-1, 1, 1)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> DiffusionTime:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._seen = -1
        if not self.learn and len(self.start) > 1:  # moves with the layer, but is never rounded
            self.fixed_time = self._fixed().to(self.fixed_time.device)
        return self

    def extra_repr(self) -> str:
        times = ", ".join(f"{start:g}" for start in self.start)
        return f"{times}, learn={self.learn}"


def _read(time: float | Sequence[float], num_bundles: int) -> tuple[float, ...]:
    if isinstance(time, (float, int)):
        times: tuple[float, ...] = (float(time),)
    elif len(time) != num_bundles:
        raise ValueError(
            f"time holds {len(time)} values; give one, or num_bundles={num_bundles} of them"
        )
    else:
        times = tuple(map(float, time))
    for value in times:
        if not value >= 0:  # NaN included
            raise ValueError(f"time={value}; every time must be a number >= 0, or inf")
    return times


def refresh_times(module: nn.Module) -> None:
    """Calls :meth:`DiffusionTime.refresh` everywhere in a model: between steps of compiled code."""
    for part in module.modules():
        if isinstance(part, DiffusionTime):
            part.refresh()
