"""The page on the kernels: how they work, and two tables from result files."""

from __future__ import annotations

from typing import Any

from benchmarks.report import table
from benchmarks.results import load
from benchmarks.words import number, short
from bunn import kernels
from bunn.diffusion import auto, factors, patchwise
from bunn.kernels import grouping

KERNELS = f"""\
# The kernels

What runs on a GPU instead of torch's own operations, and why it is right. How fast it is:
[performance](performance.md). `BUNN_KERNELS=0` in the environment leaves everything to torch. The
result files named here are in `benchmarks/results`.

## Sparse products

`bunn/kernels` does a product in one pass: gather neighbours, combine them with the node's own data,
write. A thread reads 16 bytes of a row, a warp 512. The compiled code exchanges no features between
threads and spills nothing, which a test reads off the PTX.

- **Short rows** are taken side by side, two or four to a thread, with three or four neighbours at a
  time.
- **Longer rows** are taken one by one, and hub rows of more than {kernels.LONG} neighbours in
  pieces, so that they do not hold up the rest.
- **Blocks of {grouping.ROWS} rows**, ordered by min-hashing, are used where nodes have many
  neighbours, all edges weigh one and features have 16 bits. A block gathers each of its neighbours
  once, {grouping.CHUNK} at a time, and adds them up as a tensor-core product with a tile of zeros
  and ones, formed from bits in registers. Heat then runs in the frame of the random walk, where
  neighbours have no factors and tiles are exact.

Long rows of float32 are added up in float64, a few neighbours at a time, since equal terms round
the same way: on a star of m leaves with equal features, a sum in float32 would be off by
m / 4 roundings. Short rows are added up in float32, as trees of three or four neighbours; float64
took 9 to 18 % longer (`log/gpu_diffusion-5854bbf.json`).

## Heat factor by factor

Heat at a fixed time is multiplied factor by factor (`bunn/diffusion/factors.py`), up to degree
{factors.HIGHEST_DEGREE}. The order matters: from left to right, rounding errors grow by 10^16 at
t = 100. In the order found by search, they are up to 1.8 times those of rounding the result up to
degree {kernels.NARROW_DEGREE} in 16 bits, in the table below, and in float32 five times at t =
1000. Other constants and graphs may do worse: K roundings in the same direction are the bound. At
higher degrees features of 16 bits have their terms in float32. The errors are larger than those of
the recurrence at t = 1 and smaller at t = 100. The factors of a time are found once, at tol 1e-5
within a tenth of a second.

Factors are scaled to be powers of two at 1, the eigenvalue of the null space, and in the frame of
the operator features are scaled by the root of their degree over the median of its component. So in
16 bits equal features are not rounded where a node has that degree; at others each factor may round
them in the same direction.

The Chebyshev recurrence serves learned times, whose roots the host does not know, and float64. The
Clenshaw recurrence would save the sum but no time, since it reads the features instead; its terms
are sqrt(t) times as large, so keeping them in 16 bits loses digits.

Up to degree {kernels.NARROW_DEGREE} terms are kept in the type of the features, beyond that in
float32. Features in float64, and times so large that float32 does not suffice, go through the same
kernels in float64, terms included: where features hardly change, terms rounded to float32 all round
the same way, and on two stars joined by a weak edge this adds up like t.

## Maps and residual blocks

Rotations and reflections of planes are one pass over the features, and their gradients another,
with the sines and cosines of the angles in registers.

Between two dense products of a residual block there is one pass each way
(`bunn/kernels/passes.py`): bias, dropout and activation; or bias, dropout, residual connection and
normalisation. Such a pass is bound by instructions. A hash decides what is dropped,
recomputed in the backward pass instead of stored; GELU takes one exponential.

## Heat by blocks of close nodes

On a graph that is used repeatedly, heat at a fixed time is taken by blocks of {patchwise.ROWS}
nodes that are close together (`bunn/graph/ordering.py` merges pairs of nodes, pairs of pairs and so
on). The heat kernel between a block and the nodes within its reach is a small dense matrix, and
heat is one pass over these (`bunn/kernels/patches.py`), whatever the degree.

- **16 bits**: the matrices have the type of the features.
- **float32**: features are scaled by column and split into two float16 numbers, as the matrix is:
  three products. Tensor cores truncate what does not fit into a sum, term by term, instead of
  rounding it; where 2,048 terms are alike that is 1.5e-5, more than `tol`. So only
  {patchwise.CHUNK} terms are added up there, the small ones first, and the rest by the float32
  units. On a star of 30,000 leaves with equal features, errors are 2.7e-6 at t = 1, including
  1.2e-6 of the polynomial (`gpu_tried.json`). Of `tol`,
  {short(patchwise.LOST_IN_SUMS)} is reserved for them.
- **All within reach of all**, as on tolokers: one dense product, of the same kind in float32 and by
  cuBLAS in 16 bits.
- **A `tol` below {short(patchwise.LEAST_TOL)}**, and eigenvectors of large components: the
  product runs in float64.
- **Batches of small graphs** stay in float32: 32 terms at a time on the tensor cores, and the rest
  by the float32 units.

Finding close nodes and forming their kernel takes up to a second for a million edges, which a
single step would not pay back. It is done after {auto.PATIENCE} calls with a graph, or at once
where calls are known to be repeated, as in `bunn train`.
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
        "## Terms that are rounded\n\nThe error of keeping the terms in a given type, relative to "
        "the features. Simulated; the worst column of white, smooth and constant features on four "
        "graphs:\n\n"
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
        "features have to be read from it. A block of rows that is processed together reads a "
        "neighbour shared by several of them once. The table has the factor by which this reduces "
        "the rows read, by the number of rows in a block and the order of the nodes.\n\n"
        "Predicted for blocks of 32 in a good order: a sparse product on tolokers in less than "
        "half of the time in the column *cache* of "
        "[the tables](performance-tables.md#heat-on-paper), if its arithmetic, which grows with "
        "the block, goes to the tensor cores. Measured for blocks of 64 in bfloat16: 0.33 ms at t "
        "= 1, where 0.88 are predicted without blocks.\n\n" + table(["graph, order", *blocks], rows)
    )
