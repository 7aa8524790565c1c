"""Reading a graph: every form in which PyTorch and PyG hand one over, checked once."""

from __future__ import annotations

from numbers import Integral
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch_geometric.typing import SparseTensor

Adjacency: TypeAlias = Tensor | SparseTensor

_SPARSE_LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)


class Edges(NamedTuple):
    """The positive entries of a symmetric adjacency matrix, sorted by row, then by column.

    Args:
        row: ``(e,)`` int64.
        col: ``(e,)`` int64.
        weight: ``(e,)`` float64 and exactly symmetric, or :obj:`None` where every weight is one.
        num_nodes: The number of nodes ``n``.
        dtype: The floating-point type the weights were given in, :obj:`None` if there were none.
    """

    row: Tensor
    col: Tensor
    weight: Tensor | None
    num_nodes: int
    dtype: torch.dtype | None


def read_edges(
    edge_index: Adjacency, edge_weight: Tensor | None = None, num_nodes: int | None = None
) -> Edges:
    """Reads, checks and coalesces an undirected graph.

    Repeated edges are merged as :func:`torch_geometric.utils.coalesce` merges them: one edge if
    there are no weights, the sum of the weights otherwise. Edges of weight zero are no edges.
    """
    row, col, weight, num_nodes = _unpack(edge_index, edge_weight, num_nodes)
    _check_range(row, col, num_nodes)
    dtype = None
    if weight is not None:
        weight = _check_weight(weight, row)
        dtype, weight = weight.dtype, weight.to(torch.float64)
        if bool((weight == 0).any()):
            positive = weight > 0
            row, col, weight = row[positive], col[positive], weight[positive]
    row, col, weight = _coalesce(row, col, weight, num_nodes)
    weight = _symmetric(row, col, weight, num_nodes, dtype)
    return Edges(row, col, weight, num_nodes, dtype)


def _unpack(
    edge_index: Any, edge_weight: Tensor | None, num_nodes: int | None
) -> tuple[Tensor, Tensor, Tensor | None, int]:
    """The four things every form of a graph comes down to: row, column, weight and size."""
    size: tuple[int, ...] | None = None
    if isinstance(edge_index, SparseTensor):
        row, col, value = edge_index.coo()
        size = tuple(edge_index.sparse_sizes())
    elif isinstance(edge_index, Tensor) and edge_index.layout in _SPARSE_LAYOUTS:
        row, col, value = _sparse_entries(edge_index.detach())
        size = tuple(edge_index.shape)
    elif isinstance(edge_index, Tensor):
        row, col = _check_edge_index(edge_index)
        value = None
    else:
        raise TypeError(
            f"edge_index is a {type(edge_index).__name__}; pass a (2, num_edges) integer tensor, "
            "a sparse COO/CSR/CSC tensor, a SparseTensor or a bunn.Laplacian"
        )
    if size is not None:
        if len(size) != 2 or size[0] != size[1]:
            raise ValueError(f"edge_index is a sparse matrix of shape {size}; it must be square")
        if num_nodes is not None and num_nodes != size[0]:
            raise ValueError(
                f"num_nodes={num_nodes}, but edge_index is a sparse matrix of {size[0]} rows; "
                "leave num_nodes out or make the two agree"
            )
        if value is not None and edge_weight is not None:
            raise ValueError(
                "edge_weight is given, but the sparse edge_index already holds weights; "
                "pass one of the two"
            )
        num_nodes, edge_weight = size[0], value if edge_weight is None else edge_weight
    if num_nodes is None:
        if row.numel() == 0:
            raise ValueError("edge_index has no edges, so num_nodes is unknown; pass num_nodes")
        num_nodes = 1 + int(torch.maximum(row.max(), col.max()))
    if not isinstance(num_nodes, Integral):
        raise TypeError(f"num_nodes={num_nodes!r}; it must be an integer")
    if num_nodes < 1:
        raise ValueError(f"num_nodes is {num_nodes}; a graph needs at least one node")
    return row, col, edge_weight, int(num_nodes)


