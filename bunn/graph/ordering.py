"""An order of the nodes in which those that lie next to each other are close in the graph.

Pairs of nodes are merged, then pairs of pairs, and so on, as in the coarsening of graphs that are
to be partitioned, until nobody has neighbours. What is merged early lies close together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array

Array = npt.NDArray[Any]

#: Rounds in which those that found nobody look again.
ROUNDS = 6


def close_together(crow: Array, col: Array) -> Array:
    """The nodes of a graph, pairs, pairs of pairs and so on next to each other.

    Args:
        crow: ``(n + 1,)`` row pointers of a symmetric pattern.
        col: ``(nnz,)`` column indices.
    """
    n = len(crow) - 1
    row = np.repeat(np.arange(n), np.diff(crow))
    graph = coo_array((np.ones(len(col)), (row, col)), shape=(n, n))
    member, keys = np.arange(n), [np.zeros(n, dtype=np.int64)]
    while (graph.row != graph.col).any():
        merged = _merged_pairs(graph, np.bincount(member, minlength=graph.shape[0]))
        member = merged[member]
        keys.append(member)
        graph = _contracted(graph, merged)
    return np.lexsort(keys)


def _merged_pairs(graph: coo_array, sizes: Array) -> Array:
    """The number of every node once pairs are one.

    A node wishes for the one to which its edges weigh most for its size; pairs wish for each other.
    Those who are left, as around a hub, are paired with others who wish for the same.
    """
    n = graph.shape[0]
    proper = graph.row != graph.col
    row, col = graph.row[proper].astype(np.int64), graph.col[proper].astype(np.int64)
    score = graph.data[proper] / (sizes[row] * sizes[col])
    score *= 1 + 1e-3 * _noise(np.minimum(row, col), np.maximum(row, col))
    best_first = np.lexsort((-score, row))
    row, col = row[best_first], col[best_first]
    dearest, partner = _wishes(row, col, n), np.full(n, -1)
    for _ in range(ROUNDS):
        free = (partner[row] < 0) & (partner[col] < 0)
        row, col = row[free], col[free]
        wish = _wishes(row, col, n)
        pairs = np.flatnonzero((wish >= 0) & (wish[wish] == np.arange(n)))
        partner[pairs] = wish[pairs]
    left = np.flatnonzero((partner < 0) & (dearest >= 0))
    left = left[np.argsort(dearest[left], kind="stable")]
    group = np.flatnonzero(np.diff(dearest[left], prepend=-1))
    place = np.arange(len(left)) - np.repeat(group, np.diff(group, append=len(left)))
    second = np.flatnonzero(place % 2 == 1)
    partner[left[second]], partner[left[second - 1]] = left[second - 1], left[second]
    nodes = np.arange(n)
    head = np.where(partner < 0, nodes, np.minimum(nodes, partner))
    return np.unique(head, return_inverse=True)[1]


def _wishes(row: Array, col: Array, n: int) -> Array:
    """The first that every node has in a list of pairs, -1 for none."""
    first, wish = np.flatnonzero(np.diff(row, prepend=-1)), np.full(n, -1)
    wish[row[first]] = col[first]
    return wish


def _noise(low: Array, high: Array) -> Array:
    """A number from 0 to 1 for a pair of nodes, by which ties are broken from both ends alike."""
    bits = (low.astype(np.uint64) << np.uint64(32)) + high.astype(np.uint64)
    return (bits * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)) / 2.0**32


def _contracted(graph: coo_array, merged: Array) -> coo_array:
    """The graph of what was merged; the weights of edges are added up."""
    count = int(merged.max()) + 1
    ends = (merged[graph.row], merged[graph.col])
    return coo_array((graph.data, ends), shape=(count, count)).tocsr().tocoo()
