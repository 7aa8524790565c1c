"""Universality (Section 5): Theorem 5.3 for linear maps, and then for continuous ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from bunn.theory import graphs as g
from bunn.theory import reference
from bunn.theory.approximation import UniversalNetwork, cube, universal_network
from bunn.theory.claim import Erratum, Evidence, Table, at_least, at_most, claim
from bunn.theory.drawing import BLUE, GREY, ORANGE, name_axes, new_figure
from bunn.theory.graphs import Graph
from bunn.theory.networks import mixing
from bunn.theory.reference import relative
from bunn.theory.universal import UniversalLayer, universal_layer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FAMILY = (g.path(6), g.path(11), g.tree(2), g.grid(3, 4), g.random(10), g.star(5))
SMALL = (g.path(3), g.star(3), g.cycle(4))
#: The coordinates of ``W`` that the proof sets to zero: 00, 01 and 10.
OTHERS = ((0, 0), (0, 1), (1, 0))


def _encodings(graphs: Sequence[Graph], generator: torch.Generator) -> list[Tensor]:
    """Random positional encodings of three channels, injective almost surely."""
    return [
        torch.randn(graph.num_nodes, 3, dtype=torch.float64, generator=generator)
        for graph in graphs
    ]


def _edges(graphs: Sequence[Graph]) -> list[Tensor]:
    return [graph.edge_index for graph in graphs]


def _linear_errors(
    layer: nn.Module,
    graphs: Sequence[Graph],
    encodings: Sequence[Tensor],
    maps: Sequence[Tensor],
    generator: torch.Generator,
) -> list[float]:
    """The largest error on each graph, for random features, relative to the largest output."""
    errors = []
    for graph, encoding, matrix in zip(graphs, encodings, maps, strict=True):
        channels = matrix.size(1) // graph.num_nodes
        x = torch.randn(graph.num_nodes, channels, dtype=torch.float64, generator=generator)
        with torch.no_grad():
            found = layer(x, graph.edge_index, pe=encoding).flatten()
        expected = matrix @ x.flatten()
        errors.append(float((found - expected).abs().max() / expected.abs().max()))
    return errors


def _conditioning_plot(tables: Sequence[Table]) -> Figure:
    table = tables[0]
    figure, (ax,) = new_figure()
    times = [row[0] for row in table.rows if math.isfinite(row[0])]
    for name, colour, label in (
        ("error", BLUE, "uniformization: exact entry by entry"),
        ("error, Chebyshev", ORANGE, "Chebyshev: exact relative to the largest entry"),
    ):
        errors = table.column(name)[: len(times)]
        ax.loglog(times, errors, "o-", color=colour, label=label)
    ax.loglog(
        times,
        [2**-52 * weight for weight in table.column("largest weight")[: len(times)]],
        "--",
        color=GREY,
        linewidth=1,
        label="rounding times the largest weight",
    )
    ax.axhline(1e-8, color=GREY, linewidth=0.8, linestyle=":", label="1e-8")
    ax.set_ylim(1e-17, 1e26)
    title = "The layer of Theorem 5.3 against the linear map it is built for"
    name_axes(ax, title, "diffusion time t", "relative error of the layer", legend="upper right")
    return figure


@claim(
    "unifapp",
    "Theorem 5.3",
    "one BuNN layer is any linear map, on many graphs at once",
    plot=_conditioning_plot,
)
def unifapp(
    graphs: Sequence[Graph] = FAMILY,
    times: Sequence[float] = (0.001, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0, math.inf),
    channels: tuple[int, int] = (2, 3),
    seed: int = 0,
) -> Iterator[Evidence]:
    """Random linear maps on a family of graphs of different sizes, at many times."""
    generator = torch.Generator().manual_seed(seed)
    c_in, c_out = channels
    encodings = _encodings(graphs, generator)
    maps = [
        torch.randn(
            graph.num_nodes * c_out,
            graph.num_nodes * c_in,
            dtype=torch.float64,
            generator=generator,
        )
        for graph in graphs
    ]
    nodes = sum(graph.num_nodes for graph in graphs)
    errors, widths, rows, blocks, empty = [], [], [], [], []
    for time in times:
        layer = universal_layer(_edges(graphs), encodings, maps, time=time)
        blocks += _weight_errors(layer, graphs, maps, time)
        empty += [float(_weight_blocks(layer)[:, i, :, :, j].abs().max()) for i, j in OTHERS]
        found = _linear_errors(layer, graphs, encodings, maps, generator)
        weight = float(mixing(layer.conv).weight.detach().abs().max())
        layer.conv.method = "chebyshev" if math.isfinite(time) else "auto"
        normwise = max(_linear_errors(layer, graphs, encodings, maps, generator))
        errors += found
        widths.append(layer.width)
        rows.append((time, weight, max(found), normwise))
    yield at_most("layer against the linear map, all graphs and times", errors, 1e-8)
    yield at_most("W₁₁ H(t,u,v) against ∂(LX)_u/∂x_v, H by a dense series", blocks, 1e-8)
    yield at_most("the blocks W₀₀, W₀₁ and W₁₀", empty, 0.0)
    yield at_most("width over 2 c k, k nodes in all", max(widths) / (2 * max(channels) * nodes), 1)
    yield _partition_erratum(generator)
    yield Table(
        f"Error and conditioning on {len(graphs)} graphs with {nodes} nodes",
        ("time", "largest weight", "error", "error, Chebyshev"),
        tuple(rows),
    )


def _weight_blocks(layer: UniversalLayer) -> Tensor:
    """``W`` as ``(k, 2, c_out, k, 2, c_in)``: node, coordinate, channel, twice."""
    k = layer.conv.num_bundles
    weight: Tensor = mixing(layer.conv).weight.detach()
    return weight.view(k, 2, layer.out_channels, k, 2, layer.in_channels)


def _weight_errors(
    layer: UniversalLayer, graphs: Sequence[Graph], maps: Sequence[Tensor], time: float
) -> list[float]:
    """``W_11 H`` against the map of each graph, with a heat kernel that is not the library's."""
    weight, start, errors = _weight_blocks(layer), 0, []
    for graph, matrix in zip(graphs, maps, strict=True):
        rows = slice(start, start + graph.num_nodes)
        start = rows.stop
        kernel = reference.heat_kernel(graph, time)
        found = weight[rows, 1, :, rows, 1] * kernel[:, None, :, None]
        errors.append(relative(found.reshape_as(matrix), matrix))
    return errors


