"""Things one after the other, so many of each: where they begin, and whose they are."""

from __future__ import annotations

import torch
from torch import Tensor


def starts(count: Tensor) -> Tensor:
    """Where each begins: ``(k,)`` to ``(k,)``."""
    return count.cumsum(0) - count


def ranges(start: Tensor, count: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """``start[0], start[0] + 1, ...``, ``count[0]`` of them, and so on, ``(total,)``; and whose."""
    owners = torch.arange(count.numel(), device=count.device)
    owner = torch.repeat_interleave(owners, count, output_size=total)
    return torch.arange(total, device=count.device) + (start - starts(count))[owner], owner
