"""All targets of the page on speed in one table, each with what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from benchmarks import stacks, steps, targets
from benchmarks.report import table
from benchmarks.results import load
from benchmarks.words import span

#: The result files that it reads.
FILES = ("gpu_diffusion", "gpu_layers", "gpu_models", "gpu_times", "gpu_scale")
#: A BuNN may need this share of the memory of a GraphSAGE.
MEMORY = 1.3
#: The fastest form of GraphSAGE may be so many times as fast as a BuNN.
FASTEST = 2.0
#: A full model was to be so many times as fast as it was before there were kernels.
MODELS = 4.0
#: The slope of time against t in doubly logarithmic scale.
SLOPE = 0.5


class Target(NamedTuple):
    """What was to be reached, and what is.

    Args:
        what: The number that is looked at.
        bound: What it was to be.
        most: Whether that is the most it may be, or the least.
        form: How it is written.
        values: What it is, row by row.
    """

    what: str
    bound: float
    most: bool
    form: str
    values: list[float]

    @property
    def cells(self) -> list[str]:
        met = [v <= self.bound if self.most else v >= self.bound for v in self.values]
        sign = "≤" if self.most else "≥"
        reached = f"{sum(met)} of {len(met)}"
        return [self.what, f"{sign} {self.bound:g}", span(self.values, self.form), reached]


def section() -> str:
    """The table."""
    head = ["", "target", "measured", "rows that meet it"]
    return (
        "## At a glance\n\nTargets on an H200, the smallest and largest value measured over all "
        "rows, and how many rows meet the target. [The tables](performance-tables.md) have these "
        "rows and how they were measured; the logs below say what limits those that miss.\n\n"
        + table(head, (target.cells for target in found()))
        + f"\n{_largest(load('gpu_scale')['rows'])}"
    )


def found() -> list[Target]:
    """One after the other."""
    heat = load("gpu_diffusion")
    rows = heat["rows"]
    beyond = targets.beyond_cache(heat)
    layers, models = load("gpu_layers")["rows"], load("gpu_models")["rows"]
    held = [(row["peak_bytes"], "BuNN, eager", "SAGE, eager") for row in layers]
    held += [(row["peak_bytes"], "BuNN", "SAGE") for row in models]
    faster = [
        steps.BEFORE[row["graph"]] / min(row["milliseconds"].values())
        for row in models
        if row["precision"] == "bf16"
    ]
    return [
        Target(
            "heat, sparse kernel: times as fast as the faster cuSPARSE",
            *(targets.SPARSE, False, ".1f"),
            [row["over_cusparse"]["sparse"] for row in rows],
        ),
        Target(
            "heat, *auto*: the same",
            *(targets.AUTO, False, ".1f"),
            [row["over_cusparse"]["auto"] for row in rows],
        ),
        Target(
            "heat, features larger than the cache: share of copy bandwidth, by what has to move",
            *(targets.COPY, False, ".2f"),
            [row["of_copy"] for row in beyond],
        ),
        Target(
            "the same, by what the recurrence would have to move",
            *(targets.COPY, False, ".2f"),
            list(map(targets.of_copy_as_recurrence, beyond)),
        ),
        Target(
            "five layers: time of a captured BuNN over that of an eager GraphSAGE",
            *(stacks.TARGET, True, ".2f"),
            _over(layers, lambda row: ("SAGE, eager",)),
        ),
        Target(
            "the same, over an eager GAT",
            *(1.0, True, ".2f"),
            _over(layers, lambda row: ("GAT, eager",)),
        ),
        Target(
            "the same, over an eager GT",
            *(1.0, True, ".2f"),
            _over(layers, lambda row: ("GT, eager",)),
        ),
        Target(
            "the same, over the fastest form of GraphSAGE that PyG and torch offer",
            *(FASTEST, True, ".2f"),
            _over(layers, lambda row: stacks.forms(row, "SAGE")),
        ),
        Target(
            "the same, over GraphSAGE with the mean of neighbours by our kernel",
            *(FASTEST, True, ".2f"),
            _over(layers, lambda row: stacks.forms(row, "SAGE", kernel=True)),
        ),
        *(
            Target(
                f"the same, over the fastest form of {model} that PyG and torch offer",
                *(1.0, True, ".2f"),
                _over(layers, partial(stacks.forms, model=model)),
            )
            for model in ("GAT", "GT")
        ),
        Target(
            "memory of a step over that of GraphSAGE, five layers and full models",
            *(MEMORY, True, ".2f"),
            [peak[ours] / peak[theirs] for peak, ours, theirs in held if {ours, theirs} <= {*peak}],
        ),
        Target(
            "full models, bf16: times as fast as before there were kernels",
            *(MODELS, False, ".1f"),
            faster,
        ),
        Target(
            "heat, *auto*, t from 1 to 10,000: exponent of t in its time",
            *(SLOPE, True, ".2f"),
            [_slope(row["milliseconds"]["auto"]) for row in load("gpu_times")["rows"]],
        ),
    ]


def _over(
    rows: list[dict[str, Any]], forms: Callable[[dict[str, Any]], Iterable[str]]
) -> list[float]:
    ratios = (stacks.over(row, forms(row)) for row in rows)
    return [ratio for ratio in ratios if ratio is not None]


def _slope(milliseconds: dict[str, float]) -> float:
    """From the first time to the last."""
    (first, before), *_, (last, after) = milliseconds.items()
    return math.log(after / before) / math.log(float(last) / float(first))


def _largest(rows: list[dict[str, Any]]) -> str:
    """How a step grows, and up to where."""
    words = []
    for graph in dict.fromkeys(row["graph"] for row in rows):
        of = [row for row in rows if row["graph"] == graph and "error" not in row]
        last = max(of, key=lambda row: row["nodes"])
        start = min((row for row in of if row["nodes"] >= 10**6), key=lambda row: row["nodes"])
        grown = (last["milliseconds"] / last["entries"]) / (
            start["milliseconds"] / start["entries"]
        )
        words.append(
            f"{last['nodes']:,} nodes and {last['entries']:,} entries ({graph}, "
            f"{last['milliseconds']:,.0f} ms, {last['peak_bytes'] / 1e9:.0f} GB; the time per "
            f"entry is {grown:.2f} times that with {start['nodes']:,} nodes)"
        )
    return f"The largest graphs trained in full batch: {'; '.join(words)}.\n"
