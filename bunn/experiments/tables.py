"""Results beside the published numbers: models in rows, data sets in columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bunn.experiments.cells import NOT_RUN, Cell
from bunn.experiments.published import (
    ELSEWHERE,
    LAYOUTS,
    MODEL_TITLES,
    PUBLISHED,
    Layout,
    published,
)
from bunn.experiments.results import METRICS, Result
from bunn.names import did_you_mean

if TYPE_CHECKING:
    from rich.table import Table as RichTable
    from rich.text import Text

#: The preset whose rows carry the model's name alone; others add theirs.
PLAIN_PRESET = "paper"
#: Presets in the order of rows; others follow by name.
PRESETS = (PLAIN_PRESET, "unchanged", "released", "tuned", "labels")


@dataclass(frozen=True)
class Column:
    """A data set, and the metric it is judged by."""

    dataset: str
    metric: str

    @property
    def title(self) -> str:
        """The data set's name; of a Tree-NeighborsMatch its depth."""
        depth = self.dataset.removeprefix("tree-neighborsmatch-r")
        return self.dataset if depth == self.dataset else f"r = {depth}"

    @property
    def metric_title(self) -> str:
        """The metric, with an arrow to where it is better."""
        metric = METRICS[self.metric]
        return f"{metric.title} {'↓' if metric.lower_is_better else '↑'}"


@dataclass(frozen=True)
class Row:
    """A model, one preset of it: a cell for each column of its table."""

    model: str
    label: str
    cells: tuple[Cell, ...]

    @property
    def runs(self) -> str:
        """Over how many runs its results are: ``"10"``, or ``"4–10"`` where columns differ."""
        counts = [len(cell.result.test) for cell in self.cells if cell.result is not None]
        if not counts:
            return "–"
        low, high = min(counts), max(counts)
        return str(low) if low == high else f"{low}–{high}"


@dataclass(frozen=True)
class Table:
    """The results of one experiment beside the paper's.

    Args:
        title: Its heading.
        about: One sentence on what is measured.
        columns: One per data set and metric.
        rows: One per model and preset.
    """

    title: str
    about: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    @property
    def corner(self) -> str:
        """Top left: the metric, where all columns share it."""
        shared = {column.metric_title for column in self.columns}
        return shared.pop() if len(shared) == 1 else ""

    @property
    def heads(self) -> list[str]:
        """The heading of each column, with its metric where columns differ in it."""
        return [c.title if self.corner else f"{c.title} ({c.metric_title})" for c in self.columns]

    @property
    def results(self) -> list[Result]:
        """Everything measured that the table shows, by rows."""
        return [cell.result for cell in self._cells if cell.result is not None]

    @property
    def footnotes(self) -> list[str]:
        """What the paper says of its numbers with a star."""
        starred = (c.published.note for c in self._cells if c.published and c.paper.endswith("*"))
        return [f"* in the paper: {note}" for note in dict.fromkeys(starred)]

    @property
    def notes(self) -> list[tuple[str, str]]:
        """Which cells a note is about, and the note; rows that share theirs are named together."""
        places: dict[tuple[str, str], list[str]] = {}
        for row in self.rows:
            for column, cell in zip(self.columns, row.cells, strict=True):
                if cell.result is not None and cell.result.notes:
                    places.setdefault((row.label, cell.result.notes), []).append(column.title)
        rows: dict[tuple[str, str], list[str]] = {}
        for (label, note), titles in places.items():
            rows.setdefault((", ".join(titles), note), []).append(label)
        return [
            (f"{', '.join(labels)} on {titles}", note) for (titles, note), labels in rows.items()
        ]

    def markdown(self, *, notes: bool = True) -> str:
        """A Markdown table, the best of each column bold, and its notes below."""
        lines = [_line([self.corner, *self.heads, "runs"])]
        lines.append("|---|" + "---:|" * (len(self.columns) + 1))
        for row in self.rows:
            cells = (c.compose(f"**{c.ours}**" if c.best else c.ours) for c in row.cells)
            lines.append(_line([row.label, *cells, row.runs]))
        told = [f"- {_escape(which)}: {_escape(note)}" for which, note in self.notes if notes]
        blocks = [lines, [f"\\{footnote}" for footnote in self.footnotes], told]
        return "\n\n".join("\n".join(block) for block in blocks if block)

    def rich(self) -> RichTable:
        """The table for a terminal: the paper's numbers dim, under ours."""
        from rich.table import Table as RichTable  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        table = RichTable(title=self.title, title_justify="left", title_style="bold", box=None)
        table.add_column(Text(self.corner))
        for column in self.columns:
            head = column.title if self.corner else f"{column.title}\n{column.metric_title}"
            table.add_column(Text(head), justify="right", overflow="fold")
        table.add_column("runs", justify="right")
        for row in self.rows:
            cells = (_rich_cell(cell) for cell in row.cells)
            table.add_row(Text(row.label), *(Text("\n").join(lines) for lines in cells), row.runs)
        caption = ["In brackets: the paper's."] if any(c.published for c in self._cells) else []
        caption += [*self.footnotes, *(f"{which}: {note}" for which, note in self.notes)]
        table.caption, table.caption_justify = Text("\n".join(caption)), "left"
        return table

    @property
    def _cells(self) -> list[Cell]:
        return [cell for row in self.rows for cell in row.cells]


