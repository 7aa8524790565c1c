"""Graphs cut into patches, each of which reaches one step beyond its border."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components
from torch import Tensor

from bunn.baselines.propagation import gather, scatter_sum
from bunn.graph.spans import ranges, starts


class Patches(NamedTuple):
    """The patches of all graphs of a batch.

    A node that is in several patches has a copy in each. All patches stand in one table with
    ``P`` places for each graph, the first of which are taken.

    Args:
        node: ``(m,)`` the node that each copy is of.
        place: ``(m,)`` the place of its patch, counted graph by graph.
        edge_index: ``(2, f)`` the edges within patches, between copies.
        edge: ``(f,)`` the edge of the graph that each of them is.
        overlap: ``(graphs, P, P)`` how many nodes two patches of a graph share.
        node_share: ``(n, 1)`` one over the number of copies of a node.
        patch_share: ``(graphs * P, 1)`` one over the number of nodes of a patch, zero for none.
    """

    node: Tensor
    place: Tensor
    edge_index: Tensor
    edge: Tensor
    overlap: Tensor
    node_share: Tensor
    patch_share: Tensor

    @classmethod
    def of(cls, edge_index: Tensor, batch: Tensor, patches: int, dtype: torch.dtype) -> Patches:
        """Those of graphs with up to ``patches`` of them.

        Args:
            edge_index: ``(2, e)`` edges.
            batch: ``(n,)`` the graph of every node.
            patches: How many patches a graph has, or as many as it has nodes where that is less.
            dtype: The precision of what is not an index.
        """
        n, num_graphs = batch.numel(), int(batch.max()) + 1
        own, (source, target) = partition(edge_index, batch, patches), edge_index
        nodes = torch.arange(n, device=batch.device)
        # Whoever has a neighbour in a patch is in it, too, whichever way the edge points.
        key = torch.cat((own * n + nodes, own[source] * n + target, own[target] * n + source))
        key = key.unique()
        place, node = key // n, key % n
        by_node, copies = node.argsort(stable=True), torch.bincount(node, minlength=n)
        first = starts(copies)

        def every_copy(of: Tensor) -> tuple[Tensor, Tensor]:
            """All copies of nodes ``of``, ``(k,)``, and for each of them, where the node stands."""
            times = copies[of]
            place, at = ranges(first[of], times, int(times.sum()))
            return by_node[place], at

        # An edge is in every patch of its target that has its source, too.
        end, edge = every_copy(target)
        wanted = place[end] * n + source[edge]
        start = torch.searchsorted(key, wanted).clamp(max=key.numel() - 1)
        there = key[start] == wanted
        within = torch.stack((start[there], end[there]))

        other, one = every_copy(node)
        pairs = place[one] * patches + place[other] % patches
        overlap = torch.bincount(pairs, minlength=num_graphs * patches**2)
        sizes = torch.bincount(place, minlength=num_graphs * patches).unsqueeze(1)
        return cls(
            node,
            place,
            within,
            edge[there],
            overlap.view(num_graphs, patches, patches).to(dtype),
            copies.unsqueeze(1).to(dtype).reciprocal(),
            torch.where(sizes > 0, sizes.clamp(min=1).to(dtype).reciprocal(), 0.0),
        )

    @property
    def filled(self) -> Tensor:
        """``(graphs, P)`` which places are taken."""
        return (self.patch_share > 0).view(self.overlap.shape[:2])

    def patch_mean(self, h: Tensor) -> Tensor:
        """``(m, c)`` features of copies to their means over patches, ``(graphs * P, c)``."""
        return scatter_sum(h, self.place, self.patch_share.size(0)) * self.patch_share

    def node_mean(self, h: Tensor) -> Tensor:
        """``(m, c)`` features of copies to their means over the copies of a node, ``(n, c)``."""
        return scatter_sum(h, self.node, self.node_share.size(0)) * self.node_share

    def of_patches(self, tokens: Tensor) -> Tensor:
        """``(graphs * P, c)`` features of patches to those of the copies in them, ``(m, c)``."""
        return gather(tokens, self.place)

    def return_probabilities(self, steps: int) -> Tensor:
        r""":math:`\big((D^{-1} A)^k\big)_{pp}` for :math:`k = 1, \dots,` ``steps``, with the
        overlap for :math:`A`: ``(graphs, P, steps)``."""
        wide = self.overlap.double()
        walk = wide / wide.sum(-1, keepdim=True).clamp(min=1)
        power, found = walk, []
        for _ in range(steps):
            found.append(power.diagonal(dim1=1, dim2=2))
            power = power @ walk
        return torch.stack(found, -1).to(self.overlap.dtype)


def partition(edge_index: Tensor, batch: Tensor, patches: int) -> Tensor:
    """Cuts every graph of a batch into pieces that are connected and about of one size.

    By recursive bisection of a spanning tree: a part that is to be cut into :math:`k` pieces loses
    the edge of its tree that best leaves whole pieces on both sides. All parts of all graphs are
    cut at a time. A graph that is not connected has a tree with edges between its components.

    Which tree it is, and which of two edges that are as good is cut, is decided by the numbers of
    nodes: a graph is cut in the same way in every batch, but may not be if its nodes are numbered
    in another way.

    Args:
        edge_index: ``(2, e)`` edges, taken to be undirected.
        batch: ``(n,)`` the graph of every node.
        patches: How many pieces a graph is cut into, at most one for each node.

    Returns:
        ``(n,)`` the piece of every node; those of graph ``g`` are ``g * patches`` and following.
    """
    n, (source, target), graph = batch.numel(), edge_index, batch.cpu().numpy()
    within = batch[source] == batch[target]
    pairs = torch.cat((source * n + target, target * n + source))[within.repeat(2)]
    parent = _spanning_tree(pairs.unique().cpu().numpy(), graph)
    part, pieces = graph * patches, np.minimum(np.bincount(graph), patches)[graph]
    while pieces.max() > 1:
        ancestors = [parent]  # one step up, two, four, ...
        while (ancestors[-1] < n).any():
            ancestors.append(ancestors[-1][ancestors[-1]])
        below = np.ones(n + 1, dtype=np.int64)
        for ancestor in ancestors:
            below += np.bincount(ancestor, below, n + 1).astype(np.int64)

        edges = np.flatnonzero((pieces > 1) & (parent[:n] < n))
        of, lost, size = pieces[edges], below[edges], np.bincount(part)[part[edges]]
        fewest, most = np.maximum(1, of - size + lost), np.minimum(of - 1, lost)
        ideal = of * lost / size
        fair = np.rint(ideal).astype(np.int64).clip(fewest, most)
        # What is off by part of a piece matters less the more pieces share it. The constant makes
        # halves of what fits about as well, which takes fewer rounds than piece after piece.
        cost = (np.abs(ideal - fair) + 0.25) / np.minimum(fair, of - fair)
        best = _first_least(cost, part[edges])
        cut, taken = edges[best], np.zeros(part.max() + 1, dtype=np.int64)
        taken[part[cut]] = fair[best]

        away = np.zeros(n + 1, dtype=bool)
        away[cut] = True
        for ancestor in ancestors:
            away |= away[ancestor]
        gone = taken[part]
        part = np.where(away[:n], part + pieces - gone, part)
        pieces = np.where(away[:n], gone, pieces - gone)
        parent[cut] = n
    return torch.from_numpy(part).to(batch.device)


def _spanning_tree(pairs: Any, graph: Any) -> Any:
    """The parent ``(n + 1,)`` of every node in a breadth-first tree of its graph; ``n`` is that of
    the roots, which are the first nodes of their graphs, and its own. Edges ``(u, v)`` are given as
    numbers ``u * n + v``, in order."""
    n = graph.size
    row, column = np.divmod(pairs, n)
    pointer = np.r_[0, np.bincount(row, minlength=n).cumsum()]
    matrix = csr_array((np.ones_like(column), column, pointer), shape=(n, n))
    roots = _first(connected_components(matrix, directed=False)[1])
    leads = np.r_[column, roots]  # from node n to a root of every component
    pointer = np.r_[pointer, leads.size]
    matrix = csr_array((np.ones_like(leads), leads, pointer), shape=(n + 1, n + 1))
    parent = breadth_first_order(matrix, n)[1].astype(np.int64)
    heads = _first(graph)
    parent[roots] = heads[graph[roots]]
    parent[heads[graph]] = parent[n] = n
    return parent


def _first(group: Any) -> Any:
    """The first member of every group, given the group of every member."""
    first = np.zeros(group.max() + 1, dtype=np.int64)
    first[group[::-1]] = np.arange(group.size)[::-1]
    return first


def _first_least(cost: Any, group: Any) -> Any:
    """The first of the members of least cost of every group that has members."""
    order = np.lexsort((cost, group))
    return order[np.r_[True, np.diff(group[order]) > 0]]
