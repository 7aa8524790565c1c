r"""Heat by the Chebyshev recurrence, one fused pass to a product.

.. math::
    T_0 = \beta x, \quad T_1 = S\, T_0, \quad T_{k+1} = 2 S\, T_k - T_{k-1}, \qquad
    y = \gamma \sum_k c_k T_k.

A product reads :math:`T_k` along the edges and :math:`T_{k-1}`, which it overwrites. It knows two
terms of the sum, :math:`T_{k-1}` and :math:`T_{k+1}`, so that every other product can leave the sum
alone; the first gathers from :math:`x` itself, and the last keeps no :math:`T_K`. The recurrence of
Clenshaw would need no sum, but its :math:`b_k` are :math:`\sqrt t` times as large, and so are their
errors when they are rounded to 16 bits.

Where rows are taken by blocks, the recurrence is that of the random walk,
:math:`T_k(S) = D^{1/2} T_k(P) D^{-1/2}`, whose products need no factors of the neighbours; only
:math:`\beta x` and :math:`\gamma` have to be brought there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from bunn.kernels import Rows, serve_blocks
from bunn.kernels.blocks import walk_in_blocks, without_root
from bunn.kernels.walk import walk


def chebyshev_heat(
    x: Tensor,
    rows: Rows,
    coefficients: Sequence[float] | Tensor,
    before: Tensor | None,
    after: Tensor | None,
    storage: torch.dtype,
) -> Tensor:
    """The polynomial with the given coefficients, in the type of ``x``.

    Args:
        x: ``(n, width)`` contiguous features.
        rows: The graph.
        coefficients: ``K + 1 >= 2`` numbers, or ``(K + 1, width)``.
        before: ``(n,)`` factors of the rows of ``x``.
        after: ``(n,)`` factors of the rows of the result.
        storage: The type in which the ``T_k`` are kept.
    """
    x, before, after, step = in_frame(x, rows, before, after, storage)
    degree, out = len(coefficients) - 1, torch.empty_like(x)
    wide = rows.value.dtype
    # Where features have the type of sums, the sum grows where it will be returned.
    total = out if x.dtype == wide else torch.empty_like(x, dtype=wide)
    kept = [torch.empty_like(x, dtype=storage) for _ in range(min(2, degree - 1))]

    def term(k: int) -> Tensor:
        """``T_k``; that of ``k - 2`` lies in the same place."""
        return x if k == 0 else kept[k % 2 - 1]

    for k in range(degree):
        last, pair = k == degree - 1, k % 4 in (1, 2)
        step(
            term(k),
            alpha=1.0 if k == 0 else 2.0,
            p=None if k == 0 else term(k - 1),
            y=None if last else term(k + 1),
            out=out if last else total if pair else None,
            r=total if k > 1 else None,
            a=coefficients[k + 1],
            b=coefficients[k - 1] if pair else None,
            c=coefficients[k] if last and k % 4 in (0, 1) else None,
            gamma=after if last else None,
            **({} if before is None or k > 1 else {("beta", "delta")[k]: before}),
        )
    return out


def in_frame(
    x: Tensor, rows: Rows, before: Tensor | None, after: Tensor | None, storage: torch.dtype
) -> tuple[Tensor, Tensor | None, Tensor | None, Callable[..., None]]:
    """Features, the factors before and after them, and a step on them, by rows or by blocks.

    Args:
        x: ``(n, width)`` contiguous features.
        rows: The graph.
        before: ``(n,)`` factors of the rows of ``x``.
        after: ``(n,)`` factors of the rows of the result.
        storage: The type in which features are kept between steps.
    """
    blocks = serve_blocks(x, rows, before) if storage == x.dtype else None
    if blocks is None:
        return x, before, after, partial(walk, rows=rows)
    root, step = blocks.scales[0].unsqueeze(1), partial(walk_in_blocks, blocks=blocks)
    after = root if after is None else root * after
    return without_root(x, blocks, before), None, after, partial(step, left=blocks.scales[2])
