r"""Cellular sheaves on a graph, and their Laplacian, as lists of edges.

A sheaf gives every node and every edge a vector space of dimension ``d``, and every node ``v`` of
an edge ``e`` a restriction map :math:`F_{v \trianglelefteq e}`. For :math:`e = \{u, v\}`,

.. math::
    (\delta x)_e = F_{v \trianglelefteq e} x_v - F_{u \trianglelefteq e} x_u, \qquad
    L_F = \delta^\top \delta, \qquad
    D_v = \sum_{e \ni v} F_{v \trianglelefteq e}^\top F_{v \trianglelefteq e}.

The Laplacian is made of ``d x d`` blocks: :math:`D_v` on the diagonal and
:math:`-F_{v \trianglelefteq e}^\top F_{u \trianglelefteq e}` for every edge.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from bunn.baselines.attention import AttentionEdges, served
from bunn.baselines.propagation import DENSE_SIZE, dense_blocks, gather, scatter_sum
from bunn.graph.edges import read_edges

MapKind = Literal["orthogonal", "diagonal", "general"]


class Sheaf(NamedTuple):
    r"""A sheaf: one map for each end of each edge.

    Args:
        maps: ``(2m, d, d)``, or ``(2m, d)`` diagonals: the maps :math:`F_{v \trianglelefteq e}` of
            the targets of the directed edges.
        edges: ``2m`` edges, of which ``m + i`` is the reverse of ``i``.
        num_nodes: The number of nodes ``n``.
    """

    maps: Tensor
    edges: AttentionEdges
    num_nodes: int

    @property
    def edge_index(self) -> Tensor:
        """The edges ``(2, 2m)``."""
        return self.edges.edge_index

    @property
    def diagonal(self) -> bool:
        """Whether the maps are diagonals."""
        return self.maps.dim() == 2

    def coboundary(self, x: Tensor) -> Tensor:
        r""":math:`\delta x`: ``(n, d, f)`` on nodes to ``(m, d, f)`` on edges."""
        ends = gather(x, self.edge_index[1])
        there, back = (self.maps.unsqueeze(-1) * ends if self.diagonal else self.maps @ ends).chunk(
            2
        )
        return there - back

    def energy(self, x: Tensor) -> Tensor:
        r"""The sum over edges of :math:`|F_{v \trianglelefteq e} x_v - F_{u \trianglelefteq e}
        x_u|^2`, which is :math:`\langle x, L_F x \rangle`: a scalar."""
        return self.coboundary(x).square().sum()

    def degree(self) -> Tensor:
        """The blocks ``D_v``: ``(n, d, d)``, or ``(n, d)`` diagonals."""
        squares = self.maps.square() if self.diagonal else _block_products(self.maps, self.maps)
        return scatter_sum(squares, self.edge_index[1], self.num_nodes)

    def laplacian(self) -> SheafLaplacian:
        """The Laplacian, to be applied to fields."""
        there, back = self.maps.chunk(2)
        other = torch.cat((back, there))  # the maps of the sources
        transport = self.maps * other if self.diagonal else _block_products(self.maps, other)
        return SheafLaplacian.of(self.degree(), transport, self.edges)

    def normalized(self, damping: float) -> Sheaf:
        r"""The sheaf of the normalised Laplacian: its maps are :math:`F_{v \trianglelefteq e} N_v`
        with :math:`N_v N_v^\top = (D_v + \mathrm{damping}\, I)^{-1}`.

        Diagonal maps take :math:`N_v = (D_v + \mathrm{damping}\, I)^{-1/2}`. General ones take
        :math:`N_v = C_v^{-\top}` from the Cholesky factor :math:`D_v + \mathrm{damping}\, I = C_v
        C_v^\top`, not the symmetric root: the derivative of an eigendecomposition is infinite
        where eigenvalues repeat, that of a Cholesky factor nowhere. The two differ by an orthogonal
        map at each node, hence not in spectrum.
        """
        degree, target = self.degree(), self.edge_index[1]
        if self.diagonal:
            return self._replace(maps=self.maps * gather((degree + damping).rsqrt(), target))
        identity = torch.eye(degree.size(-1), dtype=degree.dtype, device=degree.device)
        factor, _ = torch.linalg.cholesky_ex(degree + damping * identity)
        inverse = torch.linalg.solve_triangular(factor, identity.expand_as(factor), upper=False)
        return self._replace(maps=self.maps @ gather(inverse, target).mT)

    def scaled(self, weight: Tensor | None, damping: float) -> Sheaf:
        r"""The same for orthogonal maps with edge weights ``(2m,)``, whose :math:`D_v` is
        :math:`\sum_e w_e I`: the maps times :math:`\sqrt{w_e / (d_v + \mathrm{damping})}`."""
        target = self.edge_index[1]
        if weight is None:
            weight = torch.ones(target.shape, dtype=self.maps.dtype, device=self.maps.device)
        degree = weight.new_zeros(self.num_nodes).index_add(0, target, weight)
        scale = (weight / (degree + damping)[target]).sqrt()
        return self._replace(maps=self.maps * scale[:, None, None])


class SheafLaplacian(NamedTuple):
    r"""A block matrix on ``(n, d, f)`` fields: :math:`(L x)_v = D_v x_v - \sum_{u \to v} T_{vu}
    x_u`.

    Args:
        degree: The blocks :math:`D_v`: ``(n, d, d)``, or ``(n, d)`` diagonals.
        transport: The blocks :math:`T_{vu}`: ``(2m, d, d)``, or ``(2m, d)`` diagonals.
        edges: ``2m`` edges.
        matrix: The whole, for a small graph: ``(n d, n d)``, or ``(d, n, n)`` for diagonals.
    """

    degree: Tensor
    transport: Tensor
    edges: AttentionEdges
    matrix: Tensor | None = None

    @classmethod
    def of(cls, degree: Tensor, transport: Tensor, edges: AttentionEdges) -> SheafLaplacian:
        """The Laplacian from its blocks, with its matrix if the graph is small."""
        n, diagonal, edge_index = degree.size(0), degree.dim() == 2, edges.edge_index
        if n > DENSE_SIZE:
            return cls(degree, transport, edges)
        loops = torch.arange(n, device=edge_index.device).expand(2, n)
        blocks = dense_blocks(
            torch.cat((degree, -transport)), torch.cat((loops, edge_index), dim=1), n
        )
        if diagonal:
            return cls(degree, transport, edges, blocks.permute(2, 0, 1))
        size = n * degree.size(1)
        return cls(degree, transport, edges, blocks.transpose(1, 2).reshape(size, size))

    def apply(self, x: Tensor) -> Tensor:
        """``(n, d, f) -> (n, d, f)``."""
        diagonal = self.degree.dim() == 2
        if self.matrix is not None:
            if diagonal:
                return (self.matrix @ x.transpose(0, 1)).transpose(0, 1)
            return (self.matrix @ x.flatten(0, 1)).view_as(x)
        if diagonal:
            return self.degree.unsqueeze(-1) * x - self.edges.weighted_sum(x, self.transport)
        return self.degree @ x - self._arriving(x)

    def _arriving(self, x: Tensor) -> Tensor:
        r""":math:`\sum_{u \to v} T_{vu} x_u` for matrices :math:`T_{vu}`."""
        if not served(x, self.transport):
            source, target = self.edges.edge_index
            return scatter_sum(self.transport @ gather(x, source), target, x.size(0))
        # Every diagonal of the matrices is a sum with coefficients of its own for every coordinate.
        sums = [
            self.edges.weighted_sum(
                x.roll(-shift, 1), self.transport.roll(-shift, 2).diagonal(dim1=1, dim2=2)
            )
            for shift in range(x.size(1))
        ]
        return torch.stack(sums).sum(0)


def _block_products(a: Tensor, b: Tensor) -> Tensor:
    """``a[i].T @ b[i]`` for many small blocks, ``(m, d, d)`` each.

    Written out: a batched product takes longer to start on a block of 2 x 2 than to compute it.
    """
    return (a.unsqueeze(-1) * b.unsqueeze(-2)).sum(-3)


def paired_edges(
    edge_index: Tensor, edge_weight: Tensor | None, num_nodes: int
) -> tuple[AttentionEdges, Tensor | None]:
    """An undirected graph with edge ``m + i`` the reverse of edge ``i``, and weights ``(2m,)``.

    Repeated edges are merged as everywhere in this package. A self-loop is left out: both its ends
    have the same map, so it adds nothing to the Laplacian.
    """
    edges = read_edges(edge_index, edge_weight, num_nodes)
    upper = edges.row < edges.col
    half = torch.stack((edges.row[upper], edges.col[upper]))
    weight = None if edges.weight is None else edges.weight[upper].repeat(2)
    both = torch.cat((half, half.flip(0)), dim=1)
    return AttentionEdges.in_order(both, num_nodes), weight
