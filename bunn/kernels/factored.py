r"""Heat factor by factor, one fused pass to a product.

.. math::
    y \leftarrow \alpha (S - \rho)\, y \qquad \text{or} \qquad
    z = (S - \rho)\, y, \quad y \leftarrow \alpha\, [(S - \rho)\, z + \sigma^2 y].

A linear factor reads :math:`y` along the edges and at the node, and writes it to another place; a
quadratic one writes it where it was. The first gathers from :math:`x` itself.
:mod:`bunn.diffusion.factors` has the order in which that is stable.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bunn.kernels.arguments import Factor
from bunn.kernels.frame import Frame


def factored_heat(frame: Frame, factors: Sequence[Factor]) -> Tensor:
    """The product of the given factors, in the type of the features.

    Args:
        frame: Features and graph.
        factors: At least one of them.
    """
    x, before, after, storage, _, step = frame

    def place(free: Tensor | None, last: bool = False) -> Tensor:
        """Where a result goes: the last one has the type of ``x``."""
        dtype = x.dtype if last else storage
        if free is not None and free.dtype == dtype:
            return free
        return torch.empty_like(x, dtype=dtype)

    y, spare = x, None
    for index, factor in enumerate(factors):
        first, last = index == 0, index == len(factors) - 1
        beta = {"beta": before} if first and before is not None else {}
        gamma = after if last else None
        free = None if first else y
        (a, _, c), *more = factor.steps
        if not more:
            out = place(spare, last)
            step(y, out=out, a=a, c=c, gamma=gamma, **beta)
            y, spare = out, free
        else:
            spare = place(spare)
            step(y, out=spare, a=a, c=c, **beta)
            delta = {"delta": before} if beta else {}
            (a, b, c), out = more[0], place(free, last)
            step(spare, p=y, minus=False, out=out, a=a, b=b, c=c, gamma=gamma, **delta)
            y = out
    return y
