r"""Heat by the Chebyshev recurrence, one fused pass to a product.

.. math::
    T_0 = \beta x, \quad T_1 = S\, T_0, \quad T_{k+1} = 2 S\, T_k - T_{k-1}, \qquad
    y = \gamma \sum_k c_k T_k.

A product reads :math:`T_k` along the edges and :math:`T_{k-1}`, which it overwrites. It knows two
terms of the sum, :math:`T_{k-1}` and :math:`T_{k+1}`, so that every other product can leave the sum
alone; the first gathers from :math:`x` itself, and the last keeps no :math:`T_K`. The recurrence of
Clenshaw would need no sum, but its :math:`b_k` are :math:`\sqrt t` times as large, and so are their
errors when they are rounded to 16 bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bunn.kernels.frame import Frame


def chebyshev_heat(frame: Frame, coefficients: Sequence[float] | Tensor) -> Tensor:
    """The polynomial with the given coefficients, in the type of the features.

    Args:
        frame: Features and graph.
        coefficients: ``K + 1 >= 2`` numbers, or ``(K + 1, width)``.
    """
    x, before, after, storage, wide, step = frame
    degree, out = len(coefficients) - 1, torch.empty_like(x)
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
