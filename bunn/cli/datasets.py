"""``bunn datasets``: what can be trained on, and whether its files are here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

DataRoot = Annotated[
    Path | None,
    typer.Option(
        "--data-root", help="Where data lives.", show_default="$BUNN_DATA, or the cache folder"
    ),
]


def datasets(
    data_root: DataRoot = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the list as JSON, for machines.")
    ] = False,
    download: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Fetch the files of a dataset into the data root; repeatable."
        ),
    ] = None,
) -> None:
    """List the datasets, and whether their files are here; or fetch them."""
    from bunn.cli.errors import explained  # noqa: PLC0415
    from bunn.data import data_root as find_root  # noqa: PLC0415

    with explained():
        root = find_root(data_root)
        if download:
            fetch(download, root)
            return
        rows = listed(root)
        if as_json:
            print(json.dumps({"root": str(root), "datasets": rows}, indent=2))
        else:
            print_list(rows, root)


def fetch(names: list[str], root: Path) -> None:
    """Brings the files of datasets to their places below the data root."""
    from bunn.data import DATASETS, MissingDataError, dataset_spec, load_dataset  # noqa: PLC0415

    for name in names:
        try:
            dataset_spec(name)
        except ValueError as error:
            raise typer.BadParameter(f"--download: {error}") from error
    for name in names:
        files = DATASETS[name].files
        if not files:
            print(f"{name} is generated; there is nothing to fetch")
            continue
        state = "was already" if DATASETS[name].is_present(root) else "is now"
        try:
            load_dataset(name, root, download=True)
        except MissingDataError:
            raise
        except OSError as error:
            raise OSError(
                f"{root} cannot be written: {error}; choose another folder with --data-root or "
                "$BUNN_DATA"
            ) from error
        print(f"{name} {state} in {(root / files[0]).parent}")


def listed(root: Path) -> list[dict[str, Any]]:
    """What is known of every dataset without reading it."""
    from bunn.data import DATASETS  # noqa: PLC0415

    return [
        {
            "name": spec.name,
            "task": f"{spec.task.level} {spec.task.kind}",
            "size": spec.size,
            "metric": spec.task.metric,
            "licence": spec.licence,
            "source": spec.source,
            "files": [str(root / file) for file in spec.files],
            "present": spec.is_present(root),
            "missing": [str(path) for path in spec.missing(root)],
        }
        for spec in DATASETS.values()
    ]


def print_list(rows: list[dict[str, Any]], root: Path) -> None:
    """The datasets as a table, and how to get what is missing."""
    console = Console(width=None if Console().is_terminal else 140)
    columns = ("name", "task", "size", "metric", "licence")
    table = Table(*columns, "files", title=f"Data root: {escape(str(root))}")
    for row in rows:
        state = "generated" if not row["files"] else "present" if row["present"] else "missing"
        table.add_row(*(row[column] for column in columns), state)
    console.print(table)
    absent = [row["name"] for row in rows if not row["present"]]
    if absent:
        console.print(
            f"To fetch a missing one, where the net is reachable: bunn datasets --download "
            f"{absent[0]}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
