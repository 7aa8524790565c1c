"""Over-smoothing (Section 4.1): Propositions 4.1 and 4.2, with the networks of their proofs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch_geometric.nn import GCNConv

from bunn.bundle import MAPS
from bunn.laplacian import Laplacian
from bunn.nn import BuNNConv
from bunn.theory import graphs as g
from bunn.theory import reference
from bunn.theory.claim import Erratum, Evidence, Table, at_least, at_most, claim
from bunn.theory.diagnostics import hop_distances
from bunn.theory.drawing import BLUE, GREEN, GREY, ORANGE, name_axes, new_figure
from bunn.theory.graphs import Graph
from bunn.theory.networks import FixedMaps, mixing
from bunn.theory.reference import relative
from bunn.theory.separating import SeparatingBuNN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRAPHS = (g.path(7), g.cycle(6), g.star(5), g.barbell(4), g.tree(2), g.random(9))
DEPTHS = (1, 2, 4, 8, 16, 32, 64, 128)
SWAP = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)


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
        for params, bundle in reference.random_bundles(graph, seed, num_bundles=1):
            d, maps = bundle.bundle_dim, bundle.matrices()[:, 0]
            layer = BuNNConv(
                d,
                d,
                bundle_dim=d,
                maps=bundle.maps,
                time=math.inf,
                phi=FixedMaps(params),
                bias=None,
            ).double()
            x = torch.randn(graph.num_nodes, d, dtype=torch.float64, generator=generator)
            with torch.no_grad():
                y = layer(x, graph.edge_index)
                weight = mixing(layer).weight
                signal = torch.einsum("v,ij,vjk,vk->i", share, weight, maps, x)
            expected = ((maps[u] - maps[v]).mT @ signal).norm(dim=1)
            formula.append(relative((y[u] - y[v]).norm(dim=1), expected))
            apart.append(_largest_difference(graph, y) / float(signal.norm()))
            if bundle.maps in ("rotation", "o2"):
                turn = (params[u] - params[v]).flatten()
                chord = (2 * torch.sin(turn / 2)).abs() * signal.norm()
                plane.append(relative(expected, chord))
    yield at_least("largest |y_v − y_u| of neighbours, relative to the signal", apart, 1e-3)
    yield at_most("|y_v − y_u| against |(O_v − O_u)ᵀ h|, h the mean signal", formula, 1e-9)
    yield at_most("in the plane, against 2 |sin(Δθ/2)| |h|", plane, 1e-9)
    yield _unconditional_erratum(graphs, seed)


def _unconditional_erratum(graphs: Sequence[Graph], seed: int) -> Erratum:
    """Rotations about one axis, and a signal along it."""
    differences, unequal = [], []
    for graph in graphs:
        generator = torch.Generator().manual_seed(seed)
        params = torch.zeros(graph.num_nodes, 1, 3, dtype=torch.float64)
        # Only the entry (0, 1) of a skew matrix: a turn about the third axis.
        params[:, 0, 0] = torch.randn(graph.num_nodes, dtype=torch.float64, generator=generator)
        layer = BuNNConv(
            3,
            3,
            bundle_dim=3,
            maps="exp",
            time=math.inf,
            phi=FixedMaps(params),
            weight=False,
            bias=None,
        )
        x = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64).expand(graph.num_nodes, 3)
        with torch.no_grad():
            differences.append(_largest_difference(graph, layer(x, graph.edge_index)))
            maps = layer.bundle(x, graph.edge_index).matrices()
        unequal.append(_largest_difference(graph, maps.flatten(1)))
    return Erratum(
        name="Unequal maps do not always keep nodes apart",
        printed="if the maps are not all equal, some neighbours have y_v ≠ y_u (main text)",
        counterexample=(
            "rotations about one axis of R³ by random angles, and a signal along that axis: "
            f"y_v = y_u at all nodes, to {max(differences):.0e}. Or X = 0, or W = 0"
        ),
        corrected=(
            "for invertible W and almost every X, as the appendix says: X must avoid a proper "
            "subspace, on which the mean signal h has O_uᵀh = O_vᵀh along every edge. Plane maps "
            "of one determinant allow only h = 0"
        ),
        refutation=at_most("largest |y_v − y_u| with unequal maps", differences, 1e-12),
        verification=(at_least("while the maps of some neighbours differ by", unequal, 0.05),),
    )


def _far_apart(graph: Graph) -> tuple[int, int]:
    """Two nodes at the largest distance, of equal degree if there are such."""
    distance = hop_distances(Laplacian(graph.edge_index))
    equal = graph.degree[:, None] == graph.degree[None, :]
    index = int((distance + 0.5 * equal).argmax())
    return index // graph.num_nodes, index % graph.num_nodes


def _gcn_features(graph: Graph, x: Tensor, depth: int) -> list[Tensor]:
    """A GCN with ``W = I``, the largest weights the proposition allows, and ReLU.

    Its features tend to multiples of the square root of the degree (with self-loop), which is
    divided out here.
    """
    layer = GCNConv(2, 2, bias=False).double()
    with torch.no_grad():
        layer.lin.weight.copy_(torch.eye(2))
    outputs, scale = [], (graph.degree + 1).sqrt().unsqueeze(1)
    with torch.no_grad():
        for _ in range(depth):
            x = torch.relu(layer(x, graph.edge_index))
            outputs.append(x / scale)
    return outputs


def _trivial_features(graph: Graph, x: Tensor, depth: int) -> list[Tensor]:
    """A BuNN on the trivial bundle, ``W = I``, ``t = 1``."""
    still = FixedMaps(torch.zeros(graph.num_nodes, 1, 1, dtype=torch.float64))
    layer = BuNNConv(2, 2, maps="rotation", phi=still, weight=False, bias=None, tol=1e-14)
    outputs = []
    with torch.no_grad():
        for _ in range(depth):
            x = torch.relu(layer(x, graph.edge_index))
            outputs.append(x)
    return outputs


def _separation_plot(tables: Sequence[Table]) -> Figure:
    table = tables[0]
    figure, (ax,) = new_figure()
    for name, colour in (("BuNN", BLUE), ("GCN", ORANGE), ("trivial bundle", GREEN)):
        ax.loglog(table.column("depth"), table.column(name), "o-", color=colour, label=name)
    ax.axhline(table.rows[0][-1], color=GREY, linestyle="--", linewidth=1, label="δ")
    ax.set_xticks(table.column("depth"), [str(depth) for depth in table.column("depth")])
    ax.minorticks_off()
    name_axes(ax, table.title, "layers", "separation", legend="lower left")
    return figure


@claim(
    "oversmoothing",
    "Proposition 4.2",
    "a BuNN of any depth keeps two nodes more than δ apart",
    plot=_separation_plot,
)
def oversmoothing(
    graphs: Sequence[Graph] = (g.grid(3, 4), g.cycle(6), g.barbell(4), g.tree(2), g.random(9)),
    depths: Sequence[int] = DEPTHS,
    seed: int = 0,
) -> Iterator[Evidence]:
    """The proof's network beside a GCN and the trivial bundle, at all depths."""
    ratios, exact, norms, below, gcn, trivial, tables = [], [], [], [], [], [], []
    generator = torch.Generator().manual_seed(seed)
    for graph in graphs:
        u, v = _far_apart(graph)
        x = torch.rand(graph.num_nodes, 2, dtype=torch.float64, generator=generator)
        pe = torch.randn(graph.num_nodes, 2, dtype=torch.float64, generator=generator)
        network = SeparatingBuNN(x, graph.edge_index, pe, u, max(depths))
        # The mean signal points elsewhere: along the second axis, backwards.
        second = -torch.cat((0.1 * x[:, :1], x[:, 1:] + 1), dim=1)
        twin = SeparatingBuNN(second, graph.edge_index, pe, u, max(depths))
        with torch.no_grad():
            bunn = network(x, graph.edge_index, pe)
            y = twin(second, graph.edge_index, pe)[-1]
        below.append(float((y[u] - y[v]).norm()) / twin.delta)
        others = _gcn_features(graph, x, max(depths)), _trivial_features(graph, x, max(depths))
        rows = []
        for depth in depths:
            apart = [float((y[depth - 1][u] - y[depth - 1][v]).norm()) for y in (bunn, *others)]
            rows.append((depth, *apart, network.delta))
            ratios.append(apart[0] / network.delta)
            exact.append(abs(apart[0] / network.delta - math.sqrt(2)))
            gcn.append(apart[1] / _gcn_bound(graph, x, depth))
            trivial.append(apart[2] / _trivial_bound(graph, x, depth))
        norms += [
            float(torch.linalg.matrix_norm(mixing(layer).weight.detach(), 2))
            for layer in network.layers
            if isinstance(layer, BuNNConv)
        ]
        tables.append(
            Table(
                f"Separation of two far nodes of {graph.name}",
                ("depth", "BuNN", "GCN", "trivial bundle", "δ"),
                tuple(rows),
            )
        )
    yield at_least(f"separation over δ, depth {min(depths)} to {max(depths)}", ratios, 1.0)
    yield at_most("separation minus √2 δ, relative", exact, 1e-9)
    yield at_least(f"separation over δ where h₁ < 0, depth {max(depths)}", below, 1.0)
    yield at_most("largest norm of a weight matrix", norms, 1 + 1e-12)
    yield at_most("separation of a GCN over its bound c λ^K", gcn, 1.0)
    yield at_most("separation on the trivial bundle over its bound c exp(−Kλ₁)", trivial, 1.0)
    yield _delta_erratum()
    yield _frame_erratum()
    yield _determinant_erratum(seed)
    yield _shared_encodings_erratum(seed)
    yield from tables


