r"""BatchNorm that can tell the rows of a batch from those that fill it up.

A step that is recorded has fixed shapes, so batches of graphs are filled up to a fixed number of
nodes (:mod:`bunn.batches.rooms`). Everything in a graph network keeps to a node and its neighbours,
or to its graph, and what is filled up has neither in common with the rest; but for the statistics
of a BatchNorm, which are those of the first :math:`m` of :math:`n` rows here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bunn import kernels

#: What :func:`counted_rows` said, the last of which counts. (A list, which compilers can read.)
_COUNTED: list[Mapping[int, Tensor] | None] = []


@contextmanager
def counted_rows(counts: Mapping[int, Tensor] | None) -> Iterator[None]:
    """A context in which a :class:`BatchNorm` in training looks at the first rows alone.

    Args:
        counts: How many, ``()`` int64 on the device, by the number of all rows; :obj:`None` where
            all of them count.
    """
    _COUNTED.append(counts)
    try:
        yield
    finally:
        _COUNTED.pop()


class BatchNorm(nn.BatchNorm1d):
    """:class:`torch.nn.BatchNorm1d` for ``(n, c)``, and inside of :func:`counted_rows` for the rows
    that count. All rows are normalised; those that do not count have no gradient."""

    def forward(self, x: Tensor) -> Tensor:
        counts = _COUNTED[-1] if _COUNTED else None
        if counts is None or not self.training:
            return super().forward(x)
        if x.size(0) not in counts:
            raise ValueError(
                f"x has {x.size(0)} rows, and it is not known how many of them count: that is known"
                f" of {sorted(counts)} rows"
            )
        count = counts[x.size(0)]
        arguments = (x, self.weight, self.bias, count)
        if kernels.serve_chains(x):
            return cast(Tensor, _NormByKernels.apply(*arguments, self))  # type: ignore[no-untyped-call]
        y, mean, var = _CountedNorm.apply(*arguments, self.eps)  # type: ignore[no-untyped-call]
        self._remember(mean, var, count)
        return cast(Tensor, y.to(x.dtype))

    def tracked(self) -> tuple[Tensor, Tensor, float] | None:
        """The running statistics, counted, and the share of what is new."""
        if self.running_mean is None or self.running_var is None:
            return None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        self.num_batches_tracked.add_(1)
        return self.running_mean, self.running_var, self.momentum

    @torch.no_grad()
    def _remember(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        """The running statistics, those of a variance without its bias."""
        if (tracked := self.tracked()) is not None:
            running_mean, running_var, momentum = tracked
            running_mean.lerp_(mean, momentum)
            running_var.lerp_(var * count / (count - 1).clamp(min=1), momentum)


def counts_rows(model: nn.Module) -> bool:
    """Whether all normalisations over rows of a model are such ones."""
    norms = [part for part in model.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    return all(isinstance(norm, BatchNorm) for norm in norms)


class _NormByKernels(torch.autograd.Function):
    """The same in a few passes: :mod:`bunn.kernels.norms`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        count: Tensor,
        norm: BatchNorm,
    ) -> Tensor:
        x = x.contiguous()
        normalise = _kernels().normalise_columns
        y, statistics = normalise(x, weight, bias, count, norm.eps, norm.tracked())
        ctx.save_for_backward(x, statistics, weight, count)
        return cast(Tensor, y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, statistics, weight, count = ctx.saved_tensors
        back = _kernels().normalise_columns_back
        by_x, by_weight, by_bias = back(grad.contiguous(), x, statistics, weight, count)
        if weight is None:
            return by_x, None, None, None, None
        return by_x, by_weight.to(weight.dtype), by_bias.to(weight.dtype), None, None


def _kernels() -> Any:
    """The kernels, which are there where Triton is."""
    from bunn.kernels import norms  # noqa: PLC0415

    return norms


class _CountedNorm(torch.autograd.Function):
    r"""With :math:`\mu` in the rows that do not count, the variance of all :math:`n` rows is
    :math:`m / n` of that of the :math:`m` that do. Backwards, over these,

    .. math::
        g_x = \frac{w}{\sigma} \Big(g - \overline{g} - \hat x\, \overline{g \hat x}\Big).
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, count: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        x = x.float() if x.dtype.itemsize == 2 else x
        counts = (torch.arange(x.size(0), device=x.device) < count).unsqueeze(1)
        count = count.clamp(min=1)
        mean = torch.where(counts, x, 0.0).sum(0) / count
        var = torch.where(counts, x, mean).var(0, correction=0) * x.size(0) / count
        inverse = (var + eps).rsqrt()
        scale = inverse if weight is None else inverse * weight
        shift = -mean * scale if bias is None else bias - mean * scale
        ctx.save_for_backward(x, counts, mean, inverse, weight, count)
        ctx.mark_non_differentiable(mean, var)
        return torch.addcmul(shift, x, scale), mean, var

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        x, counts, mean, inverse, weight, count = ctx.saved_tensors
        grad, centred = torch.where(counts, grad, 0.0), torch.where(counts, x - mean, 0.0)
        of_bias, of_weight = grad.sum(0), (grad * centred).sum(0) * inverse
        by_x = None
        if ctx.needs_input_grad[0]:  # a g + b (x - mean) + c, with numbers for each column
            scale = inverse if weight is None else inverse * weight
            slope, offset = -scale * inverse * of_weight / count, -scale * of_bias / count
            by_x = torch.addcmul(torch.addcmul(offset, grad, scale), centred, slope)
            by_x = torch.where(counts, by_x, 0.0)
        if weight is None:
            return by_x, None, None, None, None
        return by_x, of_weight, of_bias, None, None
