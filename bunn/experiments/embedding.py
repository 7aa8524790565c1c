"""Tables inside Markdown pages, written from the result files and never by hand.

A page holds the place of a table between two lines of their own::

    <!-- bunn report: synthetic -->
    <!-- end -->

What is between them is replaced by the tables of that experiment, with the notes of its rows unless
the first line reads ``<!-- bunn report: synthetic, without notes -->``; the rest stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from bunn.experiments.results import Result, read_results
from bunn.experiments.tables import markdown
from bunn.files import write_atomically

_BEGIN = re.compile(r"<!-- bunn report: (.*?)(, without notes)? -->")
_END = "<!-- end -->"


def embed(text: str, results: Sequence[Result]) -> str:
    """A page with its tables written anew.

    Raises:
        ValueError: If a marker is not closed, or names an experiment that is not known.
    """
    lines: list[str] = []
    opened: str | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        begin = _BEGIN.fullmatch(line.strip())
        if begin and opened is not None:
            raise ValueError(f"line {number}: {line.strip()}; the one before has no {_END}; add it")
        if opened is None or line.strip() == _END:
            lines.append(line)
        if begin:
            opened = line.strip()
            try:
                experiments, notes = [begin[1].strip()], begin[2] is None
                table = markdown(results, experiments, headings=False, notes=notes)
                lines.append(table.rstrip("\n"))
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
        elif line.strip() == _END:
            opened = None
    if opened is not None:
        raise ValueError(f"{opened}; there is no {_END} after it; add that line below the table")
    return "\n".join(lines) + ("\n" if text.endswith("\n") else "")


def refresh(path: str | Path, results: str | Path | None = None) -> bool:
    """Writes the tables of a page anew and returns whether that changed it.

    Args:
        path: The Markdown page.
        results: The folder of results. (default: the nearest ``results`` at or above the page)
    """
    path = Path(path)
    text, wanted = _read(path), _current(path, results)
    if text != wanted:
        write_atomically(path, wanted)
    return text != wanted


def is_current(path: str | Path, results: str | Path | None = None) -> bool:
    """Whether :func:`refresh` would leave a page as it is."""
    return _read(Path(path)) == _current(Path(path), results)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _current(path: Path, results: str | Path | None) -> str:
    folder = _nearest_results(path) if results is None else Path(results)
    try:
        return embed(_read(path), read_results(folder))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _nearest_results(path: Path) -> Path:
    for folder in path.resolve().parents:
        if (folder / "results").is_dir():
            return folder / "results"
    raise FileNotFoundError(
        f"path={path}; there is no folder results at or above it; say which one to read"
    )
