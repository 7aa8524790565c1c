"""What the transforms read from a PyG object: its graph, cut along its components."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data

from bunn.laplacian import Laplacian

#: Components up to this size are handled by dense matrices, many at a time.
DENSE_SIZE = 512
#: Entries of the dense matrices that are handled at a time.
DENSE_ENTRIES = 2**24


class Graph(NamedTuple):
    """The graph of a :class:`torch_geometric.data.Data`, or of a batch of them.

    Args:
        edge_index: ``(2, e)`` both directions of every edge.
        edge_weight: ``(e,)``, or :obj:`None` where every weight is one.
        num_nodes: The number of nodes ``n``.
        dtype: The floating-point type of what is attached to the nodes: that of ``data.x``.
    """

    edge_index: Tensor
    edge_weight: Tensor | None
    num_nodes: int
    dtype: torch.dtype

    @classmethod
    def of(cls, data: Any) -> Graph:
        if not isinstance(data, Data):
            raise TypeError(
                f"data is a {type(data).__name__}; pass a torch_geometric.data.Data or Batch"
            )
        if data.edge_index is None:
            raise ValueError(
                "data.edge_index=None; the transform reads the graph from it: set it, or apply "
                "this transform before those that replace it"
            )
        x, dtype = data.get("x"), torch.get_default_dtype()
        if isinstance(x, Tensor) and x.is_floating_point():
            dtype = x.dtype
        return cls(data.edge_index, data.get("edge_weight"), data.num_nodes, dtype)

    @property
    def content(self) -> Mapping[str, Tensor | int | None]:
        """All that the graph is, for the key of a cache."""
        return {
            "edge_index": self.edge_index,
            "edge_weight": self.edge_weight,
            "num_nodes": self.num_nodes,
        }

    def laplacian(self) -> Laplacian:
        """Its Laplacian in float64 on the CPU, where everything about it is worked out."""
        weight = None if self.edge_weight is None else self.edge_weight.detach().cpu()
        lap = Laplacian(self.edge_index.cpu(), weight, self.num_nodes, normalization="sym")
        return lap.to(torch.float64)

    def attach(self, encoding: Tensor) -> Tensor:
        """An encoding on the device and in the precision of the data."""
        return encoding.to(self.edge_index.device, self.dtype)


def pieces(lap: Laplacian) -> Iterator[tuple[Tensor, Laplacian]]:
    """The graph cut along its components: small ones many at a time, large ones one by one.

    Args:
        lap: A Laplacian on the CPU.

    Yields:
        The nodes ``(m,)`` of a piece in ascending order, and the Laplacian of the piece.
    """
    sizes = torch.bincount(lap.components, minlength=lap.num_components)
    large = sizes > DENSE_SIZE
    piece = sizes.square().masked_fill(large, 0).cumsum(0) // DENSE_ENTRIES
    piece[large] = int(piece.max()) + 1 + torch.arange(int(large.sum()))
    if bool((piece == piece[0]).all()):
        yield torch.arange(lap.num_nodes), lap
        return
    of_node = piece[lap.components]
    row, col = lap.edge_index
    local = torch.empty_like(of_node)
    for label in piece.unique():
        nodes = (of_node == label).nonzero().squeeze(1)
        local[nodes] = torch.arange(nodes.numel())
        inside = of_node[row] == label
        edges = torch.stack((local[row[inside]], local[col[inside]]))
        yield (
            nodes,
            Laplacian(
                edges, lap.edge_weight[inside], nodes.numel(), normalization=lap.normalization
            ),
        )
