r"""Attention along edges, of which nothing is stored that has the width of features.

.. math::
    s_{uv} = \langle q_v, k_u \rangle, \qquad
    \alpha_{uv} = \operatorname{softmax}_u s_{uv}, \qquad y_v = \sum_{u \to v} \alpha_{uv} x_u

for every head. The gradients of the first are sums as the last, along the edges and against them,
and those of the last such a sum and such products. A program takes some edges of a head, or a node
and a head; the order of every sum is fixed by the graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bunn.kernels.arguments import Listing
from bunn.kernels.heads import (
    add_neighbours,
    multiply_ends,
    softmax_arrivals,
    softmax_arrivals_back,
)
from bunn.kernels.launching import launch, parts, power_of_two

#: Features of a program that are on their way at the same time, and edges of those of a softmax.
TILE, AT_ONCE = 1024, 64


def multiply(query: Tensor, key: Tensor, edge_index: Tensor) -> Tensor:
    """``(n, h, k)`` twice and edges ``(2, e)`` to ``(e, h)`` float32."""
    heads, size = query.shape[1:]
    source, target = edge_index
    out = torch.empty(source.numel(), heads, dtype=torch.float32, device=query.device)
    query, key = _rows(query), _rows(key)
    tile = _tile(size)
    if out.numel() > 0:
        launch(
            multiply_ends,
            (parts(source.numel(), tile["AT_ONCE"]), heads),
            (
                *(query, key, out, source, target, source.numel(), heads, size),
                *(query.stride(0), key.stride(0)),
            ),
            1,
            **tile,
        )
    return out


def add(values: Tensor, weight: Tensor, listing: Listing) -> Tensor:
    """``(n, h, k)`` values and ``(e, h)`` float32 weights to ``(n, h, k)``."""
    n, heads, size = values.shape
    values = _rows(values)
    out = torch.empty(n, heads, size, dtype=values.dtype, device=values.device)
    if out.numel() > 0:
        launch(
            add_neighbours,
            (n, heads),
            (
                *(values, weight.contiguous(), out, *listing),
                *(heads, size, values.stride(0)),
            ),
            1,
            PLACE=listing.place is not None,
            **_tile(size),
        )
    return out


def softmax(scores: Tensor, listing: Listing) -> Tensor:
    """``(e, h)`` float32 to the same."""
    return _by_node(softmax_arrivals, [scores], listing)


def softmax_back(alpha: Tensor, grad: Tensor, listing: Listing) -> Tensor:
    """The gradient of :func:`softmax`, from its result."""
    return _by_node(softmax_arrivals_back, [alpha, grad], listing)


def _by_node(kernel: object, inputs: list[Tensor], listing: Listing) -> Tensor:
    inputs, heads = [value.contiguous() for value in inputs], inputs[0].size(1)
    out = torch.empty_like(inputs[0])
    if out.numel() > 0:
        launch(
            kernel,
            (listing.pointer.numel() - 1,),
            (*inputs, out, listing.pointer, heads),
            1,
            AT_ONCE=AT_ONCE,
            HEADS=power_of_two(heads),
        )
    return out


def _rows(x: Tensor) -> Tensor:
    """``(n, h, k)`` whose rows may lie apart, as in columns of a wider matrix."""
    return x if x.stride()[1:] == (x.size(2), 1) else x.contiguous()


def _tile(size: int) -> dict[str, int]:
    width = power_of_two(size)
    return {"AT_ONCE": max(1, min(64, TILE // width)), "WIDTH": width}
