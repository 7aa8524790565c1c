"""Calling functions of autograd at little cost: a call of torch's takes longer than a kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import unwrap_dead_wrappers
from torch.autograd import forward_ad


def unwatched(*tensors: Tensor) -> bool:
    """Whether operations are carried out as they are called: nothing compiles, transforms, batches
    or traces them."""
    return not (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
        or any(map(batched, tensors))
    )


def plain(*tensors: Tensor) -> bool:
    """Whether that is so, and nothing is differentiated forward either: all there is to a tensor is
    its numbers."""
    return unwatched(*tensors) and forward_ad._current_level < 0


def batched(tensor: Tensor) -> bool:
    """Whether it is one of many gradients, as ``torch.autograd.grad(is_grads_batched=True)`` sends
    them."""
    return torch._C._functorch.is_legacy_batchedtensor(tensor)


def apply(function: type[torch.autograd.Function], *args: Any) -> Any:
    """``function.apply(*args)`` for a function that has a ``setup_context``.

    At every call torch asks for the signature of such a function, which takes longer than to launch
    a kernel; outside of transforms it does nothing with it.
    """
    if not unwatched():
        return function.apply(*args)
    bare = super(torch.autograd.Function, function)
    return bare.apply(*unwrap_dead_wrappers(args))  # type: ignore[attr-defined]
