"""Graphs the tests share: a zoo of named ones, and a hypothesis strategy for random ones."""

from __future__ import annotations

import functools
import math

import networkx as nx
import numpy as np
import scipy.linalg
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.utils import from_networkx

from bunn import Laplacian

TIMES = (0.0, 1e-3, 1.0, 10.0, 100.0, 1e3, 1e4, math.inf)


def edges_of(graph: nx.Graph) -> tuple[Tensor, int]:
    """``edge_index`` (both directions) and the number of nodes."""
    graph = nx.convert_node_labels_to_integers(graph)
    return from_networkx(graph).edge_index.long().reshape(2, -1), graph.number_of_nodes()


def _weighted_random() -> tuple[Tensor, Tensor, int]:
    edge_index, n = edges_of(nx.gnp_random_graph(40, 0.1, seed=3))
    generator = torch.Generator().manual_seed(0)
    weight = torch.rand(n, n, generator=generator, dtype=torch.float64) * 5
    weight = weight + weight.T
    return edge_index, weight[edge_index[0], edge_index[1]], n


def _disconnected() -> nx.Graph:
    parts = [nx.path_graph(7), nx.complete_graph(4), nx.cycle_graph(7), nx.empty_graph(3)]
    return nx.disjoint_union_all(parts)


ZOO = {
    "path": lambda: edges_of(nx.path_graph(300)),
    "grid": lambda: edges_of(nx.grid_2d_graph(8, 9)),
    "star": lambda: edges_of(nx.star_graph(20)),
    "complete": lambda: edges_of(nx.complete_graph(12)),
    "bipartite": lambda: edges_of(nx.complete_bipartite_graph(5, 8)),
    "barbell": lambda: edges_of(nx.barbell_graph(10, 0)),
    "disconnected": lambda: edges_of(_disconnected()),
    "weighted": _weighted_random,
    "single": lambda: (torch.zeros(2, 0, dtype=torch.long), 1),
}


@functools.cache
def zoo_laplacian(name: str, normalization: str) -> Laplacian:
    edge_index, *weight, n = ZOO[name]()
    lap = Laplacian(edge_index, *weight, num_nodes=n, normalization=normalization)
    return lap.to(torch.float64)


@functools.cache
def zoo_kernel(name: str, normalization: str, time: float) -> Tensor:
    """The heat kernel from scipy, independent of everything in the package but ``L`` itself."""
    lap = zoo_laplacian(name, normalization)
    matrix, root = lap.dense().numpy(), lap.degree.sqrt().numpy()
    symmetric = matrix if normalization == "sym" else root[:, None] * matrix / root
    symmetric = (symmetric + symmetric.T) / 2
    if math.isinf(time):
        values, vectors = np.linalg.eigh(symmetric)
        null = vectors[:, values < 1e-9]
        kernel = null @ null.T
    else:
        kernel = scipy.linalg.expm(-time * symmetric)
    if normalization == "rw":
        kernel = kernel / root[:, None] * root
    return torch.from_numpy(kernel)


def relative_error(y: Tensor, reference: Tensor, x: Tensor, lap: Laplacian) -> float:
    """The error that ``tol`` bounds: relative, in the norm in which ``L`` is symmetric."""
    root = lap.degree.sqrt() if lap.normalization == "rw" else torch.ones_like(lap.degree)
    root = root.view(-1, *[1] * (x.dim() - 1)).double()
    return float((root * (y - reference).double()).norm() / (root * x.double()).norm())


@st.composite
def graphs(draw: st.DrawFn, max_nodes: int = 12) -> tuple[Tensor, Tensor | None, int]:
    """Any undirected graph: isolated nodes, self-loops, several components, weights or none."""
    n = draw(st.integers(1, max_nodes))
    pairs = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).map(sorted).map(tuple)
    edges = sorted(draw(st.sets(pairs, max_size=3 * n)))
    both = edges + [(v, u) for u, v in edges if u != v]
    edge_index = torch.tensor(both, dtype=torch.long).reshape(-1, 2).T
    if not draw(st.booleans()):
        return edge_index, None, n
    weights = draw(st.lists(st.floats(0.01, 100.0), min_size=len(edges), max_size=len(edges)))
    mirrored = [w for w, (u, v) in zip(weights, edges, strict=True) if u != v]
    return edge_index, torch.tensor(weights + mirrored, dtype=torch.float64), n