def experiments_of(results: Iterable[Result]) -> list[str]:
    """The experiments that have results, in the paper's order, then by name."""
    found = {result.experiment for result in results}
    return [name for name in LAYOUTS if name in found] + sorted(found - LAYOUTS.keys())


def tables_for(results: Sequence[Result], experiment: str) -> list[Table]:
    """The paper's table with our results in it, then one of what the paper has no column for.

    Args:
        results: Of any experiments; others are passed over.
        experiment: A key of ``LAYOUTS``, or an experiment that has results.

    Raises:
        ValueError: If nothing is known under that name.
    """
    chosen = [result for result in results if result.experiment == experiment]
    if experiment not in LAYOUTS and not chosen:
        known = [*LAYOUTS, *(name for name in experiments_of(results) if name not in LAYOUTS)]
        raise ValueError(
            f"experiment={experiment!r}; it has no results and is not in the paper"
            f"{did_you_mean(experiment, known)}; use one of {', '.join(known)}"
        )
    layout = LAYOUTS.get(experiment, Layout(experiment, "", digits=3))
    printed = [entry for entry in PUBLISHED if entry.experiment == experiment]
    columns = list(dict.fromkeys(Column(entry.dataset, entry.metric) for entry in printed))
    added = {Column(result.dataset, result.metric) for result in chosen} - set(columns)
    models = list(dict.fromkeys(entry.model for entry in printed if entry.model != ELSEWHERE))
    tables = []
    if columns:
        highest = [ELSEWHERE] if any(entry.model == ELSEWHERE for entry in printed) else []
        tables.append(_table(layout, experiment, columns, chosen, models, highest))
    if added:
        title = f"{layout.title}: not in the paper" if columns else layout.title
        others = sorted(added, key=lambda column: (column.dataset, column.metric))
        rest = replace(layout, title=title)
        tables.append(_table(rest, experiment, others, chosen, [], []))
    return tables


def markdown(
    results: Sequence[Result],
    experiments: Iterable[str] | None = None,
    *,
    headings: bool = True,
    notes: bool = True,
) -> str:
    """The tables of some experiments in Markdown (default: of those that have results)."""
    parts = []
    for experiment in experiments_of(results) if experiments is None else experiments:
        for table in tables_for(results, experiment):
            parts += [f"### {table.title}", table.about] if headings else []
            parts.append(table.markdown(notes=notes))
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(
    layout: Layout,
    experiment: str,
    columns: Sequence[Column],
    results: Sequence[Result],
    models: Sequence[str],
    highest: Sequence[str],
) -> Table:
    """A table of ``models``, of all others that have results in its columns, and of ``highest``."""
    found: dict[tuple[str, str], dict[Column, Result]] = {}
    for result in results:
        column = Column(result.dataset, result.metric)
        if column in columns:
            row = found.setdefault((result.model, result.preset), {})
            if column in row:
                raise ValueError(f"results has {result.file} twice; read every file once")
            row[column] = result
    ours = {model for model, _ in found}
    order = [*models, *sorted(ours - set(models)), *highest]
    rows = []
    for model in order:
        presets = sorted(
            (preset for name, preset in found if name == model),
            key=lambda preset: ((*PRESETS, preset).index(preset), preset),
        )
        first, *more = presets or [PLAIN_PRESET]
        for preset in (first, *more):
            measured = found.get((model, preset), {})
            # What nobody ran is said once for a model, in its first row.
            cells = tuple(
                Cell(
                    measured.get(column),
                    published(experiment, column.dataset, model, column.metric)
                    if preset == first or column in measured
                    else None,
                    layout,
                )
                for column in columns
            )
            name = MODEL_TITLES.get(model, model)
            label = name if preset == PLAIN_PRESET else f"{name} ({preset})"
            rows.append(Row(model, label, cells))
    return Table(layout.title, layout.about, tuple(columns), _mark_best(rows))


def _mark_best(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The rows with the best cells of each column marked: those that print the best mean."""
    columns = []
    for cells in zip(*(row.cells for row in rows), strict=True):
        best = min((cell.rank for cell in cells if cell.rank is not None), default=None)
        columns.append(
            [replace(cell, best=best is not None and cell.rank == best) for cell in cells]
        )
    marked = zip(*columns, strict=True)
    return tuple(replace(row, cells=cells) for row, cells in zip(rows, marked, strict=True))


def _rich_cell(cell: Cell) -> list[Text]:
    """The lines of a cell on a terminal: ours, and the paper's in brackets."""
    from rich.text import Text  # noqa: PLC0415

    if cell.elsewhere:
        return [Text(cell.paper.replace(" ", "\n", 1), style="dim")]
    ours = Text(cell.ours, style="bold green" if cell.best else "")
    if cell.result is None:
        ours = Text(NOT_RUN if cell.paper else "–", style="dim italic")
    return [ours, Text(f"({cell.paper})", style="dim")] if cell.paper else [ours]


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(_escape(cell) for cell in cells) + " |"


def _escape(text: str) -> str:
    """Text that keeps to its cell and its line, and starts no HTML."""
    return " ".join(text.split()).replace("<", "&lt;").replace("|", "\\|")
