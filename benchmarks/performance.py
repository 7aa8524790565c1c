"""The page on speed, from the result files alone: ``python -m benchmarks.performance``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.report import table
from benchmarks.results import FOLDER, load
from benchmarks.steps import sections
from benchmarks.targets import against_targets, of_copy_as_recurrence
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
those of rounding the result, as the table below shows, up to twice that at t = 1000: larger than
those of the recurrence at t = 1, smaller at t = 100. Factors of a time are found once, at tol 1e-5
within a tenth of a second. Learned times, of which the host knows no roots, and float64 take the
recurrence of Chebyshev. That of Clenshaw would save the sum, but not the time: it reads the
features instead; and its terms are sqrt(t) times as large, so that keeping them in 16 bits loses
digits. Up to degree {kernels.NARROW_DEGREE} terms are kept in the type of the features, beyond in
float32. Features in float64, and times so large that float32 does not suffice, go through the same
kernels in float64, terms and all: where features hardly change, terms that are rounded to float32
are all rounded the same way, and on two stars that a weak edge joins that adds up like t.

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

#: The ways of ``benchmarks.gpu_diffusion``; the run before rows were taken side by side, the last
#: one with the recurrence of Chebyshev, and the last with four neighbours at a time everywhere.
COMPARED = ("cusparse", "cusparse_factored", "sparse", "dense", "auto")
FIRST, RECURRENCE = "log/gpu_diffusion-74d9c0e", "log/gpu_diffusion-a5c7507"
BY_FOUR = "log/gpu_diffusion-e445302"

LIMITS = """\
### Log

What limited it, and what was tried:

- **Traffic.** By the recurrence of Chebyshev, as it was before, a product moved four fields and
  cuSPARSE's with its sum six: 1.5 times is what traffic alone allows at a large K. Factor by factor
  it moves little more than two. Predicted was a half of the time where memory is the limit;
  measured are 0.76 to 0.94 of it in float32 at t = 10, but for tolokers. What is left is gathering.
- **Gathering.** A product reads a row for each neighbour and its own one. On the grid of a million
  nodes these are nine and one: with what it writes, in float32 at t = 10, 2.8 GB in 0.25 ms, 11
  TB/s. The second-level cache gives half of that; the rest comes from the first, and memory, of
  which *of a copy* counts 2.3 fields, is no longer what is waited for. On `random` the features are
  larger than the cache and no two nodes share neighbours: ten rows to a node, 2.6 GB in 0.57 ms, at
  4.5 TB/s what a copy does. tolokers reads 88 rows to a node, out of the caches. Blocks of rows
  need a third of them in bfloat16; the dense product, which *auto* takes there, none.
- **Close nodes.** What is gathered can be shared, and not for one product but for all: 64 nodes of
  minesweeper reach 490 in six steps, those of a long chain a hundred. Predicted for the chain in
  bfloat16 at t = 1: 14 us instead of 90; measured are 21. In float32 splitting the features takes
  40 of 84 us; 220 were taken before. *By blocks*, below, has all predictions. It serves where a
  graph has places: not `random`, `like-amazon-ratings` and `like-questions`, which are generated
  without any, and where a few steps reach everything.
- **Pieces of sums.** What tensor cores and float32 add up of a row is cut into pieces. Those of
  2,048 columns could miss `tol` on sums that hardly grow, so that pieces of 1,024 were taken: 1.05
  ms on tolokers instead of 0.86, and 0.56 on minesweeper at t = 100 instead of 0.42. Predicted were
  0.07 ms, by the sums that are written and read; a program of half as many columns also starts and
  ends twice as often. Then the nodes of a block came last among those that it reaches: what stays
  at a node is the largest term, and little is added to it any more. With that pieces of 2,048
  columns lose less on a sum that hardly grows than those of 1,024 did, and are taken again.
  Predicted was the time of before; measured are 0.93 ms on tolokers and 0.49 on minesweeper. Where
  the rest of the difference is was not looked into.
- **Blocks in float32.** Tensor cores multiply no float32, so features have to be split: in three
  bfloat16 parts a product takes 207 us or more on tolokers, by the way it is cut up, in two of TF32
  211 or more; row by row it takes 215, cuSPARSE 249 (`gpu_tried.json`). One part alone takes 149:
  what is saved in gathering goes into splitting and shared memory. Not kept. In bfloat16, pieces of
  at most 48 chunks instead of 96 balance better: 70 us instead of 73.
- **What is on its way.** At first a program took its rows one after the other: too few loads at a
  time where rows are short, as the table below shows. To send for what a row holds before its
  neighbours costs registers and gained nothing; nor did the numbers of neighbours one turn ahead.
- **Places left empty.** Four neighbours at a time are twelve places for the nine of the grid. Three
  at a time took 0.84 to 0.88 of the time there, by the table below, and 0.94 in bfloat16 on a chain
  of three neighbours to a node, but no less in float32 (`gpu_tried.json`, *how neighbours are
  read*); on minesweeper, with eight, four are right. The mean degree decides: where degrees vary,
  three would gain up to 5 % in bfloat16. All of eight or nine at once gain up to a tenth in
  bfloat16 where degrees are about that, lose up to a half where they are small, and lose in
  float32: not kept.
