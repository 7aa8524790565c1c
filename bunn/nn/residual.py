r"""The residual blocks of a :class:`bunn.nn.SAGEPhi` as one function, where there are kernels.

.. math::
    s_0 = x, \qquad z_i = \mathrm{LayerNorm}(s_i), \qquad
    h_i = \mathrm{act}(\mathrm{dropout}(V_i (z_i, \bar z_i) + a_i)), \qquad
    s_{i+1} = s_i + \mathrm{dropout}(W_i h_i + b_i),

with :math:`\bar z` the mean of the neighbours. What lies between two products is one pass over the
features. In a backward pass nobody waits for gradients by parameters. Those of all blocks are
computed together at the end: those by weights as batches of products, since one of them alone has
too few entries to fill a GPU, and the others as sums of what the passes left.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from bunn import kernels
from bunn.calling import batched
from bunn.diffusion.patchwise import PatchMatrix
from bunn.diffusion.products import multiply_16_bits
from bunn.graph.operator import SymmetricOperator, random_walk
from bunn.kernels.arguments import Dropout
from bunn.nn.chains import (
    NOTHING,
    PLAIN,
    Noise,
    Stage,
    differentiate,
    kept_of,
    passes,
)


class Parameters(NamedTuple):
    """Those of ``k >= 1`` blocks, and of one LayerNorm more.

    Args:
        gains: Weights of the LayerNorms.
        shifts: Biases of the LayerNorms.
        enter: ``(h, 2 c)`` weights ``V``.
        enter_biases: ``(h,)`` biases ``a``, or none.
        leave: ``(c, h)`` weights ``W``.
        leave_biases: ``(c,)`` biases ``b``.
    """

    gains: Sequence[Any]
    shifts: Sequence[Any]
    enter: Sequence[Any]
    enter_biases: Sequence[Any]
    leave: Sequence[Any]
    leave_biases: Sequence[Any]

    def flat(self) -> list[Any]:
        return [value for values in self for value in values]

    @classmethod
    def of(cls, flat: Sequence[Any], k: int) -> Parameters:
        """What :meth:`flat` took apart."""
        ends = [0, k + 1, *(2 * (k + 1) + k * i for i in range(5))]
        return cls(*(flat[start:end] for start, end in pairwise(ends)))


class Plan(NamedTuple):
    """All there is to know of ``k`` blocks but their parameters.

    Args:
        eps: ``k + 1`` constants of the LayerNorms.
        acts: The activations.
        inner: What is dropped inside of blocks.
        outer: What is dropped at their ends.
        mean: The mean of the neighbours.
        patches: The same by blocks of rows, where that is faster.
        dtype: The type of products.
        differentiable: Whether a backward pass may follow.
    """

    eps: list[float]
    acts: list[str]
    inner: list[Dropout]
    outer: list[Dropout]
    mean: SymmetricOperator
    patches: PatchMatrix | None
    dtype: torch.dtype
    differentiable: bool

    def average(self, x: Tensor, out: Tensor, back: bool = False) -> None:
        """The mean of the neighbours, or its adjoint, into ``out``."""
        if self.patches is not None:
            (self.patches.adjoint() if back else self.patches).times(x, out)
            return
        walk = self.mean.adjoint() if back else self.mean
        kernels.product(x, out, walk.rows, walk.before, walk.after)


class _Blocks(torch.autograd.Function):
    """``LayerNorm(s_k)``, of shape ``(n, c)``."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, x: Tensor, *flat: Tensor) -> Tensor:
        k, (n, width) = len(plan.acts), x.shape
        given = Parameters.of(flat, k)
        maps = [*given.enter, *given.leave]
        if any(weight.dtype != plan.dtype for weight in maps):
            given_maps, maps = maps, [torch.empty_like(part, dtype=plan.dtype) for part in maps]
            torch._foreach_copy_(maps, given_maps)
        # What a backward pass reads lies side by side, else each block writes over the last.
        places, hidden = k if plan.differentiable else 1, given.enter[0].size(0)
        streams = x.new_empty(places, n, width)
        pairs, before, after = (
            x.new_empty(places, n, columns, dtype=plan.dtype)
            for columns in (2 * width, hidden, hidden)
        )
        out = x.new_empty(n, width, dtype=plan.dtype)
        moments: list[Tensor] = []

        def norm(i: int, stream: Tensor, branch: Tensor | None) -> Tensor:
            pair = pairs[i % places] if i < k else out
            bias, dropout, target = None, NOTHING, None
            if i > 0:
                bias, dropout = given.leave_biases[i - 1], plan.outer[i - 1]
                target = streams[(i - 1) % places]
            stream, normed, *moment = passes().add_and_norm_rows(
                *(stream, branch, bias, given.gains[i], given.shifts[i], plan.eps[i], dropout),
                *(pair[:, :width], target),
            )
            moments.extend(moment)
            if i < k:
                plan.average(normed, pair[:, width:])
            return stream

        stream = norm(0, x, None)
        for i in range(k):
            z, a, h = (slab[i % places] for slab in (pairs, before, after))
            torch.mm(z, maps[i].T, out=a)
            passes().activate_rows(a, given.enter_biases[i], plan.inner[i], plan.acts[i], h)
            stream = norm(i + 1, stream, h @ maps[k + i].T)
        ctx.plan = plan
        ctx.save_for_backward(x, streams, pairs, before, after, *moments, *maps, *flat)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        plan: Plan = ctx.plan
        k = len(plan.acts)
        x, streams, pairs, before, after, *rest = ctx.saved_tensors
        moments, maps, flat = rest[: 2 * k + 2], rest[2 * k + 2 : 4 * k + 2], rest[4 * k + 2 :]
        if torch.is_grad_enabled() or batched(grad):

            def again(x: Tensor, *flat: Tensor) -> tuple[Tensor]:
                return (_by_torch(plan, x, Parameters.of(flat, k)),)

            return None, *differentiate(again, (x, *flat), (grad,))
        given, width = Parameters.of(flat, k), x.size(1)
        by_before, by_branch = torch.empty_like(before), pairs.new_empty(streams.shape)
        sums = passes().partial_sums(x, k + 1, 3)  # of a gain, a shift, and the bias before them
        bias_sums = passes().partial_sums(x.new_empty(x.size(0), before.size(2)), k)

        def norm(i: int, by_stream: Tensor | None, by_z: Tensor, more: Tensor | None) -> Tensor:
            stream, dropout, by = x, NOTHING, None
            if i > 0:
                stream, dropout, by = streams[i - 1], plan.outer[i - 1], by_branch[i - 1]
            by_x: Tensor = passes().add_and_norm_rows_back(
                *(by_stream, by_z, more, stream, moments[2 * i], moments[2 * i + 1]),
                *(given.gains[i], dropout, by, sums[i]),
            )
            return by_x

        by_x = norm(k, None, grad.contiguous(), None)
        for i in reversed(range(k)):
            bias = given.enter_biases[i]
            passes().activate_rows_back(
                *(by_branch[i] @ maps[k + i], before[i], bias, plan.inner[i], plan.acts[i]),
                *(by_before[i], None if bias is None else bias_sums[i]),
            )
            by_pair = by_before[i] @ maps[i]
            more = by_branch.new_empty(x.shape)
            plan.average(by_pair[:, width:], more, back=True)
            by_x = norm(i, by_x, by_pair[:, :width], more)
        by_norms, by_biases = passes().add_up_parts(sums), passes().add_up_parts(bias_sums)
        by = Parameters(
            *(by_norms[:, 0], by_norms[:, 1]),
            enter=_by_weights(given.enter, by_before, pairs),
            enter_biases=[
                None if bias is None else found
                for bias, found in zip(given.enter_biases, by_biases, strict=True)
            ],
            leave=_by_weights(given.leave, by_branch, after),
            leave_biases=by_norms[1:, 2],
        )
        return None, by_x, *by.flat()


