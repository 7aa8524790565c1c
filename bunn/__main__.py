"""The command ``bunn``, also as ``python -m bunn``."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line, or says what it is missing."""
    try:
        from bunn.cli import app  # noqa: PLC0415
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("typer", "rich"):
            raise
        sys.exit(
            f"bunn's command line needs {missing}, which is not installed; install it with: "
            "pip install 'bunn[train]'"
        )
    app()


if __name__ == "__main__":
    main()
