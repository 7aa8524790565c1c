"""The pages on speed, from the result files alone: ``python -m benchmarks.performance``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import glance, kernels_page, limits, stacks, steps, tables_page
from benchmarks.report import table
from benchmarks.results import load
from benchmarks.words import how

DOCS = Path(__file__).parent.parent / "docs"

INTRODUCTION = """\
# Performance

The work of heat and of training steps on a GPU, counted on paper before any code is written; the
times predicted from it, the times measured, and what limits them. This page,
[all tables](performance-tables.md) and [how the kernels work](kernels.md) are written by
`python -m benchmarks.performance` from `benchmarks/results/*.json`.
"""

ON_PAPER = """\
## Heat: predicted and measured

Heat at time t is a polynomial of degree K in the graph's operator. There are three ways to it:

- **sparse**: K sparse products. In the Chebyshev recurrence a product reads its two predecessors,
  writes its own field and adds to the result every other time: four fields. Factor by factor, a
  product reads one field and writes one for a real root, and two products move five fields for a
  pair of complex roots. In addition, a product reads one row of features per edge, mostly from the
  cache.
- **dense**: one product with the heat kernel, which is independent of learned parameters and formed
  once.
- **blocks**: the polynomial is zero between nodes more than K edges apart. By blocks of nodes that
  are close together and share their reach, the dense product is only as large as that reach.
"""

#: Ways to heat, by their columns in the table on paper.
WAYS = {"cache": "sparse", "dense": "dense", "blocks": "blocks"}
#: What *auto* chooses, by what the table calls it.
TAKEN = {"sparse": "sparse", "dense": "kernel", "between ends": "ends", "limit": "limit"}


def pages() -> dict[str, str]:
    """The pages by the names of their files."""
    return {
        "performance.md": page(),
        "performance-tables.md": tables_page.page(),
        "kernels.md": kernels_page.page(),
    }


def page() -> str:
    """The log: targets, predictions, what was measured, and what limits it."""
    heat = _heat(load("floors"), load("gpu_diffusion"))
    parts = (INTRODUCTION, glance.section(), ON_PAPER, heat, limits.LOG, steps.on_paper())
    return "\n".join((*parts, stacks.log(load("gpu_layers")), steps.MODELS_LOG))


def _heat(floors: dict[str, Any], measured: dict[str, Any]) -> str:
    """Operations and bytes of every case, and the time that follows beside the one it takes."""
    counted = {(row["graph"], row["dtype"], row["time"]): row for row in floors["rows"]}
    rates, rows = floors["rates"], []
    for row in measured["rows"]:
        floor = counted[row["graph"], row["dtype"], row["time"]]
        ways = {name: ms for name in WAYS if (ms := floor["milliseconds"].get(name)) is not None}
        way = min(ways, key=lambda name: ways[name])
        taken = row["milliseconds"]["auto"]
        rows.append([row["graph"], row["dtype"], f"{row['time']:g}", str(floor["degree"])])
        rows[-1] += [f"{floor['operations'] / 1e9:.1f}", f"{floor['compulsory_bytes'] / 1e6:,.0f}"]
        rows[-1] += [WAYS[way], f"{ways[way]:.3f}", TAKEN[row["chosen"]], f"{taken:.3f}"]
        rows[-1] += [f"{taken / ways[way]:.2f}", f"{row['over_cusparse']['auto']:.1f}"]
    head = ["graph", "type", "t", "K", "GFLOP", "MB", "way", "predicted", "took", "measured"]
    head += ["ratio", "times"]
    return (
        f"The table has {floors['channels']} channels, 64 on the graphs of a million nodes, at tol "
        "1e-5 or what 16 bits can resolve. *GFLOP* and *MB* are the operations and the fewest "
        "bytes of the sparse polynomial of degree K. *way* is the one with the lowest predicted "
        f"time, in milliseconds, at {rates['copy'] / 1e12:g} TB/s from memory, "
        f"{rates['cache'] / 1e12:g} TB/s from the cache and {rates['tensor'] / 1e12:g} TFLOP/s in "
        "16 bits, with three 16-bit operations for one in float32. *took* is the way that *auto* "
        "took: *kernel* is dense or by blocks, *ends* a sparse polynomial of a lower degree, "
        "between the ends of the graph's spectrum, and *limit* the mean of each component, where "
        "that is exact to tol; the last two were not predicted, so their ratios are small. "
        f"*measured* is its time, by {how(measured)}; *times* is its speed relative to the faster "
        "cuSPARSE.\n\n" + table(head, rows)
    )


def main() -> None:
    for name, text in pages().items():
        (DOCS / name).write_text(text)
        print(f"wrote docs/{name}")


if __name__ == "__main__":
    main()
