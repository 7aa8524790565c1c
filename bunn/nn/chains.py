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
from bunn.kernels import Dropout
from bunn.operator import SymmetricOperator, random_walk

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
        found = passes().add_and_norm_rows(x, branch, bias, weight, shift, eps, dropout, normed)
        if mean is not None:
            product(normed, mean, out[:, width:])
        ctx.set_materialize_grads(False)
        ctx.eps, ctx.dropout, ctx.dtype, ctx.mean = eps, dropout, dtype, mean
        stream = None if branch is None else found.stream
        ctx.save_for_backward(x, branch, bias, weight, shift, stream, found.mean, found.scale)
        return x.view_as(x) if branch is None else found.stream, out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, branch, bias, weight, shift, stream, average, scale = ctx.saved_tensors
        inputs, nothing = (x, branch, bias, weight, shift), (None, None, None, None)
        if torch.is_grad_enabled() or any(grad is not None and batched(grad) for grad in grads):

            def again(
                x: Tensor, branch: Tensor | None, bias: Tensor | None, *norm: Tensor
            ) -> tuple[Tensor, Tensor]:
                if branch is not None and bias is not None:
                    part = (branch.float() + bias) * kept_of(branch, ctx.dropout)
                    x = (x + part).to(x.dtype)
                weight, shift = (value.float() for value in norm)
                out = F.layer_norm(x.float(), weight.shape, weight, shift, ctx.eps).to(ctx.dtype)
                if ctx.mean is not None:
                    out = torch.cat((out, random_walk(out, ctx.mean)), dim=-1)
                return x, out

            return *differentiate(again, inputs, grads), *nothing
        by_stream, by_out = (None if grad is None else grad.contiguous() for grad in grads)
        width, more = x.size(1), None
        if by_out is None:
            by_out = x.new_zeros(x.size(0), width if ctx.mean is None else 2 * width)
        if ctx.mean is not None:
            more = torch.empty(x.shape, dtype=by_out.dtype, device=x.device)
            product(by_out[:, width:], ctx.mean.adjoint, more)
        rows, by_branch = passes(), None if branch is None else torch.empty_like(branch)
        sums = rows.partial_sums(x, 2 if branch is None else 3)
        by_x = rows.add_and_norm_rows_back(
            *(by_stream, by_out[:, :width], more),
            *(x if stream is None else stream, average, scale, weight, ctx.dropout),
            *(by_branch, sums),
        )
        by_weight, by_shift, *by_bias = rows.add_up_parts(sums)
        return by_x, by_branch, *(by_bias or (None,)), by_weight, by_shift, *nothing


def product(x: Tensor, operator: SymmetricOperator, out: Tensor) -> None:
    kernels.product(x, out, operator.rows, operator.before, operator.after)


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


class _CastTogether(torch.autograd.Function):
    """Tensors in another type, all in one launch."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.dtypes = [tensor.dtype for tensor in tensors]
        return cast_all(tensors, [dtype] * len(tensors))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled() or any(map(batched, grads)):
            return None, *(grad.to(dtype) for grad, dtype in zip(grads, ctx.dtypes, strict=True))
        return None, *cast_all(grads, ctx.dtypes)


def cast_all(tensors: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> tuple[Tensor, ...]:
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
        elif type(module) is nn.Dropout and last.dropout is None and module.p < 1:
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


def add_and_norm(
    x: Tensor,
    branch: Tensor | None,
    bias: Tensor | None,
    norm: nn.LayerNorm,
    dropout: Dropout,
    dtype: torch.dtype,
    mean: SymmetricOperator | None = None,
) -> Pair:
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
    tensors = (x, branch, bias, norm.weight, norm.bias)
    found = _AddAndNorm.apply(  # type: ignore[no-untyped-call]
        *(value if value is None else value.contiguous() for value in tensors),
        *(norm.eps, dropout, dtype, mean),
    )
    return Pair(*found)


def pre_norm(x: Tensor, norm: nn.Module, dtype: torch.dtype) -> Pair:
    """``x`` to go on with, and ``norm(x)``, of ``dtype`` if there are kernels for it."""
    if kernels.serve_chains(x) and is_plain_norm(norm) and may_be_fused(norm):
        assert isinstance(norm, nn.LayerNorm)
        return add_and_norm(x, None, None, norm, NOTHING, dtype)
    return Pair(x, norm(x))


def drop(x: Tensor, dropout: nn.Module) -> Tensor:
    """``dropout(x)``, in one pass that stores no mask."""
    plain = type(dropout) is nn.Dropout and dropout.p < 1 and may_be_fused(dropout)
    if plain and kernels.serve_chains(x):
        what = Noise(1, x).dropout(dropout)
        return x if what.rate == 0 else activate(x, None, what, "none")
    y: Tensor = dropout(x)
    return y