def _partition_erratum(generator: torch.Generator) -> Erratum:
    """The expansion of the proof for a ``W`` whose blocks are all at work."""
    graphs = SMALL
    encodings = _encodings(graphs, generator)
    maps = [torch.zeros(graph.num_nodes, graph.num_nodes) for graph in graphs]
    layer = universal_layer(_edges(graphs), encodings, maps)
    k = layer.conv.num_bundles
    w = torch.rand(k, 2, k, 2, dtype=torch.float64, generator=generator)
    with torch.no_grad():
        mixing(layer.conv).weight.copy_(w.reshape(2 * k, 2 * k))
    graph, start = graphs[1], graphs[0].num_nodes
    share = graph.degree / graph.degree.sum()
    u, v = 1, 2
    jacobian = _node_jacobian(layer, graph, encodings[1])[u, v] / share[v]

    # A quarter turn takes (1, 0) to (0, -1): two of the four sums get a minus.
    row, column = start + u, start + v
    own, other = torch.arange(k) == row, torch.arange(k) == column
    rest = w[row, 1, column, 1] - w[row, 1, ~other, 0].sum() - w[~own, 0, column, 1].sum()
    either = own | other
    printed = rest + w[~either, 0][:, ~either, 0].sum()
    corrected = rest + w[~own, 0][:, ~other, 0].sum()
    covered = (k - 2) ** 2 + 2 * (k - 1) + 1
    return Erratum(
        name="The cases in the proof of universality",
        printed="C₁ = {k₁ ≠ u, v and k₂ ≠ u, v} is one of four cases that make up all (k₁, k₂)",
        counterexample=(
            f"with k = {k} they are {covered} of {k * k} pairs: (v, w), for one, is in none. For a "
            f"random W the sum is {printed:.3f}, the Jacobian {jacobian:.3f}"
        ),
        corrected=(
            "C₁ = {k₁ ≠ u and k₂ ≠ v}. The conclusion stands, as W₀₀ = 0 there; with quarter turns "
            "for swaps W₁₀ and W₀₁ get a minus"
        ),
        refutation=at_least(
            "printed expansion minus the Jacobian", (printed - jacobian).abs(), 0.1
        ),
        verification=(
            at_most(
                "corrected expansion minus autograd's Jacobian", (corrected - jacobian).abs(), 1e-10
            ),
        ),
    )


