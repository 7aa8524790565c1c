"""Over-squashing (Section 4.2): the Jacobian of a layer, and what it lets a node ignore."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from bunn.diffusion import diffuse
from bunn.laplacian import Laplacian
from bunn.nn import BuNNConv
from bunn.theory import graphs as g
from bunn.theory import reference
from bunn.theory.claim import (
    Erratum,
    Evidence,
    SettingsError,
    at_least,
    at_most,
    claim,
    some_at_least,
)
from bunn.theory.diagnostics import hop_distances
from bunn.theory.graphs import Graph
from bunn.theory.networks import lookup_network, mixing
from bunn.theory.reference import relative
from bunn.theory.samples import samples

GRAPHS = (g.path(6), g.cycle(5), g.star(4), g.grid(2, 4), g.tree(2), g.random(8))
TIMES = (0.5, 5.0, math.inf)
#: Heat as a recurrence and as a dense kernel: two ways to go backwards.
METHODS = ("chebyshev", "dense")


def _jacobian(layer: nn.Module, graph: Graph, x: Tensor, **inputs: Tensor) -> Tensor:
    """Autograd's Jacobian ``(n, c', n, c)``: entry ``[u, :, v, :]`` is ``dy_u / dx_v``."""
    full: Tensor = torch.func.jacrev(lambda x: layer(x, graph.edge_index, **inputs))(x)
    return full.detach()


def _lemma(kernel: Tensor, maps: Tensor, weight: Tensor) -> Tensor:
    """``H(t, u, v) O_u^T W O_v`` for all pairs, ``(n, d, n, d)``."""
    return torch.einsum("uv,uki,kl,vlj->uivj", kernel, maps, weight.detach(), maps)


@claim("jacobian", "Lemma 4.3", "∂y_u/∂x_v = H(t,u,v) O_uᵀ W O_v")
def jacobian(
    graphs: Sequence[Graph] = GRAPHS, times: Sequence[float] = TIMES, seed: int = 0
) -> Iterator[Evidence]:
    """Autograd's Jacobian of a layer for all pairs of nodes, every map, at several times."""
    errors, limits, positive, spread = [], [], [], []
    for graph in graphs:
        generator = torch.Generator().manual_seed(seed)
        for sample in samples(graph, seed, dims=(2, 3)):
            x = sample.field(generator)
            for time, method in [(t, m) for t in times if t < math.inf for m in METHODS]:
                layer = sample.layer(time=time, method=method, tol=1e-15)
                kernel = reference.heat_kernel(graph, time)
                lemma = _lemma(kernel, sample.maps, mixing(layer).weight)
                errors.append(relative(_jacobian(layer, graph, x), lemma))
            layer = sample.layer(time=math.inf)
            share = graph.degree.expand(graph.num_nodes, -1) / graph.degree.sum()
            lemma = _lemma(share, sample.maps, mixing(layer).weight)
            limits.append(relative(_jacobian(layer, graph, x), lemma))
        least, ratio = _reach(graph)
        positive.append(least)
        spread.append(ratio)
    yield at_most("autograd against the lemma, all pairs, every map", errors, 1e-11)
    yield at_most("at t = ∞ against d_v/2|E| O_uᵀ W O_v", limits, 1e-11)
    yield at_least("smallest H(t,u,v), t = 0.01", positive, torch.finfo(torch.float64).tiny)
    chance = "H(t,u,v) over the chance of r steps or more, r the distance"
    yield at_most(chance, spread, 1 + 1e-9)
    yield _limit_erratum()
    yield _feature_maps_erratum(graphs, seed)
    yield _transposed_erratum(graphs, seed)


def _reach(graph: Graph, time: float = 0.01) -> tuple[float, float]:
    """The smallest kernel entry, and the largest relative to ``P(N >= r)``, ``N`` Poisson."""
    lap = Laplacian(graph.edge_index, num_nodes=graph.num_nodes).to(torch.float64)
    identity = torch.eye(graph.num_nodes, dtype=torch.float64)
    kernel = diffuse(identity, lap, time, method="uniformization", tol=math.ulp(0.0))
    steps = hop_distances(lap).double()
    chance = torch.special.gammainc(steps.clamp(min=1), torch.tensor(time, dtype=torch.float64))
    chance = torch.where(steps == 0, 1.0, chance)
    return float(kernel.min()), float((kernel / chance).max())


