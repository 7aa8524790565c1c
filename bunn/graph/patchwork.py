"""What a graph keeps that blocks of close nodes are made of; :mod:`bunn.diffusion.patchwise`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Patchwork:
    """Found out when it is asked for.

    Args:
        calls: How often a method was chosen for the graph.
        order: ``(n,)`` the nodes, those that are close next to each other.
        spread: How many times as large as the smallest the largest degree is.
        reaches: By the number of edges, how many nodes a block reaches.
        means: The means of neighbours for features of a type, :obj:`None` where edges are faster.
    """

    calls: int = 0
    order: Tensor | None = None
    spread: float | None = None
    reaches: dict[int, float] = field(default_factory=dict)
    means: dict[torch.dtype, Any] = field(default_factory=dict)
