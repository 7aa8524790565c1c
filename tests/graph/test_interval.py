"""Where the eigenvalues of ``S`` are said to lie, and where they lie."""

import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bunn import Laplacian
from bunn.graph.interval import find_interval
from tests.graphs import ZOO, edges_of, graphs


def eigenvalues(lap: Laplacian) -> torch.Tensor:
    """Those of ``S``, but for one to a component."""
    values, _ = lap.to(torch.float64).spectrum()
    return 1 - values[lap.num_components :]


@given(graph=graphs(), normalization=st.sampled_from(["rw", "sym"]))
def test_all_eigenvalues_of_any_graph_are_between_the_ends(graph, normalization):
    lap = Laplacian(*graph, normalization=normalization)
    low, high = find_interval(lap)
    others = eigenvalues(lap)
    assert -1 <= low <= high <= 1
    if others.numel():
        assert low <= float(others.min()) + 1e-12
        assert float(others.max()) <= high + 1e-12


@pytest.mark.parametrize("name", ZOO)
def test_the_ends_are_close(name):
    edge_index, *weight, n = ZOO[name]()
    lap = Laplacian(edge_index, *weight, num_nodes=n)
    low, high = find_interval(lap)
    others = eigenvalues(lap)
    if others.numel():
        assert low >= min(float(others.min()), 0) - 0.02
        assert high <= max(float(others.max()), 0) + 0.02


@pytest.mark.parametrize("length", [2, 30])
def test_few_nodes_among_many_are_not_overlooked(length):
    """A path that hangs on a graph that mixes fast has eigenvalues of its own, far from others."""
    crowd = nx.random_regular_graph(12, 4000, seed=0)
    nx.add_path(crowd, [0, *range(4000, 4000 + length)])
    edge_index, n = edges_of(crowd)
    lap = Laplacian(edge_index, num_nodes=n)
    low, high = find_interval(lap)
    rest = 1 - lap.to(torch.float64).spectrum(2)[0][1]
    assert high >= float(rest) - 1e-9
    assert high - float(rest) <= 0.02
    assert low <= -float(rest) + 0.05
    if length == 2:  # of which a pair of nodes alone would have plus and minus one
        assert -0.99 < low < -0.6


def test_it_is_found_once_and_moves_along(monkeypatch):
    edge_index, n = edges_of(nx.random_regular_graph(8, 500, seed=0))
    lap = Laplacian(edge_index, num_nodes=n)
    found = lap.eigenpairs.between(lap)
    monkeypatch.setattr("bunn.graph.spectrum.find_interval", None)
    assert lap.eigenpairs.between(lap) is found
    assert lap.to(torch.float64).eigenpairs.interval == found
