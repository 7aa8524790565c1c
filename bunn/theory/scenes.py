"""What the paper's two figures show, computed: Laplacians at work, and the steps of a layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch_geometric.utils import to_undirected

from bunn.bundle import FlatBundle
from bunn.diffusion import diffuse
from bunn.laplacian import Laplacian
from bunn.nn import BuNNConv
from bunn.theory import reference
from bunn.theory.graphs import Graph
from bunn.theory.networks import FixedMaps, mixing

#: A cycle of four nodes and a leaf: irregular, with one loop to carry a vector around.
SQUARE = Graph("square", to_undirected(torch.tensor([[0, 1, 2, 3, 2], [1, 2, 3, 0, 4]])), 5)
#: The edge whose transport no choice of frames accounts for, and its extra rotation in degrees.
TWISTED_EDGE, TWIST = (1, 0), 120.0
#: A time at which every mode but those of eigenvalue zero has decayed to nothing.
LATE = 400.0

#: A triangle and a leaf: four nodes and four edges, as in the paper.
KITE = Graph("kite", to_undirected(torch.tensor([[0, 1, 2, 2], [1, 2, 0, 3]])), 4)
#: The times at which diffusion is shown; the layer stops at the last.
TIMES = (0.5, 5.0)
TOLERANCE = 1e-12


class Action(NamedTuple):
    """What a random-walk Laplacian on :data:`SQUARE` does to a signal ``(n, d)``."""

    laplacian: Tensor  #: ``L``, ``(n*d, n*d)``
    signal: Tensor  #: ``x``
    average: Tensor  #: ``x - L x``, the mean of the transported neighbours
    limit: Tensor  #: ``exp(-tL) x`` for large ``t``

    def energy(self, x: Tensor) -> float:
        """The Dirichlet energy ``<x, D L x>`` of ``x: (n, d)``."""
        gradient = SQUARE.degree.unsqueeze(1) * (self.laplacian @ x.flatten()).view_as(x)
        return float((x * gradient).sum())

    @property
    def nullity(self) -> int:
        """The dimension of the null space, which is that of all limits."""
        return int((torch.linalg.eigvals(self.laplacian).abs() < 1e-9).sum())


def _radians(*degrees: float) -> Tensor:
    return torch.tensor(degrees, dtype=torch.float64).deg2rad()


def _polar(length: Sequence[float], angle: Tensor) -> Tensor:
    """Vectors ``(n, 2)`` from their lengths and angles."""
    return torch.view_as_real(torch.polar(angle.new_tensor(length), angle))


def square_field() -> Tensor:
    """The vector field ``(5, 2)`` on :data:`SQUARE`."""
    return _polar((1.0, 1.0, 0.9, 1.0, 0.95), _radians(135, 215, 45, 100, -20))


def square_bundle() -> FlatBundle:
    """The flat bundle on :data:`SQUARE`: a fixed rotation at each node."""
    return FlatBundle(_radians(20, 195, -40, 55, -110).view(-1, 1, 1), maps="rotation")


def connection(twist: float) -> Tensor:
    """The transports ``(e, 2, 2)`` along the edges of :data:`SQUARE`.

    They are those of the flat bundle, except that one edge rotates by a further ``twist`` degrees.
    """
    frame = square_bundle().matrices()[:, 0]
    transport = reference.flat_transport(SQUARE, frame)
    extra = FlatBundle(_radians(twist).view(1, 1, 1), maps="rotation").matrices()[0, 0]
    u, v = TWISTED_EDGE
    there, back = (SQUARE.edge_index.T.tolist().index(edge) for edge in ([u, v], [v, u]))
    transport[there] = frame[u].T @ extra @ frame[v]
    transport[back] = transport[there].T
    return transport


def turn(transport: Tensor) -> float:
    """The angle in degrees by which a vector returns rotated from once around the square."""
    around = reference.holonomy(SQUARE, transport, [0, 3, 2, 1])
    return math.degrees(math.atan2(float(around[1, 0]), float(around[0, 0])))


def graph_action() -> Action:
    """The graph Laplacian on scalars."""
    lap = Laplacian(SQUARE.edge_index).to(torch.float64)
    x = torch.tensor([[0.9], [-0.6], [0.2], [1.0], [-0.8]], dtype=torch.float64)
    return Action(lap.dense(), x, lap.aggregate(x), diffuse(x, lap, math.inf))


def flat_action() -> Action:
    """The Laplacian of a flat bundle: that of the graph, between sync and desync."""
    lap = Laplacian(SQUARE.edge_index).to(torch.float64)
    bundle, x = square_bundle(), square_field()
    average = bundle.desync(lap.aggregate(bundle.sync(x)))
    limit = bundle.desync(diffuse(bundle.sync(x), lap, math.inf))
    return Action(bundle.laplacian(lap)[0], x, average, limit)


def twisted_action() -> Action:
    """The Laplacian of a connection that is not flat: no sync, but a dense matrix exponential."""
    matrix, x = reference.bundle_laplacian(SQUARE, connection(TWIST)), square_field()
    limit = reference.matrix_exp(-LATE * matrix) @ x.flatten()
    return Action(matrix, x, x - (matrix @ x.flatten()).view_as(x), limit.view_as(x))


class Steps(NamedTuple):
    """The steps of one layer on :data:`KITE`; all fields ``(4, 2)`` in the nodes' own frames."""

    frame: Tensor  #: ``O_v``, ``(4, 2, 2)`` (Equation 1)
    features: Tensor  #: the input ``x_v``
    updated: Tensor  #: ``O_v^T W O_v x_v`` (Equation 2)
    early: Tensor  #: its heat at the first of :data:`TIMES` (Equation 3)
    late: Tensor  #: its heat at the last, which is what the layer returns
    output: Tensor  #: the non-linearity of that (Equation 4)


def kite_layer() -> BuNNConv:
    """A layer with fixed angles and a fixed ``W``, without bias, in float64."""
    angles = FixedMaps(_radians(25, 140, -35, -120).view(-1, 1, 1))
    conv = BuNNConv(
        2, 2, time=TIMES[-1], maps="rotation", phi=angles, bias=None, tol=TOLERANCE
    ).double()
    with torch.no_grad():
        mixing(conv).weight.copy_(torch.tensor([[0.95, -0.45], [0.35, 0.9]], dtype=torch.float64))
    return conv.requires_grad_(False)


def message_diffusion_steps() -> Steps:
    """What the layer computes in the global frame, step by step, in the nodes' own frames."""
    lap, conv = Laplacian(KITE.edge_index).to(torch.float64), kite_layer()
    x = _polar((0.95, 0.95, 0.9, 0.95), _radians(37, 245, 8, -45))
    bundle = conv.bundle(x, lap)
    mixed = mixing(conv)(bundle.sync(x))
    early, late = (bundle.desync(diffuse(mixed, lap, time, tol=TOLERANCE)) for time in TIMES)
    return Steps(bundle.matrices()[:, 0], x, bundle.desync(mixed), early, late, late.relu())
