"""What only uniformization promises: entries exact relative to themselves, however small."""

import math

import mpmath
import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bunn import Laplacian, diffuse
from bunn.diffusion.uniformization import uniformization_degree
from tests.graphs import edges_of, graphs, zoo_laplacian


def kernel(lap: Laplacian, time: float, tol: float = 1e-300) -> torch.Tensor:
    identity = torch.eye(lap.num_nodes, dtype=torch.float64)
    return diffuse(identity, lap, time, method="uniformization", tol=tol)


@pytest.mark.parametrize("time", [1e-3, 1.0, 30.0])
def test_smallest_entries_have_all_digits(time):
    edge_index, n = edges_of(nx.lollipop_graph(4, 14))
    lap = Laplacian(edge_index, num_nodes=n).to(torch.float64)
    with mpmath.workdps(120):
        exact = mpmath.expm(-mpmath.mpf(time) * _laplacian(edge_index, n))
        found = kernel(lap, time)
        worst = max(
            abs(mpmath.mpf(float(found[v, u])) / exact[v, u] - 1)
            for v in range(n)
            for u in range(n)
        )
    assert worst <= 1e-13
    if time == 1e-3:  # where it matters: Chebyshev's error is relative to the largest entry
        assert float(found.min()) < 1e-50


def _laplacian(edge_index, n):
    """``I - D^-1 A`` in the working precision of mpmath: an entry 1/3 has all its digits."""
    degree = torch.bincount(edge_index[0], minlength=n).tolist()
    matrix = mpmath.eye(n)
    for u, v in edge_index.T.tolist():
        matrix[u, v] -= mpmath.mpf(1) / degree[u]
    return matrix


@given(graph=graphs(), time=st.floats(1e-6, 50.0))
def test_is_positive_exactly_where_a_walk_leads(graph, time):
    edge_index, weight, n = graph
    lap = Laplacian(edge_index, weight, n).to(torch.float64)
    found = kernel(lap, time)
    same = lap.components[:, None] == lap.components[None, :]
    assert bool((found >= 0).all())
    assert torch.equal(found > 0, same)
    torch.testing.assert_close(found.sum(1), torch.ones(n, dtype=torch.float64))


@given(time=st.floats(0.0, 3000.0), exponent=st.integers(-280, -1))
def test_degree_is_enough_and_not_much_more(time, exponent):
    tol = 10.0**exponent
    degree = uniformization_degree(time, tol)
    with mpmath.workdps(320):

        def tail(k: int) -> mpmath.mpf:
            if time == 0:
                return mpmath.mpf(0)
            return mpmath.gammainc(k + 1, 0, time, regularized=True)

        assert tail(degree) <= tol * (1 + 1e-9)
        shorter = degree - 2 - int(math.sqrt(time))
        if shorter >= time:
            assert tail(shorter) > tol


def test_error_at_a_node_is_relative_to_what_reaches_it():
    """Features of 1e30 far away do not spoil a node they barely reach."""
    lap = zoo_laplacian("path", "rw")
    x = torch.zeros(lap.num_nodes, 1, dtype=torch.float64)
    x[0], x[40] = 1.0, 1e30
    y = diffuse(x, lap, 1.0, method="uniformization", tol=1e-300)
    each = [
        diffuse(x * (x == value), lap, 1.0, method="uniformization", tol=1e-300)
        for value in (1.0, 1e30)
    ]
    torch.testing.assert_close(y, each[0] + each[1], rtol=1e-14, atol=0)
