"""The page on the kernels: how they work, and two tables from result files."""

from __future__ import annotations

from typing import Any

from benchmarks.report import table
from benchmarks.results import load
from benchmarks.words import number
from bunn import kernels
from bunn.diffusion import auto, factors, patchwise
from bunn.kernels import grouping

KERNELS = f"""\
# The kernels

What runs on a GPU instead of torch's own operations, and why it is right. How fast it is:
[performance](performance.md).

`bunn/kernels` does a product in one pass: it gathers the neighbours, combines them with what the
node has, and writes. A thread reads 16 bytes of a row, a warp 512; the compiled code exchanges no
features between threads and spills nothing, which a test reads off the PTX. Short rows are taken
side by side, two or four to a thread, with three or four neighbours at a time. Longer ones are
taken by themselves, those of more than {kernels.LONG} neighbours in pieces, so that a hub does not
hold up the rest.

Where nodes have many neighbours, all edges weigh one and features have 16 bits, rows are taken by
blocks of {grouping.ROWS}, ordered by min-hashing. A block gathers each of its neighbours once,
{grouping.CHUNK} at a time, and adds them up by a product with a tile of zeros and ones, which is
formed from bits in the registers of the tensor cores. Heat runs in the frame of the random walk
there, where neighbours have no factors and tiles are exact.

Heat at a fixed time is multiplied factor by factor (`bunn/diffusion/factors.py`), up to degree
{factors.HIGHEST_DEGREE}. Products of factors are feared for their rounding, and rightly: from left
to right errors grow by 10^16 at t = 100. In the order that is searched for they stay at or below
those of rounding the result, as the table below shows, in float32 up to about twice that at t =
1000: larger than those of the recurrence at t = 1, smaller at t = 100. Factors of a time are found
once, at tol 1e-5 within a tenth of a second. Learned times, of which the host knows no roots, and
float64 take the recurrence of Chebyshev. That of Clenshaw would save the sum, but not the time: it
reads the features instead; and its terms are sqrt(t) times as large, so that keeping them in 16
bits loses digits. Up to degree {kernels.NARROW_DEGREE} terms are kept in the type of the features,
beyond in float32. Features in float64, and times so large that float32 does not suffice, go through
the same kernels in float64, terms and all: where features hardly change, terms that are rounded to
float32 are all rounded the same way, and on two stars that a weak edge joins that adds up like t.

For the same reason long rows of float32 are added up in float64, a few neighbours at a time: on a
star of m leaves with equal features, a sum in float32 would be off by m / 4 roundings. Short rows
are added up in float32, as trees of three or four neighbours; to do so in float64 took 9 to 18 %
longer (`log/gpu_diffusion-5854bbf.json`).

Rotations and reflections of planes are one pass over the features, their gradients another, with
the sines and cosines of the angles in registers.

What lies between two dense products of a residual block is one pass each way
(`bunn/kernels/passes.py`): bias, dropout and activation; or bias, dropout, residual connection and
normalisation. Such a pass is bound by its instructions. A hash decides what is dropped, again in
the backward pass instead of being stored, and GELU takes one exponential.

Where a graph is asked for again and again, its heat at a fixed time is taken by blocks of
{patchwise.ROWS} nodes that are close together (`bunn/graph/ordering.py` merges pairs of nodes,
pairs of pairs and so on) and the nodes within their reach, with the kernel of the heat in small
dense matrices: one pass (`bunn/kernels/patches.py`), whatever the degree. For features of 16 bits
matrices have their type. Those of float32 are scaled by column and split into two numbers of
float16, as the matrix is: three products. Tensor cores cut off what does not fit into a sum, term
by term, instead of rounding it; where 2,048 terms are alike that is 1.5e-5, more than `tol`. So
{patchwise.CHUNK} terms are added up there, the small ones first, and the rest
by the float32 units: errors on a star of 30,000 leaves with equal features are 2.7e-6 at t = 1, the
polynomial's 1.2e-6 included (`gpu_tried.json`). Of `tol`, {patchwise.LOST_IN_SUMS:g} are left to
them.

Where all is within reach of all, as on tolokers, heat is a dense product of the same kind for
float32, and for 16 bits cuBLAS's. A `tol` below {patchwise.LEAST_TOL:g}, and eigenvectors of
large components, are multiplied in float64. Batches of small graphs stay in float32: there 32 terms
are added up at a time, and the float32 units add up the rest.

Close nodes and their kernel take up to a second to find and to form, which one step would not pay:
unless it is known that calls will be repeated, as in `bunn train`, that is done after
{auto.PATIENCE} calls with a graph.

`BUNN_KERNELS=0` in the environment leaves everything to torch.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([KERNELS, _rounding(load("rounding")), _reuse(load("reuse"))])


def _rounding(result: dict[str, Any]) -> str:
    rows = [
        [
            f"{row['dtype']}, t = {row['time']:g}",
            str(row["degree"]),
            f"{row['eps']:.1e}",
            *(
                number(row["errors"].get(name), ".1e")
                for name in ("chebyshev", "clenshaw", "factored")
            ),
        ]
        for row in result["rows"]
    ]
    return (
        "## Terms that are rounded\n\nThe error that it makes to keep the terms in some type, "
        "relative to the features; simulated, the worst of three graphs with white and smooth "
        "features:\n\n"
        + table(["terms", "K", "eps", "Chebyshev", "Clenshaw", "factor by factor"], rows)
    )


def _reuse(result: dict[str, Any]) -> str:
    blocks = list(result["rows"][0]["reuse"])
    rows = [
        [f"{row['graph']}, {row['order']}", *(f"{row['reuse'][block]:.2f}" for block in blocks)]
        for row in result["rows"]
    ]
    return (
        "## What rows share\n\nWhere the cache is the limit, as on tolokers, fewer rows of "
        "features have to come out of it. A block of rows that is worked on together reads a "
        "neighbour that several of them have once: so many times fewer rows of features, by the "
        "number of rows in a block and the order of the nodes. Predicted for blocks of 32 in a "
        "good order: a sparse product on tolokers at less than half of the time in the column "
        "*cache* of [the tables](performance-tables.md#heat-on-paper), if its arithmetic, which "
        "grows with the block, goes to the tensor "
        "cores. Measured for blocks of 64 in bfloat16: 0.33 ms at t = 1, where 0.88 are predicted "
        "without.\n\n" + table(["graph, order", *blocks], rows)
    )
