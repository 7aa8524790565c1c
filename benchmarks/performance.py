"""The page on speed, from the result files alone: ``python -m benchmarks.performance``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import glance, limits
from benchmarks.report import table
from benchmarks.results import FOLDER, load
from benchmarks.steps import sections
from benchmarks.targets import of_copy_as_recurrence
from benchmarks.words import how, number, what_errors_are
from bunn import kernels
from bunn.diffusion import auto, factors, patchwise
from bunn.kernels import grouping

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"

INTRODUCTION = """\
# Performance

What a GPU has to do for heat, counted on paper before anything is written, what is predicted of the
kernels, and what they measure. Written by `python -m benchmarks.performance` from
`benchmarks/results/*.json`.
"""

ON_PAPER = """\
## Two numbers

Heat at time t is a polynomial of degree K in the graph's operator: K sparse products. By the
recurrence of Chebyshev a product reads its two predecessors, writes its own and adds to the result
every other time: four fields. Factor by factor it reads one and writes one where a root is real,
and two products move five fields where a pair is complex. Besides, it reads one row of features per
edge, mostly out of the cache. Or the kernel of the heat, which no learned parameter touches, is
formed once, and heat is one dense product. The polynomial is zero between nodes that are more than
K edges apart: by blocks of nodes that are close together, whose reach is shared, that product is as
small as the reach.
"""

KERNELS = f"""\
## The kernels

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
{patchwise.ROWS} nodes that are close together (`bunn/ordering.py` merges pairs of nodes, pairs of
pairs and so on) and the nodes within their reach, with the kernel of the heat in small dense
matrices: one pass (`bunn/kernels/patches.py`), whatever the degree. For features of 16 bits
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

#: The ways of ``benchmarks.gpu_diffusion``.
COMPARED = ("cusparse", "cusparse_factored", "sparse", "dense", "auto")


def page() -> str:
    """The whole page."""
    measured = load("gpu_diffusion") if (FOLDER / "gpu_diffusion.json").is_file() else None
    there = all((FOLDER / f"{name}.json").is_file() for name in glance.FILES)
    parts = [INTRODUCTION, *([glance.section()] if there else []), ON_PAPER]
    parts += [_floors(load("floors")), KERNELS, _rounding(load("rounding"))]
    return "\n".join([*parts, _reuse(load("reuse")), _measured(measured), sections()])


def _floors(result: dict[str, Any]) -> str:
    rates = result["rates"]
    rows = [
        [
            row["graph"],
            row["dtype"],
            f"{row['time']:g}",
            str(row["degree"]),
            f"{row['operations'] / 1e9:.1f}",
            f"{row['compulsory_bytes'] / 1e6:,.0f}",
            f"{row['gathered_bytes'] / 1e6:,.0f}",
            number(row["reach"], ",.0f"),
            *(number(value, ".2f") for value in row["milliseconds"].values()),
        ]
        for row in result["rows"]
    ]
    return (
        f"With {result['channels']} channels, 64 on the graphs of a million nodes, at tol 1e-5, or "
        "what 16 bits can tell from it; GFLOP, MB that must move, MB that are gathered; nodes that "
        f"{patchwise.ROWS} close ones reach, in whole chunks; and the "
        f"milliseconds that follow on an H200 at {rates['copy'] / 1e12:g} TB/s from memory, "
        f"{rates['cache'] / 1e12:g} TB/s from the cache, and "
        f"{rates['tensor'] / 1e12:g} TFLOP/s in 16 bits, three of which make one in float32:\n\n"
        + table(
            [
                *("graph", "type", "t", "K", "GFLOP", "moved", "gathered", "reach"),
                *("memory", "cache", "dense", "blocks"),
            ],
            rows,
        )
    )


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
        "*cache* above, if its arithmetic, which grows with the block, goes to the tensor "
        "cores. Measured for blocks of 64 in bfloat16, in the table that follows: 0.33 ms at "
        "t = 1, where 0.88 are predicted without.\n\n" + table(["graph, order", *blocks], rows)
    )


def _measured(result: dict[str, Any] | None) -> str:
    if result is None:
        return "## Measured\n\nNot run here yet.\n"
    rows = [
        [
            row["graph"],
            row["dtype"],
            f"{row['time']:g}",
            *(number(row["milliseconds"].get(name), ".3f") for name in COMPARED),
            *(number(row["over_cusparse"].get(name), ".1f") for name in COMPARED[2:]),
            f"{row['of_copy']:.2f}",
            f"{of_copy_as_recurrence(row):.2f}",
            *(number(row["errors"].get(name), ".1e") for name in COMPARED[2:]),
        ]
        for row in result["rows"]
    ]
    about = (
        f"{how(result)}; a copy moves {result['copy_bytes_per_second'] / 1e12:.2f} TB/s. "
        "Milliseconds, medians of CUDA graphs that are replayed in turn: cuSPARSE driving the "
        "recurrence of Chebyshev, cuSPARSE factor by factor, and ours; how many times as fast as "
        "the faster cuSPARSE; what the sparse kernel moves at least, by what a copy moves in that "
        "time, and the same as if it drove the recurrence; and errors"
        f"{what_errors_are(result)}. 512 channels, 64 on the two graphs of a million nodes."
    )
    header = ["graph", "type", "t", "cuSPARSE", "factored", "sparse", "dense", "auto"]
    header += ["sparse, times", "dense, times", "auto, times", "of a copy", "recurrence"]
    header += ["sparse, error", "dense, error", "auto, error"]
    return "\n".join((f"## Measured\n\n{about}\n", table(header, rows), limits.section(result)))


def main() -> None:
    PAGE.write_text(page())
    print(f"wrote {PAGE.parent.name}/{PAGE.name}")


if __name__ == "__main__":
    main()
