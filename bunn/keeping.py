"""Holding on to what caches hand out.

A CUDA graph that is replayed reads memory that was there when it was captured: the edges that a
model prepared, a Laplacian, a heat kernel. The caches that hold them may drop them meanwhile.
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
