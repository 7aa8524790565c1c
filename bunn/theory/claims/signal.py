"""Over-smoothing (Section 4.1): Proposition 4.1, and the signals it does not hold for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from bunn.nn import BuNNConv
from bunn.theory import graphs as g
from bunn.theory.claim import Erratum, Evidence, at_least, at_most, claim
from bunn.theory.graphs import Graph
from bunn.theory.networks import FixedMaps, mixing
from bunn.theory.reference import relative
from bunn.theory.samples import samples

GRAPHS = (g.path(7), g.cycle(6), g.star(5), g.barbell(4), g.tree(2), g.random(9))


def _largest_difference(graph: Graph, y: Tensor) -> float:
    """Over all edges, of the features at their ends."""
    u, v = graph.edge_index
    return float((y[u] - y[v]).norm(dim=1).max())


@claim("signal-energy", "Proposition 4.1", "unequal maps keep neighbours apart at t = ∞")
def signal_energy(graphs: Sequence[Graph] = GRAPHS, seed: int = 0) -> Iterator[Evidence]:
    """Layers with random maps and an invertible ``W``; then maps and signals that do not."""
    apart, formula, plane = [], [], []
    for graph in graphs:
        generator = torch.Generator().manual_seed(seed)
        u, v = graph.edge_index
        share = graph.degree / graph.degree.sum()
        for sample in samples(graph, seed):
            layer = sample.layer(time=math.inf, bias=None)
            x, maps = sample.field(generator), sample.maps
            with torch.no_grad():
                y = layer(x, graph.edge_index)
                signal = torch.einsum("v,ij,vjk,vk->i", share, mixing(layer).weight, maps, x)
            expected = ((maps[u] - maps[v]).mT @ signal).norm(dim=1)
            formula.append(relative((y[u] - y[v]).norm(dim=1), expected))
            apart.append(_largest_difference(graph, y) / float(signal.norm()))
            if sample.bundle.maps in ("rotation", "o2"):
                turn = (sample.params[u] - sample.params[v]).squeeze(2)
                chord = 2 * torch.sin(turn / 2).abs() * signal.view(2, 2).norm(dim=1)
                plane.append(relative(expected, chord.norm(dim=1)))
    yield at_least("largest |y_v − y_u| of neighbours, relative to the signal", apart, 1e-3)
    yield at_most("|y_v − y_u| against |(O_v − O_u)ᵀ h|, h the mean signal", formula, 1e-9)
    yield at_most("in the plane, against 2 |sin(Δθ/2)| |h|", plane, 1e-9)
    yield _unconditional_erratum(graphs, seed)


def _unconditional_erratum(graphs: Sequence[Graph], seed: int) -> Erratum:
    """Rotations about one axis and a signal along it; small turns, negative features, ReLU."""
    differences, unequal, dead = [], [], []
    for graph in graphs:
        generator = torch.Generator().manual_seed(seed)
        n = graph.num_nodes
        # Only the entry (0, 1) of a skew matrix: a turn about the third axis.
        params = torch.zeros(n, 1, 3, dtype=torch.float64)
        params[:, 0, 0] = torch.randn(n, dtype=torch.float64, generator=generator)
        layer = _averaging_layer(params, "exp", 3)
        x = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64).expand(n, 3)
        with torch.no_grad():
            differences.append(_largest_difference(graph, layer(x, graph.edge_index)))
            maps = layer.bundle(x, graph.edge_index).matrices()
        unequal.append(_largest_difference(graph, maps.flatten(1)))

        angles = 0.2 * torch.rand(n, 1, 1, dtype=torch.float64, generator=generator)
        layer = _averaging_layer(angles, "rotation", 2)
        for _ in range(20):
            x = -1 - 0.2 * torch.rand(n, 2, dtype=torch.float64, generator=generator)
            with torch.no_grad():
                dead.append(float(torch.relu(layer(x, graph.edge_index)).max()))
    return Erratum(
        name="Unequal maps do not always keep nodes apart",
        printed="if the maps are not all equal, some neighbours have y_v ≠ y_u (main text)",
        counterexample=(
            "rotations about one axis of R³ by random angles, and a signal along that axis: "
            f"y_v = y_u at all nodes, to {max(differences):.0e}. Or X = 0, or W = 0. And after "
            "ReLU an open set of X is lost: angles below 0.2, features in [−1.2, −1]², W = I give "
            f"{max(dead):g} everywhere"
        ),
        corrected=(
            "before the non-linearity, for invertible W and almost every X, as the appendix says: "
            "X must avoid a proper subspace, on which the mean signal h has O_uᵀh = O_vᵀh along "
            "every edge. Plane maps of one determinant allow only h = 0"
        ),
        refutation=at_most("largest |y_v − y_u| with unequal maps", differences, 1e-12),
        verification=(
            at_least("while the maps of some neighbours differ by", unequal, 0.05),
            at_most("largest output after ReLU, negative features", dead, 0.0),
        ),
    )


def _averaging_layer(params: Tensor, maps: str, d: int) -> BuNNConv:
    """A layer at ``t = inf`` with given maps and ``W = I``."""
    return BuNNConv(
        d,
        d,
        bundle_dim=d,
        maps=maps,
        time=math.inf,
        phi=FixedMaps(params),
        weight=False,
        bias=None,
    )
