r"""One pass over the edges: gather the neighbours, combine, write.

Everything sparse in this package is made of one step on the symmetric operator :math:`S`,

.. math::
    y_v = \alpha \sum_u S_{vu} \beta_u x_u - \delta_v p_v, \qquad
    r_v \leftarrow \gamma_v \, (r_v + a\, y_v + b\, \delta_v p_v + c\, \beta_v x_v),

of which either may be left out: the first is a step of the Chebyshev recurrence, the second adds up
the heat (:mod:`bunn.kernels.chebyshev`) or multiplies with a factor of it
(:mod:`bunn.kernels.factored`), and :math:`r_v = \gamma_v a y_v` alone is a product, the
mean or the sum of the neighbours. :math:`\beta, \gamma, \delta` are numbers of the nodes;
:math:`a, b, c` are one number each, or one per column.

Where rows are short a program takes a few of them side by side, so that enough is on its way at any
time, and neighbours that they share are read from a near cache. A row that is longer than
:func:`bunn.kernels.longest` is cut into segments, each summed by a program of its own; a
second, small launch adds the sums up. The order of every sum is fixed by the graph, so the result
is the same at every run.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from bunn import kernels
from bunn.kernels.arguments import Rows
from bunn.kernels.launching import launch, parts, power_of_two
from bunn.kernels.steps import add_segments, walk_rows


class Tiling(NamedTuple):
    """How the work is cut up.

    Args:
        width: Columns of a program. Sixteen bytes of a row to a thread, and as many threads as
            there are columns, leave nothing to exchange between them.
        at_once: Neighbours whose rows are on their way at the same time, for a program of one row.
        rows: Rows of a program, side by side.
        warps: Groups of 32 threads of a program.
        each: Neighbours of each of several rows at the same time, three or four.
    """

    width: int
    at_once: int
    rows: int
    warps: int
    each: int = 4

    @classmethod
    @functools.cache
    def of(cls, dtype: torch.dtype, width: int, degree: int) -> Tiling:
        """The one for features of some type and width on a graph of some mean degree, rounded up.

        ``benchmarks/tiling.py`` compares them: a long row is best taken with 32 features of its
        neighbours on their way to a thread. Short ones are best taken two to a thread, or four of
        16 bits where many fit into a warp, and three or four neighbours at a time, whichever leaves
        fewer places empty.
        """
        warp = 32 * 16 // dtype.itemsize
        columns = min(power_of_two(width), warp)
        at_once = max(4, min(16, 1024 // columns))
        if degree > kernels.SHORT:
            return cls(columns, at_once, 1, 1)
        each = min((4, 3), key=lambda count: count * parts(degree, count))
        to_a_thread = 4 if each == 3 and dtype.itemsize == 2 and 4 * columns <= warp else 2
        return cls(columns, at_once, min(16, to_a_thread * warp // columns), 1, each)


Coefficient = float | Tensor


def walk(
    x: Tensor,
    rows: Rows,
    *,
    alpha: float = 1.0,
    beta: Tensor | None = None,
    p: Tensor | None = None,
    minus: bool = True,
    delta: Tensor | None = None,
    y: Tensor | None = None,
    out: Tensor | None = None,
    r: Tensor | None = None,
    a: Coefficient = 1.0,
    b: Coefficient | None = None,
    c: Coefficient | None = None,
    gamma: Tensor | None = None,
    tiling: Tiling | None = None,
) -> None:
    """One step, into ``y`` and ``out``.

    Features are contiguous ``(n, width)``, but for ``x`` and ``out``, whose rows may lie apart, as
    in columns of a wider matrix; each has a type of its own. Sums and the numbers of nodes
    and columns have the type of the entries of ``S``, float32 or float64; those of long rows of
    float32 are float64 on the way.

    Args:
        x: What is gathered.
        rows: The graph.
        alpha: A factor of the sum.
        beta: ``(n,)`` factors of the rows of ``x``.
        p: What is subtracted from the sum.
        minus: Whether it is; if not, it is in the combination alone.
        delta: ``(n,)`` factors of the rows of ``p``.
        y: Where the sum goes; it may be ``p``, but not ``x``.
        out: Where the combination goes; it may be ``r``, but not ``x``.
        r: What it is added to, in the type of sums.
        a: The coefficient of the sum in it: a number, rounded to float32, or ``(width,)``.
        b: That of ``p``, in the same form as ``a``.
        c: That of ``x``, in the same form as ``a``.
        gamma: ``(n,)`` factors of the rows of ``out``.
        tiling: How the work is cut up. (default: :meth:`Tiling.of`)
    """
    n, width = x.shape
    if n == 0 or width == 0:
        return
    crow, col, value, segments, _ = rows
    tiling = tiling or Tiling.of(x.dtype, width, parts(col.numel(), n))
    assert tiling.each in (3, 4), tiling
    num_segments = 0 if segments is None else segments.size(0)
    partial = None
    if segments is not None:
        partial = torch.empty(num_segments, width, dtype=value.dtype, device=x.device)
    flags = {
        **{"P": p is not None, "MINUS": minus, "Y": y is not None, "R": r is not None},
        **{"OUT": out is not None, "B": b is not None, "C": c is not None},
        **{"BETA": beta is not None, "GAMMA": gamma is not None, "DELTA": delta is not None},
        "PER_COLUMN": isinstance(a, Tensor),
    }
    tile = {"AT_ONCE": tiling.at_once, "WIDTH": tiling.width}
    tiles = parts(width, tiling.width)
    numbers = (a, b, c, beta, gamma, delta, alpha)
    strides = (x.stride(0), width if out is None else out.stride(0))
    arguments = (x, p, y, r, out, partial, crow, col, value, segments, *numbers)
    launch(
        walk_rows,
        (num_segments + parts(n, tiling.rows), tiles),
        (*arguments, n, num_segments, width, *strides),
        tiling.warps,
        **{"LONG": kernels.longest(n, col.numel()), "CUT": segments is not None, **flags},
        **{"ROWS": tiling.rows, "EACH": tiling.each, **tile},
    )
    if segments is not None:
        rest = (x, p, y, r, out, partial, segments, *numbers, width, *strides)
        launch(add_segments, (num_segments, tiles), rest, tiling.warps, **flags, **tile)
