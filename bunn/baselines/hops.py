"""Pairs of nodes by their distance in a graph."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bunn.baselines.propagation import gather, scatter_sum
from bunn.graph.spans import ranges, starts


class Hops(NamedTuple):
    r"""All pairs of nodes up to some distance, the close ones first, and the maps

    .. math::
        y_v = \sum_k \sum_{u : d(u, v) = k} \frac{z_{k, u}}{\sqrt{n_k(u) \, n_k(v)}}

    that they make, where :math:`n_k(u)` nodes are reached from :math:`u` in :math:`k` steps and no
    fewer, and :math:`v` is reached from :math:`n_k(v)`.

    Args:
        source: ``(m,)`` rows ``(k - 1) n + u``, of a node in a stack of features by distance.
        target: ``(m,)`` nodes ``v``.
        weight: ``(m,)`` the normalisation, in the precision that sums are formed in.
        within: How many of the pairs have distance 1, up to 2, up to 3, ...
    """

    source: Tensor
    target: Tensor
    weight: Tensor
    within: list[int]

    @classmethod
    def of(cls, edge_index: Tensor, num_nodes: int, farthest: int, dtype: torch.dtype) -> Hops:
        """Those of a graph up to the distance ``farthest``, with distances along the edges."""
        rows, targets, weights = [], [], []
        within: list[int] = []
        for k, (source, target) in enumerate(_by_distance(edge_index, num_nodes, farthest)):
            leaving = torch.bincount(source, minlength=num_nodes)[source]
            arriving = torch.bincount(target, minlength=num_nodes)[target]
            rows.append(source + k * num_nodes)
            targets.append(target)
            weights.append((leaving * arriving).to(dtype).rsqrt())
            within.append(target.numel() + (within[-1] if within else 0))
        return cls(torch.cat(rows), torch.cat(targets), torch.cat(weights), within)

    def sums(self, z: Tensor) -> Tensor:
        """``(k, n, c)`` features for the distances 1 to ``k``, to ``(n, c)``."""
        count = self.within[z.size(0) - 1]
        messages = gather(z.flatten(0, 1), self.source[:count])
        weighted = messages * self.weight[:count].unsqueeze(-1)
        return scatter_sum(weighted, self.target[:count], z.size(1)).to(z.dtype)


def _by_distance(edge_index: Tensor, num_nodes: int, farthest: int) -> list[tuple[Tensor, Tensor]]:
    """Sources and targets of the pairs at distance 1, 2, ..., ``farthest``.

    A breadth-first search from all nodes at once: a pair is a number, ``u n + v``, and those a step
    farther are the ones that an edge leads to and that were not there before.
    """
    head, tail = edge_index[:, edge_index[0].sort(stable=True).indices]
    degree = torch.bincount(head, minlength=num_nodes)
    first = starts(degree)
    nodes = torch.arange(num_nodes, device=edge_index.device)
    levels = [nodes * (num_nodes + 1)]  # every node, from itself
    # An edge that leads back as well changes distances by one: all it leads to is new or in the
    # last two levels.
    memory = 2 if _is_undirected(edge_index, num_nodes) else farthest
    for _ in range(farthest):
        start, here = levels[-1] // num_nodes, levels[-1] % num_nodes
        many = degree[here]
        edge, owner = ranges(first[here], many, int(many.sum()))
        found = (start[owner] * num_nodes + tail[edge]).unique()
        known = torch.cat(levels[-memory:])
        levels.append(found[~torch.isin(found, known, assume_unique=True)])
    return [(level // num_nodes, level % num_nodes) for level in levels[1:]]


def _is_undirected(edge_index: Tensor, num_nodes: int) -> bool:
    """Whether every edge is there in both directions."""
    source, target = edge_index
    there, back = source * num_nodes + target, target * num_nodes + source
    return torch.equal(there.unique(), back.unique())
