"""One page that holds a report: tables, plots and provenance, with nothing to load from elsewhere.

The same results give the same bytes. All text that comes from result files is escaped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from pathlib import Path

from bunn.experiments.cells import NOT_RUN, Cell
from bunn.experiments.pictures import bundle_figure
from bunn.experiments.plots import curve_figure, depth_figure, legend, strokes_for, svg
from bunn.experiments.published import MODEL_TITLES, PUBLISHED
from bunn.experiments.results import METRICS, Result
from bunn.experiments.tables import Column, Table, experiments_of, tables_for
from bunn.files import write_atomically

TITLE = "Bundle Neural Networks: results beside the paper"

_VERDICTS = {
    "better": ("▲", "better than published"),
    "worse": ("▼", "worse than published"),
}


def write_html(
    results: Sequence[Result], path: str | Path, experiments: Iterable[str] | None = None
) -> Path:
    """Writes the page of some experiments (default: of those that have results)."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page(results, experiments))
    return path


def page(results: Sequence[Result], experiments: Iterable[str] | None = None) -> str:
    """The whole page as text."""
    names = experiments_of(results) if experiments is None else list(dict.fromkeys(experiments))
    style = resources.files("bunn.experiments").joinpath("report.css").read_text(encoding="utf-8")
    sections = [_section(results, name) for name in names]
    empty = (
        "<p>There are no results yet. <code>bunn reproduce synthetic --quick</code> makes some.</p>"
    )
    links = [(name, tables_for(results, name)[0].title) for name in names]
    contents = "".join(f'<li><a href="#{escape(n)}">{escape(t)}</a></li>' for n, t in links)
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            # A browser that honours this loads nothing and runs nothing, whatever a file says.
            '<meta http-equiv="Content-Security-Policy" '
            "content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            f"<title>{TITLE}</title>",
            f"<style>\n{style}</style>",
            "</head>",
            "<body>",
            "<header>",
            "<h1>Bundle Neural Networks</h1>",
            '<p class="lead">Results measured with <code>bunn</code>, beside those of the paper '
            "(Bamberger, Barbero, Dong, Bronstein, ICLR 2025).</p>",
            f'<nav aria-label="Experiments"><ul>{contents}</ul></nav>' if len(links) > 1 else "",
            "</header>",
            "<main>",
            *(sections or [empty]),
            "</main>",
            "<footer><p>Written by <code>bunn report</code> from result files alone.</p></footer>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _section(results: Sequence[Result], experiment: str) -> str:
    """Everything about one experiment."""
    tables = tables_for(results, experiment)
    chosen = [result for table in tables for result in table.results]
    parts = [f'<section id="{escape(experiment)}">', f"<h2>{escape(tables[0].title)}</h2>"]
    for table in tables:
        parts += [f"<h3>{escape(table.title)}</h3>"] if table is not tables[0] else []
        parts += [f"<p>{escape(table.about)}</p>"] if table is tables[0] and table.about else []
        parts += [_table(table), _remarks(table)]
    parts += [_plots(chosen, experiment), _provenance(tables), "</section>"]
    return "\n".join(part for part in parts if part)


def _table(table: Table) -> str:
    title = escape(table.title)
    lines = [
        f'<div class="scroll" tabindex="0" role="region" aria-label="{title}, table">',
        "<table>",
        f'<thead><tr><th scope="col">{escape(table.corner)}</th>',
    ]
    for column in table.columns:
        metric = "" if table.corner else f"<small>{escape(column.metric_title)}</small>"
        lines.append(f'<th scope="col">{escape(column.title)}{metric}</th>')
    lines.append('<th scope="col">runs</th></tr></thead>\n<tbody>')
    for row in table.rows:
        kind = ' class="bunn"' if row.model == "bunn" else ""
        cells = "".join(_cell(cell) for cell in row.cells)
        label = f'<th scope="row">{escape(row.label)}</th>'
        lines.append(f"<tr{kind}>{label}{cells}<td>{escape(row.runs)}</td></tr>")
    lines.append("</tbody>\n</table>\n</div>")
    return "\n".join(lines)


def _cell(cell: Cell) -> str:
    if cell.elsewhere:
        number, _, whose = cell.paper.partition(" ")
        return f'<td class="elsewhere">{escape(number)}<small>{escape(whose)}</small></td>'
    paper = f"<small>paper {escape(cell.paper)}</small>" if cell.paper else ""
    if cell.result is None:
        return f'<td class="missing">{NOT_RUN if paper else "–"}{paper}</td>'
    ours = escape(cell.ours)
    if cell.best:
        ours = f"<strong>{ours}</strong>"
    if cell.verdict in _VERDICTS:
        sign, words = _VERDICTS[cell.verdict]
        ours = f'<span class="{cell.verdict}" role="img" aria-label="{words}">{sign}</span> {ours}'
    return f"<td>{ours}{paper}</td>"