def _node_jacobian(layer: UniversalLayer, graph: Graph, encoding: Tensor) -> Tensor:
    """``(n, n)`` for one channel in and out."""
    x = torch.zeros(graph.num_nodes, 1, dtype=torch.float64)
    jacobian: Tensor = torch.func.jacrev(lambda x: layer(x, graph.edge_index, pe=encoding))(x)
    return jacobian[:, 0, :, 0].detach()


def _product(x: Tensor) -> Tensor:
    """``x_v`` times the mean over the graph: equivariant, global, not linear. ``(batch, n, 1)``."""
    return x * x.mean(1, keepdim=True)


def _sup_error(
    network: UniversalNetwork, graph: Graph, encoding: Tensor, points: Tensor, target: Tensor
) -> float:
    """The largest error over points ``(s, n, c)``, taken as ``s`` graphs side by side."""
    s, n = points.shape[:2]
    shift = n * torch.arange(s).repeat_interleave(graph.edge_index.size(1))
    edges = graph.edge_index.repeat(1, s) + shift
    with torch.no_grad():
        found = network(points.flatten(0, 1), edges, pe=encoding.repeat(s, 1))
    return float((found.view_as(target) - target).abs().max())


def _width_plot(tables: Sequence[Table]) -> Figure:
    table = tables[0]
    figure, (ax,) = new_figure()
    ax.loglog(table.column("width"), table.column("largest error"), "o-", color=BLUE)
    axes = "width of the network", "largest error on fresh points"
    name_axes(ax, f"Two BuNN layers against {table.title}", *axes)
    return figure


@claim(
    "traditionalunivapprox",
    "Theorem B.2",
    "two layers come as close to a continuous map as one likes",
    plot=_width_plot,
)
def traditionalunivapprox(
    graphs: Sequence[Graph] = SMALL,
    units: Sequence[int] = (2, 4, 8, 16, 32, 64, 128),
    seed: int = 0,
) -> Iterator[Evidence]:
    """Two universal layers fitted to a map of ``[-1, 1]^n``, on graphs of several sizes."""
    generator = torch.Generator().manual_seed(seed)
    encodings = _encodings(graphs, generator)
    rows = []
    for unit in units:
        network = universal_network(
            _edges(graphs), encodings, [_product] * len(graphs), units=unit, seed=seed
        )
        errors = []
        for graph, encoding in zip(graphs, encodings, strict=True):
            points = cube(500, graph.num_nodes, 1, generator)
            errors.append(_sup_error(network, graph, encoding, points, _product(points)))
        rows.append((unit, network.width, max(errors)))
    ratio = rows[-1][2] / rows[0][2]
    yield at_most(f"error at width {rows[-1][1]} over error at width {rows[0][1]}", ratio, 0.05)
    yield at_most(f"error at width {rows[-1][1]}, fresh points", rows[-1][2], 0.05)
    yield _width_erratum()
    yield _bias_erratum(graphs, encodings, generator)
    yield Table(
        "x_v times the mean of x, on [−1, 1]ⁿ",
        ("units per node", "width", "largest error"),
        tuple(rows),
    )


