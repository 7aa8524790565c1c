"""Holding on to what caches hand out, and knowing what will be asked for again.

A CUDA graph that is replayed reads memory that was there when it was captured: the edges that a
model prepared, a Laplacian, a heat kernel. The caches that hold them may drop them meanwhile.

Some of what they hold takes longer to build than a few calls without it: a heat kernel pays for a
graph that is trained on, not for one that a sampler draws for one step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

Value = TypeVar("Value")

_KEEPERS: list[list[object]] = []


@contextmanager
def kept() -> Iterator[list[object]]:
    """A list of all that caches hand out meanwhile; who holds the list holds it alive."""
    keeper: list[object] = []
    _KEEPERS.append(keeper)
    try:
        yield keeper
    finally:
        _KEEPERS.pop()


def handed_out(value: Value) -> Value:
    """What every cache of things on a device returns its entries through."""
    for keeper in _KEEPERS:
        keeper.append(value)
    return value


_LASTING: list[None] = []


@contextmanager
def lasting() -> Iterator[None]:
    """A context in which all that is called will be called many times again; backward passes belong
    into it, too."""
    _LASTING.append(None)
    try:
        yield
    finally:
        _LASTING.pop()


def lasts() -> bool:
    """Whether it is known that calls will be repeated."""
    return bool(_LASTING)
