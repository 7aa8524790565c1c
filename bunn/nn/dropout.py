"""Dropout of features and of nodes."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from bunn.calling import plain

#: How many numbers 16 bits tell apart.
LEVELS = 2**16


class Dropout(nn.Dropout):
    r"""Torch's dropout, with a quarter of the random bits on a CPU.

    There torch draws 64 bits for every feature, on many processors one feature after the other,
    which can be a third of a training step. 16 bits are enough: ``p`` is rounded to a multiple of
    :math:`2^{-16}`, and what is kept grows by that rounded share, so that the mean stays what it
    is.
    """

    def forward(self, x: Tensor) -> Tensor:
        dropped = round(self.p * LEVELS)
        cheap = x.device.type == "cpu" and x.is_floating_point() and plain(x)
        if not self.training or self.inplace or not cheap or not 0 < dropped < LEVELS:
            return super().forward(x)
        draws = torch.empty(math.ceil(x.numel() / 4), dtype=torch.int64).random_(-(2**63), None)
        numbers = draws.view(torch.int16)[: x.numel()].view(x.shape)
        kept = numbers >= dropped - LEVELS // 2
        return x * kept.to(x.dtype).mul_(LEVELS / (LEVELS - dropped))


def is_plain_dropout(module: nn.Module) -> bool:
    """Whether it is dropout that kernels know, torch's or ours, and leaves anything."""
    if not isinstance(module, nn.Dropout) or type(module) not in (nn.Dropout, Dropout):
        return False
    return module.p < 1


class NodeDropout(nn.Module):
    """Hides nodes: while training, all features of a share of them are zero.

    Unlike with dropout of features, the others stay as they are: what a node shows does not depend
    on how many are hidden.

    Args:
        p: The share of nodes.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"p={p}; the share of hidden nodes must be in [0, 1)")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        return x * (1 - self.p) * F.dropout(x.new_ones(x.size(0), 1), self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def hiding(input_dropout: float, node_dropout: float) -> list[nn.Module]:
    """What comes before an encoder, in order."""
    found: list[nn.Module] = [NodeDropout(node_dropout)] if node_dropout else []
    return [*found, Dropout(input_dropout)] if input_dropout else found
