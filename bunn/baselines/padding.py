"""The nodes of a batch as a table with a row for each graph."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bunn.baselines.propagation import gather, scatter_sum
from bunn.graph.spans import starts


class Padding(NamedTuple):
    """Where the nodes of a batch stand in a table that has a row for each graph.

    Args:
        place: ``(n,)`` the place of every node, counted row by row.
        filled: ``(graphs, nodes of the largest)`` which places may be attended to.
    """

    place: Tensor
    filled: Tensor

    @classmethod
    def of(cls, batch: Tensor) -> Padding:
        """That of nodes whose graphs are ``batch``, ``(n,)``, in any order."""
        position, count = numbered(batch)
        size = int(count.max())
        # The row of a graph without nodes attends to its padding: to nothing would be 0 / 0.
        filled = torch.arange(size, device=batch.device) < count.clamp(min=1).unsqueeze(1)
        return cls(position + batch * size, filled)

    def spread(self, x: Tensor) -> Tensor:
        """``(n, c)`` to ``(graphs, nodes of the largest, c)``, with zeros for padding."""
        rows = scatter_sum(x, self.place, self.filled.numel())
        return rows.view(*self.filled.shape, -1)

    def collect(self, table: Tensor) -> Tensor:
        """``(graphs, nodes of the largest, c)`` to ``(n, c)``."""
        return gather(table.flatten(0, 1), self.place)


def numbered(batch: Tensor) -> tuple[Tensor, Tensor]:
    """The position ``(n,)`` of every node in its graph, from zero, and the sizes of the graphs."""
    count, nodes = torch.bincount(batch), torch.arange(batch.numel(), device=batch.device)
    rank = torch.empty_like(nodes).index_copy_(0, batch.argsort(stable=True), nodes)
    return rank - starts(count)[batch], count
