"""What autocast means for a layer whose products are sparse."""

from __future__ import annotations

import torch
from torch import Tensor


def as_factor(x: Tensor) -> Tensor:
    """``x`` in the type in which it is to enter products: under autocast, that of its products.

    Autocast knows dense products alone. Heat and means of neighbours are products, too, and half of
    the bits are half of the traffic.
    """
    dtype = factor_dtype(x)
    return x if dtype == x.dtype else x.to(dtype)


def factor_dtype(x: Tensor) -> torch.dtype:
    """The type of :func:`as_factor`."""
    device = x.device.type
    if x.dtype == torch.float32 and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return x.dtype