def _gcn_bound(graph: Graph, x: Tensor, depth: int) -> float:
    """``c max(|λ|)^K`` over the eigenvalues of the GCN's operator below one."""
    adjacency = graph.adjacency + torch.eye(graph.num_nodes, dtype=torch.float64)
    root = (graph.degree + 1).sqrt()
    values = torch.linalg.eigvalsh(adjacency / root[:, None] / root[None, :])
    largest = float(values[:-1].abs().max())
    return 2 * float(x.norm()) * largest**depth + 1e-12


def _trivial_bound(graph: Graph, x: Tensor, depth: int) -> float:
    gap, root = float(reference.spectrum(graph)[1]), graph.degree.sqrt().unsqueeze(1)
    scale = float((root * x).norm() / root.min())
    return 2 * scale * math.exp(-depth * gap) + 1e-12


def _pair() -> tuple[Graph, Tensor]:
    """Two nodes and an edge, with encodings."""
    return g.path(2), torch.tensor([[0.0], [1.0]], dtype=torch.float64)


def _delta_erratum() -> Erratum:
    graph, pe = _pair()
    x = torch.tensor([[3.0, 3.0], [3.0, 3.0]], dtype=torch.float64)
    network = SeparatingBuNN(x, graph.edge_index, pe, 0, 4)
    with torch.no_grad():
        y = network(x, graph.edge_index, pe)[-1]
    separation, printed = float((y[0] - y[1]).norm()), network.delta**2
    return Erratum(
        name="A squared norm in Case 1 of the over-smoothing proof",
        printed="δ = h₀² in Case 1; the separation √2 |h₀| exceeds it",
        counterexample=(
            f"two nodes with features (3, 3): h₀ = {network.delta:g}, the separation is "
            f"{separation:.3f}, and δ = {printed:g}"
        ),
        corrected="δ = |h₀|: the separation is √2 |h₀| > δ",
        refutation=at_most("separation minus the printed δ", separation - printed, -1.0),
        verification=(at_least("separation over |h₀|", separation / network.delta, 1.0),),
    )


