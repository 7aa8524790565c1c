"""Polynomials for the spectrum that a graph has."""

import math

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.polynomial.chebyshev import chebder, chebval
from torch.utils.checkpoint import checkpoint

from bunn import Laplacian, diffuse
from bunn.diffusion import Options, Time, chebyshev_degree, solve
from bunn.diffusion.auto import PATIENCE, cheapest, costs_of, decide
from bunn.diffusion.minimax import HIGHEST_DEGREE, minimax
from bunn.graph.interval import Interval
from bunn.keeping import lasting
from tests.graphs import edges_of, graphs, relative_error


def between(low: float, high: float, count: int = 5000) -> np.ndarray:
    """Numbers that are close everywhere, closest at the ends."""
    return (low + high) / 2 + (high - low) / 2 * np.cos(np.linspace(0, np.pi, count))


def mixing(n: int = 6000, seed: int = 0) -> Laplacian:
    """A graph whose eigenvalues are small, too large for a dense product."""
    edge_index, n = edges_of(nx.random_regular_graph(8, n, seed=seed))
    return Laplacian(edge_index, num_nodes=n)


@given(
    time=st.floats(1e-2, 200.0),
    tol=st.sampled_from([1e-2, 5e-4, 1e-5, 1e-7]),
    low=st.floats(-1.0, 0.2),
    width=st.floats(0.0, 1.0),
)
def test_it_is_heat_to_tol_at_one_and_between_the_ends(time, tol, low, width):
    high = low + width * (1 - low)
    found = minimax(time, tol, low, high)
    if found is None:
        return
    assert len(found) - 1 < chebyshev_degree(time, tol)
    inside = np.append(between(low, high), 1.0)
    error = np.abs(chebval(inside, found) - np.exp(-time * (1 - inside))).max()
    assert error <= tol
    assert min(found) >= 0
    assert np.abs(chebval(between(-1, 1), found)).max() <= 1 + tol
    assert chebval(1.0, chebder(found)) <= time * (1 + 1e-6) + 1e-6


@pytest.mark.parametrize("time", [1.0, 10.0])
@pytest.mark.parametrize("tol", [1e-5, 5e-4])
def test_no_lower_degree_would_do(time, tol):
    """De la Vallée Poussin: where the error alternates over K + 2 points, no polynomial of degree K
    has a smaller one than the least of them."""
    low, high = -0.6, 0.6
    found = minimax(time, tol, low, high)
    below = chebyshev_degree(time, tol) - 1 if found is None else len(found) - 2
    nodes = between(low, high, below + 1)
    points = np.append(np.sort(nodes), 1.0)  # K + 2 of them
    # The best polynomial on so few points, by the equations that make its error alternate.
    signs = (-1.0) ** np.arange(below + 2)
    matrix = np.column_stack((np.vander(points, below + 1), signs))
    *_, level = np.linalg.solve(matrix, np.exp(-time * (1 - points)))
    assert abs(level) > tol / 4  # these points are not the worst


def test_little_is_saved_where_nothing_is_known():
    """A sum that is cut off is nearly the best polynomial."""
    assert all(minimax(time, 1e-5, -1.0, 1.0) is None for time in (1.0, 3.0, 10.0))
    assert len(minimax(60.0, 1e-5, -1.0, 1.0)) == chebyshev_degree(60.0, 1e-5)


def test_large_degrees_are_left_alone():
    time = 400.0
    assert chebyshev_degree(time, 1e-5) > HIGHEST_DEGREE
    assert minimax(time, 1e-5, -0.5, 0.9) is None


def test_a_narrower_interval_takes_no_more_products():
    taken = [len(minimax(10.0, 1e-5, -end, end)) for end in (0.9, 0.7, 0.5, 0.3, 0.1)]
    assert taken == sorted(taken, reverse=True)
    assert taken[-1] <= 6


@given(
    graph=graphs(),
    normalization=st.sampled_from(["rw", "sym"]),
    time=st.floats(0.1, 100.0),
    tol=st.sampled_from([1e-3, 1e-5]),
)
def test_heat_by_it_on_any_graph(graph, normalization, time, tol):
    lap = Laplacian(*graph, normalization=normalization)
    x = torch.randn(lap.num_nodes, 3)
    x[:, 0] = 1
    options = Options(tol, interval=lap.eigenpairs.between(lap))
    y = solve(x, lap, Time.of(time, x.shape[1:]), "chebyshev", options)
    exact = diffuse(x.double(), lap, time, method="spectral", tol=1e-14)
    assert relative_error(y, exact, x, lap) <= tol


def test_auto_takes_it_where_calls_will_be_repeated():
    lap = mixing()
    x = torch.randn(lap.num_nodes, 4)
    x[:, 0] = 1
    for time in (1.0, 5.0):
        plain = diffuse(x, lap, time, method="chebyshev")
        exact = diffuse(x.double(), lap, time, tol=1e-12)
        if time == 1.0:  # however often it is asked
            assert all(diffuse(x, lap, time).equal(plain) for _ in range(2 * PATIENCE))
        with lasting():
            often = diffuse(x, lap, time)
        assert not often.equal(plain)
        assert relative_error(often, exact, x, lap) <= 1e-5
        assert diffuse(x, lap, time).equal(often)  # what was said stays true


def loss_of(x: torch.Tensor, lap: Laplacian, time: float) -> torch.Tensor:
    return diffuse(x * x, lap, time).square().sum()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("time", [3.0, 60.0])
