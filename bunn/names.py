"""Names that were probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: object, known: Iterable[str], before: str = ", ") -> str:
    """``", did you mean 'gcn'?"``, or nothing if no known name is like ``name``, in any case; all
    that are as near as the nearest."""
    names, given = {entry.lower(): entry for entry in known}, str(name).lower()
    near = difflib.get_close_matches(given, names, 3)
    likeness = {entry: difflib.SequenceMatcher(None, entry, given).ratio() for entry in near}
    best = [names[entry] for entry in near if likeness[entry] == likeness[near[0]]]
    return f"{before}did you mean {' or '.join(map(repr, sorted(best)))}?" if best else ""
