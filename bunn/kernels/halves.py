"""What runs on the device for :mod:`bunn.kernels.patches`; conventions as in ``steps.py``."""

import triton
import triton.language as tl

from bunn.kernels.steps import factor


@triton.jit
def power_of_two(field):
    """``2**(field - 127)``, by the bits of float32."""
    return (field << 23).to(tl.float32, bitcast=True)


@triton.jit
def find_largest(
    x, before, largest, num_rows, width, x_stride,
    BEFORE: tl.constexpr, AT_ONCE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The largest finite magnitude of every column of ``before * x``, as its bits, beside those of
    other rows."""
    columns = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    inside = columns < width
    row = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
    there = row < num_rows
    where = row.to(tl.int64)[:, None] * x_stride + columns[None, :]
    field = tl.load(x + where, mask=there[:, None] & inside[None, :], other=0.0)
    if BEFORE:
        field *= factor(before, row, there)
    bits = field.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    bits = tl.max(tl.where(bits < 0x7F800000, bits, 0), 0)
    tl.atomic_max(largest + columns, bits, mask=inside, sem="relaxed")


@triton.jit
def scale_of(largest, columns, inside, LOWEST: tl.constexpr):
    """The exponents of columns, as float32 has them, and no smaller than ``LOWEST``."""
    return tl.maximum(tl.load(largest + columns, mask=inside, other=0) >> 23, LOWEST)


@triton.jit
def split_halves(
    x, before, largest, high, low, num_rows, width, x_stride,
    BEFORE: tl.constexpr, LOWEST: tl.constexpr, BITS: tl.constexpr, AT_ONCE: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Every column of ``before * x`` times a power of two, as the sum of two float16 numbers.

    Its largest entry is then below ``2**(BITS + 1)``.
    """
    columns = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    inside = columns < width
    row = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
    there = row < num_rows
    mask = there[:, None] & inside[None, :]
    at = row.to(tl.int64)[:, None]
    number = tl.load(x + at * x_stride + columns[None, :], mask=mask, other=0.0)
    if BEFORE:
        number *= factor(before, row, there)
    number *= power_of_two(254 + BITS - scale_of(largest, columns, inside, LOWEST))[None, :]
    first = number.to(tl.float16)
    tl.store(high + at * width + columns[None, :], first, mask=mask)
    second = (number - first.to(tl.float32)).to(tl.float16)
    tl.store(low + at * width + columns[None, :], second, mask=mask)


@triton.jit
def multiply_patches(
    x, low, out, partial, entries, rest, nodes, rows, pieces, largest, after, width, x_stride,
    out_stride,
    SPLIT: tl.constexpr, AFTER: tl.constexpr, CUT: tl.constexpr, LOWEST: tl.constexpr,
    BITS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """``ROWS`` rows of a product, into ``out``; or sums over a piece of their columns, beside those
    over others in ``partial``.

    Where numbers are split, the tensor cores add up no more than ``CHUNK`` terms, the small ones
    first: they cut off what does not fit into a sum, and others round.
    """
    across = tl.cdiv(width, WIDTH)  # programs that read the same entries, one after the other
    columns = tl.program_id(0) % across * WIDTH + tl.arange(0, WIDTH)
    inside = columns < width
    piece = pieces + 4 * (tl.program_id(0) // across)
    block, begin, count = tl.load(piece), tl.load(piece + 1), tl.load(piece + 2)
    k = tl.arange(0, CHUNK)
    tile = tl.arange(0, ROWS)[:, None] * CHUNK + k[None, :]
    tile = begin.to(tl.int64) * (ROWS * CHUNK) + tile
    nodes += begin.to(tl.int64) * CHUNK
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    for _ in tl.range(0, count, num_stages=STAGES):
        node = tl.load(nodes + k)
        at = node.to(tl.int64)[:, None] * x_stride + columns[None, :]
        features = tl.load(x + at, mask=inside[None, :], other=0.0)
        matrix = tl.load(entries + tile)
        if SPLIT:
            terms = tl.dot(tl.load(rest + tile), features)
            terms = tl.dot(matrix, tl.load(low + at, mask=inside[None, :], other=0.0), terms)
            total += tl.dot(matrix, features, terms)
        else:
            total = tl.dot(matrix, features, total)
        nodes += CHUNK
        tile += ROWS * CHUNK
    if SPLIT:
        total *= 2.0 ** (-2 * BITS)
        total *= power_of_two(scale_of(largest, columns, inside, LOWEST))[None, :]
    lane = tl.arange(0, ROWS)
    row = tl.load(rows + block * ROWS + lane)
    if AFTER:
        total *= factor(after, row, row >= 0)
    there = row >= 0
    if CUT:
        place = tl.load(piece + 3 + 0 * lane)
        at = (place.to(tl.int64) * ROWS + lane)[:, None] * width + columns[None, :]
        mask = (there & (place >= 0))[:, None] & inside[None, :]
        tl.store(partial + at, total, mask=mask)
        there &= place < 0
    where = row.to(tl.int64)[:, None] * out_stride + columns[None, :]
    mask = there[:, None] & inside[None, :]
    tl.store(out + where, total.to(out.dtype.element_ty), mask=mask)


@triton.jit
def add_patches(
    partial, out, cut, rows, width, out_stride, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """``ROWS`` rows of a product, from the sums over pieces of their columns."""
    columns = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    block = cut + 3 * tl.program_id(1)
    first, count = tl.load(block + 1), tl.load(block + 2)
    lane = tl.arange(0, ROWS)
    row = tl.load(rows + tl.load(block) * ROWS + lane)
    mask = (row >= 0)[:, None] & (columns < width)[None, :]
    at = (first.to(tl.int64) * ROWS + lane)[:, None] * width + columns[None, :]
    total = tl.zeros((ROWS, WIDTH), tl.float64)
    for _ in range(count):
        total += tl.load(partial + at, mask=mask, other=0.0)
        at += ROWS * width
    where = row.to(tl.int64)[:, None] * out_stride + columns[None, :]
    tl.store(out + where, total.to(tl.float32).to(out.dtype.element_ty), mask=mask)
