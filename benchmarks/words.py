"""Words and numbers that pages have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def how(result: dict[str, Any]) -> str:
    """By which command, where and when something was measured."""
    gpu = result["gpu"]
    commits = {row.get("commit", gpu["git_commit"])[:7]: None for row in result["rows"]}
    return (
        f"`{result['command']}` on an {gpu['device']}, torch {gpu['versions']['torch']}, commit "
        f"{', '.join(commits)}"
    )


def what_errors_are(result: dict[str, Any]) -> str:
    """What follows the word, which files that are older do not say."""
    return f", {result['errors_are']}" if "errors_are" in result else " relative to the features"


def number(value: float | None, form: str) -> str:
    """A cell, empty where there is no number."""
    return "" if value is None else format(value, form)


def short(value: float) -> str:
    """``6e-6`` for ``6e-06``."""
    return f"{value:g}".replace("e-0", "e-")


def span(values: Iterable[float], form: str) -> str:
    """From the least to the largest, or the one that both are as they are written."""
    found = list(values)
    ends = dict.fromkeys(format(end, form) for end in (min(found), max(found)))
    return " to ".join(ends)


def listed(items: Iterable[str]) -> str:
    """``a, b and c``."""
    *first, last = items
    return f"{', '.join(first)} and {last}" if first else last
