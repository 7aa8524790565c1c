"""Where heat goes: rows of the heat kernel."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bunn.diffusion import diffuse
from bunn.laplacian import Laplacian, check_laplacian
from bunn.theory.diagnostics.inputs import Nodes, node_indices


def heat_rows(lap: Laplacian, nodes: Nodes, time: float) -> Tensor:
    r"""Rows of the heat kernel :math:`\mathcal{H}(t) = e^{-tL}`, as signals on the nodes.

    Row ``v`` holds the weights with which ``v`` averages the features of all nodes; for ``"rw"``
    it is where a random walk from ``v`` is after time ``t``. The rows are those of
    ``bunn.heat_kernel(lap, time)``, without the ``(n, n)`` kernel: they are heat that has flowed
    from ``v``, with :math:`\mathcal{H}(t)_{vu} = \mathcal{H}(t)_{uv} d_u / d_v` for ``"rw"``.

    Args:
        lap: The graph.
        nodes: The nodes ``v``: an index, several, a boolean mask, or :obj:`None` for all.
        time: The diffusion time, ``>= 0`` or ``inf``.

    Shapes:
        - **output:** ``(len(nodes), n)``
    """
    check_laplacian(lap)
    index = node_indices(nodes, lap.num_nodes, "nodes", "the graph", lap.device)
    units = torch.zeros(lap.num_nodes, index.numel(), dtype=lap.dtype, device=lap.device)
    units[index, torch.arange(index.numel(), device=lap.device)] = 1.0
    method = "limit" if time == math.inf else "chebyshev"
    rows = diffuse(units, lap, time, method=method, tol=torch.finfo(lap.dtype).eps).T
    if lap.normalization == "sym":
        return rows.contiguous()
    # sqrt(d) up to a factor per component, which neither under- nor overflows
    root = lap.null_vector
    return (rows * (root / root[index].unsqueeze(1)).square()).to(lap.dtype)
