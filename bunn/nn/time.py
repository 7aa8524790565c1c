"""The diffusion time of a layer: fixed or learned, one for all bundles or one for each."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from numbers import Real

import torch
from torch import Tensor, nn

from bunn.calling import plain
from bunn.diffusion import Time, chebyshev_degree

#: From how many times on their range alone is printed.
MANY_TIMES = 8
#: Learned times stop growing here, 1e13, where every graph has reached its limit.
LARGEST_LOG = 30.0


def log_spaced_times(num_bundles: int, low: float = 0.1, high: float = 100.0) -> tuple[float, ...]:
    """A multi-scale start: one time per bundle, evenly spaced between the logarithms of two.

    The authors' code starts at ``10^(k - b/2)``, ``k = 0 .. b-1``: ``low=10**(-b/2)``,
    ``high=10**(b/2 - 1)``.
    """
    if not 0 < low <= high < math.inf:
        raise ValueError(f"low={low}, high={high}; they must be finite, with 0 < low <= high")
    if num_bundles == 1:
        return (math.sqrt(low * high),)
    ratio = high / low
    return tuple(low * ratio ** (k / (num_bundles - 1)) for k in range(num_bundles))


class DiffusionTime(nn.Module):
    r"""One non-negative time per bundle, or one for all.

    A learned time is :math:`t = e^{\tau}` with the parameter :math:`\tau` (``log_time``): positive
    by construction, and a step of the optimiser changes it by a factor, at every scale alike.

    A polynomial method needs a bound on the times to choose its degree. On a CPU it reads the
    times. On a GPU that would stall the device, so the degree comes from a bound kept on the host,
    twice the largest time seen; :meth:`refresh` looks again and moves it when needed. Eager code
    refreshes by itself after every optimiser step that is not part of a CUDA graph; code compiled
    or captured calls it between steps.

    Args:
        time: A number ``>= 0``, ``inf``, or ``num_bundles`` of them; the start if it is learned.
        num_bundles: The number of bundles ``b``.
        learn: Whether to learn one time per bundle.
        tol: The tolerance that the degree has to meet. (default: ``1e-5``)
    """

    fixed_time: Tensor
    #: Whether the bounds of learned times have ever been used.
    bounded = False

    def __init__(
        self,
        time: float | Sequence[float],
        num_bundles: int,
        learn: bool = False,
        tol: float = 1e-5,
    ) -> None:
        super().__init__()
        if not isinstance(learn, bool):
            raise TypeError(f"learn_time={learn!r}; use True or False")
        self.start = _read(time, num_bundles)
        self.learn, self.tol = learn, tol
        self._seen: tuple[object, int] = (None, -1)
        if learn:
            if not all(0 < start < math.inf for start in self.start):
                raise ValueError(
                    f"time={time}; a learned time (learn_time=True) starts at a finite value > 0"
                )
            start = self.start * (num_bundles // len(self.start))
            self.log_time = nn.Parameter(torch.empty(num_bundles))
            self._log_start = tuple(map(math.log, start))
            self.reset_parameters()
            self._set_bounds(min(start) / 2, 2 * max(start))
        else:
            finite = [start for start in self.start if start < math.inf]
            self._set_bounds(min(self.start), max(finite, default=math.inf))
            if len(self.start) > 1:
                self.register_buffer("fixed_time", self._fixed(), persistent=False)

    def _set_bounds(self, lower: float, upper: float) -> None:
        self._lower, self._upper = lower, upper
        self._degree = chebyshev_degree(upper, self.tol) if math.isfinite(upper) else None

    def reset_parameters(self) -> None:
        if self.learn:
            with torch.no_grad():
                self.log_time.copy_(torch.tensor(self._log_start, dtype=torch.float64))

    def forward(self) -> float | Tensor:
        """A number, or ``(b, 1, 1)`` times for a field of shape ``(n, b, d, p)``."""
        if self.learn:
            return self.log_time.clamp(max=LARGEST_LOG).exp().view(-1, 1, 1)
        if len(self.start) == 1:
            return self.start[0]
        return self.fixed_time

    def per_column(self, channels: torch.Size, bounded: bool = True) -> Time:
        """The time as the diffusion methods take it, for fields of shape ``(n, *channels)``; with
        bounds, unless the method asks for none of times that are learned."""
        time = self()
        if not isinstance(time, Tensor):
            return Time(time, time, time)
        if not self.learn and min(self.start) == math.inf:
            return Time(math.inf, math.inf, math.inf)
        value = time.reshape(1) if time.numel() == 1 else time.expand(channels).reshape(-1)
        if self.learn and not value.is_cuda:
            known = Time.of(value, value.shape)
            self.bounded |= bounded
            return Time(value, known.lower, known.upper, constant=False)
        if self.learn and not bounded:
            return Time(value, None, None, constant=False)
        self.bounded = True
        if self.learn and not (
            torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing()
        ):
            self._refresh_after_a_step()
        infinite = None
        if not self.learn and max(self.start) == math.inf:
            infinite = torch.isinf(value)
            value = value.masked_fill(infinite, 0.0)
        return Time(value, self._lower, self._upper, infinite, not self.learn, self._degree)

    @property
    def bounds(self) -> tuple[float, float]:
        """Between which the times are taken to be where nobody looks at them."""
        return self._lower, self._upper

    def _refresh_after_a_step(self) -> None:
        parameter, (seen, version) = self.log_time, self._seen
        if (
            not isinstance(seen, weakref.ref)
            or seen() is not parameter
            or version != parameter._version
        ):
            self.refresh()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def refresh(self, room: float = 1.0) -> None:
        """Looks at the learned times, and moves the bounds if they no longer fit.

        Args:
            room: A factor by which times may change before the next look. (default: ``1.0``)
        """
        if not self.learn:
            return
        parameter = self.log_time
        inner = parameter.detach()
        while torch._C._functorch.is_functorch_wrapped_tensor(inner):
            inner = torch._C._functorch.get_unwrapped(inner)
        self._seen = (weakref.ref(parameter), parameter._version)
        low, high = (math.exp(min(float(b), LARGEST_LOG)) for b in torch.aminmax(inner))
        if not (self._lower <= low / room and self._upper / 8 <= high <= self._upper / room):
            self._set_bounds(low / 2, 2 * high)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_seen": (None, -1)}  # a weak reference does not travel

    def _fixed(self) -> Tensor:
        return torch.tensor(self.start, dtype=torch.float64).view(-1, 1, 1)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> DiffusionTime:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._seen = (None, -1)
        if not self.learn and len(self.start) > 1:  # moves with the layer, but is never rounded
            self.fixed_time = self._fixed().to(self.fixed_time.device)
        return self

    def extra_repr(self) -> str:
        times: Sequence[float] = self.start
        if self.learn and plain(self.log_time) and not self.log_time.is_meta:
            times = self().detach().flatten().tolist()
        shown = ", ".join(f"{time:.4g}" for time in times)
        if len(times) > MANY_TIMES:
            shown = f"{len(times)} from {min(times):.4g} to {max(times):.4g}"
        return f"{shown}, learn={self.learn}"


def _read(time: object, num_bundles: int) -> tuple[float, ...]:
    if isinstance(time, Tensor):
        if time.requires_grad:
            raise ValueError(
                "time requires a gradient, but times that are handed in stay as they are; use "
                "learn_time=True, which starts at them, with time.detach()"
            )
        time = time.tolist()
    values = (time,) if isinstance(time, Real) else time
    if not isinstance(values, Sequence) or not all(isinstance(value, Real) for value in values):
        raise TypeError(f"time={time!r}; pass a number, or one per bundle")
    if values is time and len(values) != num_bundles:
        raise ValueError(
            f"time holds {len(values)} values; give one, or num_bundles={num_bundles} of them"
        )
    times = tuple(float(value) for value in values)
    for value in times:
        if not value >= 0:  # NaN included
            raise ValueError(f"time={value}; every time must be a number >= 0, or inf")
    return times


def refresh_times(module: nn.Module) -> None:
    """Calls :meth:`DiffusionTime.refresh` everywhere in a model: between steps of compiled code.

    A CUDA graph that was captured before has the old bounds; capture it again if they have moved.
    """
    for part in module.modules():
        if isinstance(part, DiffusionTime):
            part.refresh()
