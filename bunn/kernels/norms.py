r"""BatchNorm over the first :math:`m` of :math:`n` rows, :math:`m` on the device, in three passes.

.. math::
    y = w\, \frac{x - \mu}{\sigma} + b, \qquad
    g_x = \frac{w}{\sigma} \Big(g - \overline{g} - \hat x\, \overline{g \hat x}\Big), \quad
    \hat x = \frac{x - \mu}{\sigma}

Programs find means and squares about them for a few rows each, which are put together in float64:
no digits are lost to a mean that is large.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bunn.kernels.chains import add_up_parts
from bunn.kernels.columns import (
    find_moments,
    find_slopes,
    normalise,
    normalise_back,
    settle,
)
from bunn.kernels.launching import launch, parts

#: Rows and columns of a program, and groups of 32 threads.
ROWS, WIDTH, WARPS = 64, 64, 4
#: Parts and columns that are put together at a time.
AT_ONCE, SETTLED = 64, 16


def normalise_columns(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    count: Tensor,
    eps: float,
    tracked: tuple[Tensor, Tensor, float] | None,
) -> tuple[Tensor, Tensor]:
    """All rows by the statistics of the first; and these, ``(2, c)`` float32: means and inverses of
    deviations.

    Args:
        x: ``(n, c)``, contiguous.
        weight: ``(c,)``, if there is one, and then a bias.
        bias: ``(c,)``, likewise.
        count: How many rows count, ``()`` int64.
        eps: Added to variances.
        tracked: Running means and variances ``(c,)``, which are brought up to date, and the share
            of what is new in them.
    """
    (n, width), num_parts = x.shape, parts(x.size(0), ROWS)
    out = torch.empty_like(x)
    statistics = x.new_empty(2, width, dtype=torch.float32)
    moments = x.new_empty(2, num_parts, width, dtype=torch.float32)
    if width == 0:
        return out, statistics
    grid, tile = (num_parts, parts(width, WIDTH)), {"ROWS": ROWS, "WIDTH": WIDTH}
    if n > 0:
        launch(find_moments, grid, (x, count, moments, width, num_parts), WARPS, **tile)
    mean, var, momentum = tracked or (None, None, 0.0)
    launch(
        settle,
        (parts(width, SETTLED),),
        (moments, count, statistics, mean, var, width, num_parts, eps, momentum),
        WARPS,
        **{"TRACKED": tracked is not None, "ROWS": ROWS, "AT_ONCE": AT_ONCE, "WIDTH": SETTLED},
    )
    if n > 0:
        arguments = (x, statistics, weight, bias, out, n, width)
        launch(normalise, grid, arguments, WARPS, AFFINE=weight is not None, **tile)
    return out, statistics


def normalise_columns_back(
    grad: Tensor, x: Tensor, statistics: Tensor, weight: Tensor | None, count: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by features, weight and bias.

    Args:
        grad: ``(n, c)``, contiguous.
        x: As in :func:`normalise_columns`, like what follows.
        statistics: What that returned.
        weight: As there.
        count: As there.
    """
    (n, width), num_parts = x.shape, parts(x.size(0), ROWS)
    grad_x = torch.empty_like(x)
    sums = x.new_empty(2, num_parts, width, dtype=torch.float32)
    grid, tile = (num_parts, parts(width, WIDTH)), {"ROWS": ROWS, "WIDTH": WIDTH}
    there = x.numel() > 0
    if there:
        arguments = (grad, x, statistics, count, sums, width, num_parts)
        launch(find_slopes, grid, arguments, WARPS, **tile)
    slopes = add_up_parts(sums)
    if there:
        back = (grad, x, statistics, weight, slopes, count, grad_x, n, width)
        launch(normalise_back, grid, back, WARPS, AFFINE=weight is not None, **tile)
    by_weight, by_bias = slopes.unbind(0)
    return grad_x, by_weight, by_bias
