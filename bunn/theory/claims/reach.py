"""Reach (Sections 4.2 and 5): what message passing of a given depth cannot see."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch_geometric.nn import GAT, GCN, GIN, GCNConv, GraphSAGE, SAGEConv

from bunn.diffusion import chebyshev_degree
from bunn.laplacian import Laplacian
from bunn.nn import BuNNConv
from bunn.theory import graphs as g
from bunn.theory.claim import (
    Erratum,
    Evidence,
    Table,
    at_least,
    at_most,
    claim,
    some_at_least,
)
from bunn.theory.diagnostics import hop_distances, sensitivity
from bunn.theory.drawing import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY, name_axes, new_figure
from bunn.theory.graphs import Graph
from bunn.theory.networks import FixedMaps, mixing
from bunn.theory.reference import relative

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRAPHS = (g.path(6), g.cycle(5), g.star(4), g.grid(2, 4), g.tree(2), g.random(8))

MODELS = {"GCN": GCN, "GraphSAGE": GraphSAGE, "GAT": GAT, "GIN": GIN}


def _mpnn(name: str, channels: int, depth: int) -> nn.Module:
    """A message-passing network of PyG with random weights."""
    model: nn.Module = MODELS[name](channels, 8, num_layers=depth, act="tanh").double()
    return model


def _constant(model: nn.Module) -> float:
    """``c^l`` for averages of neighbours: over all layers, the product of the largest ``|W|``."""
    product = 1.0
    for layer in model.modules():
        if isinstance(layer, GCNConv | SAGEConv):
            weights = [part.detach() for part in layer.parameters() if part.dim() == 2]
            product *= max(float(torch.linalg.matrix_norm(weight, 2)) for weight in weights)
    return product


@claim("mpnn-jacobian", "Equation 6", "an MPNN's Jacobian is bounded by walks of its depth")
def mpnn_jacobian(
    graphs: Sequence[Graph] = GRAPHS, depth: int = 3, seed: int = 0
) -> Iterator[Evidence]:
    """The support of Jacobians against powers of ``A`` and ``I + A``; a GCN's against its bound."""
    outside, missed, bound = [], [], []
    for graph in graphs:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(graph.num_nodes, 4, dtype=torch.float64, generator=generator)
        identity = torch.eye(graph.num_nodes, dtype=torch.float64)
        walks = torch.linalg.matrix_power(identity + graph.adjacency, depth)
        strict = torch.linalg.matrix_power(graph.adjacency, depth)
        for name in MODELS:
            model = _mpnn(name, 4, depth)
            found = sensitivity(model, x, graph.edge_index, ord=2)
            outside.append(float((found * (walks == 0)).max()))
            missed.append(float((found * (strict == 0)).max()))
            if name in ("GCN", "GraphSAGE"):
                bound.append(float((found - _constant(model) * walks).max()))
    pair = g.path(2)
    x = torch.ones(2, 4, dtype=torch.float64)
    two = float(sensitivity(_mpnn("GraphSAGE", 4, 2), x, pair.edge_index, 0, 1, ord=2))
    yield at_most("Jacobian where (I + A)^ℓ is zero, four architectures", outside, 0.0)
    yield at_most("Jacobian of GCN and GraphSAGE minus Π|W| (I + A)^ℓ", bound, 0.0)
    yield Erratum(
        name="The bound on an MPNN's Jacobian",
        printed="|∂y_u/∂x_v| ≤ c^ℓ (A^ℓ)_uv",
        counterexample=(
            f"two layers of GraphSAGE on two nodes and an edge: |∂y_0/∂x_1| = {two:.3g}, and "
            "(A²)_01 = 0. A node that also hears itself reaches its neighbours in any number of "
            "steps"
        ),
        corrected="c^ℓ ((I + A)^ℓ)_uv; zero beyond ℓ hops, which is what the argument needs",
        refutation=some_at_least("Jacobian where A^ℓ is zero", [*missed, two], 1e-3),
        verification=(at_most("Jacobian where (I + A)^ℓ is zero", outside, 0.0),),
    )


#: How the lines of the plot look.
STYLES = {
    "GCN": (GREY, "-"),
    "GraphSAGE": (ORANGE, "-"),
    "GAT": (PURPLE, "-"),
    "GIN": (RED, "-"),
    "BuNN, exact": (BLUE, "-"),
    "BuNN, tol 1e-5": (SKY, "--"),
    "BuNN, t = ∞": (GREEN, "-"),
}


