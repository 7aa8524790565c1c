"""``bunn report``: tables and plots from result files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def report(
    experiments: Annotated[
        list[str] | None, typer.Argument(help="Such as synthetic.", show_default="all there are")
    ] = None,
    results: Annotated[Path, typer.Option(help="Where the result files are.")] = Path("results"),
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the tables as Markdown, write no page.")
    ] = False,
    output: Annotated[Path, typer.Option(help="Where the page goes.")] = Path("report.html"),
) -> None:
    """Print the measured tables beside the paper's, and write them as one HTML page."""
    from bunn.cli.errors import explained, tolerate_any_terminal, writing  # noqa: PLC0415
    from bunn.experiments.html import write_html  # noqa: PLC0415
    from bunn.experiments.results import read_results  # noqa: PLC0415
    from bunn.experiments.tables import experiments_of, markdown, tables_for  # noqa: PLC0415
    from bunn.training.options import ConfigError, nearest  # noqa: PLC0415

    tolerate_any_terminal()
    with explained():
        found = read_results(results)
        known = experiments_of(found)
        if not known:
            raise ConfigError(
                f"there are no result files in {results}; measure some with bunn reproduce, or "
                "name their folder with --results"
            )
        for name in experiments or []:
            if name not in known and Path(name).is_dir():
                raise ConfigError(
                    f"{name!r} is a folder, not an experiment; use --results {name} for what is in "
                    "it"
                )
            if name not in known:
                raise ConfigError(f"there are no results of {name!r}; {nearest(name, known)}")
        chosen = experiments or known
        if as_markdown:
            print(markdown(found, chosen))
            return
        console = Console(width=None if sys.stdout.isatty() else 120)
        for name in chosen:
            for table in tables_for(found, name):
                console.print(table.rich())
        with writing(output, "--output"):
            page = write_html(found, output, chosen)
        console.print(f"page: {page}", markup=False, highlight=False, soft_wrap=True)
