"""Cycles, holonomy, and the dense references, against networkx, numpy and scipy."""

import itertools
import math

import networkx as nx
import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st

from bunn.bundle import MAPS
from bunn.theory import graphs as g
from bunn.theory import reference
from bunn.theory.claims.flatness import fundamental_cycles
from bunn.theory.reference import holonomy
from bunn.theory.samples import matrices, samples

GRAPHS = [g.path(5), g.star(4), g.cycle(9), g.grid(2, 4), g.complete(6), g.random(13, seed=7)]
by_graph = pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
by_normalization = pytest.mark.parametrize("normalization", ["rw", "sym"])


def networkx_of(graph):
    found = nx.empty_graph(graph.num_nodes)
    found.add_edges_from(graph.edge_index.T.tolist())
    return found


def steps(cycle):
    """The edges of a cycle, the closing one included."""
    return list(itertools.pairwise([*cycle, cycle[0]]))


def check_cycles(graph):
    cycles = fundamental_cycles(graph)
    edges = {tuple(edge) for edge in graph.edge_index.T.tolist()}
    rank = len(edges) // 2 - graph.num_nodes + 1
    assert len(cycles) == rank == len(nx.cycle_basis(networkx_of(graph)))
    rows = np.zeros((len(cycles), graph.num_nodes, graph.num_nodes))
    for row, cycle in zip(rows, cycles, strict=True):
        assert len(set(cycle)) == len(cycle) >= 3
        for u, v in steps(cycle):
            assert (u, v) in edges
            row[u, v] += 1
            row[v, u] -= 1
    if cycles:  # and none is a sum of others
        assert np.linalg.matrix_rank(rows.reshape(rank, -1)) == rank


class TestCycles:
    @by_graph
    def test_basis_of_all_cycles(self, graph):
        check_cycles(graph)

    @given(n=st.integers(1, 14), seed=st.integers(0, 2**31), extra=st.integers(0, 20))
    def test_basis_on_random_graphs(self, n, seed, extra):
        check_cycles(g.random(n, seed, extra))

    @pytest.mark.parametrize("graph", [g.path(1), g.tree(3), g.star(6)], ids=lambda g: g.name)
    def test_trees_have_none(self, graph):
        assert fundamental_cycles(graph) == []


class TestHolonomy:
    def test_angles_add_up_around_a_triangle(self):
        """The transport of the edge ``(u, v)`` comes from ``v``; the way back is its inverse."""
        graph, angle = g.cycle(3), {(1, 0): 0.4, (2, 1): -1.1, (0, 2): 0.9}
        edges = graph.edge_index.T.tolist()
        turns = [angle[u, v] if (u, v) in angle else -angle[v, u] for u, v in edges]
        turns = torch.tensor(turns, dtype=torch.float64)
        entries = torch.stack((turns.cos(), -turns.sin(), turns.sin(), turns.cos()), dim=1)
        transport = entries.unflatten(1, (2, 2))
        around = holonomy(graph, transport, [0, 1, 2])
        found = math.atan2(float(around[1, 0]), float(around[0, 0]))
        assert found == pytest.approx(0.4 - 1.1 + 0.9)
        back = holonomy(graph, transport, [0, 2, 1])
        torch.testing.assert_close(back, around.mT)

    @given(seed=st.integers(0, 2**31), d=st.integers(1, 5), extra=st.integers(1, 12))
    def test_flat_bundles_have_none(self, seed, d, extra):
        graph = g.random(8, seed, extra)
        generator = torch.Generator().manual_seed(seed)
        maps, _ = torch.linalg.qr(torch.randn(8, d, d, dtype=torch.float64, generator=generator))
        transport = reference.flat_transport(graph, maps)
        for cycle in fundamental_cycles(graph):
            around = holonomy(graph, transport, cycle)
            torch.testing.assert_close(around, torch.eye(d, dtype=torch.float64))

    def test_another_start_is_a_change_of_frame(self):
        graph = g.grid(3, 3)
        transport = reference.twisted_transport(graph, seed=5, d=3)
        cycle = fundamental_cycles(graph)[0]
        around = holonomy(graph, transport, cycle)
        later = holonomy(graph, transport, [*cycle[1:], cycle[0]])
        assert float((around - torch.eye(3)).norm()) > 0.1
        torch.testing.assert_close(torch.trace(later), torch.trace(around))
        edges = graph.edge_index.T.tolist()
        step = transport[edges.index([cycle[1], cycle[0]])]
        torch.testing.assert_close(later, step @ around @ step.mT)


