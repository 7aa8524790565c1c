"""The part of the page on speed that says what limits heat alone, and what was tried."""

from __future__ import annotations

from typing import Any

from benchmarks.report import table
from benchmarks.results import load
from benchmarks.targets import of_copy_as_recurrence
from bunn.diffusion import patchwise

#: The run before rows were taken side by side, the last one with the recurrence of Chebyshev, and
#: the last with four neighbours at a time everywhere.
FIRST, RECURRENCE = "log/gpu_diffusion-74d9c0e", "log/gpu_diffusion-a5c7507"
BY_FOUR = "log/gpu_diffusion-e445302"

LOG = """\
## Log of heat

What limited heat, and what was tried:

- **Memory traffic.** The Chebyshev recurrence, which was used first, moves four fields per product;
  cuSPARSE with a separate sum moves six. At large K, traffic alone allows a speed-up of 1.5. Factor
  by factor, a product moves little more than two fields. Predicted where memory is the limit: half
  the time. Measured in float32 at t = 10: 0.76 to 0.94 of it, except on tolokers. What remains is
  gathering.
- **Gathering.** A product reads one row per neighbour and the row of the node itself. On the grid
  of a million nodes that is nine and one; with the row it writes, in float32 at t = 10, it is 2.8
  GB in 0.25 ms, 11 TB/s. The L2 cache delivers half of that, and L1 the rest; memory, of which *of
  a copy* counts 2.3 fields, is no longer the bottleneck. On `random` the features are larger than
  the cache and no two nodes share neighbours: ten rows per node, 2.6 GB in 0.57 ms, 4.5 TB/s, the
  rate of a copy. `like-questions` in float32 is between the two: its features are twice as large as
  the cache. tolokers reads 88 rows per node, from the caches. In bfloat16, blocks of rows read
  a third of them; the dense product, which *auto* takes there, reads none.
- **Close nodes.** Gathered rows can be shared, and across all products rather than within one: 64
  close nodes of minesweeper reach 490 in six steps, those of a long chain a hundred. Predicted for
  the chain in bfloat16 at t = 1: 14 us instead of 90; measured: 20. In float32, splitting the
  features takes 40 of 85 us; before, heat took 220. [By blocks](performance-tables.md#by-blocks)
  has all predictions. This helps on graphs with locality: not on `random`, `like-amazon-ratings`
  and `like-questions`, which are generated without any, nor where a few steps reach everything.
- **Pieces of sums.** The part of a row's sum that tensor cores and float32 units add up is cut into
  pieces. With pieces of 2,048 columns, sums that hardly grow could miss `tol`, so pieces of 1,024
  were used: 1.05 ms on tolokers instead of 0.86, and 0.56 on minesweeper at t = 100 instead of
  0.42. Predicted was 0.07 ms more, for the partial sums that are written and read; programs of half
  as many columns also start and end twice as often. Then the nodes of a block were moved behind the
  other nodes it reaches: what stays at a node is the largest term, and now little is added after
  it. In this order pieces of 2,048 columns lose less on a sum that hardly grows than pieces of
  1,024 did before, and are used again. Predicted were the original times; measured are 0.93 to 0.96
  ms on tolokers and 0.50 on minesweeper. The remaining difference was not investigated.
- **Blocks of rows in float32.** Tensor cores do not multiply float32, so features have to be split.
  Depending on the tiling, a product on tolokers takes 207 us or more in three bfloat16 parts and
  211 or more in two TF32 parts; row by row it takes 215, with cuSPARSE 249 (`gpu_tried.json`). One
  part alone takes 149: what gathering saves is lost to splitting and shared memory. Not kept. In
  bfloat16, pieces of at most 48 chunks instead of 96 balance better: 70 us instead of 73.
- **Loads in flight.** At first a program took its rows one after the other, with too few loads in
  flight where rows are short, as [run by run](performance-tables.md#run-by-run) shows. Loading a
  row's own data before that of its neighbours costs registers and gained nothing; neither did
  loading neighbour indices one iteration ahead.
- **Empty slots.** Four neighbours at a time make twelve slots for the nine of the grid. Three at a
  time took 0.84 to 0.88 of the time there, by the same table, and 0.94 in bfloat16 on a chain with
  three neighbours per node, but no less in float32 (`gpu_tried.json`, *how neighbours are read*);
  on minesweeper, with eight neighbours, four is right. The choice follows the mean degree: where
  degrees vary, three would gain up to 5 % in bfloat16. Taking all eight or nine at once gains up to
  a tenth in bfloat16 where degrees are about that, loses up to a half where they are small, and
  loses in float32: not kept.
- **Alignment.** tolokers has 11,758 nodes, and tensor cores want multiples of eight: padding with
  zeros took three of its float16 products from 2.0 to 0.8 ms.
- **Column panels.** Running all products on a few columns, whose fields fit in the cache, and then
  on the next few gained a little at large times on minesweeper in float32, and nothing or less
  elsewhere: there are more and smaller launches, and shorter rows gather less efficiently.
- **Shared memory**, on paper: a multiprocessor that keeps one column of the whole graph has to read
  all indices and values again for each column, 8 bytes per entry, to save fields of 16 bytes per
  node: a loss from two neighbours per node on.
- **Fewer digits for small terms**, on paper: in the Clenshaw recurrence, from the highest
  coefficient down, terms at t = 1 are at most 0.0002, 0.003, 0.02, 0.1 and 0.7 of the features, and
  errors in storing them reach the result undiminished. The first could be kept in bfloat16, the
  next three in 24 bits, and only the last in float32: 17 bytes per neighbour and feature instead of
  24, but one more pass over the features. In total this is 0.79 of the traffic on
  `like-amazon-ratings`, which would make the sparse kernel 2.9 times as fast as cuSPARSE there
  instead of 2.3. Not built.
- **Eigenvalues.** A polynomial of degree six approximates heat at t = 1 on all of [-1, 1], but
  apart from the null space the eigenvalues may lie in a narrower interval. Where *auto* is told
  that calls will be repeated, it estimates the extreme eigenvalues of a graph and takes the best
  polynomial for that interval, or the limit where nothing else is left: see [between the
  ends](performance-tables.md#between-the-ends). On `like-amazon-ratings` in float32 at t = 1, 10
  and 100 it was 2.3, 2.3 and 2.0 times as fast as cuSPARSE. Predicted: 2.8, 2.9 and more than 20;
  measured: 2.8, 2.8 and 21.
- **What misses three times cuSPARSE** are random graphs without locality, at times before the
  limit, and tolokers in float32 at t = 1. On a random graph a product is one gathered row per
  entry, in cuSPARSE and here, and the advantage is only in what comes besides: two fields instead
  of six, and none to three products less. On tolokers three times cuSPARSE would be 0.56 ms for
  0.42 TFLOP in 16 bits, 750 TFLOP/s; measured are 0.95 ms, 440 TFLOP/s, at every time.
- **What misses twice cuSPARSE** with the sparse kernel is tolokers in float32. A product gathers
  2.1 GB there in 0.24 ms, 9 TB/s out of the caches; twice cuSPARSE would take 15 TB/s. Its long
  rows are added up in float64, so that equal features lose no digits, which is why it takes as
  long as it did at first (3.3 to 3.6 ms, [run by run](performance-tables.md#run-by-run)).
- **Large times.** On the grid of the table of [large times](performance-tables.md#large-times) only
  the recurrence is left to *auto*. At t = 1,000 the rounding of the operator leaves so little of
  `tol` that degree 130 is needed, beyond the 128 up to which factors are found, so that products
  move four fields; at t = 10,000 float32 does not suffice, and everything has eight bytes instead
  of four. Each step of that kind adds to the exponent; where all is float64, it is 0.50. On the
  other two graphs the heat kernel or the limit take over.
- **The null space** is what rounding of the operator moves most at large times. Treating it
  separately once rounding could take half of `tol` cost a tenth of the time at t = 100; now this
  starts at three quarters.

The cost model by which *auto* chooses is fitted to such runs.
"""


