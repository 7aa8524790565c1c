"""Infinite time (Section 4.1): the kernel's limit, the fixed points, the consensus."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from bunn.diffusion import diffuse, heat_kernel
from bunn.laplacian import Laplacian
from bunn.theory import graphs as g
from bunn.theory import reference
from bunn.theory.claim import Evidence, Table, at_least, at_most, claim
from bunn.theory.graphs import Graph
from bunn.theory.reference import relative
from bunn.theory.samples import Sample, samples

GRAPHS = (g.path(7), g.cycle(6), g.star(5), g.barbell(4), g.tree(2), g.random(9))


@claim("limit", "Section 4.1", "H(t,v,u) → d_u / 2|E|, exponentially fast")
def limit(graphs: Sequence[Graph] = GRAPHS) -> Iterator[Evidence]:
    """The kernel at infinity and at large times, against degrees counted on the edges."""
    endless, late, rate, rows = [], [], [], []
    for graph in graphs:
        lap = Laplacian(graph.edge_index, num_nodes=graph.num_nodes).to(torch.float64)
        expected = reference.heat_kernel(graph, math.inf)
        gap = float(reference.spectrum(graph)[1])
        endless.append(relative(heat_kernel(lap, math.inf), expected))
        late.append(relative(heat_kernel(lap, 40 / gap), expected))
        root = graph.degree.sqrt()
        for time in (1 / gap, 3 / gap):
            rest = root[:, None] * (heat_kernel(lap, time) - expected) / root
            norm = torch.linalg.matrix_norm(rest, 2)
            rate.append(abs(float(norm) / math.exp(-time * gap) - 1))
        rows.append((graph.name, gap, 40 / gap))
    yield at_most("kernel at t = ∞ against d_u / 2|E|", endless, 1e-12)
    yield at_most("kernel at t = 40/λ₁ against d_u / 2|E|", late, 1e-10)
    yield at_most("distance to the limit against exp(−tλ₁)", rate, 1e-9)
    yield Table("Spectral gaps", ("graph", "λ₁", "40/λ₁"), tuple(rows))


@claim("consensus", "Equation 5", "at t = ∞ all nodes agree in the global frame")
def consensus(graphs: Sequence[Graph] = GRAPHS, seed: int = 0) -> Iterator[Evidence]:
    """A layer with ``t = inf`` and ``W = I``; then what else heat leaves where it is."""
    agree, mean, fixed, null, rest = [], [], [], [], []
    for graph in graphs:
        lap = Laplacian(graph.edge_index, num_nodes=graph.num_nodes).to(torch.float64)
        share = graph.degree / graph.degree.sum()
        generator = torch.Generator().manual_seed(seed)
        for sample in samples(graph, seed):
            x, maps = sample.field(generator), sample.maps
            y = sample.layer(time=math.inf, weight=False, bias=None)(x, graph.edge_index)
            everywhere = torch.einsum("vij,vj->vi", maps, y)
            expected = torch.einsum("u,uij,uj->i", share, maps, x)
            mean.append(relative(everywhere, expected.expand_as(everywhere)))
            agree.append(relative(everywhere, everywhere[:1].expand_as(everywhere)))
            again = sample.bundle.desync(diffuse(sample.bundle.sync(y), lap, 3.0, tol=1e-14))
            fixed.append(relative(again, y))
            null_dimension, smallest = _null_space(sample)
            null.append(float(abs(null_dimension - sample.size)))
            rest.append(smallest)
    yield at_most("O_v y_v against the mean of all d_w O_w x_w, every map", mean, 1e-11)
    yield at_most("O_v y_v against O_u y_u, all pairs", agree, 1e-11)
    yield at_most("y after more heat against y", fixed, 1e-11)
    yield at_most("dimension of the fixed points minus d", null, 0.0)
    yield at_least("smallest eigenvalue that is not zero", rest, 1e-3)


def _null_space(sample: Sample) -> tuple[int, float]:
    """The dimension of the null space of ``L_B`` and the smallest eigenvalue beyond it."""
    root = sample.graph.degree.sqrt().repeat_interleave(sample.size)
    values = torch.linalg.eigvalsh(root[:, None] * sample.laplacian() / root)
    positive = values[values > 1e-10]
    return values.numel() - positive.numel(), float(positive.min())
