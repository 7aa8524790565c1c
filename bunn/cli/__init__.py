"""The command line: it reads arguments and prints; what it runs is elsewhere.

Every command imports what it needs when it is called: listing datasets does not wait for what
training needs.
"""

from __future__ import annotations

from typing import Annotated

import typer

from bunn import __version__
from bunn.cli.bench import bench
from bunn.cli.datasets import datasets
from bunn.cli.report import report
from bunn.cli.reproduce import reproduce
from bunn.cli.train import train
from bunn.cli.tune import tune
from bunn.cli.verify import verify

app = typer.Typer(
    help="Bundle Neural Networks: message diffusion on graphs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def bunn(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """Bundle Neural Networks: message diffusion on graphs."""


for command in (datasets, train, tune, reproduce, verify, bench, report):
    app.command()(command)
