"""Names that were probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: object, known: Iterable[str], before: str = ", ") -> str:
    """``", did you mean 'gcn'?"``, or nothing if no known name is like ``name``, in any case."""
    names = {entry.lower(): entry for entry in known}
    near = difflib.get_close_matches(str(name).lower(), names, 1)
    return f"{before}did you mean {names[near[0]]!r}?" if near else ""
