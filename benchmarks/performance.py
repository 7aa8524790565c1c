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

What a GPU has to do, counted on paper before anything is written, what is predicted, what is
measured, and what limits it. Written by `python -m benchmarks.performance` from
`benchmarks/results/*.json`; so are [all tables](performance-tables.md) and
[how the kernels work](kernels.md).
"""

ON_PAPER = """\
## Heat: two numbers each

Heat at time t is a polynomial of degree K in the graph's operator: K sparse products. By the
recurrence of Chebyshev a product reads its two predecessors, writes its own and adds to the result
every other time: four fields. Factor by factor it reads one and writes one where a root is real,
and two products move five fields where a pair is complex. Besides, it reads one row of features per
edge, mostly out of the cache. Or the kernel of the heat, which no learned parameter touches, is
formed once, and heat is one dense product. The polynomial is zero between nodes that are more than
K edges apart: by blocks of nodes that are close together, whose reach is shared, that product is as
small as the reach.
"""

#: Ways to heat, by their columns in the table on paper.
WAYS = {"cache": "sparse", "dense": "dense", "blocks": "blocks"}


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
    return "\n".join((*parts, stacks.LOG, steps.MODELS_LOG))


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
        rows[-1] += [WAYS[way], f"{ways[way]:.3f}", f"{taken:.3f}"]
        rows[-1] += [f"{taken / ways[way]:.2f}", f"{row['over_cusparse']['auto']:.1f}"]
    head = ["graph", "type", "t", "K", "GFLOP", "MB", "way", "predicted", "measured", "ratio"]
    return (
        f"{floors['channels']} channels, 64 on the graphs of a million nodes, at tol 1e-5, or what "
        "16 bits can tell from it. Operations and the fewest bytes of the sparse polynomial of "
        "degree K; the way for which least is predicted, and how many milliseconds, at "
        f"{rates['copy'] / 1e12:g} TB/s from memory, {rates['cache'] / 1e12:g} TB/s from the cache "
        f"and {rates['tensor'] / 1e12:g} TFLOP/s in 16 bits, three of which make one in float32; "
        f"the time that *auto* takes, by {how(measured)}; and how many times as fast as the faster "
        "cuSPARSE that is.\n\n" + table([*head, "times"], rows)
    )


def main() -> None:
    for name, text in pages().items():
        (DOCS / name).write_text(text)
        print(f"wrote docs/{name}")


if __name__ == "__main__":
    main()
