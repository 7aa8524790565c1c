"""The chains of a residual block, each in one pass where there are kernels for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch_geometric.nn import Linear

from bunn import kernels
from bunn.kernels import Dropout
from bunn.operator import SymmetricOperator, random_walk

#: Activations that kernels know.
ACTS: dict[type[nn.Module], str] = {nn.GELU: "gelu", nn.ReLU: "relu", nn.Identity: "none"}
_PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "none": lambda x: x,
}


def act_name(act: nn.Module) -> str | None:
    """What kernels call an activation; :obj:`None` if they do not know it."""
    if getattr(act, "approximate", "none") != "none":
        return None
    return ACTS.get(type(act))


#: Nothing is dropped.
NOTHING = Dropout(0.0, None)


class Noise:
    """Seeds for what is dropped in one forward pass, drawn at once.

    Args:
        count: How many may be asked for.
        x: A tensor on the device.
    """

    def __init__(self, count: int, x: Tensor) -> None:
        self._seeds: Tensor | None = None
        self._count, self._device, self._used = count, x.device, 0

    def dropout(self, module: nn.Module | None) -> Dropout:
        """What a dropout module drops now."""
        if not isinstance(module, nn.Dropout) or not module.training or module.p == 0:
            return NOTHING
        if self._seeds is None:
            size = (self._count,)
            self._seeds = torch.randint(2**31 - 1, size, dtype=torch.int32, device=self._device)
        self._used += 1
        return Dropout(module.p, self._seeds, self._used - 1)


class _Activate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, dropout: Dropout, act: str) -> Tensor:
        ctx.dropout, ctx.act = dropout, act
        ctx.save_for_backward(x, bias)
        return kernels.activate(x, bias, dropout, act)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, bias = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated itself
            number = x.float() if bias is None else x.float() + bias
            number = number * _mask(x, ctx.dropout)
            out = _PLAIN[ctx.act](number).to(x.dtype)
            return *_differentiate((out,), (x, bias), (grad,)), None, None
        return *kernels.activate_back(grad.contiguous(), x, bias, ctx.dropout, ctx.act), None, None


class _AddAndNorm(torch.autograd.Function):
    """``s = x + dropout(branch + bias)`` and ``norm(s)``, beside it the mean of the neighbours."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        branch: Tensor | None,
        bias: Tensor | None,
        weight: Tensor,
        shift: Tensor,
        eps: float,
        dropout: Dropout,
        dtype: torch.dtype,
        mean: SymmetricOperator | None,
    ) -> tuple[Tensor, Tensor]:
        n, width = x.shape
        out = torch.empty(n, width if mean is None else 2 * width, dtype=dtype, device=x.device)
        normed = out[:, :width]
        found = kernels.add_and_norm(x, branch, bias, weight, shift, eps, dropout, normed)
        if mean is not None:
            _product(normed, mean, out[:, width:])
        ctx.set_materialize_grads(False)
        ctx.eps, ctx.dropout, ctx.dtype, ctx.mean = eps, dropout, dtype, mean
        stream = None if branch is None else found.stream
        ctx.save_for_backward(x, branch, bias, weight, shift, stream, found.mean, found.scale)
        return x.view_as(x) if branch is None else found.stream, out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, branch, bias, weight, shift, stream, average, scale = ctx.saved_tensors
        inputs, nothing = (x, branch, bias, weight, shift), (None, None, None, None)
        if torch.is_grad_enabled():
            stream = x
            if branch is not None:
                part = (branch.float() + bias) * _mask(branch, ctx.dropout)
                stream = (x + part).to(x.dtype)
            out = F.layer_norm(stream.float(), weight.shape, weight, shift, ctx.eps).to(ctx.dtype)
            if ctx.mean is not None:
                out = torch.cat((out, random_walk(out, ctx.mean)), dim=-1)
            return *_differentiate((stream, out), inputs, grads), *nothing
        by_stream, by_out = (None if grad is None else grad.contiguous() for grad in grads)
        width, more = x.size(1), None
        if by_out is None:
            by_out = x.new_zeros(x.size(0), width if ctx.mean is None else 2 * width)
        if ctx.mean is not None:
            more = torch.empty(x.shape, dtype=by_out.dtype, device=x.device)
            _product(by_out[:, width:], ctx.mean.adjoint, more)
        found = kernels.Normed(x if stream is None else stream, by_out, average, scale)
        by_x, by_branch, sums = kernels.add_and_norm_back(
            *(by_stream, by_out[:, :width], more, found, weight, ctx.dropout),
            None if branch is None else branch.dtype,
        )
        by_bias = None if branch is None else sums[2]
        return by_x, by_branch, by_bias, sums[0], sums[1], *nothing


def _product(x: Tensor, operator: SymmetricOperator, out: Tensor) -> None:
    kernels.product(x, out, operator.rows, operator.before, operator.after)


def _mask(x: Tensor, dropout: Dropout) -> Tensor:
    """What is kept, to be multiplied with."""
    ones = torch.ones(x.shape, device=x.device)
    return kernels.activate(ones, None, dropout, "none")


def _differentiate(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor | None], grads: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """The gradients by ``inputs``, with a graph of their own."""
    pairs = [(out, grad) for out, grad in zip(outputs, grads, strict=True) if grad is not None]
    wanted = [value for value in inputs if value is not None and value.requires_grad]
    found = torch.autograd.grad(
        [out for out, _ in pairs],
        wanted,
        [grad for _, grad in pairs],
        create_graph=True,
        allow_unused=True,
    )
    by = {id(value): grad for value, grad in zip(wanted, found, strict=True)}
    return [by.get(id(value)) for value in inputs]


