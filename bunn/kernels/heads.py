"""What runs on the device: what :mod:`bunn.kernels.attention` launches.

Names in capitals are known when a kernel is compiled; an argument whose flag is off is not there.
Sums are formed in float32.
"""

import triton
import triton.language as tl


@triton.jit
def features_of(x, node, there, head, width, stride, WIDTH: tl.constexpr):
    """The features of some nodes for a head, in float32: ``(nodes, WIDTH)``."""
    column = tl.arange(0, WIDTH)
    where = node.to(tl.int64)[:, None] * stride + head * width + column[None, :]
    mask = there[:, None] & (column < width)[None, :]
    return tl.load(x + where, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def multiply_ends(
    query, key, out, source, target, num_edges, heads, width, query_stride, key_stride,
    AT_ONCE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Products of the two ends of some edges, for one head."""
    head = tl.program_id(1)
    at = tl.program_id(0).to(tl.int64) * AT_ONCE + tl.arange(0, AT_ONCE)
    there = at < num_edges
    v = tl.load(target + at, mask=there, other=0)
    u = tl.load(source + at, mask=there, other=0)
    q = features_of(query, v, there, head, width, query_stride, WIDTH)
    k = features_of(key, u, there, head, width, key_stride, WIDTH)
    tl.store(out + at * heads + head, tl.sum(q * k, axis=1), mask=there)


@triton.jit
def add_neighbours(
    values, weight, out, pointer, other, place, heads, width, stride,
    PLACE: tl.constexpr, AT_ONCE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The weighted sum of the neighbours of a node, for one head."""
    node, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    first, last = tl.load(pointer + node), tl.load(pointer + node + 1)
    total = tl.zeros((AT_ONCE, WIDTH), tl.float32)
    for start in range(first, last, AT_ONCE):
        at = start + tl.arange(0, AT_ONCE)
        there = at < last
        edge = at
        if PLACE:
            edge = tl.load(place + at, mask=there, other=0)
        w = tl.load(weight + edge.to(tl.int64) * heads + head, mask=there, other=0.0)
        u = tl.load(other + at, mask=there, other=0)
        total += w[:, None] * features_of(values, u, there, head, width, stride, WIDTH)
    column = tl.arange(0, WIDTH)
    where = (node * heads + head) * width + column
    tl.store(out + where, tl.sum(total, axis=0).to(out.dtype.element_ty), mask=column < width)


@triton.jit
def entries_of(x, start, last, heads, other, AT_ONCE: tl.constexpr, HEADS: tl.constexpr):
    """Numbers of some edges, for all heads, and where they are: ``(AT_ONCE, HEADS)`` each."""
    at, head = start + tl.arange(0, AT_ONCE), tl.arange(0, HEADS)
    mask = (at < last)[:, None] & (head < heads)[None, :]
    where = at.to(tl.int64)[:, None] * heads + head[None, :]
    return tl.load(x + where, mask=mask, other=other), where, mask


@triton.jit
def softmax_arrivals(
    scores, out, pointer, heads, AT_ONCE: tl.constexpr, HEADS: tl.constexpr
):  # fmt: skip
    """The softmax over the edges that arrive at a node, for all heads."""
    node = tl.program_id(0)
    first, last = tl.load(pointer + node), tl.load(pointer + node + 1)
    lowest = -3.0e38
    peak = tl.full((AT_ONCE, HEADS), lowest, tl.float32)
    for start in range(first, last, AT_ONCE):
        score, _, _ = entries_of(scores, start, last, heads, lowest, AT_ONCE, HEADS)
        peak = tl.maximum(peak, score)
    peak_of_all = tl.max(peak, axis=0)[None, :]
    total = tl.zeros((AT_ONCE, HEADS), tl.float32)
    for start in range(first, last, AT_ONCE):
        score, _, mask = entries_of(scores, start, last, heads, lowest, AT_ONCE, HEADS)
        total += tl.where(mask, tl.exp(score - peak_of_all), 0.0)
    scale = 1 / tl.maximum(tl.sum(total, axis=0), 0.5)[None, :]  # at least 1 where there are edges
    for start in range(first, last, AT_ONCE):
        score, where, mask = entries_of(scores, start, last, heads, lowest, AT_ONCE, HEADS)
        tl.store(out + where, tl.exp(score - peak_of_all) * scale, mask=mask)


@triton.jit
def softmax_arrivals_back(
    alpha, grad, out, pointer, heads, AT_ONCE: tl.constexpr, HEADS: tl.constexpr
):  # fmt: skip
    """The gradient by the scores, from the coefficients and the gradient by them."""
    node = tl.program_id(0)
    first, last = tl.load(pointer + node), tl.load(pointer + node + 1)
    total = tl.zeros((AT_ONCE, HEADS), tl.float32)
    for start in range(first, last, AT_ONCE):
        a, _, _ = entries_of(alpha, start, last, heads, 0.0, AT_ONCE, HEADS)
        g, _, _ = entries_of(grad, start, last, heads, 0.0, AT_ONCE, HEADS)
        total += a * g
    mean = tl.sum(total, axis=0)[None, :]
    for start in range(first, last, AT_ONCE):
        a, where, mask = entries_of(alpha, start, last, heads, 0.0, AT_ONCE, HEADS)
        g, _, _ = entries_of(grad, start, last, heads, 0.0, AT_ONCE, HEADS)
        tl.store(out + where, a * (g - mean), mask=mask)
