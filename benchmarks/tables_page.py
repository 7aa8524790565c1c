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

Everything that was measured on a GPU. What was to be reached, what is, and what limits the rest:
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
        f"## Heat on paper\n\nWith {result['channels']} channels, 64 on the graphs of a million "
        "nodes, at tol 1e-5, or "
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
    return f"## Heat\n\n{about}\n\n{table(header, rows)}"