def _reach_plot(tables: Sequence[Table]) -> Figure:
    table = tables[-1]
    figure, (ax,) = new_figure()
    for name, (colour, line) in STYLES.items():
        pairs = zip(table.column("distance"), table.column(name), strict=True)
        hops, values = zip(*((r, value) for r, value in pairs if value > 0), strict=True)
        ax.semilogy(hops, values, line, marker="o", markersize=3, color=colour, label=name)
    title = f"{table.title}; lines end where it is zero"
    name_axes(ax, title, "hops between source and target", "sensitivity", legend="lower left")
    return figure


@claim(
    "mpnn-uniform-approx",
    "Proposition 5.2",
    "an MPNN is blind beyond its depth, a BuNN layer is not",
    plot=_reach_plot,
)
def mpnn_uniform_approx(
    sizes: Sequence[int] = (10, 20, 40), depth: int = 4, time: float = 10.0, seed: int = 0
) -> Iterator[Evidence]:
    """Grids and paths of growing diameter, with unique encodings: what one end hears of all nodes.

    With heat cut off at a tolerance a BuNN layer is K-hop itself, K the degree of the polynomial.
    """
    beyond, within, exact, endless, cut, tables = [], [], [], [], [], []
    for graph in [graph for n in sizes for graph in (g.grid(3, n // 2), g.path(n))]:
        n, lap = graph.num_nodes, Laplacian(graph.edge_index)
        generator = torch.Generator().manual_seed(seed)
        place = torch.arange(n, dtype=torch.float64).unsqueeze(1) / n
        x = torch.cat((torch.randn(n, 3, dtype=torch.float64, generator=generator), place), dim=1)
        distance = hop_distances(lap, n - 1)[0]
        mpnns = {name: _mpnn(name, 4, depth) for name in MODELS}
        layers = _layers(place, time, generator)
        found = {
            name: sensitivity(model, x, graph.edge_index, n - 1, ord=2)[0]
            for name, model in (mpnns | layers).items()
        }
        beyond += [float(found[name][distance > depth].max()) for name in MODELS]
        within += [float(found[name][distance <= depth].min()) for name in MODELS]
        exact.append(float(found["BuNN, exact"].min()))
        share = graph.degree / graph.degree.sum()
        weight = torch.linalg.matrix_norm(mixing(layers["BuNN, exact"]).weight, 2).detach()
        endless.append(relative(found["BuNN, t = ∞"], weight * share))
        cut += found["BuNN, tol 1e-5"][distance > chebyshev_degree(time, 1e-5)].tolist()
        tables.append(_by_distance(graph, distance, found))
    yield at_most(f"four MPNNs of depth {depth}: sensitivity beyond {depth} hops", beyond, 0.0)
    yield at_least(f"and within {depth} hops", within, 1e-12)
    yield at_least(f"BuNN layer, exact heat, t = {time:g}: smallest sensitivity", exact, 1e-300)
    yield at_most("BuNN layer, t = ∞: sensitivity against |W| d_v/2|E|", endless, 1e-9)
    yield at_most("heat to tol 1e-5, beyond the degree of its polynomial", cut, 0.0)
    yield tables[-1]


def _layers(place: Tensor, time: float, generator: torch.Generator) -> dict[str, BuNNConv]:
    """One layer, random ``W`` and angles that grow along the graph, with heat of three kinds."""
    weight = torch.randn(4, 4, dtype=torch.float64, generator=generator)
    phi = FixedMaps(place.unsqueeze(2))
    layers = {
        "BuNN, exact": BuNNConv(
            4, 4, maps="rotation", phi=phi, time=time, method="uniformization", tol=math.ulp(0.0)
        ),
        "BuNN, tol 1e-5": BuNNConv(4, 4, maps="rotation", phi=phi, time=time, method="chebyshev"),
        "BuNN, t = ∞": BuNNConv(4, 4, maps="rotation", phi=phi, time=math.inf),
    }
    for layer in layers.values():
        with torch.no_grad():
            mixing(layer.double()).weight.copy_(weight)
    return layers


def _by_distance(graph: Graph, distance: Tensor, found: dict[str, Tensor]) -> Table:
    """The mean sensitivity at every distance."""
    rows = tuple(
        (r, *(float(values[distance == r].mean()) for values in found.values()))
        for r in range(int(distance.max()) + 1)
    )
    return Table(f"Sensitivity of one end of {graph.name}", ("distance", *found), rows)
