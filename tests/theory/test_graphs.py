"""The graphs of the claims, against networkx."""

import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bunn.theory import graphs as g

#: (ours, networkx's with the same labels)
NAMED = {
    "path": [(g.path(n), nx.path_graph(n)) for n in (1, 2, 13)],
    "cycle": [(g.cycle(n), nx.cycle_graph(n)) for n in (3, 4, 11)],
    "star": [(g.star(n), nx.star_graph(n)) for n in (1, 2, 9)],
    "complete": [(g.complete(n), nx.complete_graph(n)) for n in (1, 2, 7)],
    "grid": [
        (
            g.grid(rows, columns),
            nx.convert_node_labels_to_integers(nx.grid_2d_graph(rows, columns), ordering="sorted"),
        )
        for rows, columns in ((1, 1), (1, 5), (6, 1), (2, 7), (5, 4))
    ],
    "tree": [(g.tree(depth), nx.balanced_tree(2, depth)) for depth in (0, 1, 4)],
    "barbell": [(g.barbell(size), nx.barbell_graph(size, 0)) for size in (2, 3, 6)],
}


def as_networkx(graph: g.Graph) -> nx.Graph:
    found = nx.Graph()
    found.add_nodes_from(range(graph.num_nodes))
    found.add_edges_from(graph.edge_index.T.tolist())
    return found


def check_simple_and_connected(graph: g.Graph) -> None:
    pairs = [tuple(pair) for pair in graph.edge_index.T.tolist()]
    assert graph.edge_index.dtype == torch.long
    assert len(pairs) == len(set(pairs))
    assert all((v, u) in set(pairs) and u != v for u, v in pairs)
    assert nx.is_connected(as_networkx(graph))


@pytest.mark.parametrize("name", NAMED)
def test_edges_of_networkx(name):
    for graph, expected in NAMED[name]:
        check_simple_and_connected(graph)
        assert graph.num_nodes == expected.number_of_nodes()
        assert graph.edge_index.size(1) == 2 * expected.number_of_edges()
        assert as_networkx(graph).adj == expected.adj
        assert graph.name.startswith(f"{name}(")


@given(n=st.integers(1, 25), seed=st.integers(0, 2**31), extra=st.none() | st.integers(0, 40))
def test_random_graph_is_a_tree_and_some_edges(n, seed, extra):
    graph = g.random(n, seed, extra)
    check_simple_and_connected(graph)
    edges = graph.edge_index.size(1) // 2
    assert graph.num_nodes == n
    assert n - 1 <= edges <= n - 1 + (n if extra is None else extra)
    if extra == 0:
        assert nx.is_tree(as_networkx(graph))
    assert torch.equal(g.random(n, seed, extra).edge_index, graph.edge_index)


def test_seeds_differ():
    assert len({str(g.random(12, seed).edge_index.tolist()) for seed in range(8)}) == 8


@pytest.mark.parametrize("graph", [g.random(14, seed=5), g.star(6), g.path(1)], ids=str)
def test_adjacency_and_degree(graph):
    expected = nx.to_numpy_array(as_networkx(graph), nodelist=range(graph.num_nodes))
    assert torch.equal(graph.adjacency, torch.from_numpy(expected))
    assert torch.equal(graph.degree, graph.adjacency.sum(1))
