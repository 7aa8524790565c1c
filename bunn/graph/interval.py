r"""Where the eigenvalues of ``S`` lie, but for those of the null space, which are one.

A few steps of Lanczos find both ends from inside, much sooner than an eigenvector. How far off they
may be is known beforehand: the largest of ``n`` eigenvalues that spread over :math:`w` is missed by
more than :math:`\epsilon w` after :math:`m` steps from a random vector with a chance of at most
:math:`1.648 \sqrt n\, e^{-(2 m - 1) \sqrt \epsilon}` (Kuczyński and Woźniakowski, 1992), whatever
the eigenvalues are; and from several vectors, with the product of their chances.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bunn.graph.components import sums_over
from bunn.graph.operator import random_walk

if TYPE_CHECKING:
    from bunn.laplacian import Laplacian

#: Steps, and how many vectors take them side by side.
STEPS, VECTORS = 96, 8
#: The chance of missing an end.
CHANCE = 1e-12
#: What ends are rounded to.
DIGIT = 1e-4


class Interval(NamedTuple):
    """Two numbers with all eigenvalues of ``S`` but those of the null space between them."""

    low: float
    high: float

    def rest(self, time: float) -> float:
        """What is left of heat that is uneven, at most, after a time."""
        return math.exp(-time * (1 - self.high))


def find_interval(lap: Laplacian) -> Interval:
    """An interval as narrow as a few products can tell, but for a chance of one in 10^12."""
    generator = torch.Generator().manual_seed(0)
    size = (lap.num_nodes, VECTORS)
    start = torch.randn(size, dtype=torch.float64, generator=generator, device="cpu")
    low, high = _ritz_values(start.to(lap.device), lap.to(torch.float64))
    left = math.log(1.648 * math.sqrt(lap.num_nodes)) - math.log(CHANCE / 2) / VECTORS
    missed = (left / (2 * STEPS - 1)) ** 2
    margin = missed * (high - low) / max(1 - 2 * missed, 0.5)
    # A device may add up in any order: outwards, so that the last digits tell nothing.
    low, high = (
        math.floor((low - margin) / DIGIT) * DIGIT,
        math.ceil((high + margin) / DIGIT) * DIGIT,
    )
    return Interval(max(-1.0, low), min(1.0, high))


def _ritz_values(start: Tensor, lap: Laplacian) -> tuple[float, float]:
    """The smallest and the largest that Lanczos finds from the columns of ``start: (n, v)``.

    An end comes out in all digits though the vectors do not stay orthogonal: what is lost of that
    brings ends that are there already once more.
    """
    bare = lap.operator._replace(before=None, after=None)
    tiny = torch.finfo(start.dtype).tiny
    last, now = torch.zeros_like(start), _without_null(start, lap)
    beta = now.norm(dim=0)
    diagonal: list[Tensor] = []
    beside: list[Tensor] = []
    now = now / beta.clamp(min=tiny)
    for _ in range(STEPS):
        following = _without_null(random_walk(now, bare), lap)
        alpha = (following * now).sum(0)
        following = following - alpha * now - (beta * last if diagonal else 0.0)
        last, beta = now, following.norm(dim=0)
        now = following / beta.clamp(min=tiny)
        diagonal.append(alpha)
        beside.append(beta)
    matrix = torch.diag_embed(torch.stack(diagonal, dim=1))
    matrix += torch.diag_embed(torch.stack(beside[:-1], dim=1), offset=-1)  # all that is read
    found = np.linalg.eigvalsh(matrix.cpu().numpy())
    return float(found.min()), float(found.max())


def _without_null(z: Tensor, lap: Laplacian) -> Tensor:
    """``z: (n, v)`` less its part in the null space of ``I - S``."""
    null = lap.null_vector.unsqueeze(1)
    return z - null * sums_over(lap.components, lap.num_components, null * z)
