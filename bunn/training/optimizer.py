"""Optimisers and schedules, as the configuration names them."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from bunn.training.config import Optimizer, Schedule

OPTIMIZERS: dict[str, type[torch.optim.Adam]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


def build_optimizer(
    options: Optimizer, model: nn.Module, fused: bool = True
) -> torch.optim.Optimizer:
    """Adam or AdamW with two groups: diffusion times, which never decay, and the rest.

    Args:
        options: Its name, rates, and weight decay.
        model: What it optimises.
        fused: Whether one kernel updates all parameters; float16 with gradient clipping cannot.
            (default: :obj:`True`)
    """
    times = [p for name, p in model.named_parameters() if is_time(name)]
    weights = [p for name, p in model.named_parameters() if not is_time(name)]
    groups = [
        {"params": weights, "name": "weights", "weight_decay": options.weight_decay},
        {
            "params": times,
            "name": "times",
            "weight_decay": 0.0,
            "lr": options.lr if options.time_lr is None else options.time_lr,
        },
    ]
    return OPTIMIZERS[options.name](
        [group for group in groups if group["params"]], lr=options.lr, fused=fused
    )


def is_time(parameter: str) -> bool:
    """Whether a parameter, by its name, is a diffusion time."""
    return "time" in parameter.rpartition(".")[2]


def build_schedule(
    options: Schedule, optimizer: torch.optim.Optimizer, epochs: int, smaller_is_better: bool
) -> LambdaLR | ReduceLROnPlateau:
    """The schedule, stepped once an epoch; a plateau once an evaluation, with what it monitors."""
    if options.name == "plateau":
        falling = smaller_is_better or options.monitor == "loss"
        return ReduceLROnPlateau(
            optimizer,
            mode="min" if falling else "max",
            factor=options.factor,
            patience=options.patience,
            min_lr=options.min_lr,
        )

    def factor(epoch: int) -> float:
        if epoch < options.warmup:
            return (epoch + 1) / (options.warmup + 1)
        if options.name == "constant":
            return 1.0
        done = (epoch - options.warmup) / max(1, epochs - options.warmup)
        return (1 + math.cos(math.pi * min(1.0, done))) / 2

    return LambdaLR(optimizer, factor)
