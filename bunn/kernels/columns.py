"""What runs on the device for :mod:`bunn.kernels.norms`: statistics of columns, over the rows that
count, and what is normalised by them. Conventions as in ``passes.py``.
"""

import triton
import triton.language as tl

from bunn.kernels.passes import per_column, read, write


@triton.jit
def tile_of(width, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Rows and columns of a program, which of the latter there are, and where all of them lie."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    return row, columns, columns < width, row.to(tl.int64)[:, None] * width + columns[None, :]


@triton.jit
def find_moments(
    x, count, moments, width, num_parts, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Means over the rows of a program that count, and sums of squares about these."""
    row, columns, inside, at = tile_of(width, ROWS, WIDTH)
    there = row < tl.load(count)
    mask = there[:, None] & inside[None, :]
    number = read(x, at, mask)
    mean = tl.sum(number, 0) / tl.maximum(tl.sum(there.to(tl.float32), 0), 1.0)
    apart = tl.where(mask, number - mean[None, :], 0.0)
    where = tl.program_id(0) * width + columns
    tl.store(moments + where, mean, mask=inside)
    tl.store(moments + num_parts * width + where, tl.sum(apart * apart, 0), mask=inside)


@triton.jit
def counted_in(part, rows, ROWS: tl.constexpr):
    """How many rows of some parts count, of all that do."""
    return tl.minimum(tl.maximum(rows - part.to(tl.int64) * ROWS, 0), ROWS).to(tl.float64)


@triton.jit
def settle(
    moments, count, statistics, running_mean, running_var, width, num_parts, eps, momentum,
    TRACKED: tl.constexpr, ROWS: tl.constexpr, AT_ONCE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The mean of all rows that count and the inverse of the deviation, from those of programs; and
    the running statistics."""
    columns = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    inside = columns < width
    rows = tl.load(count)
    total = tl.maximum(rows, 1).to(tl.float64)
    sums = tl.zeros((AT_ONCE, WIDTH), tl.float64)
    for start in range(0, num_parts, AT_ONCE):
        part = start + tl.arange(0, AT_ONCE)
        own = counted_in(part, rows, ROWS)
        at = part[:, None] * width + columns[None, :]
        sums += own[:, None] * read(moments, at, (part < num_parts)[:, None] & inside[None, :])
    mean = tl.sum(sums, 0) / total
    sums = tl.zeros((AT_ONCE, WIDTH), tl.float64)
    for start in range(0, num_parts, AT_ONCE):
        part = start + tl.arange(0, AT_ONCE)
        own = counted_in(part, rows, ROWS)
        at = part[:, None] * width + columns[None, :]
        mask = (part < num_parts)[:, None] & inside[None, :]
        apart = read(moments, at, mask) - mean[None, :]
        sums += read(moments, num_parts * width + at, mask) + own[:, None] * apart * apart
    squares = tl.sum(sums, 0)
    tl.store(statistics + columns, mean.to(tl.float32), mask=inside)
    inverse = 1 / tl.sqrt(squares / total + eps)
    tl.store(statistics + width + columns, inverse.to(tl.float32), mask=inside)
    if TRACKED:
        before = tl.load(running_mean + columns, mask=inside, other=0.0)
        moved = before + momentum * (mean - before)
        tl.store(running_mean + columns, moved.to(tl.float32), mask=inside)
        before = tl.load(running_var + columns, mask=inside, other=0.0)
        unbiased = squares / tl.maximum(rows - 1, 1).to(tl.float64)
        moved = before + momentum * (unbiased - before)
        tl.store(running_var + columns, moved.to(tl.float32), mask=inside)


@triton.jit
def normalise(
    x, statistics, weight, bias, out, num_rows, width,
    AFFINE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Every row, less the mean, over the deviation; times the weight, plus the bias."""
    row, columns, inside, at = tile_of(width, ROWS, WIDTH)
    mask = (row < num_rows)[:, None] & inside[None, :]
    number = read(x, at, mask) - per_column(statistics, columns, inside)
    number *= per_column(statistics + width, columns, inside)
    if AFFINE:
        number = number * per_column(weight, columns, inside) + per_column(bias, columns, inside)
    write(out, number, at, mask)


@triton.jit
def find_slopes(
    grad, x, statistics, count, sums, width, num_parts, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Gradients by weight and bias, summed over the rows of a program that count."""
    row, columns, inside, at = tile_of(width, ROWS, WIDTH)
    mask = (row < tl.load(count))[:, None] & inside[None, :]
    even = read(x, at, mask) - per_column(statistics, columns, inside)
    even *= per_column(statistics + width, columns, inside)
    slope = read(grad, at, mask)
    where = tl.program_id(0) * width + columns
    tl.store(sums + where, tl.sum(tl.where(mask, slope * even, 0.0), 0), mask=inside)
    tl.store(sums + num_parts * width + where, tl.sum(slope, 0), mask=inside)


@triton.jit
def normalise_back(
    grad, x, statistics, weight, slopes, count, grad_x, num_rows, width,
    AFFINE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The gradient by the features, which is zero in rows that do not count."""
    row, columns, inside, at = tile_of(width, ROWS, WIDTH)
    there = (row < num_rows)[:, None] & inside[None, :]
    rows = tl.load(count)
    counted = (row < rows)[:, None] & inside[None, :]
    total = tl.maximum(rows, 1).to(tl.float32)
    inverse = per_column(statistics + width, columns, inside)
    even = (read(x, at, counted) - per_column(statistics, columns, inside)) * inverse
    number = read(grad, at, counted) - even * (per_column(slopes, columns, inside) / total)
    number -= per_column(slopes + width, columns, inside) / total
    number *= inverse
    if AFFINE:
        number *= per_column(weight, columns, inside)
    write(grad_x, tl.where(counted, number, 0.0), at, there)
