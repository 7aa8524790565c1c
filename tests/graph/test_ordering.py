"""An order in which nodes that are close in the graph lie next to each other."""

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bunn import Laplacian
from bunn.diffusion.patchwise import order
from bunn.graph import ordering
from bunn.graph.ordering import close_together
from tests.graphs import edges_of


def order_of(graph: nx.Graph) -> list[int]:
    edge_index, n = edges_of(graph)
    lap = Laplacian(edge_index, num_nodes=n)
    assert order(lap) is order(lap)
    return order(lap).tolist()


@given(n=st.integers(1, 60), p=st.floats(0, 1), seed=st.integers(0, 100))
def test_every_node_once(n, p, seed):
    assert sorted(order_of(nx.gnp_random_graph(n, p, seed=seed))) == list(range(n))


def test_nothing_to_order():
    assert len(close_together(np.zeros(1, dtype=int), np.zeros(0, dtype=int))) == 0


def test_leaves_of_a_hub_are_merged_two_by_two(monkeypatch):
    """And not one after the other with the hub, level by level."""
    levels = []
    real = ordering._contracted
    spy = lambda *args: levels.append(args) or real(*args)  # noqa: E731
    monkeypatch.setattr(ordering, "_contracted", spy)
    assert sorted(order_of(nx.star_graph(3000))) == list(range(3001))
    assert len(levels) <= 14


@pytest.mark.parametrize("shape", ["path", "grid", "grid and star", "communities"])
def test_blocks_have_few_neighbours(shape):
    """Whatever the numbers of the nodes: compared with blocks of nodes at random."""
    graph = {
        "path": lambda: nx.path_graph(800),
        "grid": lambda: nx.grid_2d_graph(30, 30),
        "grid and star": lambda: nx.disjoint_union(nx.grid_2d_graph(30, 30), nx.star_graph(900)),
        "communities": lambda: nx.planted_partition_graph(20, 40, 0.3, 0.001, seed=0),
    }[shape]()
    edge_index, n = edges_of(graph)
    edge_index = torch.randperm(n)[edge_index]
    row, col = edge_index

    def reached(nodes: Tensor) -> float:
        """Nodes in a block or next to it, over those in it."""
        block = torch.empty(n, dtype=torch.long)
        block[nodes] = torch.arange(n) // 64
        own = torch.stack((block, torch.arange(n)))
        return torch.cat((own, torch.stack((block[row], col))), 1).unique(dim=1).size(1) / n

    near = reached(order(Laplacian(edge_index, num_nodes=n)))
    most = {"path": 1.3, "grid": 1.8, "grid and star": 2.0, "communities": 2.8}[shape]
    assert near <= most < reached(torch.arange(n))