class TestReference:
    @by_graph
    def test_laplacians_of_networkx(self, graph):
        other = networkx_of(graph)
        sym = nx.normalized_laplacian_matrix(other, nodelist=range(graph.num_nodes)).toarray()
        plain = nx.laplacian_matrix(other, nodelist=range(graph.num_nodes)).toarray()
        rw = plain / plain.diagonal()[:, None]
        np.testing.assert_allclose(reference.laplacian(graph, "sym"), sym, atol=1e-15)
        np.testing.assert_allclose(reference.laplacian(graph), rw, atol=1e-15)

    @by_graph
    @by_normalization
    @pytest.mark.parametrize("time", [0.0, 0.3, 2.0, 40.0, 499.0, 501.0, 3000.0])
    def test_heat_kernel_of_scipy(self, graph, normalization, time):
        exact = scipy.linalg.expm(-time * reference.laplacian(graph, normalization).numpy())
        found = reference.heat_kernel(graph, time, normalization)
        np.testing.assert_allclose(found, exact, rtol=0, atol=1e-11)

    @by_graph
    def test_heat_kernel_at_infinity_is_the_limit(self, graph):
        late = scipy.linalg.expm(-2000.0 * reference.laplacian(graph).numpy())
        limit = reference.heat_kernel(graph, math.inf)
        np.testing.assert_allclose(limit, late, rtol=0, atol=1e-10)

    @pytest.mark.parametrize("graph", [g.path(5), g.star(4)], ids=lambda graph: graph.name)
    def test_symmetric_heat_kernel_at_infinity_is_the_limit(self, graph):
        late = scipy.linalg.expm(-2000.0 * reference.laplacian(graph, "sym").numpy())
        limit = reference.heat_kernel(graph, math.inf, "sym")
        np.testing.assert_allclose(limit, late, rtol=0, atol=1e-10)

    @pytest.mark.parametrize("time", [1e-3, 0.1])
    def test_small_entries_of_the_kernel_have_their_digits(self, time):
        """From the end of a path, to lowest order: ``H(t)_0v = e^-t t^v / (v! 2^(v-1))``."""
        found = reference.heat_kernel(g.path(16), time)[0, 1:]
        exact = [math.exp(-time) * time**v / math.factorial(v) / 2 ** (v - 1) for v in range(1, 16)]
        np.testing.assert_allclose(found, exact, rtol=time)

    @by_graph
    def test_spectrum_of_the_walk(self, graph):
        values = np.linalg.eigvals(reference.laplacian(graph).numpy())
        assert np.abs(values.imag).max() < 1e-7
        np.testing.assert_allclose(reference.spectrum(graph), np.sort(values.real), atol=1e-7)

    @by_graph
    @pytest.mark.parametrize("d", [1, 2, 3])
    def test_bundle_laplacian_sums_over_neighbours(self, graph, d):
        transport = reference.twisted_transport(graph, seed=3, d=d)
        x = np.random.default_rng(0).standard_normal((graph.num_nodes, d))
        expected = x.copy()
        for (u, v), matrix in zip(graph.edge_index.T.tolist(), transport.numpy(), strict=True):
            expected[u] -= matrix @ x[v] / float(graph.degree[u])
        found = reference.bundle_laplacian(graph, transport).numpy() @ x.ravel()
        np.testing.assert_allclose(found, expected.ravel(), atol=1e-14)

    @by_graph
    def test_twisted_transport_rotates_there_and_back(self, graph):
        transport = reference.twisted_transport(graph, seed=9, d=4)
        edges = [tuple(edge) for edge in graph.edge_index.T.tolist()]
        back = transport[[edges.index((v, u)) for u, v in edges]]
        identity = torch.eye(4, dtype=torch.float64).expand_as(transport)
        torch.testing.assert_close(back @ transport, identity)
        torch.testing.assert_close(transport.mT @ transport, identity)
        assert torch.allclose(torch.linalg.det(transport), torch.ones(1, dtype=torch.float64))

    def test_samples_are_of_every_family_and_dimension(self):
        found = list(samples(g.cycle(4), seed=2, dims=(2, 5)))
        families = sum(f.dims is None or d in f.dims for f in MAPS.values() for d in (2, 5))
        assert len(found) == families
        assert {sample.size for sample in found} == {4, 10}
        for sample in found:
            identity = torch.eye(sample.size, dtype=torch.float64).expand_as(sample.maps)
            torch.testing.assert_close(sample.maps.mT @ sample.maps, identity)
            torch.testing.assert_close(matrices(sample.bundle), sample.maps)

    def test_a_family_without_a_formula_is_an_error(self):
        with pytest.raises(ValueError, match="maps='new' has no formula here"):
            reference.orthogonal_map("new", torch.zeros(1), 2, first_half=True)

    def test_relative_error(self):
        expected = torch.tensor([2.0, -4.0], dtype=torch.float64)
        zeros = torch.zeros_like(expected)
        assert reference.relative(expected + torch.tensor([0.0, 1.0]), expected) == 0.25
        assert reference.relative(zeros, zeros) == 0.0
        assert reference.relative(zeros + 1, zeros) > 1e300
