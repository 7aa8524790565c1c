"""The page on speed, from the result files alone: ``python -m benchmarks.performance``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.report import table
from benchmarks.results import FOLDER, load
from benchmarks.steps import how, sections
from bunn import kernels
from bunn.kernels import grouping

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"

INTRODUCTION = """\
# Performance

What a GPU has to do for heat, counted on paper before anything is written, what is predicted of the
kernels, and what they measure. Written by `python -m benchmarks.performance` from
`benchmarks/results/*.json`.

## Two numbers

Heat at time t is a polynomial of degree K in the graph's operator: K sparse products. A product has
to read its two predecessors and write its own, and adds to the result every other time; it reads
one row of features per edge, mostly out of the cache. Or the kernel of the heat, which no learned
parameter touches, is formed once, and heat is one dense product.
"""

KERNELS = f"""\
## The kernels

`bunn/kernels` does a product in one pass: it gathers the neighbours, subtracts the predecessor,
writes the next term and adds two terms to the sum. A thread reads 16 bytes of a row, a warp 512;
the compiled code exchanges no features between threads and spills nothing, which a test reads off
the PTX. Short rows are taken side by side, two to a thread. Rows of more than {kernels.LONG}
neighbours are cut into pieces, so that a hub does not hold up the rest.

Where nodes have many neighbours, all edges weigh one and features have 16 bits, rows are taken by
blocks of {grouping.ROWS}, ordered by min-hashing. A block gathers each of its neighbours once,
{grouping.CHUNK} at a time, and adds them up by a product with a tile of zeros and ones, which is
formed from bits in the registers of the tensor cores. Heat runs in the frame of the random walk
there, where neighbours have no factors and tiles are exact.

Clenshaw's recurrence would save the sum, but not the time: it reads the features instead. And its
terms are sqrt(t) times as large, so that keeping them in 16 bits loses digits that the other form
keeps. Up to degree {kernels.NARROW_DEGREE} terms are kept in the type of the features, beyond in
float32. Features in float64, and times so large that float32 does not suffice, are summed in
float64 by the same kernels.

Rotations and reflections of planes are one pass over the features, their three gradients another.
They are not fused into the products: the table below has them at three hundredths of a step, of
which the forward half could be saved.

What lies between two dense products of a residual block is one pass each way
(`bunn/kernels/passes.py`): bias, dropout and activation; or bias, dropout, residual connection and
normalisation. Such a pass is bound by its instructions. A hash decides what is dropped, again in
the backward pass instead of being stored, and GELU takes one exponential.

In float32, the dense product takes three of float16 (`bunn/diffusion/products.py`): the kernel and
the features are each a sum of two float16 numbers, 22 bits together. For features of 16 bits the
kernel is kept in their type, and one product does. Eigenvectors are multiplied in the same way.

`BUNN_KERNELS=0` in the environment leaves everything to torch.
"""

#: The ways of ``benchmarks.gpu_diffusion``, and the run before rows were taken side by side.
COMPARED = ("cusparse", "sparse", "dense", "auto")
FIRST = "log/gpu_diffusion-74d9c0e"

LIMITS = """\
### Log

What limited it, and what was tried:

- **Traffic.** In float32 a product moves four fields, cuSPARSE's with its sum six: 1.5 times is
  what traffic alone allows at a large K. At a small one the first and the last product, which move
  less, weigh more. In 16 bits the fields are smaller and the sum is not.
- **Gathering.** On `random` the features are larger than the cache and no two nodes share
  neighbours: a product reads eight rows to a node where *of a copy* counts one. With those it moves
  2.9 GB in 0.78 ms at t = 100 in float32, nine tenths of what a copy does. tolokers reads 88 rows
  to a node, out of the caches. Blocks of rows need a third of them in bfloat16; the dense product,
  which *auto* takes from t = 1 on, none.
- **What is on its way.** At first a program took its rows one after the other: too few loads at a
  time where rows are short, as the table below shows. To send for what a row holds before its
  neighbours costs registers and gained nothing.
- **Alignment.** tolokers has 11,758 nodes. Tensor cores want multiples of eight: filled up with
  zeros, its dense product went from 2.0 to 0.76 ms in float32.

- **Panels.** To run all products on a few columns, whose fields fit in the cache, and then on the
  next few gained a little at large times on minesweeper in float32, and nothing or less elsewhere:
  launches are more and smaller, and rows of fewer bytes are gathered less well.
- **Shared memory**, on paper: a multiprocessor that keeps a column of the whole graph would have to
  read all indices and values anew for it, 8 bytes to an entry, where the fields that it saves are
  16 bytes to a node: more, from two neighbours to a node on.

The model of costs by which *auto* chooses is fitted to such runs.

