"""Neighbours of the model (Section 3): graph convolutions and sheaf networks as special cases."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch_geometric.nn import GCNConv
from torch_geometric.utils import add_self_loops

from bunn.laplacian import NORMALIZATIONS, Normalization
from bunn.nn import BuNNConv
from bunn.theory import graphs as g
from bunn.theory import reference
from bunn.theory.claim import Erratum, Evidence, at_least, at_most, claim, some_at_least
from bunn.theory.graphs import Graph
from bunn.theory.networks import FixedMaps, mixing
from bunn.theory.reference import relative
from bunn.theory.samples import samples

GRAPHS = (g.path(7), g.cycle(6), g.star(5), g.grid(3, 3), g.tree(2), g.random(9))


def _first_order(channels: int, graph: Graph, normalization: Normalization) -> BuNNConv:
    """The first-order Taylor polynomial at ``t = 1`` on the trivial bundle, ``W`` after it."""
    return BuNNConv(
        channels,
        channels,
        maps="rotation",
        phi=FixedMaps(torch.zeros(graph.num_nodes, 1, 1, dtype=torch.float64)),
        update="after",
        normalization=normalization,
        method="taylor",
        degree=1,
    ).double()


@claim("gcn", "Section 3", "a GCN is the first order of heat at t = 1 on the trivial bundle")
def gcn(graphs: Sequence[Graph] = GRAPHS, seed: int = 0) -> Iterator[Evidence]:
    """Against PyG's GCNConv, bias included."""
    exact, walks, printed = [], [], []
    for graph in graphs:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(graph.num_nodes, 4, dtype=torch.float64, generator=generator)
        convolution = GCNConv(4, 4).double()
        looped, _ = add_self_loops(graph.edge_index, num_nodes=graph.num_nodes)
        symmetric = _first_order(4, graph, "sym")
        walking = _first_order(4, graph, "rw")
        with torch.no_grad():
            convolution.bias.copy_(torch.randn(4, generator=generator))
            for layer in (symmetric, walking):
                mixing(layer).weight.copy_(convolution.lin.weight)
                mixing(layer).bias.copy_(convolution.bias)
            expected = convolution(x, graph.edge_index)
            exact.append(relative(symmetric(x, looped), expected))
            found = walking(x, graph.edge_index)
            printed.append(relative(found, expected))
            mean = (graph.adjacency / graph.degree[:, None]) @ x
            plain = mean @ convolution.lin.weight.T + convolution.bias
            walks.append(relative(found, plain))
    order = _first_order_error(g.cycle(6))
    yield at_most("with self-loops and the symmetric Laplacian, against GCNConv", exact, 1e-12)
    yield at_most("error of the first order on an even cycle against 1 + e⁻²", order, 1e-9)
    yield Erratum(
        name="The link to graph convolutional networks",
        printed="(I − L) H = A_G H recovers the GCN update, L the random-walk Laplacian",
        counterexample=(
            "I − L is D⁻¹A, the mean over neighbours: off from GCNConv by up to "
            f"{max(printed):.2g} of its size"
        ),
        corrected=(
            "for the symmetric Laplacian of the graph with self-loops, "
            "I − L = D̃^(-1/2) (A + I) D̃^(-1/2), and the layer is the GCN's to the last digit"
        ),
        refutation=some_at_least("relative error as printed", printed, 0.1),
        verification=(at_most("I − L against D⁻¹A", walks, 1e-12),),
    )


def _first_order_error(graph: Graph) -> float:
    """``|exp(-L) - (I - L)|`` in the operator norm, minus its largest value ``1 + e^-2``."""
    matrix = reference.laplacian(graph, "sym")
    identity = torch.eye(graph.num_nodes, dtype=torch.float64)
    error = torch.linalg.matrix_norm(reference.matrix_exp(-matrix) - (identity - matrix), 2)
    return abs(float(error) - (1 + math.exp(-2)))


def coboundary(graph: Graph, start: Tensor, end: Tensor) -> Tensor:
    """The coboundary ``(m*d, n*d)`` of a sheaf: ``(dx)_e = F_{u,e} x_u - F_{v,e} x_v``, ``u < v``.

    Args:
        graph: The graph, of ``m`` undirected edges.
        start: ``(m, d, d)`` the restriction maps at the smaller node of every edge.
        end: ``(m, d, d)`` those at the larger.
    """
    u, v = _undirected(graph)
    m, d = start.shape[:2]
    blocks = torch.zeros(m, graph.num_nodes, d, d, dtype=torch.float64)
    edges = torch.arange(m)
    blocks[edges, u] = start
    blocks[edges, v] = -end
    return blocks.transpose(1, 2).reshape(m * d, -1)


