"""The command ``bunn``, also as ``python -m bunn``."""

from __future__ import annotations

import sys

#: The packages of ``bunn[train]``, by the names they are imported under.
EXTRAS = (
    *("typer", "rich", "lightning", "torchmetrics", "safetensors"),
    *("matplotlib", "tensorboard"),
)


def main() -> None:
    """Runs the command line, or says what it is missing."""
    try:
        from bunn.cli import app  # noqa: PLC0415

        app()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRAS:
            raise
        sys.exit(
            f"bunn: this needs {missing}, which is not installed; install it with: "
            "pip install 'bunn[train]'"
        )
    except KeyboardInterrupt:  # before a command has begun
        sys.exit(130)


if __name__ == "__main__":
    main()