def _frame_erratum() -> Erratum:
    """Case 2 on two nodes, ``W = 0`` and ``b = (1, 0)``: in the global and in the local frame."""
    graph, pe = _pair()
    maps = torch.stack((SWAP, torch.eye(2, dtype=torch.float64)))
    bias = torch.tensor([1.0, 0.0], dtype=torch.float64)
    share = graph.degree / graph.degree.sum()
    mean = torch.einsum("v,vij,j->i", share, maps, bias)  # Equation 2: b, then sync, then the mean
    local = torch.relu(torch.einsum("vji,j->vi", maps, mean))
    x = torch.zeros(2, 2, dtype=torch.float64)
    network = SeparatingBuNN(x, graph.edge_index, pe, 0, 16)
    with torch.no_grad():
        y = network(x, graph.edge_index, pe)[-1]
    separation = float((y[0] - y[1]).norm())
    return Erratum(
        name="The frame of the bias in Case 2 of the over-smoothing proof",
        printed="with b = (1, 0) in Equation 2, the output is (1, 0) at v and (0, 1) at u",
        counterexample=(
            "Equation 2 adds b in the node's own frame: on two nodes and an edge the output is "
            f"({local[0, 0]:g}, {local[0, 1]:g}) at both, and nothing is kept apart"
        ),
        corrected=(
            "with b in the global frame, as in Algorithm 1; the separation is then √2, not 1 as "
            "printed"
        ),
        refutation=at_most(
            "separation with the bias of Equation 2", float((local[0] - local[1]).norm()), 1e-12
        ),
        verification=(
            at_most(
                "separation minus √2, bias in the global frame, depth 16",
                abs(separation - math.sqrt(2)),
                1e-9,
            ),
        ),
    )


