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

from bunn.kernels import Factor, Rows
from bunn.kernels.chebyshev import in_frame


def factored_heat(
    x: Tensor,
    rows: Rows,
    factors: Sequence[Factor],
    before: Tensor | None,
    after: Tensor | None,
    storage: torch.dtype,
) -> Tensor:
    """The product of the given factors, in the type of ``x``.

    Args:
        x: ``(n, width)`` contiguous features.
        rows: The graph.
        factors: At least one of them.
        before: ``(n,)`` factors of the rows of ``x``.
        after: ``(n,)`` factors of the rows of the result.
        storage: The type in which features are kept between factors.
    """
    x, before, after, step = in_frame(x, rows, before, after, storage)

    def place(free: Tensor | None, last: bool = False) -> Tensor:
        """Where a result goes: the last one has the type of ``x``."""
        dtype = x.dtype if last else storage
        if free is not None and free.dtype == dtype:
            return free
        return torch.empty_like(x, dtype=dtype)

    y, spare = x, None
    for index, (scale, root) in enumerate(factors):
        first, last = index == 0, index == len(factors) - 1
        beta = {"beta": before} if first and before is not None else {}
        gamma = after if last else None
        free = None if first else y
        if root.imag == 0:
            out = place(spare, last)
            step(y, out=out, a=scale, c=-scale * root.real, gamma=gamma, **beta)
            y, spare = out, free
        else:
            # z is kept no larger than y: float16 has no room for roots far away.
            size, spare = 1 + abs(root.real), place(spare)
            step(y, out=spare, a=1 / size, c=-root.real / size, **beta)
            delta = {"delta": before} if beta else {}
            a, b, c = scale * size, scale * root.imag**2, -scale * size * root.real
            out = place(free, last)
            step(spare, p=y, minus=False, out=out, a=a, b=b, c=c, gamma=gamma, **delta)
            y = out
    return y
