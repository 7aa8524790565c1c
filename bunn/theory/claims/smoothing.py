"""Over-smoothing (Section 4.1): Proposition 4.2, with the network of its proof."""

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
from bunn.theory.samples import samples
from bunn.theory.separating import SeparatingBuNN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEPTHS = (1, 2, 4, 8, 16, 32, 64, 128)
SWAP = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)


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
    for name, colour in (
        ("BuNN", BLUE),
        ("GCN over √(d+1)", ORANGE),
        ("trivial bundle", GREEN),
    ):
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
                ("depth", "BuNN", "GCN over √(d+1)", "trivial bundle", "δ"),
                tuple(rows),
            )
        )
    yield at_least(f"separation over δ, depth {min(depths)} to {max(depths)}", ratios, 1.0)
    yield at_most("separation minus √2 δ, relative", exact, 1e-9)
    yield at_least(f"separation over δ where h₁ < 0, depth {max(depths)}", below, 1.0)
    yield at_most("largest norm of a weight matrix", norms, 1 + 1e-12)
    yield at_most("separation of a GCN, over √(d+1), over its bound c λ^K", gcn, 1.0)
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
    turned = _local_bias(graph, [1.0, 1.0])
    expected = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    return Erratum(
        name="The frame of the bias in Case 2 of the over-smoothing proof",
        printed="with b = (1, 0) in Equation 2, the output is (1, 0) at v and (0, 1) at u",
        counterexample=(
            "Equation 2 adds b in the node's own frame: on two nodes and an edge, with the swap at "
            f"one, the output is ({local[0, 0]:g}, {local[0, 1]:g}) at both, and nothing is kept "
            "apart"
        ),
        corrected=(
            "with b in the global frame, as in Algorithm 1; the separation is then √2, not 1 as "
            "printed. In the local frame another b does it if the swap is a quarter turn R: "
            "((1−s)I + sR)⁻¹ (1, 0), s = d_u/2|E|, which is (1, 1) on two nodes"
        ),
        refutation=at_most(
            "separation with the bias of Equation 2", float((local[0] - local[1]).norm()), 1e-12
        ),
        verification=(
            at_most(
                "separation minus √2, bias in the global frame, depth 16",
                abs(float((y[0] - y[1]).norm()) - math.sqrt(2)),
                1e-9,
            ),
            at_most("bias='local', b = (1, 1), a quarter turn", (turned - expected).abs(), 1e-12),
        ),
    )


def _local_bias(graph: Graph, bias: list[float]) -> Tensor:
    """The output of a layer with a bias in the local frame alone; node 0 makes a quarter turn."""
    angles = torch.tensor([math.pi / 2, 0.0], dtype=torch.float64).view(2, 1, 1)
    layer = BuNNConv(
        2, 2, maps="rotation", time=math.inf, phi=FixedMaps(angles), bias="local"
    ).double()
    with torch.no_grad():
        mixing(layer).weight.zero_()
        assert layer.bias is not None
        layer.bias.copy_(torch.tensor(bias))
        return torch.relu(layer(torch.zeros(2, 2, dtype=torch.float64), graph.edge_index))


def _determinant_erratum(seed: int) -> Erratum:
    """Within one bundle, all nodes of a parameterised family share a determinant."""
    spread = []
    for sample in samples(g.complete(20), seed):
        determinants = torch.linalg.det(sample.bundle.matrices())
        spread.append(float((determinants - determinants[:1]).abs().max()))
    difference = float(torch.linalg.det(torch.eye(2, dtype=torch.float64)) - torch.linalg.det(SWAP))
    return Erratum(
        name="Swaps beside identities",
        printed="φ gives the swap to some nodes and the identity to the others",
        counterexample=(
            f"in the plane their determinants differ by {difference:g}; r(θ) has +1, r*(θ) has −1, "
            "and so have all products of as many reflections: no plane bundle of the appendix "
            "holds both (nor one of dimension 2c, c odd, in Theorem 5.3)"
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
