"""How far a model looks: hop distances, and its sensitivity sorted by them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import torch
from scipy.sparse import csgraph
from torch import Tensor

from bunn.graph.edges import Adjacency
from bunn.laplacian import Laplacian, check_laplacian
from bunn.theory.diagnostics.inputs import Nodes, evaluating, graph_of, node_indices
from bunn.theory.diagnostics.sensitivities import (
    Pullback,
    block_norms,
    check_features,
    differentiable,
)

#: Targets whose distances and sensitivities to all nodes are held at a time.
_TARGETS = 64


@dataclass(frozen=True, eq=False)
class ReceptiveField:
    """Where in the graph the output at a node comes from, by hop distance.

    Shares are of the whole sensitivity: ``influence.sum() + unreachable`` is one. They are NaN if
    no target depends on any node.

    Args:
        hops: ``(r + 1,)`` the distances ``0, ..., r``, up to the largest from any target.
        influence: ``(r + 1,)`` the share of all nodes at that distance together.
        per_node: ``(r + 1,)`` the mean sensitivity to one node at that distance, no share.
        range: The mean distance in hops, weighted by ``influence``.
        unreachable: The share of nodes in other components, at no distance; zero if messages only
            pass along edges.
    """

    hops: Tensor
    influence: Tensor
    per_node: Tensor
    range: float
    unreachable: float


def receptive_field(
    model: Callable[..., Tensor],
    x: Tensor,
    edge_index: Adjacency | Laplacian,
    targets: Nodes = None,
    *,
    ord: str | float = "fro",
    **inputs: Any,
) -> ReceptiveField:
    r"""The effective receptive field of a model: how far away its output looks.

    With the :func:`sensitivity` :math:`s_{tu}` and the hop distance :math:`\delta(t, u)`

    .. math::
        \mathrm{influence}_h = \frac{\sum_t \sum_{u : \delta(t, u) = h} s_{tu}}
                                    {\sum_t \sum_u s_{tu}}, \qquad
        \mathrm{per\_node}_h = \operatorname{mean}_{t, u : \delta(t, u) = h} s_{tu}, \qquad
        \mathrm{range} = \frac{\sum_h h\, \mathrm{influence}_h}{\sum_h \mathrm{influence}_h}

    Args:
        model: A model with one output per node, as for :func:`sensitivity`.
        x: ``(n, ...)`` node features, in a floating-point type.
        edge_index: The graph, as for :func:`smoothing_profile`; hops are counted on its edges,
            those of weight zero left out.
        targets: The nodes whose outputs are differentiated. (default: all)
        ord: The norm of a Jacobian block, as for :func:`sensitivity`. (default: ``"fro"``)
        inputs: Further inputs of the model.
    """
    check_features(x)
    n = x.size(0)
    target = node_indices(targets, n, "targets", "x", x.device)
    if target.numel() == 0:
        raise ValueError("targets is empty; name at least one node, or None for all")
    with torch.no_grad():
        adjacency = _adjacency(graph_of(edge_index, x, inputs))
    # The last entry counts the nodes at no distance; no distance is n or more.
    total = np.zeros(n + 1)
    pairs = np.zeros(n + 1)
    with evaluating(model):
        output, leaf = differentiable(model, x, edge_index, inputs)
        if output.size(0) != n:
            raise ValueError(
                f"the model returned {output.size(0)} rows for {n} nodes; a receptive field needs "
                "one per node: leave out the pooling, or use sensitivity for graphs"
            )
        pullback, source = Pullback(output, leaf), torch.arange(n, device=x.device)
        for part in target.split(_TARGETS):
            norms = block_norms(pullback, part, source, ord).cpu().double().numpy()
            distance = _distances(adjacency, part)
            hop = np.where(np.isinf(distance), n, distance).astype(np.int64)
            total += np.bincount(hop.ravel(), norms.ravel(), n + 1)
            pairs += np.bincount(hop.ravel(), minlength=n + 1)
    last = int(np.flatnonzero(pairs[:n])[-1])
    hops = torch.arange(last + 1)
    sums = torch.from_numpy(total)
    share = sums / sums.sum()
    influence = share[: last + 1]
    return ReceptiveField(
        hops=hops,
        influence=influence,
        per_node=sums[: last + 1] / torch.from_numpy(pairs[: last + 1]),
        range=float((hops * influence).sum() / influence.sum()),
        unreachable=float(share[n]),
    )


def hop_distances(lap: Laplacian, nodes: Nodes = None) -> Tensor:
    """The number of edges on a shortest path, ``inf`` between components.

    Args:
        lap: The graph; weights play no role.
        nodes: The nodes to start from, as for :func:`heat_rows`. (default: all)

    Shapes:
        - **output:** ``(len(nodes), n)``, in float64
    """
    check_laplacian(lap)
    index = node_indices(nodes, lap.num_nodes, "nodes", "the graph", lap.device)
    if index.numel() == 0:
        return torch.zeros(0, lap.num_nodes, dtype=torch.float64, device=lap.device)
    return torch.from_numpy(_distances(_adjacency(lap), index)).to(lap.device)


def _adjacency(lap: Laplacian) -> scipy.sparse.csr_matrix:
    row, col = lap.edge_index.cpu().numpy()
    return scipy.sparse.csr_matrix(
        (np.ones(row.size), (row, col)), shape=(lap.num_nodes, lap.num_nodes)
    )


def _distances(adjacency: scipy.sparse.csr_matrix, nodes: Tensor) -> np.ndarray[Any, Any]:
    distance: np.ndarray[Any, Any] = csgraph.dijkstra(
        adjacency, indices=nodes.cpu().numpy(), unweighted=True
    )
    return distance
