"""The small connected graphs on which the claims are measured."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch_geometric.utils import to_undirected

from bunn.laplacian import Laplacian


class Graph(NamedTuple):
    """A named undirected graph.

    Args:
        name: What it is called in a report.
        edge_index: ``(2, e)`` both directions of every edge.
        num_nodes: The number of nodes ``n``.
    """

    name: str
    edge_index: Tensor
    num_nodes: int

    @property
    def adjacency(self) -> Tensor:
        """``A`` as a dense float64 ``(n, n)`` matrix, read off the edges alone."""
        matrix = torch.zeros(self.num_nodes, self.num_nodes, dtype=torch.float64)
        matrix[self.edge_index[0], self.edge_index[1]] = 1.0
        return matrix

    @property
    def connected(self) -> bool:
        """Whether there is a way between any two nodes."""
        return Laplacian(self.edge_index, num_nodes=self.num_nodes).num_components == 1

    @property
    def degree(self) -> Tensor:
        """``(n,)`` float64 degrees, counted on the edges alone."""
        return torch.bincount(self.edge_index[0], minlength=self.num_nodes).double()


def _graph(name: str, pairs: Iterable[tuple[int, int]], num_nodes: int) -> Graph:
    edges = torch.tensor(list(pairs), dtype=torch.long).reshape(-1, 2).T
    return Graph(name, to_undirected(edges, num_nodes=num_nodes), num_nodes)


def path(n: int) -> Graph:
    """``n`` nodes in a row: diameter ``n - 1``."""
    return _graph(f"path({n})", ((v, v + 1) for v in range(n - 1)), n)


def cycle(n: int) -> Graph:
    """``n`` nodes in a ring: regular, with one cycle."""
    return _graph(f"cycle({n})", ((v, (v + 1) % n) for v in range(n)), n)


def star(leaves: int) -> Graph:
    """Node 0 joined to all others: as irregular as a graph can be."""
    return _graph(f"star({leaves})", ((0, v) for v in range(1, leaves + 1)), leaves + 1)


def complete(n: int) -> Graph:
    """Every pair joined."""
    return _graph(f"complete({n})", ((u, v) for v in range(n) for u in range(v)), n)


def grid(rows: int, columns: int) -> Graph:
    """A rectangle of the square lattice."""
    across = (
        (r * columns + c, r * columns + c + 1) for r in range(rows) for c in range(columns - 1)
    )
    down = ((v, v + columns) for v in range((rows - 1) * columns))
    return _graph(f"grid({rows}, {columns})", [*across, *down], rows * columns)


def tree(depth: int) -> Graph:
    """The complete binary tree of ``2^(depth+1) - 1`` nodes; node 0 is its root."""
    n = 2 ** (depth + 1) - 1
    return _graph(f"tree({depth})", ((v, (v - 1) // 2) for v in range(1, n)), n)


def barbell(size: int) -> Graph:
    """Two complete graphs joined by one edge: the bottleneck of the paper's experiments."""
    halves = ((s + u, s + v) for s in (0, size) for v in range(size) for u in range(v))
    return _graph(f"barbell({size})", [*halves, (size - 1, size)], 2 * size)


def random(n: int, seed: int = 0, extra: int | None = None) -> Graph:
    """A random recursive tree and ``extra`` random edges (default: ``n``): connected, irregular."""
    generator = torch.Generator().manual_seed(seed)

    def draw(high: int) -> int:
        return int(torch.randint(high, (), generator=generator))

    pairs = [(v, draw(v)) for v in range(1, n)]
    for _ in range(n if extra is None else extra):
        u, v = draw(n), draw(n)
        if u != v:
            pairs.append((u, v))
    return _graph(f"random({n}, seed={seed})", pairs, n)