def _by_weights(weights: Sequence[Tensor], grad: Tensor, x: Tensor) -> Sequence[Tensor | None]:
    """The gradients by weights of ``k`` layers from ``x: (k, n, i)`` to ``(k, n, o)``."""
    if not any(weight.requires_grad for weight in weights):
        return [None] * len(weights)
    narrow = grad.dtype.itemsize == 2 and weights[0].dtype == torch.float32
    multiply = multiply_16_bits if narrow else torch.bmm
    return multiply(grad.transpose(1, 2), x).unbind()


def _by_torch(plan: Plan, x: Tensor, given: Parameters) -> Tensor:
    """The same, operation by operation."""

    def norm(i: int, x: Tensor) -> Tensor:
        gain, shift = given.gains[i].float(), given.shifts[i].float()
        return F.layer_norm(x.float(), gain.shape, gain, shift, plan.eps[i]).to(plan.dtype)

    for i, act in enumerate(plan.acts):
        z, bias = norm(i, x), given.enter_biases[i]
        pair = torch.cat((z, random_walk(z, plan.mean)), dim=-1)
        a = F.linear(pair, given.enter[i].to(plan.dtype)).float()
        a = a if bias is None else a + bias
        h = PLAIN[act](a * kept_of(a, plan.inner[i])).to(plan.dtype)
        branch = F.linear(h, given.leave[i].to(plan.dtype)).float() + given.leave_biases[i]
        x = (x + branch * kept_of(branch, plan.outer[i])).to(x.dtype)
    return norm(len(plan.acts), x)


def residual_blocks(
    x: Tensor,
    norms: Sequence[nn.LayerNorm],
    chains: Sequence[tuple[Stage, Stage]],
    mean: SymmetricOperator,
    dtype: torch.dtype,
    patches: PatchMatrix | None = None,
) -> Tensor:
    """``LayerNorm(s_k)`` in ``dtype``.

    Args:
        x: ``(n, c)`` features, on which :func:`bunn.kernels.serve_chains`.
        norms: ``k + 1`` LayerNorms, with weights and biases.
        chains: ``k >= 1`` pairs of linear layers and what follows them, all of the same widths; the
            second have biases and no activations.
        mean: The mean of the neighbours.
        dtype: The type of products.
        patches: The same mean by blocks of rows, where that is faster. (default: :obj:`None`)
    """
    noise, stages = Noise(2 * len(chains), x), [stage for pair in chains for stage in pair]
    dropouts = [noise.dropout(stage.dropout) for stage in stages]
    weights = [stage.linear.weight for stage in stages]
    biases = [stage.linear.bias for stage in stages]
    given = Parameters(
        [norm.weight for norm in norms],
        [norm.bias for norm in norms],
        enter=weights[::2],
        enter_biases=biases[::2],
        leave=weights[1::2],
        leave_biases=biases[1::2],
    )
    needed = any(value is not None and value.requires_grad for value in (x, *given.flat()))
    plan = Plan(
        [norm.eps for norm in norms],
        [stage.act for stage in stages[::2]],
        inner=dropouts[::2],
        outer=dropouts[1::2],
        mean=mean,
        patches=patches,
        dtype=dtype,
        differentiable=torch.is_grad_enabled() and needed,
    )
    flat = (value if value is None else value.contiguous() for value in given.flat())
    y: Tensor = _Blocks.apply(plan, x.contiguous(), *flat)  # type: ignore[no-untyped-call]
    return y