def _limit_erratum() -> Erratum:
    graph = g.star(4)
    late = reference.heat_kernel(graph, 60.0)
    hub, leaf, total = graph.degree[0], graph.degree[1], graph.degree.sum()
    return Erratum(
        name="The limit of the Jacobian",
        printed="H(t, u, v) → d_u/2|E| (in the proof of Lemma 4.3)",
        counterexample=(
            f"star with 4 leaves: from a leaf v to the hub u, H(60, u, v) = {late[0, 1]:.6g}; "
            f"d_u/2|E| = {hub / total:g}, d_v/2|E| = {leaf / total:g}"
        ),
        corrected="d_v/2|E|, as the lemma itself says",
        refutation=at_least("|H − d_u/2|E||", (late[0, 1] - hub / total).abs(), 0.3),
        verification=(
            at_most("|H − d_v/2|E||, all pairs", (late - graph.degree / total).abs(), 1e-12),
        ),
    )


def _feature_maps_erratum(graphs: Sequence[Graph], seed: int) -> Erratum:
    """A layer whose phi reads the features, as Equation 1 has it."""
    total, held, whole = [], [], []
    curved: list[float] = []
    straight: list[float] = []
    for graph in graphs:
        generator = torch.Generator().manual_seed(seed)
        x, y = torch.randn(2, graph.num_nodes, 2, dtype=torch.float64, generator=generator)
        layer = _seeded(BuNNConv(2, 2, maps="rotation", tol=1e-15).double(), generator)
        with torch.no_grad():
            angles = layer.phi(x, graph.edge_index).flatten()
            maps = torch.stack([reference.rotation(angle) for angle in angles])
        lemma = _lemma(reference.heat_kernel(graph, 1.0), maps, mixing(layer).weight)
        total.append(relative(_jacobian(layer, graph, x), lemma))
        whole.append(relative(_jacobian(layer, graph, x), _differences(layer, graph, x)))
        held.append(relative(_jacobian(layer, graph, x, phi_x=x), lemma))
        for defects, fixed in ((curved, {}), (straight, {"phi_x": x})):
            with torch.no_grad():
                a, b, both, none = (
                    layer(z, graph.edge_index, **fixed) for z in (x, y, x + y, 0 * x)
                )
            defects.append(float((both - a - b + none).abs().max()))
    return Erratum(
        name="Maps that depend on the features",
        printed="Equations 1–3 are linear (or affine), and the Jacobian is that of Lemma 4.3",
        counterexample=(
            "with φ reading X, as Equation 1 has it, the Jacobian is off by "
            f"up to {max(total):.2g} of its size, and f(x+y) − f(x) − f(y) + f(0) is up to "
            f"{max(curved):.2g}"
        ),
        corrected=(
            "with maps that do not depend on X (the proof assumes it): φ reads P alone, or the "
            "derivative is taken with the maps held fixed"
        ),
        refutation=some_at_least("relative error of the lemma, φ reads X", total, 0.1),
        verification=(
            at_most("relative error with the maps held fixed", held, 1e-10),
            at_most("all of autograd's Jacobian against finite differences", whole, 1e-6),
            at_most("f(x+y) − f(x) − f(y) + f(0) with the maps held fixed", straight, 1e-11),
        ),
    )


def _differences(layer: BuNNConv, graph: Graph, x: Tensor, step: float = 1e-6) -> Tensor:
    """The Jacobian by central differences, ``(n, c', n, c)``."""
    columns = []
    for index in range(x.numel()):
        moved = torch.zeros_like(x).flatten()
        moved[index] = step
        with torch.no_grad():
            ahead, behind = (
                layer(x + sign * moved.view_as(x), graph.edge_index) for sign in (1, -1)
            )
        columns.append((ahead - behind) / (2 * step))
    return torch.stack(columns, dim=-1).view(*x.shape, *x.shape)


