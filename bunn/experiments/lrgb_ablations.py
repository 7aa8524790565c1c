"""Two ablations of the paper on peptides: the positional encoding, and ``W`` and ``b``.

The released configuration with one thing changed, four seeds, as everywhere in the benchmark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bunn.experiments.jobs import Job
from bunn.experiments.lrgb import ENCODINGS, FUNC, SEEDS, STRUCT, datasets_of, preset
from bunn.experiments.request import Request
from bunn.experiments.requested import measured
from bunn.training import Config, ConfigError
from bunn.training.watch import Watcher

#: The tables, and what their rows are called.
TABLES = {
    "lrgb-encodings": ("bunn-rwse", "bunn-lpe", "bunn-no-pe"),
    "lrgb-weights": ("bunn", "bunn-no-weights"),
}
#: What is changed.
BASE = "released"
#: What is to be said of rows.
NOTES = {"bunn-no-weights": "as wide as with W and b, so with about half of the parameters"}


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Args:
        table: A key of :data:`TABLES`.
        model: What it is called there.
        dataset: The column.
    """

    table: str
    model: str
    dataset: str

    def config(self) -> Config:
        """The released configuration with something changed."""
        base = preset(self.dataset, "bunn", BASE)
        if self.model == "bunn":
            return base
        if self.model == "bunn-no-weights":
            # An update of nothing has no place after the heat, either.
            options = replace(base.model, weight=False, bias=None, update="before")
            return replace(base, model=options)
        encodings = {"bunn-rwse": "rwse", "bunn-lpe": "lap", "bunn-no-pe": None}
        return replace(base, encoding=ENCODINGS[encodings[self.model]])  # type: ignore[index]

    @property
    def same(self) -> bool:
        """Whether nothing is changed."""
        return self.config() == preset(self.dataset, "bunn", BASE)


def jobs(request: Request) -> list[Job]:
    """One job for every cell of the two tables that can be filled here."""
    datasets = datasets_of(request)
    if request.datasets and (wrong := sorted(set(datasets) - {FUNC, STRUCT})):
        raise ConfigError(
            f"--datasets: the ablations are of {FUNC} and {STRUCT}, not of {wrong[0]}"
        )
    rows = [
        Row(table, model, dataset)
        for dataset in datasets
        if dataset in (FUNC, STRUCT)
        for table, models in TABLES.items()
        for model in models
    ]
    seeds = request.seeds_or(SEEDS)
    together: dict[tuple[str, str], list[Row]] = {}
    for row in rows:  # those that are trained once are one job: two would meet in a folder
        together.setdefault((row.dataset, BASE if row.same else row.model), []).append(row)
    return [
        Job(
            f"{dataset} {', '.join(row.model for row in found)}",
            cells,
            (found, seeds, request),
            runs=len(seeds),
        )
        for (dataset, _), found in together.items()
    ]


def cells(
    watcher: Watcher, rows: Sequence[Row], seeds: Sequence[int], request: Request
) -> list[Path]:
    """Measures some cells, one after the other."""
    return [cell(watcher, row, seeds, request) for row in rows]


def cell(watcher: Watcher, row: Row, seeds: Sequence[int], request: Request) -> Path:
    """Measures one cell and writes its result file, after every seed."""
    runs, config, same = [(0, seed) for seed in seeds], row.config(), row.same
    # What is not changed is trained once, and not again if ``bunn reproduce lrgb`` has done so.
    place = request.runs.parent / "lrgb" if same else request.runs / row.table
    for result in measured(
        watcher,
        config,
        runs,
        row.table,
        BASE,
        replace(request, runs=place),
        called=row.model,
        recorded="bunn" if same else None,
    ):
        notes = NOTES.get(row.model, "")
        path = replace(result, experiment=row.table, notes=notes).write(request.results)
    return path
