r"""Choosing the cheapest method that meets ``tol``.

The cost model counts multiply-adds of a sparse product, per column of ``x``:

====================  ==========================================================================
``chebyshev``         ``K(t, tol) * (nnz + 4 n)``, and :data:`STEP` for each of the ``K`` products
``dense``             ``DENSE * sum s_i^2``, and the forming of the kernel if it is not there
``spectral``          ``2 * DENSE * sum s_i^2``, only if all eigenpairs are there already
``limit``             nothing to speak of, if it is exact to ``tol``
====================  ==========================================================================

``s_i`` are the sizes of the components: a batch of small graphs is many small dense products.
Forming a kernel takes the Chebyshev recurrence on as many columns as the largest component has
nodes; it is charged to :data:`REUSE` calls. Whether ``limit`` is exact takes the smallest non-zero
eigenvalue; it is computed, once per graph, when the time is so large that the recurrence would cost
far more.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bunn.diffusion.chebyshev import chebyshev_degree
from bunn.diffusion.options import Options, Time
from bunn.laplacian import Laplacian

#: Cost of a dense multiply-add, in sparse ones.
DENSE = 0.25
#: Cost of launching one product, in sparse multiply-adds.
STEP = 2e5
#: Calls that share the cost of forming a kernel.
REUSE = 8
#: Entries of the largest kernel that is formed unasked.
KERNEL_ENTRIES = 2**25
#: Degree, or time, above which the spectral gap is worth computing.
GAP_DEGREE, GAP_TIME = 200, 1e7


def choose(x: Tensor, lap: Laplacian, time: Time, options: Options) -> str:
    """The name of the method to use for ``x: (n, c)``."""
    if _limit_is_exact(lap, time, options.tol):
        return "limit"
    known = lap.known_block_spectrum is not None
    if torch.compiler.is_compiling() or time.upper is None:  # nothing to compare costs by
        return "spectral" if known else "chebyshev"
    columns = x.size(1)
    degree = chebyshev_degree(time.upper, options.tol)
    costs = {"chebyshev": _chebyshev_cost(lap, columns, degree)}
    if known:
        costs["spectral"] = 2 * DENSE * lap.blocks.area * columns
    if not isinstance(time.value, Tensor):
        costs["dense"] = _dense_cost(lap, columns, time.value, degree)
    return min(costs, key=lambda name: costs[name])


def _chebyshev_cost(lap: Laplacian, columns: int, degree: int) -> float:
    return degree * ((lap.num_entries + 4 * lap.num_nodes) * columns + STEP)


def _dense_cost(lap: Laplacian, columns: int, time: float, degree: int) -> float:
    formed = (time, degree) in lap.kernels
    if not formed and lap.blocks.area > KERNEL_ENTRIES:
        return math.inf
    cost = DENSE * lap.blocks.area * columns + STEP * len(lap.blocks.shapes)
    return cost if formed else cost + _chebyshev_cost(lap, lap.blocks.largest, degree) / REUSE


def _limit_is_exact(lap: Laplacian, time: Time, tol: float) -> bool:
    # Learned times keep their gradient: at a time this large it is below tol, but not nothing.
    if time.lower is None or tol >= 1 or not time.fixed:
        return False
    gap = lap.known_spectral_gap
    if gap is None:
        if torch.compiler.is_compiling():
            return False
        if time.lower < GAP_TIME and chebyshev_degree(time.lower, tol) < GAP_DEGREE:
            return False
        gap = lap.spectral_gap()
    return time.lower * gap >= math.log(1 / tol)
