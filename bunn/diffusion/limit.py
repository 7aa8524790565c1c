r"""Heat at infinite time: the mean of every connected component, in linear time.

.. math::
    \text{rw:}\;\; y_v = \frac{\sum_u d_u x_u}{\sum_u d_u}, \qquad
    \text{sym:}\;\; y_v = \sqrt{d_v}\, \frac{\sum_u \sqrt{d_u}\, x_u}{\sum_u d_u},

with sums over the component of :math:`v`. At a finite time it is off by :math:`e^{-t \lambda}` in
the operator norm, :math:`\lambda` the smallest non-zero eigenvalue.
"""

from __future__ import annotations

import math

from torch import Tensor

from bunn.diffusion.options import Options, Time
from bunn.laplacian import Laplacian


def limit(x: Tensor, lap: Laplacian, time: Time, options: Options) -> Tensor:
    """The limit, for ``x: (n, c)``; refuses a finite time at which it would miss ``tol``."""
    if time.lower is None:
        raise ValueError(
            "method='limit' needs to know the times, and only the device does; use method='auto'"
        )
    if time.lower != math.inf and options.tol < 1:
        error = math.exp(-time.lower * lap.spectral_gap())
        if error > options.tol:
            raise ValueError(
                f"method='limit' is off by {error:.1e} at time={time.lower:g}, more than "
                f"tol={options.tol:g}; use method='auto' or 'chebyshev'"
            )
    return component_mean(x, lap)


def component_mean(x: Tensor, lap: Laplacian) -> Tensor:
    """The projection of ``x: (n, c)`` on the null space of ``L``."""
    label, count = lap.components, lap.num_components
    gather, spread = lap.stationary, None
    if lap.normalization == "sym":
        gather = lap.null_vector.to(lap.dtype)
        spread = gather.unsqueeze(1)
    z = x.to(lap.dtype)
    if count == 1:
        y = (gather @ z).expand(lap.num_nodes, -1)
    else:
        sums = z.new_zeros(count, z.size(1)).index_add(0, label, gather.unsqueeze(1) * z)
        y = sums[label]
    return (y if spread is None else spread * y).to(x.dtype).contiguous()
