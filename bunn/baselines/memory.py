"""What a graph alone determines, remembered for as long as its edges are the same tensor."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bunn.graph.operator import for_keeps
from bunn.keeping import handed_out

#: How many graphs a model remembers: batches of a few sizes.
REMEMBERED = 16

#: What a layer prepares: edges in a form of its own, and weights.
Edges = tuple[Any, Tensor | None]


class _Entry(NamedTuple):
    tensors: list[weakref.ref[Tensor] | None]
    versions: list[int]
    rest: tuple[Any, ...]
    edges: Edges

    def is_for(self, tensors: Sequence[Tensor | None], rest: tuple[Any, ...]) -> bool:
        pairs = zip(self.tensors, tensors, strict=True)
        same = all((old and old()) is new for old, new in pairs)
        return same and self.versions == _versions(tensors) and self.rest == rest


def _versions(tensors: Sequence[Tensor | None]) -> list[int]:
    return [-1 if tensor is None else tensor._version for tensor in tensors]


class EdgeMemory:
    """Prepared edges of the last graphs, by the identity of their ``edge_index`` and ``batch``.

    A graph that was written to is prepared again. Copies of a model start with an empty memory.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[int, _Entry] = OrderedDict()

    def get(
        self, tensors: Sequence[Tensor | None], rest: tuple[Any, ...], prepare: Callable[[], Edges]
    ) -> Edges:
        """What ``prepare`` returned for these tensors and ``rest``, or returns now.

        Args:
            tensors: All that it reads, the edges first.
            rest: Plain values that it reads.
            prepare: Called without arguments where there is nothing yet.
        """
        given = [tensor for tensor in tensors if tensor is not None]
        if any(map(torch._C._functorch.is_functorch_wrapped_tensor, given)):
            return prepare()
        key = id(tensors[0])
        entry = self._entries.pop(key, None)
        if entry is None or not entry.is_for(tensors, rest):
            with for_keeps():
                edges = prepare()
            refs = [None if tensor is None else weakref.ref(tensor) for tensor in tensors]
            entry = _Entry(refs, _versions(tensors), rest, edges)
        self._entries[key] = entry
        while len(self._entries) > REMEMBERED:
            self._entries.popitem(last=False)
        return handed_out(entry.edges)

    def __deepcopy__(self, memo: Any) -> EdgeMemory:
        return EdgeMemory()

    def __reduce__(self) -> tuple[type[EdgeMemory], tuple[()]]:
        return EdgeMemory, ()