def _undirected(graph: Graph) -> Tensor:
    return graph.edge_index[:, graph.edge_index[0] < graph.edge_index[1]]


@claim("sheaf", "Section 3", "one Euler step on a flat bundle is a sheaf network's propagation")
def sheaf(graphs: Sequence[Graph] = GRAPHS, seed: int = 0) -> Iterator[Evidence]:
    """Sheaf Laplacians from their coboundary, with the restriction maps of a flat bundle."""
    steps, flat = [], []
    for graph in graphs:
        generator = torch.Generator().manual_seed(seed)
        u, v = _undirected(graph)
        for sample in samples(graph, seed, dims=(2, 3)):
            boundary = coboundary(graph, sample.maps[u], sample.maps[v])
            root = graph.degree.sqrt().repeat_interleave(sample.size)
            matrix = boundary.T @ boundary
            x = sample.field(generator)
            scaled = (matrix / root[:, None].square(), matrix / root[:, None] / root)
            for normalization, laplacian in zip(NORMALIZATIONS, scaled, strict=True):
                layer = sample.layer(
                    weight=False, bias=None, normalization=normalization, method="taylor", degree=1
                )
                with torch.no_grad():
                    found = layer(x, graph.edge_index)
                expected = (x.flatten() - laplacian @ x.flatten()).view_as(x)
                steps.append(relative(found, expected))
            flat.append(relative(scaled[0], sample.laplacian()))
    yield at_most("first-order layer against x − Δ_F x, every map", steps, 1e-12)
    yield at_most("sheaf Laplacian with F_v = O_v against the bundle Laplacian", flat, 1e-12)
    yield _degree_erratum(seed)


def _degree_erratum(seed: int) -> Erratum:
    """One edge with the restriction maps 2, then random sheaves."""
    pair = g.path(2)
    two = torch.full((1, 1, 1), 2.0, dtype=torch.float64)
    adjacency = torch.tensor([[0.0, 4.0], [4.0, 0.0]], dtype=torch.float64)
    printed = torch.linalg.eigvalsh(torch.eye(2, dtype=torch.float64) - adjacency)
    boundary = coboundary(pair, two, two)
    corrected = torch.linalg.eigvalsh(boundary.T @ boundary)
    graph = g.random(8, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    count = _undirected(graph).size(1)
    maps = torch.randn(2, count, 3, 3, dtype=torch.float64, generator=generator)
    boundary = coboundary(graph, *maps)
    assembled = _degree_minus_adjacency(graph, *maps)
    return Erratum(
        name="The degree matrix of a sheaf",
        printed="(D_F)_vv = d_v I for any cellular sheaf, L_F = D_F − A_F",
        counterexample=(
            "one edge with both restriction maps 2: D_F − A_F has the eigenvalue "
            f"{float(printed[0]):g}, so it is no Laplacian"
        ),
        corrected=(
            "(D_F)_vv = Σ_e F_(v,e)ᵀ F_(v,e), which is d_v I when the maps are orthogonal; then "
            f"L_F = δᵀδ, with eigenvalues {corrected[0]:g} and {corrected[1]:g} here"
        ),
        refutation=at_most("smallest eigenvalue as printed", float(printed[0]), -1.0),
        verification=(
            at_most(
                "D_F − A_F as corrected against δᵀδ, a random sheaf",
                relative(assembled, boundary.T @ boundary),
                1e-12,
            ),
            at_least("its smallest eigenvalue", torch.linalg.eigvalsh(assembled)[0], -1e-12),
        ),
    )


def _degree_minus_adjacency(graph: Graph, start: Tensor, end: Tensor) -> Tensor:
    """``D_F - A_F`` with ``(D_F)_vv`` the sum of ``F^T F`` over the edges at ``v``."""
    n, d = graph.num_nodes, start.size(-1)
    blocks = torch.zeros(n, n, d, d, dtype=torch.float64)
    for u, v, at_u, at_v in zip(*_undirected(graph).tolist(), start, end, strict=True):
        blocks[u, u] += at_u.T @ at_u
        blocks[v, v] += at_v.T @ at_v
        blocks[u, v] = -at_u.T @ at_v
        blocks[v, u] = -at_v.T @ at_u
    return blocks.transpose(1, 2).reshape(n * d, n * d)
