"""Theorem 5.3, constructed: BuNN layers that are any linear map on any family of graphs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bunn.diffusion import diffuse
from bunn.graph.edges import Adjacency
from bunn.laplacian import Laplacian
from bunn.nn import BuNNConv
from bunn.theory.networks import lookup_network, mixing

#: The heat kernel is summed until only what is below every number would be left out.
EXACT = math.ulp(0.0)
#: Times from which on a kernel may have no entries below :data:`SMALL`, so that heat exact to
#: :data:`NORMWISE`, relative to the largest value, is exact to twelve digits.
LATE, SMALL, NORMWISE = 1000.0, 1e-3, 1e-15
#: The largest weight, which leaves room for features up to 1e8 before products overflow.
LARGEST = 1e300


class UniversalLayer(nn.Module):
    r"""``pool . BuNNConv . lift`` of the proof of Theorem 5.3.

    Args:
        conv: The layer on ``k`` bundles of dimension 2 and as many channels as there are features,
            whose phi reads the encodings alone.
        in_channels: Size of each input feature ``c``.
        out_channels: Size of each output feature ``c'``.

    Shapes:
        - **input:** node features ``(n, c)``, edges, positional encodings ``(n, f)``
        - **output:** ``(n, c')``
    """

    def __init__(self, conv: BuNNConv, in_channels: int, out_channels: int) -> None:
        super().__init__()
        k = conv.num_bundles
        self.in_channels, self.out_channels = in_channels, out_channels
        self.lift = nn.Linear(in_channels, 2 * k * in_channels, bias=False, dtype=torch.float64)
        self.conv = conv
        self.pool = nn.Linear(2 * k * out_channels, out_channels, bias=False, dtype=torch.float64)
        with torch.no_grad():
            self.lift.weight.copy_(_interleaved(k, in_channels))
            self.pool.weight.copy_(_interleaved(k, out_channels).T)

    @property
    def width(self) -> int:
        """Channels inside, ``2 k max(c, c')``: linear in the number ``k`` of all nodes."""
        return max(self.lift.out_features, self.pool.in_features)

    def forward(
        self,
        x: Tensor,
        edge_index: Adjacency | Laplacian,
        pe: Tensor,
    ) -> Tensor:
        """Runs the layer.

        Args:
            x: ``(n, c)`` node features.
            edge_index: The edges of one of the graphs, or of several side by side.
            pe: ``(n, f)`` the encodings of the nodes.
        """
        if x.dim() != 2 or x.size(1) != self.in_channels:
            raise ValueError(
                f"x has shape {tuple(x.shape)}; the layer reads (num_nodes, {self.in_channels})"
            )
        if x.dtype != self.lift.weight.dtype:
            raise TypeError(
                f"x has dtype {x.dtype}, the layer {self.lift.weight.dtype}; use x.double()"
            )
        h = self.lift(x)
        h = self.conv(h, edge_index, pe=pe, phi_x=h[:, :0])
        out: Tensor = self.pool(h)
        return out


def _interleaved(k: int, channels: int) -> Tensor:
    """``(I, 0, ..., I, 0)^T``: ``k`` copies of the identity and as many zeros, ``(2ck, c)``."""
    identity = torch.eye(channels, dtype=torch.float64)
    return torch.cat((identity, torch.zeros_like(identity))).repeat(k, 1)


class _Place(NamedTuple):
    """Where the nodes of a graph stand in the lookup table, and their heat kernel."""

    rows: slice
    kernel: Tensor


def universal_layer(
    edge_indices: Sequence[Tensor],
    encodings: Sequence[Tensor],
    linear_maps: Sequence[Tensor],
    biases: Sequence[Tensor] | None = None,
    *,
    time: float = math.inf,
) -> UniversalLayer:
    r"""One BuNN layer that is a given linear map on each of several graphs (Theorem 5.3).

    Let ``k`` be the number of nodes of all graphs together. The layer has ``k`` bundles of
    dimension 2, one per node; node ``u`` makes a quarter turn in its own and none in the others.
    The *lift* writes the features into the first coordinate of every bundle, the *pool* adds up the
    first coordinates. Then only the second coordinates of ``W`` act, and

    .. math::
        W_{11}^{uv} = \frac{1}{H(t, u, v)} \frac{\partial (L X)_u}{\partial x_v}

    makes the layer :math:`L`. The bias, in the global frame, is looked up in the same way, since
    the rows of the heat kernel sum to one. phi is a two-layer perceptron on the encodings.

    Args:
        edge_indices: The edges ``(2, e_i)`` of each graph, undirected and connected.
        encodings: ``(n_i, f)`` positional encodings, injective: no two nodes share one, in one
            graph or in two.
        linear_maps: ``(n_i * c_out, n_i * c_in)`` matrices that act on node features flattened node
            by node.
        biases: ``(n_i * c_out,)`` vectors that are added. (default: none)
        time: The diffusion time, ``> 0``; small times make large weights. (default: ``inf``)

    Returns:
        A float64 module called as ``layer(x, edge_index, pe=encoding)``.

    Raises:
        ValueError: If the lists do not fit each other, the encodings are not injective, a map asks
            for what no heat brings (between components), or the kernel underflows at ``time``.
    """
    c_in, c_out = _channels(edge_indices, encodings, linear_maps, biases)
    if not isinstance(time, Real) or not time > 0:
        raise ValueError(f"time={time!r}; heat has to flow: use a number > 0, or inf")
    method, tol, places = _places(edge_indices, encodings, float(time))
    k = places[-1].rows.stop
    names = [f"node {v} of graph {i}" for i, e in enumerate(encodings) for v in range(len(e))]
    angles = torch.eye(k, dtype=torch.float64) * (math.pi / 2)
    conv = BuNNConv(
        2 * k * c_in,
        2 * k * c_out,
        num_bundles=k,
        time=time,
        maps="rotation",
        phi=lookup_network(torch.cat([e.detach() for e in encodings]), angles, names),
        pe_channels=encodings[0].size(1),
        bias="global",
        method=method,
        tol=tol,
    ).double()
    weight = torch.zeros(k, 2, c_out, k, 2, c_in, dtype=torch.float64)
    shift = torch.zeros(k, 2, c_out, dtype=torch.float64)
    for index, (place, matrix) in enumerate(zip(places, linear_maps, strict=True)):
        n = place.kernel.size(0)
        blocks = matrix.detach().double().reshape(n, c_out, n, c_in)
        weight[place.rows, 1, :, place.rows, 1] = _divided(blocks, place.kernel, index, time)
        if biases is not None:  # the quarter turn back brings the second coordinate with a minus
            shift[place.rows, 1] = -biases[index].detach().double().reshape(n, c_out)
    with torch.no_grad():
        mixing(conv).weight.copy_(weight.reshape(2 * k * c_out, -1))
        mixing(conv).bias.copy_(shift.flatten())
    return UniversalLayer(conv, c_in, c_out)


def _places(
    edge_indices: Sequence[Tensor], encodings: Sequence[Tensor], time: float
) -> tuple[str, float, list[_Place]]:
    """The method of heat, its tolerance, and the place and kernel of each graph.

    Uniformization, exact in the smallest entries, takes as many products as there is time. Late,
    when there are no small entries, any exact method will do.
    """
    laps = [
        Laplacian(edges, num_nodes=len(encoding)).to(torch.float64)
        for edges, encoding in zip(edge_indices, encodings, strict=True)
    ]
    method, tol, kernels = "auto", NORMWISE, []
    if time > LATE:
        kernels = [_kernel(lap, time, method, tol) for lap in laps]
    together = [lap.components[:, None] == lap.components for lap in laps]
    if not kernels or any(
        float(h[same].min()) <= SMALL for h, same in zip(kernels, together, strict=True)
    ):
        method, tol = "uniformization", EXACT
        kernels = [_kernel(lap, time, method, tol) for lap in laps]
    places, start = [], 0
    for kernel in kernels:
        places.append(_Place(slice(start, start + len(kernel)), kernel))
        start += len(kernel)
    return method, tol, places


def _kernel(lap: Laplacian, time: float, method: str, tol: float) -> Tensor:
    return diffuse(torch.eye(lap.num_nodes, dtype=torch.float64), lap, time, method=method, tol=tol)


def _divided(blocks: Tensor, kernel: Tensor, graph: int, time: float) -> Tensor:
    """``L_uv / H(u, v)``, zero where both are: ``(n, c_out, n, c_in)``."""
    asked = (blocks != 0).any(3).any(1)
    missing = (asked & (kernel < torch.finfo(torch.float64).tiny)).nonzero()
    if missing.numel():
        u, v = missing[0].tolist()
        remedy = "use a larger time, or, if they are in different components, a zero block"
        if time == math.inf:
            remedy = "they are in different components, so this block has to be zero"
        raise ValueError(
            f"linear_maps[{graph}] lets node {v} act on node {u}, but the heat kernel between them "
            f"is {float(kernel[u, v]):g} at time={time:g}: {remedy}"
        )
    weights = blocks / torch.where(asked, kernel, 1.0)[:, None, :, None]
    if not bool((weights.abs() <= LARGEST).all()):
        raise ValueError(
            f"linear_maps[{graph}] over the heat kernel at time={time:g} overflows: its weights "
            f"exceed {LARGEST:g}; use a larger time, or a smaller map"
        )
    return weights


def _channels(
    edge_indices: Sequence[Tensor],
    encodings: Sequence[Tensor],
    linear_maps: Sequence[Tensor],
    biases: Sequence[Tensor] | None,
) -> tuple[int, int]:
    """The channels ``c_in, c_out`` that all maps agree on."""
    lists = {"edge_indices": edge_indices, "encodings": encodings, "linear_maps": linear_maps}
    check_lengths(lists if biases is None else {**lists, "biases": biases})
    for name, entries in (lists if biases is None else {**lists, "biases": biases}).items():
        for i, entry in enumerate(entries):
            if not isinstance(entry, Tensor) or entry.layout != torch.strided:
                kind = entry.layout if isinstance(entry, Tensor) else type(entry).__name__
                raise TypeError(f"{name}[{i}] is a {kind}; pass a dense tensor")
    found: set[tuple[int, int]] = set()
    for i, (encoding, matrix) in enumerate(zip(encodings, linear_maps, strict=True)):
        if encoding.dim() != 2 or encoding.size(0) == 0:
            raise ValueError(
                f"encodings[{i}] has shape {tuple(encoding.shape)}; it needs (num_nodes, f)"
            )
        if encoding.size(1) != encodings[0].size(1):
            raise ValueError(
                f"encodings[{i}] has {encoding.size(1)} channels, encodings[0] "
                f"{encodings[0].size(1)}; they must agree"
            )
        n = encoding.size(0)
        if matrix.dim() != 2 or matrix.size(0) % n or matrix.size(1) % n or not matrix.numel():
            raise ValueError(
                f"linear_maps[{i}] has shape {tuple(matrix.shape)}; graph {i} has {n} nodes, so it "
                f"needs ({n} * c_out, {n} * c_in)"
            )
        if not bool(matrix.isfinite().all()):
            raise ValueError(f"linear_maps[{i}] has entries that are not finite")
        found.add((matrix.size(1) // n, matrix.size(0) // n))
        if biases is not None and biases[i].shape != (matrix.size(0),):
            raise ValueError(
                f"biases[{i}] has shape {tuple(biases[i].shape)}; it needs ({matrix.size(0)},)"
            )
        if biases is not None and not bool(biases[i].isfinite().all()):
            raise ValueError(f"biases[{i}] has entries that are not finite")
    if len(found) > 1:
        raise ValueError(
            f"the linear maps have (c_in, c_out) = {sorted(found)}; all graphs must agree"
        )
    return found.pop()


def check_lengths(lists: Mapping[str, Sequence[object]]) -> None:
    """Raises an error unless every list has as many entries as there are graphs."""
    counts = {name: len(entries) for name, entries in lists.items()}
    if len(set(counts.values())) != 1 or 0 in counts.values():
        seen = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise ValueError(f"one entry per graph is needed in every list; there are {seen}")
