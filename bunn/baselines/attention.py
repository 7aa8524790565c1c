r"""Attention along edges: scores of edges, their softmax at every target, weighted sums."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch_geometric.utils import add_self_loops, remove_self_loops, softmax

from bunn.baselines.averages import sum_dtype
from bunn.baselines.propagation import gather, neighbor_sum


class AttentionEdges(NamedTuple):
    """The edges of a graph, sorted by target.

    Args:
        edge_index: ``(2, e)`` edges.
        num_nodes: The number of nodes ``n``.
    """

    edge_index: Tensor
    num_nodes: int

    @classmethod
    def of(cls, edge_index: Tensor, num_nodes: int, self_loops: bool) -> AttentionEdges:
        """Those of a graph, with one loop at every node if ``self_loops``."""
        if self_loops:
            edge_index, _ = remove_self_loops(edge_index)
            edge_index, _ = add_self_loops(edge_index, num_nodes=num_nodes)
        order = torch.sort(edge_index[1], stable=True).indices
        return cls(edge_index[:, order].contiguous(), num_nodes)

    def products(self, query: Tensor, key: Tensor) -> Tensor:
        r""":math:`\langle q_v, k_u \rangle` for every edge :math:`u \to v` and every head:
        ``(n, h, k)`` twice to ``(e, h)``, in the precision of sums."""
        source, target = self.edge_index
        pairs = gather(query, target) * gather(key, source)
        return pairs.sum(-1, dtype=sum_dtype(pairs.dtype))

    def softmax(self, scores: Tensor) -> Tensor:
        """``(e, h)`` scores to coefficients that add up to one at every target."""
        scores = scores.to(sum_dtype(scores.dtype))
        out: Tensor = softmax(scores, self.edge_index[1], num_nodes=self.num_nodes)
        return out

    def weighted_sum(self, values: Tensor, weight: Tensor) -> Tensor:
        r""":math:`\sum_{u \to v} \alpha_{uv} x_u`: ``(n, h, k)`` values and ``(e, h)`` coefficients
        to ``(n, h, k)``, the sum formed in the precision of the latter."""
        return neighbor_sum(values, self.edge_index, weight).to(values.dtype)
