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
from bunn.graph.components import sums_over
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
    return null_part(x.to(lap.dtype), lap).to(x.dtype).expand(x.shape).contiguous()


def null_part(z: Tensor, lap: Laplacian) -> Tensor:
    """:func:`component_mean` in the precision of ``lap``: ``(n, c)``, or ``(1, c)`` for all.

    Sums over a component are formed in float64: where features are alike, each of their ``n`` terms
    would be rounded the same way in float32, and the sum be off by up to ``n / 4`` roundings.
    """
    null = lap.null_vector.unsqueeze(1)  # in float64, and so is a product with it
    if lap.normalization == "sym":
        y = null * sums_over(lap.components, lap.num_components, null * z)
    else:
        y = sums_over(lap.components, lap.num_components, null.square() * z)
    return y.to(z.dtype)