def _determinant_erratum(seed: int) -> Erratum:
    """Within one bundle, all nodes of a parameterised family share a determinant."""
    spread = []
    for _, bundle in reference.random_bundles(g.complete(20), seed):
        determinants = torch.linalg.det(bundle.matrices())
        spread.append(float((determinants - determinants[:1]).abs().max()))
    difference = float(torch.linalg.det(torch.eye(2, dtype=torch.float64)) - torch.linalg.det(SWAP))
    return Erratum(
        name="Swaps beside identities",
        printed="φ gives the swap to some nodes and the identity to the others",
        counterexample=(
            f"their determinants differ by {difference:g}; r(θ) has +1, r*(θ) has −1, and so has "
            "every product of as many reflections: no bundle of the appendix holds both"
        ),
        corrected="quarter turns r(π/2) in place of swaps, and r(0): all proofs go through",
        refutation=at_least("det I − det swap", difference, 2.0),
        verification=(
            at_most(f"spread of the determinant in a bundle, {len(MAPS)} families", spread, 1e-10),
        ),
    )


def _shared_encodings_erratum(seed: int) -> Erratum:
    """Nodes that share the encoding of ``u``."""
    graph = g.grid(3, 3)
    pe = torch.tensor([0.0, 0, 0, 1, 1, 1, 2, 2, 2], dtype=torch.float64).unsqueeze(1)
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(9, 2, dtype=torch.float64, generator=generator)
    network = SeparatingBuNN(x, graph.edge_index, pe, 0, 32)
    with torch.no_grad():
        y = network(x, graph.edge_index, pe)[-1]
    angles = network.phi(pe).detach().flatten()
    return Erratum(
        name="Nodes that share an encoding",
        printed="O_w = I for all w ≠ u can be learned, since p_u ≠ p_v",
        counterexample=(
            "on a 3 × 3 grid with the row as encoding, nodes 1 and 2 have the encoding of u = 0, "
            "and so its map"
        ),
        corrected="O_w = I for all w with p_w ≠ p_u; the argument is the same",
        refutation=at_most(
            "map of node 1 minus map of node 0", (angles[1] - angles[0]).abs(), 1e-12
        ),
        verification=(
            at_least(
                "separation of u and v over δ, depth 32",
                float((y[0] - y[8]).norm()) / network.delta,
                1.0,
            ),
        ),
    )
