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
  40 of 84 us; 220 were taken before. [By blocks](performance-tables.md#by-blocks) has all
  predictions. It serves where a graph has places: not `random`, `like-amazon-ratings` and
  `like-questions`, which are generated without any, and where a few steps reach everything.
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
  time where rows are short, as [run by run](performance-tables.md#run-by-run) shows. To send for
  what a row holds before its neighbours costs registers and gained nothing; nor did the numbers of
  neighbours one turn ahead.
- **Places left empty.** Four neighbours at a time are twelve places for the nine of the grid. Three
  at a time took 0.84 to 0.88 of the time there, by the same table, and 0.94 in bfloat16 on a chain
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
- **Eigenvalues.** A polynomial of degree six is heat at t = 1 on all of [-1, 1]; but for the null
  space, eigenvalues may lie closer together than that. Since these runs *auto* estimates the
  extreme ones of a graph where it is told that calls will be repeated, and takes the best
  polynomial for what lies between, or the limit where nothing else is left: see [between the
  ends](performance-tables.md#between-the-ends). Predicted for `like-amazon-ratings` in
  float32 at t = 1, 10 and 100: 2.8, 2.9 and more than 20 times cuSPARSE instead of 2.3, 2.3 and
  2.0, and a step of five layers in TF32 at 0.65 of an eager GraphSAGE instead of 0.72. Not measured
  on a GPU yet.
- **The null space**, which rounding of the operator moves most at large times, was treated apart
  from half of `tol` on. That took a tenth of the time at t = 100; now it begins at three quarters.

The model of costs by which *auto* chooses is fitted to such runs.
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
        f"{result['columns']} columns: between which ends the eigenvalues of the operator lie, but "
        "for those of the null space; the degree that serves every graph and the one that serves "
        "these, 0 for the limit; and the time of one over that of the other. The largest error in "
        f"float32 is {worst:.1e}, at tol 1e-5. To find the ends takes {slowest:.2f} s at most, "
        "once.\n\n"
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
        "### By blocks\n\nWhere *auto* takes the kernel of the heat: the nodes that a block of "
        f"{patchwise.ROWS} reaches, in whole chunks; the milliseconds predicted of blocks, or of "
        "a whole product where that is less; and those measured.\n\n"
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
