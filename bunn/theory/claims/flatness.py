"""Flat bundles (Section 3): the factorisation, the bundle heat kernel, path independence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from bunn.diffusion import diffuse
from bunn.laplacian import Laplacian
from bunn.theory import graphs as g
from bunn.theory import reference
from bunn.theory.claim import Evidence, SettingsError, Table, at_least, at_most, claim
from bunn.theory.graphs import Graph
from bunn.theory.reference import relative
from bunn.theory.samples import matrices, samples

GRAPHS = (g.path(7), g.cycle(6), g.star(5), g.grid(3, 3), g.tree(2), g.random(9))


def _apply(matrix: Tensor, x: Tensor) -> Tensor:
    """A dense ``(n*c, n*c)`` matrix on features ``(n, c)``."""
    return (matrix @ x.flatten()).view_as(x)


@claim("factorization", "Section 3", "the bundle Laplacian is Oᵀ (L ⊗ I) O")
def factorization(graphs: Sequence[Graph] = GRAPHS, seed: int = 0) -> Iterator[Evidence]:
    """Against the Laplacian assembled edge by edge from the transports ``O_u^T O_v``."""
    maps, dense, applied, orthogonal = [], [], [], []
    for graph in graphs:
        generator = torch.Generator().manual_seed(seed)
        lap = Laplacian(graph.edge_index, num_nodes=graph.num_nodes).to(torch.float64)
        for sample in samples(graph, seed):
            bundle, x, assembled = sample.bundle, sample.field(generator), sample.laplacian()
            found = matrices(bundle)
            maps.append(relative(found, sample.maps))
            identity = torch.eye(sample.size, dtype=torch.float64)
            orthogonal.append(float((found.mT @ found - identity).abs().max()))
            through = bundle.desync(lap @ bundle.sync(x))
            applied.append(relative(through, _apply(assembled, x)))
            n, b, d = graph.num_nodes, bundle.num_bundles, bundle.bundle_dim
            blocks = torch.zeros(n, b, d, n, b, d, dtype=torch.float64)
            for i, block in enumerate(bundle.laplacian(lap)):
                blocks[:, i, :, :, i] = block.view(n, d, n, d)
            dense.append(relative(blocks.view_as(assembled), assembled))
    yield at_most("factored against assembled, d = 2, 3, 4, every map", dense, 1e-12)
    yield at_most("sync, L, desync against the assembled matrix", applied, 1e-12)
    yield at_most("maps against their formulas, r and r* among them", maps, 1e-12)
    yield at_most("maps are orthogonal", orthogonal, 1e-13)


@claim("newheatdiff", "Lemma 3.1", "the bundle heat kernel is H(t,v,u) O_vᵀ O_u")
def newheatdiff(
    graphs: Sequence[Graph] = GRAPHS,
    times: Sequence[float] = (0.3, 2.0, 10.0, 40.0, 400.0),
    seed: int = 0,
) -> Iterator[Evidence]:
    """Against the dense exponential of the assembled bundle Laplacian.

    Two bundles side by side are held against one of block-diagonal maps, which is Remark E.1.
    """
    flow, summed = [], []
    for graph in graphs:
        generator = torch.Generator().manual_seed(seed)
        lap = Laplacian(graph.edge_index, num_nodes=graph.num_nodes).to(torch.float64)
        for sample in samples(graph, seed):
            bundle, x, assembled = sample.bundle, sample.field(generator), sample.laplacian()
            for time in times:
                y = bundle.desync(diffuse(bundle.sync(x), lap, time, tol=1e-14))
                kernel = reference.heat_kernel(graph, time)
                lemma = torch.einsum("vu,vki,ukj,uj->vi", kernel, sample.maps, sample.maps, x)
                summed.append(relative(y, lemma))
                flow.append(relative(y, _apply(reference.matrix_exp(-time * assembled), x)))
    yield at_most("diffused against the dense exponential, d = 2, 3, 4, every map", flow, 1e-10)
    yield at_most("diffused against the sum of the lemma", summed, 1e-10)


def fundamental_cycles(graph: Graph) -> list[list[int]]:
    """A cycle, as a list of nodes, for every edge outside a spanning tree grown from node 0."""
    parent = {0: 0}
    queue = [0]
    neighbours: dict[int, list[int]] = {v: [] for v in range(graph.num_nodes)}
    for u, v in graph.edge_index.T.tolist():
        neighbours[u].append(v)
    for node in queue:
        for other in neighbours[node]:
            if other not in parent:
                parent[other] = node
                queue.append(other)

    def to_root(node: int) -> list[int]:
        way = [node]
        while way[-1] != 0:
            way.append(parent[way[-1]])
        return way

    cycles = []
    for u, v in graph.edge_index.T.tolist():
        if u < v and parent.get(v) != u and parent.get(u) != v:
            up, down = to_root(u), to_root(v)
            while len(up) > 1 and len(down) > 1 and up[-2] == down[-2]:
                up.pop(), down.pop()
            cycles.append(up + down[-2::-1])
    return cycles


@claim(
    "path-independence", "Section 3", "in a flat bundle, transport around a cycle is the identity"
)
def path_independence(
    graphs: Sequence[Graph] = (g.cycle(5), g.grid(3, 4), g.complete(5), g.random(9)), seed: int = 0
) -> Iterator[Evidence]:
    """Flat bundles of every family; then random rotations along the edges, which are not flat."""
    flat, rows = [], []
    for graph in graphs:
        cycles = fundamental_cycles(graph)
        if not cycles:
            raise SettingsError(f"graphs holds {graph.name!r}, a tree; the claim is about cycles")
        u, v = graph.edge_index
        for sample in samples(graph, seed):
            identity = torch.eye(sample.size, dtype=torch.float64).expand(graph.num_nodes, -1, -1)
            back = torch.stack([sample.bundle.desync(column) for column in identity.unbind(2)], 2)
            flat += _defects(graph, back[u] @ matrices(sample.bundle)[v], cycles)
        twisted = reference.twisted_transport(graph, seed)
        defect = max(_defects(graph, twisted, cycles))
        rows.append((graph.name, len(cycles), defect, _smallest_eigenvalue(graph, twisted)))
    yield at_most("holonomy of flat bundles minus the identity, every cycle and map", flat, 1e-12)
    yield at_least("the same with rotations that come from no nodes", [r[2] for r in rows], 0.1)
    yield at_least("no plane field is fixed then: smallest eigenvalue", [r[3] for r in rows], 1e-6)
    yield Table(
        "A connection that is not flat",
        ("graph", "cycles", "largest holonomy defect", "smallest eigenvalue"),
        tuple(rows),
    )


def _defects(graph: Graph, transport: Tensor, cycles: list[list[int]]) -> list[float]:
    """How far the transport around each cycle is from the identity."""
    identity = torch.eye(transport.size(-1), dtype=torch.float64)
    return [float((reference.holonomy(graph, transport, c) - identity).norm()) for c in cycles]


def _smallest_eigenvalue(graph: Graph, transport: Tensor) -> float:
    """Of the connection Laplacian; zero for a flat bundle, with as many eigenvectors as ``d``."""
    root = graph.degree.sqrt().repeat_interleave(transport.size(-1))
    matrix = reference.bundle_laplacian(graph, transport)
    return float(torch.linalg.eigvalsh(root[:, None] * matrix / root)[0])
