"""Dense linear algebra from edges and formulas alone, for the library to be held against."""

from __future__ import annotations

import math

import scipy.linalg
import torch
from torch import Tensor

from bunn.theory.graphs import Graph


def laplacian(graph: Graph, normalization: str = "rw") -> Tensor:
    """``I - D^-1 A`` or ``I - D^-1/2 A D^-1/2`` of a graph without isolated nodes, ``(n, n)``."""
    degree = graph.degree
    left = degree if normalization == "rw" else degree.sqrt()
    right = torch.ones_like(degree) if normalization == "rw" else degree.sqrt()
    identity = torch.eye(graph.num_nodes, dtype=torch.float64)
    return identity - graph.adjacency / left[:, None] / right[None, :]


def heat_kernel(graph: Graph, time: float, normalization: str = "rw") -> Tensor:
    """``exp(-t L)``, ``(n, n)``; at infinity the projection on the stationary state."""
    if time == math.inf:
        root = graph.degree.sqrt()
        left = torch.ones_like(root) if normalization == "rw" else root
        right = graph.degree if normalization == "rw" else root
        return left[:, None] * right / graph.degree.sum()
    matrix = laplacian(graph, normalization)
    if time > 500:
        return matrix_exp(-time * matrix)
    # The series of exp(-t) exp(tP): without signs nothing cancels, and no entry loses a digit.
    identity = torch.eye(graph.num_nodes, dtype=torch.float64)
    term = kernel = math.exp(-time) * identity
    k = 0
    while bool((term > 0).any()):
        k += 1
        term = term @ (identity - matrix) * (time / k)
        kernel = kernel + term
    return kernel


def matrix_exp(matrix: Tensor) -> Tensor:
    """The dense exponential, by scipy (torch's drops digits of single small matrices)."""
    return torch.from_numpy(scipy.linalg.expm(matrix.numpy()))


def spectrum(graph: Graph) -> Tensor:
    """The eigenvalues of ``L``, ascending, ``(n,)``."""
    values: Tensor = torch.linalg.eigvalsh(laplacian(graph, "sym"))
    return values


def bundle_laplacian(graph: Graph, transport: Tensor) -> Tensor:
    """``I - D^-1 A_B`` of the transports ``(e, d, d)`` along the edges, ``(n*d, n*d)``.

    The transport of the edge ``(u, v)`` takes a vector from ``v`` to ``u``.
    """
    n, d = graph.num_nodes, transport.size(-1)
    u, v = graph.edge_index
    blocks = torch.zeros(n, n, d, d, dtype=torch.float64)
    blocks[u, v] = -transport / graph.degree[u, None, None]
    blocks[torch.arange(n), torch.arange(n)] += torch.eye(d, dtype=torch.float64)
    return blocks.transpose(1, 2).reshape(n * d, n * d)


def flat_transport(graph: Graph, maps: Tensor) -> Tensor:
    """``O_u^T O_v`` for every edge ``(u, v)``, ``(e, d, d)``, from maps ``(n, d, d)``."""
    u, v = graph.edge_index
    return maps[u].mT @ maps[v]


def twisted_transport(graph: Graph, seed: int, d: int = 2) -> Tensor:
    """Random rotations along the edges that come from no nodes: a bundle that is not flat."""
    generator = torch.Generator().manual_seed(seed)
    n = graph.num_nodes
    turns = torch.randn(n, n, d, d, dtype=torch.float64, generator=generator)
    turns = turns - turns.mT
    turns = turns - turns.transpose(0, 1)  # the way back is the inverse
    u, v = graph.edge_index
    return matrix_exp(turns[u, v])


def holonomy(graph: Graph, transport: Tensor, cycle: list[int]) -> Tensor:
    """The transport once around a cycle, ``(d, d)``."""
    edges = {(u, v): e for e, (u, v) in enumerate(graph.edge_index.T.tolist())}
    around = torch.eye(transport.size(-1), dtype=torch.float64)
    for v, u in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
        around = transport[edges[u, v]] @ around
    return around


def rotation(angle: Tensor) -> Tensor:
    """``r(a)`` of Appendix E, ``(2, 2)``."""
    cos, sin = torch.cos(angle), torch.sin(angle)
    return torch.stack((torch.stack((cos, sin)), torch.stack((-sin, cos))))


def reflection(angle: Tensor) -> Tensor:
    """``r*(a)`` of Appendix E, ``(2, 2)``."""
    cos, sin = torch.cos(angle), torch.sin(angle)
    return torch.stack((torch.stack((cos, sin)), torch.stack((sin, -cos))))


def reflected(vectors: Tensor) -> Tensor:
    """``H_1 H_2 ... H_k``, ``H = I - 2 v v^T / |v|^2``, of vectors ``(k, d)``."""
    product = torch.eye(vectors.size(1), dtype=torch.float64)
    for v in vectors:
        product = product - 2 * torch.outer(product @ v, v) / (v @ v)
    return product


def skew(params: Tensor, d: int) -> Tensor:
    """The skew-symmetric ``(d, d)`` matrix whose upper triangle holds ``params``, row by row."""
    matrix = torch.zeros(d, d, dtype=torch.float64)
    row, column = torch.triu_indices(d, d, offset=1)
    matrix[row, column] = params
    return matrix - matrix.T


def orthogonal_map(maps: str, params: Tensor, d: int, first_half: bool) -> Tensor:
    """One map ``(d, d)`` by the formula of its family; half of the bundles may be of one kind."""
    identity = torch.eye(d, dtype=torch.float64)
    if maps == "rotation" or (maps == "o2" and first_half):
        return rotation(params[0])
    if maps == "o2":
        return reflection(params[0])
    if maps == "householder":
        return reflected(params.view(d, d)[: d if first_half else d - 1])
    if maps == "cayley":
        cayley: Tensor = torch.linalg.solve(identity - skew(params, d), identity + skew(params, d))
        return cayley
    if maps == "exp":
        return matrix_exp(skew(params, d))
    raise ValueError(f"maps={maps!r} has no formula here; add it")


def relative(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest entry expected."""
    found, expected = found.detach(), expected.detach()
    scale = expected.abs().max().clamp(min=torch.finfo(expected.dtype).tiny)
    return float((found - expected).abs().max() / scale)