def _remarks(table: Table) -> str:
    """How to read the table, and what the results say about themselves."""
    words = []
    if table.results:
        single = all(len(result.test) == 1 for result in table.results)
        words.append("A single run each" if single else "Mean ± standard deviation over runs")
        words[-1] += "; the best measured here is bold."
    if any(cell.verdict in _VERDICTS for row in table.rows for cell in row.cells):
        words.append(
            '<span class="better">▲</span> better or <span class="worse">▼</span> worse than '
            "published by more than both spreads together."
        )
    words += [f"{escape(footnote)}." for footnote in table.footnotes]
    text = f'<p class="fine">{" ".join(words)}</p>' if words else ""
    notes = [f"<dt>{escape(who)}</dt><dd>{escape(note)}</dd>" for who, note in table.notes]
    if notes:
        text += f'\n<h3>Where numbers differ</h3>\n<dl class="notes">{"".join(notes)}</dl>'
    return text


def _plots(results: Sequence[Result], experiment: str) -> str:
    """Accuracy against depth for Tree-NeighborsMatch, and the training curves."""
    trees = experiment == "neighborsmatch"
    measured = {result.model for result in results}
    printed = [p.model for p in PUBLISHED if p.experiment == experiment]
    models = [model for model in dict.fromkeys(printed) if trees or model in measured]
    models += sorted(measured - set(models))
    strokes = strokes_for(models)
    parts = []
    if trees:
        plot = depth_figure(results, strokes)
        label = "Accuracy against depth, measured and published; the table above has the numbers"
        parts += [legend(models, strokes), _figure(svg(plot, f"{experiment}-depth", label))]
    bundles = [result for result in results if "bundle" in result.extra]
    if bundles:
        label = "Learned bundles: the angle of every node's map, coloured by cluster"
        picture = svg(bundle_figure(bundles), f"{experiment}-bundle", label)
        parts += ["<h3>The learned bundles</h3>", _figure(picture)]
    columns = dict.fromkeys(Column(result.dataset, result.metric) for result in results)
    drawn = []
    for column in columns:
        group = [r for r in results if (r.dataset, r.metric) == (column.dataset, column.metric)]
        for key, what in (("train_loss", "Training loss"), ("val", "Validation metric")):
            plot_or_none = curve_figure(group, key, strokes)
            if plot_or_none is not None:
                names = ", ".join(MODEL_TITLES.get(r.model, r.model) for r in group if r.curves)
                label = f"{what} against epoch on {column.dataset}: {names}"
                name = f"{experiment}-{column.dataset}-{column.metric}-{key}"
                drawn.append(_figure(svg(plot_or_none, name, label)))
    if drawn:
        shown = [model for model in models if any(r.model == model and r.curves for r in results)]
        opened = " open" if len(drawn) <= 4 else ""
        several = len({(r.model, r.preset) for r in results}) > len(measured)
        about = "mean over runs" + ("; short dashes: a further preset" if several else "")
        parts.append(f"<details{opened}><summary>Training curves <small>{about}</small></summary>")
        parts += [legend(shown, strokes), '<div class="plots">', *drawn, "</div>", "</details>"]
    return "\n".join(parts)


def _figure(drawing: str) -> str:
    return f"<figure>{drawing}</figure>"


def _provenance(tables: Sequence[Table]) -> str:
    """How each number was measured, a closed section per result."""
    entries = []
    for table in tables:
        for row in table.rows:
            for column, cell in zip(table.columns, row.cells, strict=True):
                if cell.result is not None:
                    head = f"{row.label} on {column.title}"
                    entries.append(_measured(head, cell.ours, cell.result))
    if not entries:
        return ""
    summary = f"<summary>How each number was measured <small>{len(entries)}</small></summary>"
    return "\n".join([f'<details class="provenance">{summary}', *entries, "</details>"])


def _measured(head: str, numbers: str, result: Result) -> str:
    values = ", ".join(f"{value:.6g}" for value in result.test)
    facts = {
        "command": f"<code>{escape(result.command)}</code>",
        "commit": f"<code>{escape(result.git_commit)}</code>",
        "device": escape(result.device),
        "versions": escape(", ".join(f"{name} {v}" for name, v in result.versions.items())),
        "seeds": escape(", ".join(map(str, result.seeds))),
        "splits": escape(", ".join(map(str, result.splits))),
        f"{result.part} {METRICS[result.metric].title}": values,
        "validation": ", ".join(f"{value:.6g}" for value in result.val),
        "epochs": str(result.epochs),
        "seconds": f"{result.seconds:.1f}",
        "parameters": "" if result.parameters is None else f"{result.parameters:,}",
        "notes": escape(result.notes),
        "options": _data(result.options),
        "extra": _data(result.extra),
        "file": f"<code>{escape(str(result.file))}</code>",
    }
    rows = "".join(f"<dt>{escape(k)}</dt><dd>{text}</dd>" for k, text in facts.items() if text)
    summary = f"<summary>{escape(head)} <small>{escape(numbers)}</small></summary>"
    return f"<details>{summary}<dl>{rows}</dl></details>"


def _data(content: dict[str, object]) -> str:
    text = json.dumps(content, indent=2, ensure_ascii=False)
    return f"<pre>{escape(text)}</pre>" if content else ""