def tables(result: dict[str, Any]) -> str:
    """What was predicted, and how it was reached run by run."""
    return "\n".join((_between_ends(load("ends")), _by_blocks(result), _run_by_run(result)))


def _between_ends(result: dict[str, Any]) -> str:
    """What it saves to know the ends of a spectrum, where that was measured: on a CPU."""
    cells: dict[tuple[str, str, str], dict[float, str]] = {}
    for row in result["rows"]:
        ends = ", ".join(f"{end:.2f}" for end in row["ends"])
        degree = row["degree"]
        cells.setdefault((row["graph"], ends, row["dtype"]), {})[row["time"]] = (
            f"{degree['plain']} to {degree['known']}, {row['ratio']:.2f}"
        )
    times = list(next(iter(cells.values())))
    slowest = max(row["seconds_to_find"] for row in result["rows"])
    worst = max(row["error"] for row in result["rows"] if row["dtype"] == "float32")
    return (
        f"### Between the ends\n\n`{result['command']}`, on a CPU ("
        f"{result['environment']['cpu']}, {result['environment']['threads']} threads), "
        f"{result['columns']} columns. *ends* is the interval of the operator's eigenvalues, "
        "without the null space. For each time: the degree that serves every graph to that for "
        "this interval (0 is the limit), and the time of the second over that of the first. The "
        f"largest error in float32 is {worst:.1e}, at tol 1e-5. Finding the ends takes at most "
        f"{slowest:.2f} s, once.\n\n"
        + table(
            ["graph", "ends", "type", *(f"t = {time:g}" for time in times)],
            [[*key, *(of[time] for time in times)] for key, of in cells.items()],
        )
    )


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
        "### By blocks\n\nWhere *auto* takes the heat kernel: the number of nodes that a block of "
        f"{patchwise.ROWS} reaches, in whole chunks; and the milliseconds, predicted (by blocks, "
        "or as one dense product where that is less) and measured.\n\n"
        + table(["graph", "type", "t", "reach", "predicted", "measured", "ratio"], rows)
    )


def _run_by_run(now: dict[str, Any]) -> str:
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
        "## Run by run\n\nThe sparse kernel at t = 10: *first* is the recurrence with rows one "
        f"after the other (`benchmarks/results/{FIRST}.json`), *side by side* with several rows to "
        f"a program (`{RECURRENCE}.json`), *factors* factor by factor (`{BY_FOUR}.json`), and "
        "*now*, the run of the tables above, with three neighbours at a time where that leaves "
        "fewer slots empty. Milliseconds, and the share of copy bandwidth by the traffic of the "
        "recurrence.\n\n"
        + table(
            [
                *("graph", "type", "first, ms", "side by side, ms", "factors, ms", "now, ms"),
                *("first, copy", "side by side, copy", "factors, copy", "now, copy"),
            ],
            rows,
        )
    )
