"""Who attends to whom in a sparse transformer: edges, an expander, and virtual nodes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bunn.baselines.attention import AttentionEdges
from bunn.baselines.padding import numbered
from bunn.graph.spans import starts


class Interactions(NamedTuple):
    """The pairs that attend, among ``n`` nodes and, after them, the virtual nodes of all graphs.

    Args:
        edges: All pairs.
        feature: ``(m,)`` what is known of a pair: edge ``i`` of the graph is ``i``, and pairs of
            the kind ``j`` are ``e + j``, where kinds are as :func:`num_kinds` counts them.
        virtual: ``(num_graphs * num_virtual,)`` which of the virtual nodes of its graph each is.
    """

    edges: AttentionEdges
    feature: Tensor
    virtual: Tensor

    @classmethod
    def of(
        cls, edge_index: Tensor, batch: Tensor, expander_degree: int, num_virtual: int
    ) -> Interactions:
        """Those of graphs, with an expander and virtual nodes for each of them.

        Args:
            edge_index: ``(2, e)`` edges.
            batch: ``(n,)`` the graph of every node.
            expander_degree: The degree of :func:`expander`.
            num_virtual: Virtual nodes of a graph, all of which attend to all of its nodes, and its
                nodes to them.
        """
        nodes = torch.arange(batch.numel(), device=batch.device)
        num_graphs = int(batch.max()) + 1
        pairs = [edge_index]
        if expander_degree:
            pairs.append(expander(batch, expander_degree))
        for j in range(num_virtual):
            node = batch.numel() + batch * num_virtual + j
            pairs += [torch.stack((nodes, node)), torch.stack((node, nodes))]
        e, sizes = edge_index.size(1), [part.size(1) for part in pairs[1:]]
        feature = [torch.arange(e, device=batch.device)]
        feature += [nodes.new_full((size,), e + kind) for kind, size in enumerate(sizes)]
        joined = torch.cat(pairs, dim=1)
        order = joined[1].sort(stable=True).indices  # as AttentionEdges has them
        total = batch.numel() + num_graphs * num_virtual
        return cls(
            AttentionEdges.of(joined[:, order], total, self_loops=False),
            torch.cat(feature)[order],
            torch.arange(num_virtual, device=batch.device).repeat(num_graphs),
        )


def num_kinds(expander_degree: int, num_virtual: int) -> int:
    """The kinds of pairs that are no edges: of the expander, and to and from each virtual node."""
    return (expander_degree > 0) + 2 * num_virtual


def expander(batch: Tensor, degree: int) -> Tensor:
    """Edges ``(2, degree * n)`` of a random regular graph on the nodes of each graph: a union of
    ``degree / 2`` Hamiltonian cycles, in both directions, which is an expander almost surely.

    The cycles depend on the size of a graph alone, not on what else is in the batch. A graph of one
    node has none; one of two or three nodes repeats its edges.

    Args:
        batch: ``(n,)`` the graph of every node.
        degree: An even number.
    """
    position, count = numbered(batch)
    size = count[batch]
    edges = []
    for cycle in range(degree // 2):
        # Distinct in a graph, because the hash is one to one.
        key = _hash(position + _hash(_hash(size) + cycle))
        node = ((batch << 32) + key).sort().indices  # graph by graph, each in random order
        first = starts(count)[batch[node]]
        turn = (torch.arange(node.numel(), device=batch.device) - first + 1) % size[node]
        edges.append(torch.stack((node, node[first + turn])))
    one_way = torch.cat(edges, dim=1)
    one_way = one_way[:, one_way[0] != one_way[1]]
    return torch.cat((one_way, one_way.flip(0)), dim=1)


def _hash(number: Tensor) -> Tensor:
    """A number of 32 bits for another, one to one: by shifts and products with an odd factor, which
    64 bits have room for."""
    mask = (1 << 32) - 1
    number = number & mask
    for _ in range(2):
        number = ((number ^ (number >> 16)) * 0x45D9F3B) & mask
    return number ^ (number >> 16)
