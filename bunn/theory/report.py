"""Running claims with a progress bar, and printing what they found."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable
from rich.text import Text

from bunn.theory.claim import Check, Claim, Erratum, Report, Table

#: Columns for a residual with its bound, for a verdict, for text that can still be read, and for
#: the longest text there is.
RESIDUAL, VERDICT, READABLE, LONGEST = 17, 9, 24, 72

STYLES = {"holds": "green", "corrected": "yellow", "fails": "bold red"}


def run_claims(claims: Sequence[Claim], seed: int, console: Console) -> list[Report]:
    """Runs claims one after the other, with a progress bar on ``console``."""
    columns = (
        TextColumn("{task.description:22}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    reports = []
    shown = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not shown) as progress:
        task = progress.add_task("", total=len(claims))
        for claim in claims:
            progress.update(task, description=claim.name)
            seeded = "seed" in inspect.signature(claim.measure).parameters
            reports.append(claim(**({"seed": seed} if seeded else {})))
            progress.advance(task)
    return reports


def print_summary(reports: Sequence[Report], console: Console) -> None:
    """One line per claim, then what became of them."""
    for line in summary_lines(reports, console.width):
        console.print(line, soft_wrap=True)
    verdicts = [report.verdict for report in reports]
    errata = sum(len(report.errata) for report in reports)
    _print(
        console,
        f"\n{len(reports)} claims in {sum(report.seconds for report in reports):.0f} s: "
        f"{verdicts.count('holds')} hold as printed, {verdicts.count('corrected')} as corrected "
        f"({errata} errata), {verdicts.count('fails')} fail. "
        "Details: bunn verify --claim NAME",
    )
    for report in reports:
        if report.error is not None:
            _print(console, f"{report.name}: ended by {report.error}", "red")
        for check in report.all_checks():
            if not check.passed:
                _print(console, f"{report.name}: {check}", "red")


def summary_lines(reports: Sequence[Report], width: int) -> list[Text]:
    """Name, statement, measurement, residual and verdict of each claim, in ``width`` columns.

    What is long is cut, and on a narrow terminal goes to a second line; the rest never is.
    """
    name = max(len(report.name) for report in reports)
    room = width - name - RESIDUAL - VERDICT - 8
    lines = []
    for report in reports:
        headline = report.headline
        residual = "" if headline is None else _residual(headline)
        verdict = Text(f"{report.verdict:{VERDICT}}", style=STYLES[report.verdict])
        words = [report.statement, report.error or (headline.measured if headline else "nothing")]
        if room < 2 * READABLE:
            lines.append(Text.assemble(f"{report.name:{name}}  {residual:>{RESIDUAL}}  ", verdict))
            lines.append(Text("  " + _cut(f"{words[0]}: {words[1]}", width - 2), style="dim"))
            continue
        half = min(room // 2, LONGEST)
        cells = "  ".join(f"{_cut(text, half):{half}}" for text in words)
        start = f"{report.name:{name}}  {cells}  {residual:>{RESIDUAL}}  "
        lines.append(Text.assemble(start, verdict))
    return lines


def _residual(check: Check) -> str:
    relation = {"<=": "≤", ">=": "≥"}[check.relation]
    return f"{check.value:.2g} {relation} {check.bound:.2g}"


def _cut(text: str, width: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"


def print_details(report: Report, console: Console) -> None:
    """Everything a claim found."""
    _print(console, f"{report.name} ({report.where}): {report.statement}", "bold")
    _print(console, f"verdict: {report.verdict}, {report.seconds:.1f} s", STYLES[report.verdict])
    if report.error is not None:
        _print(console, f"ended by {report.error}", "red")
        _print(console, report.traceback or "", "dim")
    _print_checks(report.checks, console)
    for erratum in report.errata:
        _print_erratum(erratum, console)
    for table in report.tables:
        _print_table(table, console)
    console.print()


def _print(console: Console, line: str, style: str = "") -> None:
    console.print(Text(line, style=style), soft_wrap=True)


def _print_checks(checks: Sequence[Check], console: Console, indent: str = "  ") -> None:
    for check in checks:
        mark, style = ("✓", "green") if check.passed else ("✗", "red")
        line = Text.assemble(indent, (mark, style), f" {check}")
        console.print(line, soft_wrap=True)


def _print_erratum(erratum: Erratum, console: Console) -> None:
    _print(console, f"\n  Erratum: {erratum.name}", "yellow")
    for label, text in (
        ("printed", erratum.printed),
        ("counterexample", erratum.counterexample),
        ("corrected", erratum.corrected),
    ):
        _print(console, f"    {label + ':':16}{text}")
    _print_checks((erratum.refutation, *erratum.verification), console, "    ")


def _print_table(table: Table, console: Console) -> None:
    rich = RichTable(title=table.title, title_justify="left", box=None, header_style="bold")
    for column in table.columns:
        rich.add_column(column, justify="left" if column in ("graph", "case") else "right")
    for row in table.rows:
        rich.add_row(*(_cell(entry) for entry in row))
    console.print()
    console.print(rich)


def _cell(entry: Any) -> Text:
    if entry is None:
        return Text("–")
    return Text(f"{entry:.3g}" if isinstance(entry, float) else str(entry))