def _seeded(layer: BuNNConv, generator: torch.Generator) -> BuNNConv:
    """Draws all parameters anew, so that maps differ from node to node."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64, generator=generator))
    return layer


def _transposed_erratum(graphs: Sequence[Graph], seed: int) -> Erratum:
    """The Jacobian as the proof of Theorem 5.3 quotes it."""
    printed, corrected = [], []
    for graph in graphs:
        sample = next(samples(graph, seed, dims=(3,)))
        layer = sample.layer(tol=1e-15)
        maps, weight = sample.maps, mixing(layer).weight
        x = torch.zeros(graph.num_nodes, sample.size, dtype=torch.float64)
        found, kernel = _jacobian(layer, graph, x), reference.heat_kernel(graph, 1.0)
        printed.append(relative(found, _lemma(kernel, maps.mT, weight)))
        corrected.append(relative(found, _lemma(kernel, maps, weight)))
    return Erratum(
        name="The Jacobian in the proof of universality",
        printed="∂y_u/∂x_v = H(t,u,v) O_u W O_vᵀ, and (1/(n d_u)) Σ_v O_uᵀ W O_v is to match L",
        counterexample=f"autograd's is off from it by up to {max(printed):.2g} of its size",
        corrected="H(t,u,v) O_uᵀ W O_v, as in Lemma 4.3, for every pair u, v by itself",
        refutation=some_at_least("relative error as printed", printed, 0.1),
        verification=(at_most("relative error of the lemma", corrected, 1e-11),),
    )


def _turning_layer(channels: int, phi: nn.Module, time: float) -> BuNNConv:
    """A layer of one plane bundle whose phi reads encodings, with heat exact entry by entry."""
    method = "auto" if time == math.inf else "uniformization"
    return BuNNConv(
        channels,
        channels,
        maps="rotation",
        time=time,
        phi=phi,
        pe_channels=3,
        method=method,
        tol=math.ulp(0.0),
    ).double()


@claim("squashing", "Corollary 4.4", "a node ignores all others but one, in a channel of its own")
def squashing(
    graphs: Sequence[Graph] = GRAPHS, times: Sequence[float] = TIMES, seed: int = 0
) -> Iterator[Evidence]:
    """One channel in and one out, lifted to the plane: ``v`` hears ``u`` and no ``w``."""
    ignored, heard, printed, even = [], [], [], []
    for graph in graphs:
        n = graph.num_nodes
        if n < 3:
            raise SettingsError(f"graphs holds {graph.name!r}; the claim is about three nodes")
        generator = torch.Generator().manual_seed(seed)
        u, v = 0, n - 1
        pe = torch.randn(n, 3, dtype=torch.float64, generator=generator)
        turned = torch.zeros(n, 1, dtype=torch.float64)
        turned[[u, v]] = math.pi / 2
        phi = lookup_network(pe, turned)
        others = [w for w in range(n) if w not in (u, v)]
        for time in times:
            kernel = reference.heat_kernel(graph, time)
            layer = _turning_layer(1, phi, time)
            with torch.no_grad():  # w_21 = 0 and w_22 = 1; the rest does not matter
                mixing(layer).weight.copy_(torch.tensor([[0.7, -0.4], [0.0, 1.0]]))
            x = torch.randn(n, 1, dtype=torch.float64, generator=generator)
            found = _jacobian(layer, graph, x, pe=pe, phi_x=x[:, :0])[v, 0, :, 0]
            ignored.append(float((found[others] / kernel[v, others]).abs().max()))
            heard.append(abs(float(found[u] / kernel[v, u]) - 1))

            wide = _turning_layer(2, phi, time)
            with torch.no_grad():  # as printed: w_21 = w_22 = 0
                mixing(wide).weight.copy_(torch.tensor([[0.7, -0.4], [0.0, 0.0]]))
            x = torch.randn(n, 2, dtype=torch.float64, generator=generator)
            row = _jacobian(wide, graph, x, pe=pe, phi_x=x[:, :0])[v, 0]
            printed.append(float(row[u].norm() / kernel[v, u]))
            with torch.no_grad():
                mixing(wide).weight.copy_(torch.randn(2, 2, generator=generator))
            row = _jacobian(wide, graph, x, pe=pe, phi_x=x[:, :0])[v, 0]
            sizes = row.norm(dim=1) / kernel[v]
            even.append(float((sizes.max() - sizes.min()) / sizes.max()))
    yield at_most("∂y_v/∂x_w over H(t,v,w), all w", ignored, 1e-12)
    yield at_most("∂y_v/∂x_u against H(t,v,u)", heard, 1e-9)
    yield Erratum(
        name="What a node can ignore",
        printed=(
            "with w₂₁ = w₂₂ = 0, ∂y_v⁽¹⁾/∂x_w = (0 0) for all w while ∂y_v⁽¹⁾/∂x_u = H (0 w₁₂) ≠ 0"
        ),
        counterexample=(
            "swap W swap has the first row (w₂₂ w₂₁), not (w₂₂ w₁₂): as printed |∂y_v⁽¹⁾/∂x_u|/H "
            f"is {max(printed):.1g} as well. The row at v is (a row of O_vᵀW) times the "
            "orthogonal O_w, so its norm over H is the same for all w: it cannot vanish for one "
            "alone"
        ),
        corrected=(
            "per input channel: for a signal in the first stalk coordinate (x, 0), w₂₁ = 0 and "
            "w₂₂ ≠ 0 give ∂y_v⁽¹⁾/∂x_w = 0 and ∂y_v⁽¹⁾/∂x_u = H(t,v,u) w₂₂"
        ),
        refutation=at_most("as printed, |∂y_v⁽¹⁾/∂x_u| over H(t,v,u)", printed, 1e-12),
        verification=(
            at_most("spread of |∂y_v⁽¹⁾/∂x_w| over H(t,v,w), random W", even, 1e-9),
            at_most("corrected: what v hears of w, relative to H", ignored, 1e-12),
            at_most("corrected: what v hears of u, against H w₂₂", heard, 1e-9),
        ),
    )
