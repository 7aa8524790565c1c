"""Many graphs of their own, kept as a few tensors instead of as thousands of objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Self

import torch
from torch import Tensor
from torch_geometric.data import Data

from bunn.batches.selection import Selection, Union
from bunn.data.dataset import GraphCollection, check_indices
from bunn.graph.spans import starts
from bunn.sharing import known_edges


class Pack:
    """Graphs one after the other: the block-diagonal graph of all of them.

    A batch is gathered where the tensors are; the host, which knows all sizes, waits for nothing.
    What a graph alone determines, its operator, its components and the eigenvectors of its
    Laplacian, is worked out for all graphs at once, and gathered likewise: see
    :mod:`bunn.batches.selection`.

    Args:
        num_nodes: ``(g,)`` of every graph.
        num_edges: ``(g,)`` of every graph.
        edge_index: ``(2, e)`` edges, with nodes counted within their graphs.
        nodes: What nodes carry, each ``(n, ...)``, ``x`` among them.
        edges: What edges carry, each ``(e, ...)``.
        graphs: What graphs carry, each ``(g, ...)``.
    """

    def __init__(
        self,
        num_nodes: Tensor,
        num_edges: Tensor,
        edge_index: Tensor,
        *,
        nodes: Mapping[str, Tensor],
        edges: Mapping[str, Tensor] | None = None,
        graphs: Mapping[str, Tensor] | None = None,
    ) -> None:
        first = starts(num_nodes).repeat_interleave(num_edges)
        self.union = Union(edge_index + first, num_nodes, num_edges)
        self.nodes, self.edges, self.graphs = dict(nodes), dict(edges or {}), dict(graphs or {})
        self._by_device = {edge_index.device: self}

    @classmethod
    def of(cls, graphs: Sequence[Data]) -> Pack:
        """Graphs that carry the same things: ``edge_...`` belongs to edges, what has a row for
        every node to nodes, and what has one row to graphs."""
        first = graphs[0]
        of_nodes, of_edges, of_graphs = [], [], []
        for name in (name for name in first.to_dict() if name != "edge_index"):
            if name.startswith("edge_"):
                of_edges.append(name)
            elif all(data[name].size(0) == data.num_nodes for data in graphs):
                of_nodes.append(name)
            else:
                of_graphs.append(name)
        return cls(
            torch.tensor([data.num_nodes for data in graphs]),
            torch.tensor([data.num_edges for data in graphs]),
            torch.cat([data.edge_index for data in graphs], dim=1),
            nodes={name: torch.cat([data[name] for data in graphs]) for name in of_nodes},
            edges={name: torch.cat([data[name] for data in graphs]) for name in of_edges},
            graphs={name: torch.cat([data[name] for data in graphs]) for name in of_graphs},
        )

    def __len__(self) -> int:
        return len(self.union)

    @property
    def device(self) -> torch.device:
        return self.union.edge_index.device

    def whole(self) -> Data:
        """All graphs as one, without what graphs carry; ``batch`` says whose nodes are whose."""
        data = Data(edge_index=self.union.edge_index, **self.nodes, **self.edges)
        graphs = torch.arange(len(self), device=self.device)
        data.batch = graphs.repeat_interleave(self.union.num_nodes.to(self.device))
        return data

    def transformed(self, transform: Callable[[Data], Data]) -> Pack:
        """The same graphs with what a transform makes of their nodes.

        Args:
            transform: One that treats graphs, or components, apart and changes no edges, so that it
                does to all graphs at once what it would do to each.
        """
        data = transform(self.whole())
        del data.batch
        if data.edge_index is not self.union.edge_index:
            raise ValueError(
                f"transform={transform!r} changes edges; apply it to the graphs before they are "
                "packed"
            )
        fields = {name: value for name, value in data.to_dict().items() if data.is_node_attr(name)}
        return self._with(self.union, fields, self.edges, self.graphs)

    def _with(
        self,
        union: Union,
        nodes: dict[str, Tensor],
        edges: dict[str, Tensor],
        graphs: dict[str, Tensor],
    ) -> Pack:
        pack = object.__new__(Pack)
        pack.union, pack.nodes, pack.edges, pack.graphs = union, nodes, edges, graphs
        pack._by_device = {union.edge_index.device: pack}
        return pack

    def to(self, device: torch.device | str) -> Pack:
        """The graphs on another device, moved there once."""
        device = torch.empty(0, device=device).device  # "cuda" is some "cuda:0"
        if device not in self._by_device:
            groups = (self.nodes, self.edges, self.graphs)
            moved = self._with(
                self.union.to(device),
                *({name: value.to(device) for name, value in group.items()} for group in groups),
            )
            moved._by_device = self._by_device
            self._by_device[device] = moved
        return self._by_device[device]

    def with_spare(self, nodes: int, edges: int) -> Pack:
        """The same with one more graph to fill up batches with, all of whose values are zero:
        :meth:`bunn.batches.selection.Union.with_spare`."""
        union = self.union.with_spare(nodes, edges)
        nodes, edges = int(union.num_nodes[-1]), int(union.num_edges[-1])
        counts = ((self.nodes, nodes), (self.edges, edges), (self.graphs, 1))
        return self._with(
            union,
            *(
                {n: torch.cat((v, v.new_zeros(count, *v.shape[1:]))) for n, v in values.items()}
                for values, count in counts
            ),
        )

    def gather(self, members: Tensor) -> Data:
        """The block-diagonal graph of some, ``(k,)`` on the host."""
        return self.gathered(self.union.select(members))

    def gathered(self, chosen: Selection) -> Data:
        """The same of those that were chosen from the union."""
        edge_index = chosen.edge_index()
        known_edges(edge_index, chosen.laplacian)
        data = Data(edge_index=edge_index)
        for name, value in self.nodes.items():
            data[name] = value[chosen.nodes]
        for name, value in self.edges.items():
            data[name] = value[chosen.edges]
        for name, value in self.graphs.items():
            data[name] = value[chosen.graphs]
        data.batch, data.batch_size = chosen.batch, chosen.graphs.numel()
        return data


class PackedGraphs(GraphCollection):
    """Some of the graphs of a pack.

    Args:
        pack: The graphs.
        members: ``(k,)`` which.
    """

    def __init__(self, pack: Pack, members: Tensor) -> None:
        self.pack, self.members = pack, members.cpu()

    def __len__(self) -> int:
        return self.members.numel()

    def num_nodes(self) -> Tensor:
        """``(k,)`` of every graph, on the host."""
        return self.pack.union.num_nodes[self.members]

    def get(self, index: int) -> Data:
        data = self.pack.gather(self.members[index : index + 1])
        del data.batch, data.batch_size
        return data

    def collate(self, indices: Tensor) -> Data:
        check_indices(indices)
        return self.pack.gather(self.members[indices.cpu()])

    def to(self, device: torch.device | str) -> Self:
        return type(self)(self.pack.to(device), self.members)

    def on(self, pack: Pack) -> Self:
        """The same graphs of another pack."""
        return type(self)(pack, self.members)
