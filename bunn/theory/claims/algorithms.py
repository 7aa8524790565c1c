"""Algorithms 1 and 2 (Appendix E), to the letter, against the layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from bunn.diffusion import diffuse
from bunn.laplacian import NORMALIZATIONS, Laplacian
from bunn.nn import BuNNConv
from bunn.nn.conv import Bias
from bunn.theory import graphs as g
from bunn.theory import reference
from bunn.theory.claim import Erratum, Evidence, at_most, claim, some_at_least
from bunn.theory.graphs import Graph
from bunn.theory.networks import mixing
from bunn.theory.reference import relative
from bunn.theory.samples import Sample, samples

GRAPHS = (g.path(7), g.cycle(6), g.star(5), g.grid(3, 3), g.tree(2), g.random(9))


def algorithm_1(
    matrix: Tensor, maps: Tensor, x: Tensor, time: float, degree: int, weight: Tensor, bias: Tensor
) -> Tensor:
    """Algorithm 1, line by line, on ``x: (n, d)`` with maps ``(n, d, d)``."""
    h = torch.einsum("vij,vj->vi", maps, x)
    h = h @ weight + bias
    out = h
    for k in range(1, degree + 1):
        h = -(time / k) * matrix @ h
        out = out + h
    return torch.einsum("vji,vj->vi", maps, out)


def equation_2(kernel: Tensor, maps: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Equations 2 and 3: the update in the node's own frame, then the bundle heat kernel."""
    h = torch.einsum("vki,kl,vlj,vj->vi", maps, weight, maps, x) + bias
    return torch.einsum("vu,vki,ukj,uj->vi", kernel, maps, maps, h)


def _layer(sample: Sample, weight: Tensor, bias: Tensor, frame: Bias, **options: Any) -> BuNNConv:
    """A layer at ``t = 1`` with given maps, ``W`` and ``b``."""
    layer = sample.layer(bias=frame, tol=1e-14, **options)
    with torch.no_grad():
        mixing(layer).weight.copy_(weight)
        (mixing(layer).bias if layer.bias is None else layer.bias).copy_(bias)
    return layer


@claim("taylor", "Algorithm 1", "sync, W and b, a Taylor polynomial of heat, desync")
def taylor(
    graphs: Sequence[Graph] = GRAPHS, degrees: Sequence[int] = (0, 1, 4, 8), seed: int = 0
) -> Iterator[Evidence]:
    """The layer against the algorithm's lines, and against Equations 2 and 3."""
    lines, local, frames, transposed = [], [], [], []
    for graph in graphs:
        generator = torch.Generator().manual_seed(seed)
        matrix, kernel = reference.laplacian(graph), reference.heat_kernel(graph, 1.0)
        for sample in samples(graph, seed, dims=(2, 3)):
            x, maps, size = sample.field(generator), sample.maps, sample.size
            weight = torch.randn(size, size, dtype=torch.float64, generator=generator)
            bias = torch.randn(size, dtype=torch.float64, generator=generator)
            given = (sample, weight, bias)
            with torch.no_grad():
                for degree in degrees:
                    # Algorithm 1 multiplies rows: its W is the transpose of Equation 2's.
                    expected = algorithm_1(matrix, maps, x, 1.0, degree, weight.T, bias)
                    layer = _layer(*given, "global", method="taylor", degree=degree)
                    lines.append(relative(layer(x, graph.edge_index), expected))
                in_local = _layer(*given, "local")(x, graph.edge_index)
                in_global = _layer(*given, "global")(x, graph.edge_index)
            local.append(relative(in_local, equation_2(kernel, maps, x, weight, bias)))
            frames.append(relative(in_global, in_local))
            same_letter = algorithm_1(matrix, maps, x, 1.0, 30, weight, bias * 0)
            transposed.append(relative(same_letter, equation_2(kernel, maps, x, weight, bias * 0)))
    yield at_most("layer of degree K against the algorithm's lines, every map", lines, 1e-12)
    yield Erratum(
        name="The frame of the bias",
        printed="Equation 2 adds b to O_vᵀ W O_v x_v; Algorithm 1 adds it to W O_v x_v",
        counterexample=(
            f"two different layers: off from each other by up to {max(frames):.2g} of their size"
        ),
        corrected="bias='local' is Equation 2, bias='global' (the default) Algorithm 1",
        refutation=some_at_least("one against the other", frames, 0.1),
        verification=(
            at_most("bias='local' against Equations 2 and 3", local, 1e-11),
            at_most("bias='global' against Algorithm 1", lines, 1e-12),
        ),
    )
    yield Erratum(
        name="The side of W",
        printed="Algorithms 1 and 2 form H W, Equation 2 forms W O_v x_v, with one W",
        counterexample=f"with one W they differ by up to {max(transposed):.2g} of their size",
        corrected="the W of the algorithms is the transpose of the W of Equation 2",
        refutation=some_at_least("Algorithm 1 against Equation 2, one W", transposed, 0.1),
        verification=(at_most("with Wᵀ in Algorithm 1", lines, 1e-12),),
    )


