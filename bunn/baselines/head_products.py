"""Attention along edges on a CPU: products with sparse matrices, one for each head.

Nothing as large as edges times channels is ever formed, as in :mod:`bunn.kernels.attention`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bunn.baselines.averages import sum_dtype
from bunn.calling import plain
from bunn.graph.operator import csr_matrix, exact_arithmetic
from bunn.kernels.arguments import Listing


def serve(*tensors: Tensor) -> bool:
    """Whether sparse matrices multiply ``tensors``, which transforms cannot look into."""
    return all(x.device.type == "cpu" for x in tensors) and plain(*tensors)


def multiply(query: Tensor, key: Tensor, edge_index: Tensor, arriving: Listing) -> Tensor:
    """``(n, h, k)`` twice and edges ``(2, e)`` to ``(e, h)``, in the precision of sums."""
    (source, target), dtype = edge_index, sum_dtype(query.dtype)
    if source.numel() > query.size(0) ** 2:  # repeated edges: more than a matrix of torch's holds
        return (query[target].to(dtype) * key[source]).sum(-1)
    entries = torch.empty(query.size(1), source.numel(), dtype=dtype)
    pattern = csr_matrix(arriving.pointer, arriving.other, torch.zeros(source.shape, dtype=dtype))
    with exact_arithmetic(query):
        for head, row in enumerate(entries):
            ends = _columns(query, head, dtype), _columns(key, head, dtype).t()
            row.copy_(torch.sparse.sampled_addmm(pattern, *ends, beta=0.0).values())
    if arriving.place is None:
        return entries.t().contiguous()
    out = torch.empty(source.numel(), query.size(1), dtype=dtype)
    return out.index_copy_(0, arriving.place, entries.t())


def add(values: Tensor, weight: Tensor, listing: Listing) -> Tensor:
    """``(n, h, k)`` values and ``(e, h)`` weights to ``(n, h, k)``, rounded once."""
    dtype = sum_dtype(values.dtype)
    if listing.place is not None:
        weight = weight[listing.place]
    entries = weight.t().to(dtype).contiguous()
    out = torch.empty_like(values, memory_format=torch.contiguous_format)
    with exact_arithmetic(values):
        for head, row in enumerate(entries):
            matrix = csr_matrix(listing.pointer, listing.other, row)
            out[:, head] = matrix @ _columns(values, head, dtype)
    return out


def _columns(x: Tensor, head: int, dtype: torch.dtype) -> Tensor:
    """``(n, k)`` those of one head, in a matrix of their own."""
    return x[:, head].to(dtype, memory_format=torch.contiguous_format)
