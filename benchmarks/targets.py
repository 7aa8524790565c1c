"""What heat alone was to reach on a GPU, and which rows of ``gpu_diffusion`` do."""

from __future__ import annotations

from typing import Any

from benchmarks.words import listed, span

Rows = list[dict[str, Any]]

#: How many times as fast as the faster cuSPARSE the sparse kernel and *auto* were to be.
SPARSE, AUTO = 2.0, 3.0
#: The share of a copy's bytes that was to be moved where features are larger than the cache.
COPY = 0.6


def against_targets(result: dict[str, Any]) -> str:
    """Which rows are as fast as they were to be, and what the others reach."""
    rows, larger = result["rows"], beyond_cache(result)
    dense = [row for row in rows if _takes_dense(row)]
    limit = [row for row in rows if row.get("chosen") == "limit"]
    others = [row for row in rows if row not in dense and row not in limit]

    def times(name: str, some: Rows, target: float) -> str:
        return _reached(some, [row["over_cusparse"][name] for row in some], target, ".2f", rows)

    recurrence = [of_copy_as_recurrence(row) for row in larger]
    return (
        "Against the targets:\n\n"
        f"- The sparse kernel was to be {SPARSE:g} times as fast as the faster cuSPARSE: "
        f"{times('sparse', rows, SPARSE)}.\n"
        f"- *auto* was to be {AUTO:g} times as fast as the faster cuSPARSE. Where it takes the "
        f"heat kernel, whole or by blocks: {times('auto', dense, AUTO)}. "
        + (f"Where it takes the limit: {times('auto', limit, AUTO)}. " if limit else "")
        + f"Elsewhere, where gathering limits it: {times('auto', others, AUTO)}.\n"
        f"- Where features are larger than the cache, the sparse kernel was to reach {COPY:g} of "
        "the bandwidth of a copy: "
        f"{_reached(larger, [row['of_copy'] for row in larger], COPY, '.2f', rows)}. By the "
        "traffic of the recurrence, for which that target was set: "
        f"{_reached(larger, recurrence, COPY, '.2f', rows)}. Neither counts neighbours' rows that "
        "miss the cache.\n"
    )


def beyond_cache(result: dict[str, Any]) -> Rows:
    """Those whose features are larger than the cache."""
    cache = result["gpu"]["cache_bytes"]
    return [row for row in result["rows"] if row["nodes"] * row["channels"] * _size(row) > cache]


def _takes_dense(row: dict[str, Any]) -> bool:
    """Whether *auto* does, which files that are older show by the digits of its error alone."""
    if "chosen" in row:
        return bool(row["chosen"] == "dense")
    return bool(row["errors"]["auto"] == row["errors"].get("dense"))


def of_copy_as_recurrence(row: dict[str, Any]) -> float:
    """What the recurrence of Chebyshev moves at least, with a sum in float32, over what a copy
    moves in the time that was measured."""
    field = row["nodes"] * row["channels"]
    graph = 8 * row["entries"] + 4 * row["nodes"]
    moved = row["degree"] * (graph + field * (3 * _size(row) + 4))
    return float(row["of_copy"] * moved / row["compulsory_bytes"])


def _size(row: dict[str, Any]) -> int:
    """Bytes of a number."""
    return 4 if row["dtype"] == "float32" else 2


def _reached(some: Rows, values: list[float], target: float, form: str, rows: Rows) -> str:
    """In how many of some rows values reach a target, in which not, and what they are there."""
    met = [value for value in values if value >= target]
    missed = [row for row, value in zip(some, values, strict=True) if value < target]
    words = f"met in {len(met)} of {len(some)} rows" + (f" ({span(met, form)})" if met else "")
    if missed:
        rest = span((value for value in values if value < target), form)
        words += f", missed on {_named(missed, rows)} ({rest})"
    return words


def _named(some: Rows, rows: Rows) -> str:
    """Rows by graph, and by type and times where these are not all that the graph has."""
    names = []
    for graph in dict.fromkeys(row["graph"] for row in some):
        chosen, there = (
            [(row["dtype"], row["time"]) for row in of if row["graph"] == graph]
            for of in (some, rows)
        )
        if chosen == there:
            names.append(graph)
            continue
        for dtype in dict.fromkeys(dtype for dtype, _ in chosen):
            picked, every = ([t for kind, t in of if kind == dtype] for of in (chosen, there))
            at = "" if picked == every else f" at t = {' and '.join(f'{t:g}' for t in picked)}"
            names.append(f"{graph} in {dtype}{at}")
    return listed(names)