class _CastTogether(torch.autograd.Function):
    """Tensors in another type, all in one launch."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.dtypes = [tensor.dtype for tensor in tensors]
        return _cast(tensors, [dtype] * len(tensors))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            return None, *(grad.to(dtype) for grad, dtype in zip(grads, ctx.dtypes, strict=True))
        return None, *_cast(grads, ctx.dtypes)


def _cast(tensors: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> tuple[Tensor, ...]:
    pairs = zip(tensors, dtypes, strict=True)
    found = [torch.empty_like(tensor, dtype=dtype) for tensor, dtype in pairs]
    torch._foreach_copy_(found, list(tensors))
    return tuple(found)


def cast_together(tensors: Sequence[Tensor], dtype: torch.dtype) -> Sequence[Tensor]:
    """The tensors in a type, which autocast would convert one by one."""
    if all(tensor.dtype == dtype for tensor in tensors):
        return tensors
    found: Sequence[Tensor] = _CastTogether.apply(dtype, *tensors)  # type: ignore[no-untyped-call]
    return found


def may_be_fused(*modules: nn.Module) -> bool:
    """Whether nobody watches the modules, and their sizes are known."""
    return not any(
        part._forward_hooks or part._forward_pre_hooks or part._backward_hooks
        for module in modules
        for part in module.modules()
    )


class _Stage(NamedTuple):
    """A linear layer and what follows it."""

    linear: Any
    dropout: nn.Module | None
    act: str


def _stages(network: nn.Module) -> list[_Stage] | None:
    """Those of a ``Sequential``, each ``act(dropout(linear(x)))``; :obj:`None` if it has others."""
    if type(network) is not nn.Sequential or not may_be_fused(network):
        return None
    stages: list[_Stage] = []
    for module in network:
        last = stages[-1] if stages else None
        if isinstance(module, (Linear, nn.Linear)) and len(module.weight) <= kernels.WIDEST:
            stages.append(_Stage(module, None, "none"))
        elif last is None or last.act != "none":
            return None
        elif isinstance(module, nn.Dropout) and last.dropout is None:
            stages[-1] = last._replace(dropout=module)
        elif (act := act_name(module)) is not None:
            stages[-1] = last._replace(act=act)
        else:
            return None
    return stages


def feed_forward(network: nn.Module, x: Tensor) -> Tensor:
    """``network(x)``: where there are kernels, what follows a linear layer is one pass."""
    stages = _stages(network) if kernels.serve_chains(x) else None
    if stages is None:
        y: Tensor = network(x)
        return y
    noise = Noise(len(stages), x)
    for linear, drop, act in stages:
        dropout = noise.dropout(drop)
        if act == "none" and dropout.rate == 0:
            x = linear(x)
        else:
            x = activate(F.linear(x, linear.weight), linear.bias, dropout, act)
    return x


class Normed(NamedTuple):
    """A stream, and that normalised."""

    stream: Tensor
    normed: Tensor


def activate(x: Tensor, bias: Tensor | None, dropout: Dropout, act: str) -> Tensor:
    """``act(dropout(x + bias))``, for features on which :func:`bunn.kernels.serve_chains`."""
    y: Tensor = _Activate.apply(x.contiguous(), bias, dropout, act)  # type: ignore[no-untyped-call]
    return y


def add_and_norm(
    x: Tensor,
    branch: Tensor | None,
    bias: Tensor | None,
    norm: nn.LayerNorm,
    dropout: Dropout,
    dtype: torch.dtype,
    mean: SymmetricOperator | None = None,
) -> Normed:
    """``s = x + dropout(branch + bias)``, and ``norm(s)`` in ``dtype``; without a branch ``s = x``.

    Args:
        x: ``(n, c)`` features, on which :func:`bunn.kernels.serve_chains`.
        branch: ``(n, c)`` what is added to them.
        bias: ``(c,)`` that of the branch.
        norm: The normalisation, with weight and bias.
        dropout: What is dropped of the branch.
        dtype: The type of what is normalised.
        mean: If given, what is normalised and the mean of the neighbours of it side by side,
            ``(n, 2 c)``.
    """
    if branch is not None:
        branch = branch.contiguous()
    found = _AddAndNorm.apply(  # type: ignore[no-untyped-call]
        x.contiguous(), branch, bias, norm.weight, norm.bias, norm.eps, dropout, dtype, mean
    )
    return Normed(*found)


def pre_norm(x: Tensor, norm: nn.Module, dtype: torch.dtype) -> Normed:
    """``x`` to go on with, and ``norm(x)``, of ``dtype`` if there are kernels for it."""
    if (
        kernels.serve_chains(x)
        and type(norm) is nn.LayerNorm
        and norm.normalized_shape == x.shape[1:]
        and norm.bias is not None
        and may_be_fused(norm)
    ):
        return add_and_norm(x, None, None, norm, NOTHING, dtype)
    return Normed(x, norm(x))


def drop(x: Tensor, dropout: nn.Module) -> Tensor:
    """``dropout(x)``, in one pass that stores no mask."""
    if type(dropout) is nn.Dropout and may_be_fused(dropout) and kernels.serve_chains(x):
        what = Noise(1, x).dropout(dropout)
        return x if what.rate == 0 else activate(x, None, what, "none")
    y: Tensor = dropout(x)
    return y
