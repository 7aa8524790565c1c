r"""Polynomials of the Laplacian as one differentiable operation that stores nothing of itself.

For exact heat :math:`y = H(t) x`, both derivatives are heat again:

.. math::
    \frac{\partial}{\partial x}: \; g \mapsto H(t)^\top g, \qquad
    \frac{\partial}{\partial t}: \; g \mapsto -\langle g, L y \rangle,

so a backward pass is one more run of the same recurrence, whatever the degree; and since both are
written with the operation itself, it differentiates as often as one likes. For the Taylor
polynomial :math:`y_K` the second is :math:`-\langle g, L y_{K-1} \rangle`, exactly.

The operation is opaque to ``torch.compile`` and takes every column of ``x`` by itself: batches of
``vmap`` are more columns, and on a CPU the columns are taken in panels that stay in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from bunn import kernels
from bunn.calling import apply, unwatched
from bunn.diffusion.chebyshev import (
    chebyshev,
    chebyshev_degree,
    check_degree,
    coefficients_for,
    series,
)
from bunn.diffusion.factors import factorize
from bunn.diffusion.minimax import minimax
from bunn.diffusion.taylor import taylor, taylor_coefficients
from bunn.diffusion.uniformization import uniformization, uniformization_degree
from bunn.graph.operator import (
    SymmetricOperator,
    csr_matrix,
    exact_arithmetic,
    fold_columns,
    from_operator_frame,
    random_walk,
    to_operator_frame,
    unfold_columns,
)
from bunn.kernels.arguments import Factor


class Recurrence(Protocol):
    def __call__(self, z: Tensor, s: Tensor, time: float | Tensor, degree: int) -> Tensor: ...


RECURRENCES: dict[str, Recurrence] = {
    "chebyshev": chebyshev,
    "taylor": taylor,
    "uniformization": uniformization,
}

#: The degree that meets a tolerance at a time; a Taylor polynomial is given its own.
DEGREES: dict[str, Callable[[float, float], int]] = {
    "chebyshev": chebyshev_degree,
    "uniformization": uniformization_degree,
}

#: Bytes of one panel of columns on a CPU: three of them stay in the second-level cache of a core.
PANEL_BYTES = 2**21

#: The degree is found from the times themselves, to meet ``tol``.
FROM_TIME = -1


class Polynomial(NamedTuple):
    """Which polynomial of the Laplacian is meant.

    Args:
        recurrence: A name in :data:`RECURRENCES`.
        degree: Its degree, or :data:`FROM_TIME`.
        tol: The error that :data:`FROM_TIME` has to meet.
        time: The diffusion time, if it is one number known to the host.
        low: Below the eigenvalues of ``S``, if that is known.
        high: Above those that are not of the null space.
    """

    recurrence: str
    degree: int
    tol: float
    time: float
    low: float = -1.0
    high: float = 1.0

    @property
    def fitted(self) -> tuple[float, ...] | None:
        """Chebyshev coefficients for these eigenvalues, if they save products."""
        if self.low <= -1 and self.high >= 1:
            return None
        return minimax(self.time, self.tol, self.low, self.high)


#: How many numbers describe one.
FIELDS = len(Polynomial._fields)


def _sum(
    x: Tensor,
    times: Tensor | None,
    crow: Tensor,
    col: Tensor,
    value: Tensor,
    before: Tensor | None,
    after: Tensor | None,
    segments: Tensor | None,
    chunks: Tensor | None,
    pieces: Tensor | None,
    scales: Tensor | None,
    recurrence: str,
    degree: int,
    tol: float,
    time: float,
    low: float,
    high: float,
) -> Tensor:
    operator = SymmetricOperator(crow, col, value, before, after, segments, chunks, pieces, scales)
    polynomial = Polynomial(recurrence, degree, tol, time, low, high)
    if kernels.serve(x, value):
        table = _table(x, time if times is None else times, polynomial)
        if table is not None:
            return kernels.heat(x.contiguous(), operator.rows, table, before, after)
    if times is not None and times.device.type == "cpu" and value.dtype == torch.float32:
        longest = int(crow.diff().max()) if crow.numel() > 1 else 0
        if float(times.max()) * error_of_sums(longest) > tol > 0:  # nobody knew before
            value = value.double()
    s = csr_matrix(crow, col, value)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    for columns in _panels(x, value.dtype):
        z = to_operator_frame(x[:, columns], before, value.dtype)
        if polynomial.fitted is not None:
            y = series(z, s, polynomial.fitted)
        else:
            t = _times_of(columns, times, time)
            panel_degree = _degree_for(t, tol, recurrence) if degree == FROM_TIME else degree
            y = RECURRENCES[recurrence](z, s, t, panel_degree)
        from_operator_frame(y, after, out[:, columns])
    return out


def _table(
    x: Tensor, time: float | Tensor, polynomial: Polynomial
) -> Sequence[float] | Sequence[Factor] | Tensor | None:
    """What a kernel reads of the polynomial, if there is one for it."""
    recurrence, degree, tol, *_ = polynomial
    if x.dtype != torch.float64 and polynomial.fitted is not None:
        factors = factorize(polynomial.fitted)
        if factors is not None:
            return factors
    if recurrence == "chebyshev":
        known = _degree_for(time, tol, recurrence) if degree == FROM_TIME else degree
        table = coefficients_for(time, known, x) if known > 0 else None
    elif recurrence == "taylor" and degree > 0 and not isinstance(time, Tensor):
        table = taylor_coefficients(time, degree) if x.dtype != torch.float64 else None
    else:
        table = None
    # Roots are found on the host, in float64.
    return (factorize(table) or table) if isinstance(table, tuple) else table


#: The same to compilers, for which it is one operation; to call it takes a while.
_heat = torch.library.custom_op("bunn::heat", _sum, mutates_args=())


@_heat.register_fake
def _(x: Tensor, *args: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@_heat.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, ...], x: Tensor, times: Tensor | None, *args: Any
) -> tuple[Tensor, int]:
    if any(dim is not None for dim in in_dims[2:]):
        raise ValueError("vmap over graphs is not supported; batch them block-diagonally")
    batch, channels = info.batch_size, x.size(-1)
    if in_dims[0] is None:
        x = x.unsqueeze(0).expand(batch, *x.shape)
    else:
        channels = x.movedim(in_dims[0], 0).size(-1)
    if times is not None and not (in_dims[1] is None and times.numel() == 1):
        rows = times.unsqueeze(0) if in_dims[1] is None else times.movedim(in_dims[1], 0)
        times = rows.expand(batch, channels).reshape(-1)
    folded = fold_columns(x, in_dims[0] or 0)
    return unfold_columns(_heat(folded, times, *args), batch)


def error_of_sums(longest: int) -> float:
    """What torch loses in sums of so many terms of float32 that are alike."""
    return longest / 4 * torch.finfo(torch.float32).eps / 2


def _times_of(columns: slice, times: Tensor | None, time: float) -> float | Tensor:
    if times is None:
        return time
    if times.numel() == 1:
        return times.item() if times.device.type == "cpu" else times
    return times[columns]


def _panels(x: Tensor, dtype: torch.dtype) -> Iterator[slice]:
    """Column ranges whose recurrence runs in the cache (on a CPU; elsewhere all at once)."""
    width = x.size(1)
    if x.device.type == "cpu":
        fitting = PANEL_BYTES // max(1, x.size(0) * dtype.itemsize)
        width = max(16, 1 << max(0, round(math.log2(max(1, fitting)))))
    for start in range(0, x.size(1), max(1, width)):
        yield slice(start, start + width)


def _degree_for(time: float | Tensor, tol: float, recurrence: str) -> int:
    if isinstance(time, Tensor):
        if time.is_cuda and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "the times are on the device and a CUDA graph is being captured, so the degree "
                "cannot be read off them; pass degree=bunn.diffusion.chebyshev_degree(bound, tol)"
            )
        low, high = (float(bound) for bound in torch.aminmax(time.detach()))
        if not (low >= 0 and math.isfinite(high)):
            raise ValueError(
                f"time ranges from {low} to {high}; times must be non-negative and finite here"
            )
        time = high
    degree = DEGREES[recurrence](time, tol)
    check_degree(degree, time)
    return degree


class _Heat(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor,
        times: Tensor | None,
        crow: Tensor,
        col: Tensor,
        value: Tensor,
        before: Tensor | None,
        after: Tensor | None,
        segments: Tensor | None,
        chunks: Tensor | None,
        pieces: Tensor | None,
        scales: Tensor | None,
        recurrence: str,
        degree: int,
        tol: float,
        time: float,
        low: float,
        high: float,
    ) -> Tensor:
        operator = (crow, col, value, before, after, segments, chunks, pieces, scales)
        found = _sum if unwatched(x) else _heat
        y: Tensor = found(x, times, *operator, recurrence, degree, tol, time, low, high)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _save(ctx, inputs, output)
        ctx.save_for_forward(_differentiated_field(inputs, output), *inputs[1:-FIELDS])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _gradients(ctx, grad)

    @staticmethod
    def jvp(ctx: Any, x_tangent: Tensor | None, times_tangent: Tensor | None, *_: None) -> Tensor:
        field, times, *rest = ctx.saved_tensors
        operator, polynomial = SymmetricOperator(*rest), ctx.polynomial
        parts = []
        if x_tangent is not None:
            parts.append(heat(x_tangent, times, operator, polynomial))
        if times_tangent is not None:
            rate = _time_derivative(field, times, operator, polynomial)
            parts.append(rate * times_tangent.to(rate.dtype))
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.polynomial = Polynomial(*inputs[-FIELDS:])
    ctx.save_for_backward(_differentiated_field(inputs, output), *inputs[1:-FIELDS])


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    field, times, *rest = ctx.saved_tensors
    operator, polynomial = SymmetricOperator(*rest), ctx.polynomial
    grad_x = grad_times = None
    if ctx.needs_input_grad[0]:
        grad_x = heat(grad, times, operator.adjoint(), polynomial)
    if ctx.needs_input_grad[1]:
        rate = _time_derivative(field, times, operator, polynomial)
        product = grad.to(operator.value.dtype) * rate.to(operator.value.dtype)
        grad_times = (product.sum() if times.numel() == 1 else product.sum(0)).view(times.shape)
        grad_times = grad_times.to(times.dtype)
    return grad_x, grad_times, *(None for _ in (*operator, *polynomial))


# A compiler need not look into the function above, nor could it at its forward mode.
_heat.register_autograd(_gradients, setup_context=_save)


def _differentiated_field(inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
    """What the derivative by time looks at: the result, or the input of a Taylor polynomial."""
    x, times, polynomial = inputs[0], inputs[1], Polynomial(*inputs[-FIELDS:])
    if times is None:
        return None
    return x if polynomial.recurrence == "taylor" else output


def _time_derivative(
    field: Tensor, times: Tensor, operator: SymmetricOperator, polynomial: Polynomial
) -> Tensor:
    """``dy/dt = -L y``; for a Taylor polynomial, ``-L`` times the one of a degree less."""
    if polynomial.recurrence == "taylor":
        if polynomial.degree == 0:
            return torch.zeros_like(field)
        field = heat(field, times, operator, polynomial._replace(degree=polynomial.degree - 1))
    return random_walk(field, operator) - field


def heat(
    x: Tensor, times: Tensor | None, operator: SymmetricOperator, polynomial: Polynomial
) -> Tensor:
    """``p_t(L) x``, differentiable in ``x`` and ``times``.

    Args:
        x: ``(n, c)`` features.
        times: ``(1,)`` or ``(c,)`` times, or :obj:`None` to use ``polynomial.time``.
        operator: The symmetric operator behind ``L``.
        polynomial: Which polynomial.
    """
    with exact_arithmetic(x):
        if torch.compiler.is_compiling():
            found: Tensor = _heat(x, times, *operator, *polynomial)
            return found
        y: Tensor = apply(_Heat, x, times, *operator, *polynomial)
    return y
