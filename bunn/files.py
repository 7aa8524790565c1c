"""How files are written: whole or not at all, and JSON that people can read."""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

#: Lists of numbers run on up to this many characters.
WIDTH = 100


def write_atomically(path: str | Path, text: str) -> None:
    """Replaces a file at once: a reader sees the old text or the new, also after a crash."""
    path = Path(path)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with draft.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def copy_atomically(source: str | Path, path: str | Path) -> None:
    """:func:`write_atomically` for a copy of a file on the same disk; a link where that does."""
    path = Path(path)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        try:
            os.link(source, draft)
        except OSError:
            shutil.copyfile(source, draft)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def plain(value: Any) -> Any:
    """What JSON can hold as it is; of anything else its text: ``"inf"``, a path, a device."""
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return str(value)


def as_json(value: Any, indent: str = "") -> str:
    """JSON with an entry per line, but lists of numbers in running lines.

    Raises:
        ValueError: If a number is not finite.
    """
    inner = indent + "  "
    if isinstance(value, dict) and value:
        rows = [f"{inner}{_atom(str(k))}: {as_json(v, inner)}" for k, v in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if not isinstance(value, list) or not value:
        return _atom(value)
    if all(isinstance(entry, int | float) for entry in value):
        lines = _running_lines([_atom(entry) for entry in value], WIDTH - len(inner))
        if len(lines) == 1:
            return f"[{lines[0]}]"
    else:
        lines = [f"{as_json(entry, inner)}," for entry in value]
        lines[-1] = lines[-1][:-1]
    return "[\n" + "\n".join(inner + line for line in lines) + f"\n{indent}]"


def _atom(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _running_lines(words: list[str], width: int) -> list[str]:
    """The words with commas between them, on as few lines as fit."""
    lines = [words[0]]
    for word in words[1:]:
        lines[-1] += ","
        if len(lines[-1]) + len(word) + 2 > width:
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return lines
