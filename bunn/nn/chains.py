"""The chains of a residual block, each in one pass where there are kernels for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch_geometric.nn import Linear

from bunn import kernels
from bunn.calling import batched
from bunn.kernels.arguments import Dropout
from bunn.nn.dropout import is_plain_dropout

#: Activations that kernels know.
ACTS: dict[type[nn.Module], str] = {nn.GELU: "gelu", nn.ReLU: "relu", nn.Identity: "none"}
PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "none": lambda x: x,
}


def act_name(act: nn.Module) -> str | None:
    """What kernels call an activation; :obj:`None` if they do not know it."""
    if getattr(act, "approximate", "none") != "none":
        return None
    return ACTS.get(type(act))


def passes() -> Any:
    """The kernels, which are there where Triton is."""
    from bunn.kernels import chains  # noqa: PLC0415

    return chains


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
        assert module.p < 1, "what drops everything is no chain"
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
        y: Tensor = passes().activate_rows(x, bias, dropout, act)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, bias = ctx.saved_tensors
        if torch.is_grad_enabled() or batched(grad):

            def again(x: Tensor, bias: Tensor | None) -> tuple[Tensor]:
                number = x.float() if bias is None else x.float() + bias
                return (PLAIN[ctx.act](number * kept_of(x, ctx.dropout)).to(x.dtype),)

            return *differentiate(again, (x, bias), (grad,)), None, None
        rows, by_x = passes(), torch.empty_like(x)
        sums = None if bias is None else rows.partial_sums(x)
        rows.activate_rows_back(grad.contiguous(), x, bias, ctx.dropout, ctx.act, by_x, sums)
        return by_x, None if sums is None else rows.add_up_parts(sums), None, None


class _Norm(torch.autograd.Function):
    """``x`` and ``norm(x)``, whose gradients by ``x`` are one pass."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, shift: Tensor, eps: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        found = passes().add_and_norm_rows(
            *(x, None, None, weight, shift, eps, NOTHING), torch.empty_like(x, dtype=dtype)
        )
        ctx.set_materialize_grads(False)
        ctx.eps, ctx.dtype = eps, dtype
        ctx.save_for_backward(x, weight, shift, found.mean, found.scale)
        return x.view_as(x), found.normed

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, weight, shift, mean, scale = ctx.saved_tensors
        if torch.is_grad_enabled() or any(grad is not None and batched(grad) for grad in grads):

            def again(x: Tensor, *norm: Tensor) -> tuple[Tensor, Tensor]:
                weight, shift = (value.float() for value in norm)
                normed = F.layer_norm(x.float(), weight.shape, weight, shift, ctx.eps)
                return x, normed.to(ctx.dtype)

            return *differentiate(again, (x, weight, shift), grads), None, None
        by_x, by_normed = (None if grad is None else grad.contiguous() for grad in grads)
        if by_normed is None:
            return by_x, None, None, None, None
        sums = passes().partial_sums(x, 2)
        by_x = passes().add_and_norm_rows_back(
            *(by_x, by_normed, None, x, mean, scale, weight, NOTHING, None, sums)
        )
        return by_x, *passes().add_up_parts(sums), None, None


def kept_of(x: Tensor, dropout: Dropout) -> Tensor:
    """What is kept, to be multiplied with."""
    ones = torch.ones(x.shape, device=x.device)
    mask: Tensor = passes().activate_rows(ones, None, dropout, "none")
    return mask


def differentiate(
    function: Callable[..., tuple[Tensor, ...]],
    inputs: Sequence[Tensor | None],
    grads: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """The gradients of what torch computes by ``inputs``, if need be to be differentiated again."""
    twice = torch.is_grad_enabled()
    with torch.enable_grad():
        # Under names of their own: one of them may depend on another.
        inputs = [value if value is None else value.view_as(value) for value in inputs]
        outputs = zip(function(*inputs), grads, strict=True)
    pairs = [(out, grad) for out, grad in outputs if grad is not None and out.requires_grad]
    wanted = [value for value in inputs if value is not None and value.requires_grad]
    if not pairs or not wanted:
        return [None for _ in inputs]
    found = torch.autograd.grad(
        [out for out, _ in pairs],
        wanted,
        [grad for _, grad in pairs],
        create_graph=twice,
        allow_unused=True,
    )
    by = {id(value): grad for value, grad in zip(wanted, found, strict=True)}
    return [by.get(id(value)) for value in inputs]


def may_be_fused(module: nn.Module) -> bool:
    """Whether nobody watches a module or a part of it."""
    if nn.modules.module._has_any_global_hook():
        return False
    return not any(
        part._forward_hooks
        or part._forward_pre_hooks
        or part._backward_hooks
        or part._backward_pre_hooks
        for part in module.modules()
    )


def is_plain_norm(norm: nn.Module) -> bool:
    """Whether it is a normalisation that kernels know."""
    return type(norm) is nn.LayerNorm and norm.elementwise_affine and norm.bias is not None


class Stage(NamedTuple):
    """A linear layer and what follows it."""

    linear: Any
    dropout: nn.Module | None = None
    act: str = "none"


def stages_of(network: nn.Module) -> list[Stage]:
    """Those of a ``Sequential``, each ``act(dropout(linear(x)))``; none if it is of other parts."""
    stages: list[Stage] = []
    for module in network if type(network) is nn.Sequential else ():
        last = stages[-1] if stages else None
        if type(module) in (Linear, nn.Linear) and _width(module) <= kernels.WIDEST:
            stages.append(Stage(module))
        elif last is None or last.act != "none":
            return []
        elif is_plain_dropout(module) and last.dropout is None:
            stages[-1] = last._replace(dropout=module)
        elif (act := act_name(module)) is not None:
            stages[-1] = last._replace(act=act)
        else:
            return []
    return stages


def _width(linear: Any) -> int:
    return int(linear.out_features if isinstance(linear, nn.Linear) else linear.out_channels)


def feed_forward(network: nn.Module, x: Tensor) -> Tensor:
    """``network(x)``: where there are kernels, what follows a linear layer is one pass."""
    stages = stages_of(network) if kernels.serve_chains(x) and may_be_fused(network) else []
    if not stages:
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


class Pair(NamedTuple):
    """A stream, and that normalised."""

    stream: Tensor
    normed: Tensor


def activate(x: Tensor, bias: Tensor | None, dropout: Dropout, act: str) -> Tensor:
    """``act(dropout(x + bias))``, for features on which :func:`bunn.kernels.serve_chains`."""
    bias = None if bias is None else bias.contiguous()
    y: Tensor = _Activate.apply(x.contiguous(), bias, dropout, act)  # type: ignore[no-untyped-call]
    return y


def pre_norm(x: Tensor, norm: nn.Module, dtype: torch.dtype) -> Pair:
    """``x`` to go on with, and ``norm(x)``, of ``dtype`` if there are kernels for it."""
    if kernels.serve_chains(x) and is_plain_norm(norm) and may_be_fused(norm):
        assert isinstance(norm, nn.LayerNorm)
        tensors = (value.contiguous() for value in (x, norm.weight, norm.bias))
        return Pair(*_Norm.apply(*tensors, norm.eps, dtype))  # type: ignore[no-untyped-call]
    return Pair(x, norm(x))


def drop(x: Tensor, dropout: nn.Module) -> Tensor:
    """``dropout(x)``, in one pass that stores no mask."""
    if kernels.serve_chains(x) and is_plain_dropout(dropout) and may_be_fused(dropout):
        what = Noise(1, x).dropout(dropout)
        return x if what.rate == 0 else activate(x, None, what, "none")
    y: Tensor = dropout(x)
    return y
