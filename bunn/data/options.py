"""Options that datasets share, and the checks of single values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NoOptions:
    """A dataset that is what it is."""


def check_count(name: str, value: int, minimum: int = 1) -> None:
    """Whether ``value`` is an integer and large enough."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r}; not an integer; use one >= {minimum}")
    if value < minimum:
        raise ValueError(f"{name}={value}; too small; use an integer >= {minimum}")


def check_fraction(name: str, value: float) -> None:
    """Whether ``value`` lies strictly between 0 and 1."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}={value!r}; not a number; use one between 0 and 1")
    if not 0 < value < 1:
        raise ValueError(f"{name}={value}; not a proper fraction; use a number between 0 and 1")
