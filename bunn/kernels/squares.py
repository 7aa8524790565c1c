"""What runs on the device for :mod:`bunn.kernels.grouped`; conventions as in ``steps.py``."""

import triton
import triton.language as tl

from bunn.kernels.steps import coefficient, factor


@triton.jit
def multiply_squares(
    x, out, matrices, tiles, order, eigenvalues, times, found, sums, width, x_stride,
    TRANSPOSED: tl.constexpr, DECAY: tl.constexpr, PER_COLUMN: tl.constexpr, SUMS: tl.constexpr,
    PRECISION: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr,
    STAGES: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """``ROWS`` rows of the product of one component.

    Sides and places are kept as multiples of what they are known to be multiples of, which tells
    the compiler to read 16 bytes at a time. Matrices are zero, or not read, beyond ``size``.
    """
    tile = tiles + tl.program_id(0) * 5
    matrix = matrices + tl.load(tile).to(tl.int64) * ALIGNED * ALIGNED
    side = tl.load(tile + 1) * ALIGNED
    nodes = order + tl.load(tile + 2)
    size = tl.load(tile + 3)
    row = tl.load(tile + 4) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = columns < width
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in tl.range(0, size, CHUNK, num_stages=STAGES):
        k = start + tl.arange(0, CHUNK)
        there = k < size
        node = tl.load(nodes + k, mask=there, other=0).to(tl.int64)
        features = tl.load(
            x + node[:, None] * x_stride + columns[None, :],
            mask=there[:, None] & inside[None, :],
            other=0.0,
        )
        if TRANSPOSED:
            at = k[None, :] * side + row[:, None]
        else:
            at = row[:, None] * side + k[None, :]
        entries = tl.load(matrix + at, mask=(row < side)[:, None] & (k < side)[None, :], other=0.0)
        if features.dtype == tl.float32:  # tensor cores cut off what does not fit into a sum
            total += tl.dot(entries, features, input_precision=PRECISION)
        else:
            total = tl.dot(entries, features, total, input_precision=PRECISION)
    own = row < size
    node = tl.load(nodes + row, mask=own, other=0)
    mask = own[:, None] & inside[None, :]
    at = node.to(tl.int64)[:, None] * width + columns[None, :]
    if DECAY:
        value = factor(eigenvalues, node, own)
        if SUMS:
            rate = tl.load(found + at, mask=mask, other=0.0).to(tl.float32) * total
            rate = tl.sum(-value * rate, 0)
            place = tl.program_id(0).to(tl.int64) * width + columns
            tl.store(sums + place, rate, mask=inside)
        total *= tl.exp(-value * coefficient(times, columns, inside, PER_COLUMN))
    tl.store(out + at, total.to(out.dtype.element_ty), mask=mask)