Against the targets: in bfloat16 the sparse kernel is twice as fast as cuSPARSE or more, on
like-questions just about. In float32 it is so at t = 1, and down to 1.6 times as fast at t = 100;
on tolokers 1.2 times, where *auto* does not take it. Where *auto* takes the dense product it is 3.4
to 42 times as fast in bfloat16, and 2.1 to 16 times in float32, which takes three products for one.
At small times, and on graphs too large for a kernel, the traffic of above limits it to between 1.6
and 3.3. Graphs larger than the cache reach 0.7 to 0.8 of a copy where neighbours are near, and 0.33
to 0.43 where they are random.
"""


def page() -> str:
    """The whole page."""
    measured = load("gpu_diffusion") if (FOLDER / "gpu_diffusion.json").is_file() else None
    parts = [INTRODUCTION, _floors(load("floors")), KERNELS, _rounding(load("rounding"))]
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
            *(f"{value:.2f}" for value in row["milliseconds"].values()),
        ]
        for row in result["rows"]
    ]
    return (
        f"With {result['channels']} channels, at tol 1e-5, or what 16 bits can tell from it; "
        "GFLOP, MB that must move, MB that are gathered; and the milliseconds that follow on an "
        f"H200 at {rates['copy'] / 1e12:g} TB/s from memory, {rates['cache'] / 1e12:g} TB/s from "
        f"the cache, and {rates['tensor'] / 1e12:g} TFLOP/s in 16 bits (three products in float32):"
        "\n\n"
        + table(
            ["graph", "type", "t", "K", "GFLOP", "moved", "gathered", "memory", "cache", "dense"],
            rows,
        )
    )


def _rounding(result: dict[str, Any]) -> str:
    rows = [
        [
            f"{row['dtype']}, t = {row['time']:g}",
            str(row["degree"]),
            f"{row['eps']:.1e}",
            *(f"{row['errors'][name]:.1e}" for name in ("chebyshev", "clenshaw")),
        ]
        for row in result["rows"]
    ]
    return (
        "## Terms in 16 bits\n\nThe error that it makes to keep the terms in 16 bits, relative to "
        "the features; simulated, the worst of three graphs with white and smooth features:\n\n"
        + table(["terms", "K", "eps", "Chebyshev", "Clenshaw"], rows)
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
        "cores. Measured for blocks of 64 in bfloat16, in the table that follows: 0.35 ms at "
        "t = 1, where 0.91 are predicted without.\n\n" + table(["graph, order", *blocks], rows)
    )


def _measured(result: dict[str, Any] | None) -> str:
    if result is None:
        return "## Measured\n\nNot run here yet.\n"
    rows = [
        [
            row["graph"],
            row["dtype"],
            f"{row['time']:g}",
            *(_number(row["milliseconds"].get(name), ".3f") for name in COMPARED),
            *(_number(row["over_cusparse"].get(name), ".1f") for name in COMPARED[1:]),
            f"{row['of_copy']:.2f}",
            f"{row['errors']['auto']:.0e}",
        ]
        for row in result["rows"]
    ]
    about = (
        f"{how(result)}; a copy moves {result['copy_bytes_per_second'] / 1e12:.2f} TB/s. "
        "Milliseconds, medians of CUDA graphs that are replayed in turn; how many times as fast as "
        "cuSPARSE driving the same recurrence in the same type; what the sparse kernel moves at "
        "least, by what a copy moves in that time; the error of *auto*, relative to the features. "
        "512 channels, 64 on the two graphs of a million nodes."
    )
    header = ["graph", "type", "t", "cuSPARSE", "sparse", "dense", "auto"]
    header += ["sparse, times", "dense, times", "auto, times", "of a copy", "error"]
    return "\n".join((f"## Measured\n\n{about}\n", table(header, rows), LIMITS, _log(result)))


def _log(now: dict[str, Any]) -> str:
    before = {(row["graph"], row["dtype"], row["time"]): row for row in load(FIRST)["rows"]}
    rows = []
    for row in now["rows"]:
        if row["time"] != 10:
            continue
        old = before.get((row["graph"], row["dtype"], row["time"]))
        if old is None:  # another graph than on that machine
            continue
        times = [run["over_cusparse"]["sparse"] for run in (old, row)]
        shares = [run["of_copy"] for run in (old, row)]
        rows.append([row["graph"], row["dtype"], *(f"{x:.1f}" for x in times)])
        rows[-1] += [f"{x:.2f}" for x in shares]
    return (
        "## Rows one after the other, then side by side\n\nThe sparse kernel at t = 10 in the "
        f"first run (`benchmarks/results/{FIRST}.json`) and in the one above: times as fast as "
        "cuSPARSE, and the share of a copy.\n\n"
        + table(["graph", "type", "first, times", "now, times", "first, copy", "now, copy"], rows)
    )


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def main() -> None:
    PAGE.write_text(page())
    print(f"wrote {PAGE.parent.name}/{PAGE.name}")


if __name__ == "__main__":
    main()