def test_what_is_computed_again_is_what_was_computed(time, reentrant):
    """By checkpoints, forward within the context and backward outside of it, or both within."""
    x = torch.randn(6000, 4, requires_grad=True)
    grads = []
    for inside in (False, True):
        lap = mixing()
        with lasting():
            loss = checkpoint(loss_of, x, lap, time, use_reentrant=reentrant)
            if inside:
                grads += torch.autograd.grad(loss, x) if not reentrant else [_backward(loss, x)]
        if not inside:
            grads += torch.autograd.grad(loss, x) if not reentrant else [_backward(loss, x)]
    torch.testing.assert_close(*grads, rtol=0, atol=0)


def _backward(loss: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    x.grad = None
    loss.backward()
    return x.grad


def test_auto_takes_the_limit_once_all_other_heat_has_gone():
    graph = nx.disjoint_union(nx.random_regular_graph(8, 6000, seed=0), nx.path_graph(3))
    edge_index, n = edges_of(graph)
    lap = Laplacian(edge_index, num_nodes=n)
    x = torch.randn(n, 2)
    exact = diffuse(x.double(), lap, 60.0, tol=1e-12)
    with lasting():
        found = diffuse(x, lap, 60.0)
        assert not diffuse(x, lap, 20.0).equal(found)
    assert found.equal(diffuse(x, lap, math.inf))
    assert relative_error(found, exact, x, lap) <= 1e-5


def test_auto_takes_the_limit_instead_of_a_dense_product():
    edge_index, n = edges_of(nx.random_regular_graph(8, 300, seed=0))
    lap = Laplacian(edge_index, num_nodes=n)
    x = torch.randn(n, 2)
    assert cheapest(costs_of(x, lap, Time(60.0, 60.0, 60.0), Options(1e-5))) == "dense"
    with lasting():
        assert diffuse(x, lap, 60.0).equal(diffuse(x, lap, math.inf))
    assert not lap.kernels


def test_a_dense_product_stays_where_it_costs_less(monkeypatch):
    """On a GPU, on a batch of small graphs that are multiplied where they lie."""
    for on in ("on_tensor_cores", "in_place"):
        monkeypatch.setattr(f"bunn.diffusion.auto.{on}", lambda lap: True)
    small = [nx.complete_graph(n) for n in range(20, 40)]
    edge_index, n = edges_of(nx.disjoint_union_all(small * 10))
    lap = Laplacian(edge_index, num_nodes=n)
    large_edges, m = edges_of(nx.random_regular_graph(8, 3000, seed=0))
    large = Laplacian(large_edges, num_nodes=m)
    time = Time(60.0, 60.0, 60.0)
    with lasting():
        for rows, graph, method in ((n, lap, "dense"), (m, large, "limit")):
            x = torch.zeros(rows, 512, dtype=torch.bfloat16)
            options = Options(1e-5).for_precision(x.dtype)
            assert decide(x, graph, time, options)[0] == method


def test_nothing_is_looked_for_where_it_would_not_serve(monkeypatch):
    monkeypatch.setattr("bunn.graph.spectrum.find_interval", None)
    lap = mixing()
    x = torch.randn(lap.num_nodes, 2)
    learned = torch.tensor([1.0, 2.0], requires_grad=True)
    with lasting():
        diffuse(x, lap, learned)
        diffuse(x, lap, torch.tensor([1.0, 2.0]))
        diffuse(x, lap, 1.0, method="chebyshev")
        diffuse(x, lap, 1e-7)  # one product
        diffuse(x.double(), lap, 1.0)


@pytest.mark.parametrize("normalization", ["rw", "sym"])
def test_gradients_are_those_of_the_adjoint(normalization):
    edge_index, n = edges_of(nx.random_regular_graph(8, 6000, seed=1))
    lap = Laplacian(edge_index, num_nodes=n, normalization=normalization)
    x, g = torch.randn(n, 3, requires_grad=True), torch.randn(n, 3)
    with lasting():
        y = diffuse(x, lap, 3.0)
        (grad,) = torch.autograd.grad(y, x, g)
        tangent = torch.func.jvp(lambda x: diffuse(x, lap, 3.0), (x,), (g,))[1]
        hidden = torch.func.vmap(lambda x: diffuse(x, lap, 3.0), in_dims=1, out_dims=1)(x)
    assert not y.equal(diffuse(x, lap, 3.0, method="chebyshev"))
    torch.testing.assert_close((g * y).sum(), (grad * x).sum(), rtol=1e-4, atol=1e-3)
    exact = diffuse(g.double(), lap, 3.0)
    assert relative_error(tangent, exact, g, lap) <= 1e-5
    torch.testing.assert_close(hidden, y, rtol=1e-4, atol=1e-5)


def test_an_interval_that_is_wrong_does_little_harm():
    """By an eigenvalue that had been overlooked; the polynomial stays below one."""
    edge_index, n = edges_of(nx.cycle_graph(50))  # with eigenvalues all over
    lap = Laplacian(edge_index, num_nodes=n)
    x = torch.randn(n, 4)
    options = Options(1e-5, interval=Interval(-0.3, 0.3))
    y = solve(x, lap, Time.of(3.0, x.shape[1:]), "chebyshev", options)
    assert float(y.norm()) <= (1 + 1e-4) * float(x.norm())


def test_any_error_is_allowed():
    lap = mixing()
    x = torch.randn(lap.num_nodes, 2)
    with lasting():
        diffuse(x, lap, 1.0)
        assert diffuse(x, lap, 1.0, tol=math.inf).isfinite().all()
