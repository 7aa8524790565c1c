"""Errors of heat in the norm in which ``tol`` is promised, on features that show them."""

from __future__ import annotations

import torch
from torch import Tensor

from bunn import Laplacian

#: A number that no type holds exactly. Heat leaves it alone: whatever moves it is an error, of the
#: null space as well, of which white noise has next to nothing.
CONSTANT = 0.7371
#: What pages say of them; files without these words have errors of all columns together.
WORDS = (
    "in the norm in which `tol` is promised, those of the worst column relative to its features; "
    "one column is constant, the others are white noise"
)


def features(lap: Laplacian, width: int, dtype: torch.dtype) -> Tensor:
    """``(n, width)`` white noise, but for the first column, which is constant."""
    torch.manual_seed(0)
    x = torch.randn(lap.num_nodes, width, device=lap.device)
    x[:, 0] = CONSTANT
    return x.to(dtype)


def worst_error(y: Tensor, exact: Tensor, x: Tensor, lap: Laplacian) -> float:
    """``|D^1/2 (y - exact)| / |D^1/2 x|`` of the worst column, for a Laplacian of random walks."""
    root = lap.degree.double().sqrt().unsqueeze(1)
    off, all_of_it = ((root * field.double()).norm(dim=0) for field in (y - exact, x))
    return float((off / all_of_it).max())
