"""Many graphs on the same edges, kept as tensors instead of as objects."""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch_geometric.data import Data

from bunn.data.dataset import GraphCollection, check_indices

#: For how many batch sizes a graph remembers its copies.
REMEMBERED = 16


class Copies(NamedTuple):
    """``k`` disjoint copies of a graph.

    Args:
        edge_index: ``(2, k*e)`` block-diagonal edges.
        batch: ``(k*n,)`` the copy of every node.
        attributes: What all copies have in common, each ``(k*n, ...)``.
    """

    edge_index: Tensor
    batch: Tensor
    attributes: dict[str, Tensor]


class SharedGraph:
    """One graph that all members of a dataset live on.

    Copies for a batch size are made once: every batch of that size, of any part and split, has the
    very same ``edge_index`` tensor, and so one Laplacian.

    Args:
        edge_index: ``(2, e)`` edges.
        num_nodes: The number of nodes ``n``.
        attributes: What is the same for every member, each ``(n, ...)``.
    """

    def __init__(self, edge_index: Tensor, num_nodes: int, **attributes: Tensor) -> None:
        self.edge_index = edge_index
        self.num_nodes = num_nodes
        self.attributes = attributes
        self._copies: OrderedDict[int, Copies] = OrderedDict()
        self._by_device = {edge_index.device: self}

    def copies(self, count: int) -> Copies:
        """``count`` disjoint copies; a single one keeps the graph's own ``edge_index``."""
        made = self._copies.pop(count, None)
        if made is None:
            copy = torch.arange(count, device=self.edge_index.device)
            shifted = self.edge_index.unsqueeze(1) + (copy * self.num_nodes).view(1, -1, 1)
            made = Copies(
                self.edge_index if count == 1 else shifted.flatten(1),
                copy.repeat_interleave(self.num_nodes),
                {
                    name: value.repeat(count, *[1] * (value.dim() - 1))
                    for name, value in self.attributes.items()
                },
            )
        self._copies[count] = made
        while len(self._copies) > REMEMBERED:
            self._copies.popitem(last=False)
        return made

    def to(self, device: torch.device | str) -> SharedGraph:
        """The graph on another device, moved there once."""
        device = torch.empty(0, device=device).device  # "cuda" is some "cuda:0"
        if device not in self._by_device:
            attributes = {name: value.to(device) for name, value in self.attributes.items()}
            moved = SharedGraph(self.edge_index.to(device), self.num_nodes, **attributes)
            moved._by_device = self._by_device
            self._by_device[device] = moved
        return self._by_device[device]


class GraphStack(GraphCollection):
    """Graphs that differ in what their nodes carry, not in their edges.

    Args:
        graph: What they share.
    """

    def __init__(self, graph: SharedGraph) -> None:
        self.graph = graph

    @abstractmethod
    def fields(self, indices: Tensor) -> dict[str, Tensor]:
        """What the nodes of some members carry, each ``(k, n, ...)``; no checks, no waiting.

        Args:
            indices: ``(k,)`` int64.
        """

    def get(self, index: int) -> Data:
        fields = self.fields(torch.tensor([index], device=self.graph.edge_index.device))
        own = {name: value[0] for name, value in fields.items()}
        return Data(edge_index=self.graph.edge_index, **own, **self.graph.attributes)

    def collate(self, indices: Tensor) -> Data:
        check_indices(indices)
        count = indices.numel()
        edge_index, batch, attributes = self.graph.copies(count)
        fields = self.fields(indices.to(edge_index.device))
        flat = {name: value.flatten(0, 1) for name, value in fields.items()}
        return Data(edge_index=edge_index, batch=batch, batch_size=count, **flat, **attributes)


class TensorStack(GraphStack):
    """A stack whose fields are kept as they are.

    Args:
        graph: What the members share.
        tensors: Each ``(num_graphs, n, ...)``.
    """

    def __init__(self, graph: SharedGraph, **tensors: Tensor) -> None:
        super().__init__(graph)
        self.tensors = tensors

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def fields(self, indices: Tensor) -> dict[str, Tensor]:
        return {name: value[indices] for name, value in self.tensors.items()}

    def to(self, device: torch.device | str) -> Self:
        tensors = {name: value.to(device) for name, value in self.tensors.items()}
        return type(self)(self.graph.to(device), **tensors)
