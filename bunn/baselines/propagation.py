r"""Sums over neighbours, in operations that :func:`torch.func.vmap` folds.

Many models are trained side by side by ``vmap`` over their stacked parameters, on one graph. Then
``index_select`` and ``scatter_add`` become element-wise gathers, an order of magnitude slower than
the rows they move; ``embedding`` and ``index_add`` move the rows of all models at once, and on a
small graph the sum is a product with a dense matrix, some five times faster again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding

from bunn.calling import plain

#: Graphs of up to this many nodes are summed over by a dense ``(n, n)`` matrix.
DENSE_SIZE = 128


def gather(x: Tensor, index: Tensor) -> Tensor:
    """``x[index]``: ``(n, ...)`` values of nodes and ``(e,)`` nodes, to ``(e, ...)``.

    The backward pass of an embedding sorts the nodes first on a GPU, every time, and on a CPU adds
    up in the type of ``x``, which in 16 bits ends at 256 for ones. That of ``index_select`` does so
    on a GPU.
    """
    if plain(x) and not (x.is_cuda and x.dtype.itemsize == 2):
        return x.index_select(0, index)
    rows: Tensor = embedding(index, x.flatten(1))
    return rows if x.dim() == 2 else rows.unflatten(1, x.shape[1:])


def scatter_sum(values: Tensor, index: Tensor, num_nodes: int) -> Tensor:
    """The sum of ``values`` at every node: ``(e, ...)`` and ``(e,)`` nodes, to ``(n, ...)``.

    The adjoint of :func:`gather`. On a GPU, where additions are made one by one, those of 16 bits
    are in float32.
    """
    rows = values.flatten(1)
    wide = rows.float() if rows.is_cuda and rows.dtype.itemsize == 2 else rows
    out = wide.new_zeros(num_nodes, rows.size(1)).index_add(0, index, wide).to(values.dtype)
    return out if values.dim() == 2 else out.unflatten(1, values.shape[1:])


def dense_blocks(values: Tensor, edge_index: Tensor, num_nodes: int) -> Tensor:
    """The matrix of blocks ``A[v, u] = sum of values over edges u -> v``: ``(e, ...)`` to
    ``(n, n, ...)``."""
    place = edge_index[1] * num_nodes + edge_index[0]
    return scatter_sum(values, place, num_nodes**2).view(num_nodes, num_nodes, *values.shape[1:])


def neighbor_sum(x: Tensor, edge_index: Tensor, weight: Tensor | None = None) -> Tensor:
    r""":math:`y_v = \sum_{u \to v} w_{uv} x_u`.

    Args:
        x: ``(n, c)`` features, or ``(n, h, c)`` with ``h`` heads.
        edge_index: ``(2, e)`` edges.
        weight: ``(e,)`` weights, ``(e, h)`` if there are heads. (default: all one)

    Returns:
        The sums, of the shape of ``x``.
    """
    n, (source, target) = x.size(0), edge_index
    if n > DENSE_SIZE:
        messages = gather(x, source)
        return scatter_sum(
            messages if weight is None else messages * weight.unsqueeze(-1), target, n
        )
    if weight is None:
        weight = torch.ones(source.shape, dtype=x.dtype, device=x.device)
    if x.dim() == 2:
        return dense_blocks(weight.unsqueeze(-1), edge_index, n).squeeze(-1).to(x.dtype) @ x
    matrices = dense_blocks(weight, edge_index, n).permute(2, 0, 1).to(x.dtype)
    return (matrices @ x.transpose(0, 1)).transpose(0, 1).contiguous()


def propagate_messages(
    conv: Any, edge_index: Tensor, size: Any = None, *, x: tuple[Tensor, ...], edge_attr: Tensor
) -> Tensor:
    """The ``propagate`` of a layer of PyG that sums messages of nodes and edges, named as
    :func:`propagate_sum` is.

    Args:
        conv: The layer.
        edge_index: ``(2, e)`` edges.
        size: Not used; a graph is not bipartite here.
        x: A pair of ``(n, c)``.
        edge_attr: ``(e, c)`` features of edges.
    """
    source, target = edge_index
    messages: Tensor = conv.message(gather(x[0], source), edge_attr)
    return scatter_sum(messages, target, x[0].size(0))


def propagate_sum(
    conv: Any,
    edge_index: Tensor,
    size: Any = None,
    *,
    x: Tensor | tuple[Tensor, ...],
    edge_weight: Tensor | None = None,
    alpha: Tensor | None = None,
) -> Tensor:
    """The ``propagate`` of a layer of PyG that sums or averages, by :func:`neighbor_sum`.

    A subclass of the layer names it in its own body, ``propagate = propagate_sum``: that is where
    PyG looks before it compiles a ``propagate`` of its own. All else is the layer's.

    Args:
        conv: The layer.
        edge_index: ``(2, e)`` edges.
        size: Not used; a graph is not bipartite here.
        x: ``(n, c)``, or a pair of it, or ``(n, h, c)`` with attention.
        edge_weight: ``(e,)`` weights.
        alpha: ``(e, h)`` attention coefficients.
    """
    field = x if isinstance(x, Tensor) else x[0]
    out = neighbor_sum(field, edge_index, edge_weight if alpha is None else alpha)
    if conv.aggr == "mean":
        ones = torch.ones(edge_index.shape[1:], dtype=out.dtype, device=out.device)
        degree = ones.new_zeros(field.size(0)).index_add(0, edge_index[1], ones)
        out = out / degree.clamp(min=1).unsqueeze(-1)
    return out