def _best_network(units: int) -> UniversalNetwork:
    """The best piecewise linear function of ``units + 1`` pieces for ``x^2`` on ``[-1, 1]``.

    It bends at equal distances ``h``, by ``2h`` each time, and runs ``h^2 / 8`` below the chords.
    """
    edges, encoding = g.path(1).edge_index, torch.zeros(1, 1, dtype=torch.float64)
    h = 2 / (units + 1)
    bends = -1 + h * torch.arange(1, units + 1, dtype=torch.float64)
    outwards = torch.where(bends < 0, -1.0, 1.0).double()
    first = universal_layer([edges], [encoding], [outwards[:, None]], [-outwards * bends])
    second = universal_layer(
        [edges],
        [encoding],
        [torch.full((1, units), 2 * h, dtype=torch.float64)],
        [torch.tensor([h**2 / 8], dtype=torch.float64)],
    )
    return UniversalNetwork(first, second, torch.relu)


def _width_erratum() -> Erratum:
    """One node, ``x^2`` on ``[-1, 1]``, ReLU: the network is piecewise linear."""
    graph, encoding = g.path(1), torch.zeros(1, 1, dtype=torch.float64)
    points = torch.linspace(-1, 1, 20001, dtype=torch.float64).view(-1, 1, 1)
    errors = {
        unit: _sup_error(_best_network(unit), graph, encoding, points, points.square())
        for unit in (4, 16, 64)
    }
    bounds = [errors[unit] * 2 * (unit + 1) ** 2 for unit in errors]
    return Erratum(
        name="The width of a universal network",
        printed="width O(Σ|V|) suffices for any continuous map and any ε",
        counterexample=(
            "one node, x² on [−1, 1], ReLU and maps from the encodings: m units make a piecewise "
            "linear function of at most m + 1 pieces, which is off by 1/(2(m+1)²) or more; the "
            f"best network with m = 4 is off by {errors[4]:.4f}"
        ),
        corrected=(
            "width 2ck, linear in the number k of nodes and free of ε, for linear maps; 2mk for "
            "continuous ones, where the units m per node grow as ε falls"
        ),
        refutation=at_least("error of the best network of width 8 on x²", errors[4], 0.0199),
        verification=(
            at_least("errors over 1/(2(m+1)²), m = 4, 16, 64", bounds, 1 - 1e-3),
            at_most("and from above: the best networks attain it", bounds, 1 + 1e-9),
        ),
    )


def _bias_erratum(
    graphs: Sequence[Graph], encodings: Sequence[Tensor], generator: torch.Generator
) -> Erratum:
    """Affine maps whose constant differs from node to node."""
    sizes = [graph.num_nodes for graph in graphs]
    zeros = [torch.zeros(n, n) for n in sizes]
    shifts = [torch.randn(n, dtype=torch.float64, generator=generator) for n in sizes]
    linear = universal_layer(_edges(graphs), encodings, [torch.eye(n) for n in sizes])
    affine = universal_layer(_edges(graphs), encodings, zeros, shifts, time=1.0)
    at_zero, errors = [], []
    for graph, encoding, shift in zip(graphs, encodings, shifts, strict=True):
        x = torch.zeros(graph.num_nodes, 1, dtype=torch.float64)
        with torch.no_grad():
            out = linear(
                torch.tanh(linear(x, graph.edge_index, pe=encoding)), graph.edge_index, pe=encoding
            )
            found = affine(torch.ones_like(x), graph.edge_index, pe=encoding).flatten()
        at_zero.append(float((out - 1).abs().max()))
        errors.append(float((found - shift).abs().max()))
    return Erratum(
        name="Affine maps from linear ones",
        printed="approximating linear maps and a non-polynomial activation make a class universal",
        counterexample=(
            "linear maps and tanh or ReLU send X = 0 to 0, so the constant 1 is missed by "
            f"{min(at_zero):g}, at any width"
        ),
        corrected=(
            "the class has to hold affine maps. The layer's bias in the global frame is one: its "
            "own bundle turns it into a different constant at every node, as Σ_u H(t,v,u) = 1"
        ),
        refutation=at_least("distance from the constant 1 at X = 0", at_zero, 1.0),
        verification=(at_most("a different constant at every node, t = 1", errors, 1e-8),),
    )
