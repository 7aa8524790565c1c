"""``bunn datasets``: what can be trained on, and whether its files are here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
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
) -> None:
    """List the datasets, and whether their files are here."""
    from bunn.cli.errors import explained  # noqa: PLC0415
    from bunn.data import DATASETS  # noqa: PLC0415
    from bunn.data import data_root as find_root  # noqa: PLC0415

    with explained():
        root = find_root(data_root)
        rows = [
            {
                "name": spec.name,
                "task": f"{spec.task.level} {spec.task.kind}",
                "size": spec.size,
                "metric": spec.task.metric,
                "licence": spec.licence,
                "source": spec.source,
                "present": spec.is_present(root),
                "missing": [str(path) for path in spec.missing(root)],
            }
            for spec in DATASETS.values()
        ]
    if as_json:
        print(json.dumps({"root": str(root), "datasets": rows}, indent=2))
        return
    console = Console(width=None if Console().is_terminal else 140)
    table = Table("name", "task", "size", "metric", "licence", "files", title=f"Data root: {root}")
    for row in rows:
        spec = DATASETS[str(row["name"])]
        state = "generated" if not spec.files else "present" if row["present"] else "missing"
        table.add_row(
            *(str(row[key]) for key in ("name", "task", "size", "metric", "licence")), state
        )
    console.print(table)
    absent = [row for row in rows if not row["present"]]
    if absent:
        console.print(
            f'To get a missing one where the net is reachable: python -c "import bunn.data; '
            f"bunn.data.load_dataset('{absent[0]['name']}', download=True)\"",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