def _sparse_entries(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Row, column and value of every stored entry, repeated ones included."""
    if matrix.layout == torch.sparse_coo:
        row, col = matrix._indices().unbind(0)
        return row, col, matrix._values()
    if matrix.layout == torch.sparse_csr:
        pointer, inner = matrix.crow_indices().long(), matrix.col_indices().long()
    else:
        pointer, inner = matrix.ccol_indices().long(), matrix.row_indices().long()
    lines = torch.arange(pointer.numel() - 1, device=pointer.device)
    outer = torch.repeat_interleave(lines, pointer[1:] - pointer[:-1])
    row, col = (outer, inner) if matrix.layout == torch.sparse_csr else (inner, outer)
    return row, col, matrix.values()


def _check_edge_index(edge_index: Tensor) -> tuple[Tensor, Tensor]:
    if edge_index.dtype not in (torch.int64, torch.int32):
        raise TypeError(
            f"edge_index has dtype {edge_index.dtype}; use .long() node indices, or make a dense "
            "adjacency matrix sparse with torch_geometric.utils.dense_to_sparse"
        )
    if edge_index.dim() != 2 or edge_index.size(0) != 2:
        raise ValueError(
            f"edge_index has shape {tuple(edge_index.shape)}; it must be (2, num_edges)"
            + (": transpose it" if edge_index.dim() == 2 and edge_index.size(1) == 2 else "")
        )
    # Plain tensors only: torch_geometric.EdgeIndex would carry its own bookkeeping along.
    row, col = edge_index.detach().as_subclass(torch.Tensor).long().unbind(0)
    return row, col


def _check_range(row: Tensor, col: Tensor, num_nodes: int) -> None:
    if row.numel() == 0:
        return
    low = int(torch.minimum(row.min(), col.min()))
    high = int(torch.maximum(row.max(), col.max()))
    if low < 0 or high >= num_nodes:
        raise ValueError(
            f"edge_index names node {low if low < 0 else high}, but num_nodes={num_nodes} allows "
            f"0 to {num_nodes - 1}; relabel the nodes, pass the right num_nodes, or give x one row "
            "per node"
        )


def _check_weight(weight: Tensor, row: Tensor) -> Tensor:
    if not isinstance(weight, Tensor):
        raise TypeError(f"edge_weight is a {type(weight).__name__}; pass a tensor ({row.numel()},)")
    if not weight.is_floating_point():
        raise TypeError(f"edge_weight has dtype {weight.dtype}; use a floating-point type")
    if weight.shape != row.shape:
        raise ValueError(
            f"edge_weight has shape {tuple(weight.shape)}; edge_index asks for ({row.numel()},)"
        )
    if weight.device != row.device:
        raise ValueError(
            f"edge_weight is on {weight.device} and edge_index on {row.device}; move one of them"
        )
    weight = weight.detach()
    bad = ~torch.isfinite(weight) | (weight < 0)
    if bool(bad.any()):
        first = int(bad.nonzero()[0])
        raise ValueError(
            f"edge_weight has {int(bad.sum())} negative, NaN or infinite values (first: "
            f"{float(weight[first])} at edge {first}); weights must be finite and non-negative"
        )
    return weight


def check_no_gradient(weight: Tensor) -> None:
    """Raises an error where a gradient by the weights would silently be lost."""
    if weight.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            "edge_weight requires a gradient, but heat is differentiated with respect to x and "
            "time, not to the graph; pass edge_weight.detach()"
        )


def _coalesce(
    row: Tensor, col: Tensor, weight: Tensor | None, num_nodes: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    key = row * num_nodes + col
    if key.numel() < 2 or bool((key[1:] > key[:-1]).all()):
        return row, col, weight
    if weight is None:
        key = torch.unique(key)
    else:
        key, position = torch.unique(key, return_inverse=True)
        weight = weight.new_zeros(key.numel()).index_add_(0, position, weight)
    return torch.div(key, num_nodes, rounding_mode="floor"), key % num_nodes, weight


def _symmetric(
    row: Tensor, col: Tensor, weight: Tensor | None, num_nodes: int, dtype: torch.dtype | None
) -> Tensor | None:
    """Checks that every edge has its reverse, of equal weight; returns exactly symmetric weights.

    Sorting the sorted edges by column, stably, lists the transpose row by row: the graph is
    undirected exactly if both lists are the same.
    """
    transpose = torch.sort(col, stable=True).indices
    if not (torch.equal(row, col[transpose]) and torch.equal(col, row[transpose])):
        key, reverse = row * num_nodes + col, col * num_nodes + row
        lonely = ~torch.isin(key, reverse)
        first = int(lonely.nonzero()[0])
        raise ValueError(
            f"edge_index has {int(lonely.sum())} edges without their reverse (first: "
            f"{int(row[first])} -> {int(col[first])}); BuNN needs an undirected graph: "
            "use torch_geometric.utils.to_undirected"
        )
    if weight is None or dtype is None:
        return None
    reverse_weight = weight[transpose]
    slack = 16 * torch.finfo(dtype).eps * torch.maximum(weight, reverse_weight)
    unequal = (weight - reverse_weight).abs() > slack
    if bool(unequal.any()):
        first = int(unequal.nonzero()[0])
        u, v = int(row[first]), int(col[first])
        raise ValueError(
            f"edge_weight is not symmetric: {u} -> {v} weighs {float(weight[first])}, {v} -> {u} "
            f"weighs {float(reverse_weight[first])}; average the two directions "
            "(torch_geometric.utils.to_undirected with reduce='mean')"
        )
    return 0.5 * (weight + reverse_weight)


def add_loops(
    nodes: Tensor, row: Tensor, col: Tensor, weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Adds a loop of weight one at every marked node, keeping the rows sorted."""
    loops = nodes.nonzero().squeeze(1)
    row = torch.cat((row, loops))
    order = torch.sort(row, stable=True).indices
    if weight is not None:
        weight = torch.cat((weight, weight.new_ones(loops.numel())))[order]
    return row[order], torch.cat((col, loops))[order], weight
