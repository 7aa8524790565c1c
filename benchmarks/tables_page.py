"""The page with all tables on speed, from the result files alone."""

from __future__ import annotations

from typing import Any

from benchmarks import limits, steps
from benchmarks.report import table
from benchmarks.results import load
from benchmarks.targets import against_targets, of_copy_as_recurrence
from benchmarks.words import how, number, what_errors_are
from bunn.diffusion import patchwise

INTRODUCTION = """\
# Performance: the tables

Everything that was measured on a GPU. The targets, and what limits what misses them:
[performance](performance.md).
"""

#: The ways of ``benchmarks.gpu_diffusion``.
COMPARED = ("cusparse", "cusparse_factored", "sparse", "dense", "auto")


def page() -> str:
    """The whole page."""
    heat = load("gpu_diffusion")
    parts = [INTRODUCTION, _floors(load("floors")), _measured(heat), against_targets(heat)]
    return "\n".join([*parts, limits.tables(heat), steps.sections()])


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
        f"## Heat on paper\n\n{result['channels']} channels, 64 on the graphs of a million nodes, "
        "at tol 1e-5 or what 16 bits can resolve. *moved* are the MB that must move, *gathered* "
        "the MB of neighbours' rows, *reach* the nodes that "
        f"{patchwise.ROWS} close ones reach, in whole chunks. The last four columns are "
        f"milliseconds on an H200 at {rates['copy'] / 1e12:g} TB/s from memory, "
        f"{rates['cache'] / 1e12:g} TB/s from the cache and {rates['tensor'] / 1e12:g} TFLOP/s in "
        "16 bits, with three 16-bit operations for one in float32.\n\n"
        + table(
            [
                *("graph", "type", "t", "K", "GFLOP", "moved", "gathered", "reach"),
                *("memory", "cache", "dense", "blocks"),
            ],
            rows,
        )
    )


def _measured(result: dict[str, Any]) -> str:
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
        f"{how(result)}; a copy moves {result['copy_bytes_per_second'] / 1e12:.2f} TB/s. 512 "
        "channels, 64 on the two graphs of a million nodes.\n\n"
        "- Milliseconds are medians of CUDA graphs replayed in turn: *cuSPARSE* with the Chebyshev "
        "recurrence, *factored* cuSPARSE factor by factor, then ours.\n"
        "- *times* is the speed relative to the faster cuSPARSE.\n"
        "- *of a copy* is the least the sparse kernel has to move over what a copy moves in that "
        "time; *recurrence* is the same by the recurrence's traffic.\n"
        f"- *error* columns are errors{what_errors_are(result)}. In bfloat16 up to 4.4e-3 are "
        "allowed, tol and the rounding of the result. Three values are larger, on graphs that are "
        "nearly regular, where every factor rounded the constant column in the same direction; "
        "[it no longer does](kernels.md#heat-factor-by-factor) at most nodes, which has not been "
        "measured on a GPU."
    )
    header = ["graph", "type", "t", "cuSPARSE", "factored", "sparse", "dense", "auto"]
    header += ["sparse, times", "dense, times", "auto, times", "of a copy", "recurrence"]
    header += ["sparse, error", "dense, error", "auto, error"]
    return f"## Heat\n\n{about}\n\n{table(header, rows)}"