@claim("spectral", "Algorithm 2", "heat from the eigenvectors of the Laplacian")
def spectral(
    graphs: Sequence[Graph] = GRAPHS, times: Sequence[float] = (0.3, 3.0, 30.0), seed: int = 0
) -> Iterator[Evidence]:
    """``sum exp(-t lambda) phi phi^T`` for both Laplacians."""
    symmetric, walk, printed, library = [], [], [], []
    for graph in (*graphs, g.star(4)):  # a graph that is not regular is among them
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(graph.num_nodes, 3, dtype=torch.float64, generator=generator)
        values, vectors = torch.linalg.eigh(reference.laplacian(graph, "sym"))
        root = graph.degree.sqrt().unsqueeze(1)
        right = vectors / root  # the eigenvectors of the random-walk Laplacian
        right = right / right.norm(dim=0)
        for time in times:
            decay = torch.exp(-time * values)
            exact = reference.heat_kernel(graph, time) @ x
            sym_exact = reference.heat_kernel(graph, time, "sym") @ x
            symmetric.append(relative(vectors @ (decay[:, None] * (vectors.T @ x)), sym_exact))
            walk.append(
                relative(vectors @ (decay[:, None] * (vectors.T @ (root * x))) / root, exact)
            )
            if float(graph.degree.max()) > float(graph.degree.min()):
                printed.append(relative(right @ (decay[:, None] * (right.T @ x)), exact))
            for normalization, expected in zip(NORMALIZATIONS, (exact, sym_exact), strict=True):
                lap = Laplacian(graph.edge_index, normalization=normalization).to(torch.float64)
                found = diffuse(x, lap, time, method="spectral", tol=1e-13)
                library.append(relative(found, expected))
    yield at_most(
        "method='spectral' against the dense exponential, both Laplacians", library, 1e-11
    )
    yield at_most("Σ exp(−tλ) φφᵀ against it, symmetric Laplacian", symmetric, 1e-11)
    yield Erratum(
        name="The spectral algorithm on the random-walk Laplacian",
        printed="Σ_i exp(−tλ_i) φ_i φ_iᵀ is the heat kernel of the paper's (random-walk) Laplacian",
        counterexample=(
            "its eigenvectors are not orthogonal on irregular graphs: with them the sum is off by "
            f"up to {max(printed):.2g} of the solution"
        ),
        corrected=(
            "D^(-1/2) Σ_i exp(−tλ_i) φ_i φ_iᵀ D^(1/2), φ_i the eigenvectors of the symmetric "
            "Laplacian; as printed it is right for that one"
        ),
        refutation=some_at_least("relative error as printed, irregular graphs", printed, 0.1),
        verification=(at_most("relative error as corrected", walk, 1e-11),),
    )
