"""A loss that is no number, and what can be said about it."""

from __future__ import annotations

import torch
from torch import nn


class NonFiniteLossError(RuntimeError):
    """A loss that is no number: the run stops before it does more harm."""


def suspects(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """The parameters, and the groups they are in, that are no longer finite, or else the largest.

    Gradients say nothing here: those of a loss that is no number are none either.
    """
    groups = {
        id(parameter): str(group["name"])
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    broken: dict[str, list[str]] = {}
    largest, where = -1.0, ("", "")
    for name, parameter in model.named_parameters():
        if not parameter.numel():
            continue
        group, size = groups[id(parameter)], float(parameter.detach().abs().max())
        if not size < float("inf"):
            broken.setdefault(group, []).append(name)
        elif size > largest:
            largest, where = size, (group, name)
    if broken:
        return " and ".join(
            f"{len(names)} parameter(s) of the group {group!r} are not finite, the first of them "
            f"{names[0]}"
            for group, names in broken.items()
        )
    return (
        f"all parameters are finite, the largest entry is {largest:.3g}, in {where[1]} of the "
        f"parameter group {where[0]!r}"
    )
