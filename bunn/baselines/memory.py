"""What a graph alone determines, remembered for as long as its edges are the same tensor."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bunn.keeping import handed_out
from bunn.operator import for_keeps

#: How many graphs a model remembers: batches of a few sizes.
REMEMBERED = 16

#: What a layer prepares: edges in a form of its own, and weights.
Edges = tuple[Any, Tensor | None]


class _Entry(NamedTuple):
    edge_index: weakref.ref[Tensor]
    version: int
    rest: tuple[Any, ...]
    edges: Edges


class EdgeMemory:
    """Prepared edges of the last graphs, by the identity of their ``edge_index``.

    A graph that was written to is prepared again. Copies of a model start with an empty memory.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[int, _Entry] = OrderedDict()

    def get(self, edge_index: Tensor, rest: tuple[Any, ...], prepare: Callable[[], Edges]) -> Edges:
        """What ``prepare`` returned for this tensor and ``rest``, or returns now."""
        if torch._C._functorch.is_functorch_wrapped_tensor(edge_index):
            return prepare()
        entry = self._entries.pop(id(edge_index), None)
        if (
            entry is None
            or entry.edge_index() is not edge_index
            or entry.version != edge_index._version
            or entry.rest != rest
        ):
            with for_keeps():
                edges = prepare()
            entry = _Entry(weakref.ref(edge_index), edge_index._version, rest, edges)
        self._entries[id(edge_index)] = entry
        while len(self._entries) > REMEMBERED:
            self._entries.popitem(last=False)
        return handed_out(entry.edges)

    def __deepcopy__(self, memo: Any) -> EdgeMemory:
        return EdgeMemory()

    def __reduce__(self) -> tuple[type[EdgeMemory], tuple[()]]:
        return EdgeMemory, ()