- **Alignment.** tolokers has 11,758 nodes. Tensor cores want multiples of eight: filled up with
  zeros, three of its products of float16 went from 2.0 to 0.8 ms.
- **Panels.** To run all products on a few columns, whose fields fit in the cache, and then on the
  next few gained a little at large times on minesweeper in float32, and nothing or less elsewhere:
  launches are more and smaller, and rows of fewer bytes are gathered less well.
- **Shared memory**, on paper: a multiprocessor that keeps a column of the whole graph would have to
  read all indices and values anew for it, 8 bytes to an entry, where the fields that it saves are
  16 bytes to a node: more, from two neighbours to a node on.
- **Fewer digits for what is small**, on paper: by the recurrence of Clenshaw, from the highest
  coefficient on, terms at t = 1 are at most 0.0002, 0.003, 0.02, 0.1 and 0.7 of the features, and
  errors in storing them reach the result as they are. The first could be kept in bfloat16, the next
  three in 24 bits, and only the last in float32: 17 bytes to a neighbour's feature instead of 24,
  but one more pass over the features. In all 0.79 of what is moved on `like-amazon-ratings`, which
  would make *auto* 2.9 times as fast as cuSPARSE there instead of 2.3. Not built.
- **Eigenvalues.** A polynomial of degree six is heat at t = 1 on all of [-1, 1]. But for the null
  space, the eigenvalues of `like-amazon-ratings` lie within 0.705 of zero, those of
  `like-questions` within 0.811, of `random` within 0.68, and those of minesweeper and the grid
  above -0.53. Since these runs a graph that is asked for often has its ends found out, and *auto*
  takes the best polynomial for them: on `like-amazon-ratings` 5, 12 and no products in float32 at
  t = 1, 10 and 100, instead of 6, 15 and 45. Predicted: 2.8, 2.9 and more than 20 times cuSPARSE
  instead of 2.3, 2.3 and 2.0, and 0.65 of an eager GraphSAGE in TF32 instead of 0.72. On a CPU
  heat at t = 1 takes 0.86 of the time there, 0.89 on minesweeper. Not measured on a GPU yet.
- **The null space**, which rounding of the operator moves most at large times, was treated apart
  from half of `tol` on. That took a tenth of the time at t = 100; now it begins at three quarters.

The model of costs by which *auto* chooses is fitted to such runs.
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
    parts = (f"## Measured\n\n{about}\n", table(header, rows), LIMITS, _by_blocks(result))
    return "\n".join((*parts, against_targets(result), _log(result)))


def _by_blocks(result: dict[str, Any]) -> str:
    """What heat by blocks was predicted to take, and takes."""
    floors = {(row["graph"], row["dtype"], row["time"]): row for row in load("floors")["rows"]}
    rows = []
    for row in result["rows"]:
        floor = floors.get((row["graph"], row["dtype"], row["time"]))
        if floor is None or row["chosen"] != "dense":
            continue
        ways = {name: floor["milliseconds"].get(name) for name in ("blocks", "dense")}
        predicted = min(ms for ms in ways.values() if ms is not None)
        taken = row["milliseconds"]["dense"]
        rows.append([row["graph"], row["dtype"], f"{row['time']:g}", f"{floor['reach']:,.0f}"])
        rows[-1] += [f"{predicted:.3f}", f"{taken:.3f}", f"{taken / predicted:.2f}"]
    return (
        "### By blocks\n\nWhere *auto* takes the kernel of the heat: the nodes that a block of "
        f"{patchwise.ROWS} reaches, in whole chunks; the milliseconds predicted of blocks, or of "
        "a whole product where that is less; and those measured.\n\n"
        + table(["graph", "type", "t", "reach", "predicted", "measured", "ratio"], rows)
    )


def _log(now: dict[str, Any]) -> str:
    runs = [
        {(row["graph"], row["dtype"], row["time"]): row for row in result["rows"]}
        for result in (load(FIRST), load(RECURRENCE), load(BY_FOUR), now)
    ]
    rows = []
    for key in runs[-1]:
        if key[2] == 10 and all(key in run for run in runs):  # else another graph on that machine
            times = [run[key]["milliseconds"]["sparse"] for run in runs]
            shares = [of_copy_as_recurrence(run[key]) for run in runs]
            rows.append([*key[:2], *(f"{ms:.3f}" for ms in times)])
            rows[-1] += [f"{share:.2f}" for share in shares]
    return (
        "## Run by run\n\nThe sparse kernel at t = 10: the recurrence with rows one after the "
        f"other (`benchmarks/results/{FIRST}.json`), with rows side by side (`{RECURRENCE}.json`), "
        f"factor by factor (`{BY_FOUR}.json`), and with three neighbours at a time where that "
        "leaves fewer places empty, as above. Milliseconds, and the share of a copy by the count "
        "of the recurrence.\n\n"
        + table(
            [
                *("graph", "type", "first, ms", "side by side, ms", "factors, ms", "now, ms"),
                *("first, copy", "side by side, copy", "factors, copy", "now, copy"),
            ],
            rows,
        )
    )


def main() -> None:
    PAGE.write_text(page())
    print(f"wrote {PAGE.parent.name}/{PAGE.name}")


if __name__ == "__main__":
    main()
