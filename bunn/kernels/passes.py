"""What runs on the device: whole chains of element-wise operations, in one pass over the features.

A program takes ``ROWS`` whole rows at a time. Names in capitals are known when a kernel is
compiled; an argument whose flag is off is not there.
"""

import triton
import triton.language as tl


@triton.jit
def read(x, at, mask):
    """Some features, in float32."""
    return tl.load(x + at, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def write(out, number, at, mask):
    tl.store(out + at, number.to(out.dtype.element_ty), mask=mask)


@triton.jit
def per_column(values, columns, inside):
    return tl.load(values + columns, mask=inside, other=0.0).to(tl.float32)[None, :]


@triton.jit
def kept(seed, row, drop, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Zero for what is dropped, for the rest the factor that keeps the mean: ``(ROWS, WIDTH)``.

    A hash of seed, row and column decides, half of one for a column: a pass is bound by the
    instructions that it takes, of which a generator like Philox would be most.
    """
    line = scrambled(row.to(tl.uint32) ^ scrambled(seed.to(tl.uint32)))
    place = tl.arange(0, WIDTH // 2).to(tl.uint32) * 0x9E3779B9
    bits = scrambled(line[:, None] ^ place[None, :])
    bits = tl.reshape(tl.join(bits << 16, bits), (ROWS, WIDTH))  # whose upper halves count
    limit = tl.full((1, 1), drop * 65536.0, tl.float32).to(tl.uint32)
    factor = 65536.0 / (65536.0 - limit.to(tl.float32))
    return tl.where(bits >= (limit << 16), factor, 0.0)


@triton.jit
def scrambled(bits):
    """A hash of 32 bits: each bit of the result depends on all. Constants: C. Wellons, 2018."""
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D
    bits = (bits ^ (bits >> 15)) * 0x846CA68B
    return bits ^ (bits >> 16)


@triton.jit
def tail_of(x):
    """The normal law beyond ``|x|``, to 1e-7, and ``exp(-x^2 / 2)``.

    Abramowitz and Stegun, 7.1.26. The square of a reciprocal root takes fewer instructions than a
    quotient, and a power of two fewer than one of e.
    """
    bell = tl.exp2(-0.7213475204444817 * x * x)
    s = tl.rsqrt(1 + 0.23164188877 * tl.abs(x))
    s *= s
    series = s * (0.7107068705 + s * (-0.7265760135 + s * 0.5307027145))
    return bell * s * (0.127414796 + s * (-0.142248368 + series)), bell


@triton.jit
def activated(x, ACT: tl.constexpr):
    if ACT == "gelu":
        tail, _ = tail_of(x)
        return tl.maximum(x, 0.0) - tl.abs(x) * tail
    elif ACT == "relu":  # noqa: RET505  (one branch is all that is compiled)
        return tl.where(x <= 0, 0.0, x)  # what is no number stays so
    else:
        return x


@triton.jit
def slope(x, ACT: tl.constexpr):
    """The derivative of the activation."""
    if ACT == "gelu":
        tail, bell = tail_of(x)
        return tl.where(x > 0, 1 - tail, tail) + x * bell * 0.3989422804014327
    elif ACT == "relu":  # noqa: RET505
        return tl.where(x <= 0, 0.0, 1.0)
    else:
        return tl.full(x.shape, 1.0, tl.float32)


@triton.jit(do_not_specialize=["index"])
def activate(
    x, bias, out, seeds, index, drop, num_rows, width,
    BIAS: tl.constexpr, DROP: tl.constexpr, ACT: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """``act(dropout(x + bias))``."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    inside = columns < width
    mask = (row < num_rows)[:, None] & inside[None, :]
    at = row.to(tl.int64)[:, None] * width + columns[None, :]
    number = read(x, at, mask)
    if BIAS:
        number += per_column(bias, columns, inside)
    if DROP:
        number *= kept(tl.load(seeds + index), row, drop, ROWS, WIDTH)
    write(out, activated(number, ACT), at, mask)


@triton.jit(do_not_specialize=["index"])
def activate_back(
    grad, x, bias, grad_x, grad_bias, seeds, index, drop, num_rows, width, turns,
    BIAS: tl.constexpr, DROP: tl.constexpr, ACT: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Its gradients, that of the bias summed over the rows of a program."""
    columns = tl.arange(0, WIDTH)
    inside = columns < width
    by_bias = tl.zeros((ROWS, WIDTH), tl.float32)
    if BIAS:
        offset = per_column(bias, columns, inside)
    if DROP:
        seed = tl.load(seeds + index)
    for turn in tl.range(turns, num_stages=STAGES):
        row = (tl.program_id(0) * turns + turn) * ROWS + tl.arange(0, ROWS)
        mask = (row < num_rows)[:, None] & inside[None, :]
        at = row.to(tl.int64)[:, None] * width + columns[None, :]
        number = read(x, at, mask)
        if BIAS:
            number += offset
        by_x = read(grad, at, mask)
        if DROP:
            factor = kept(seed, row, drop, ROWS, WIDTH)
            by_x *= factor * slope(factor * number, ACT)
        else:
            by_x *= slope(number, ACT)
        write(grad_x, by_x, at, mask)
        by_bias += by_x
    if BIAS:
        where = tl.program_id(0) * width + columns
        tl.store(grad_bias + where, tl.sum(by_bias, 0), mask=inside)


@triton.jit(do_not_specialize=["index"])
def add_and_norm(
    x, branch, bias, weight, shift, stream, normed, mean, scale, seeds, index, drop, eps,
    num_rows, width, normed_stride,
    BRANCH: tl.constexpr, DROP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """``x + dropout(branch + bias)``, and that normalised."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    there, inside = row < num_rows, columns < width
    mask = there[:, None] & inside[None, :]
    at = row.to(tl.int64)[:, None] * width + columns[None, :]
    total = read(x, at, mask)
    if BRANCH:
        part = read(branch, at, mask) + per_column(bias, columns, inside)
        if DROP:
            part *= kept(tl.load(seeds + index), row, drop, ROWS, WIDTH)
        total = (total + part).to(stream.dtype.element_ty).to(tl.float32)
        write(stream, total, at, mask)
    average = tl.sum(tl.where(mask, total, 0.0), 1) / width
    apart = tl.where(mask, total - average[:, None], 0.0)
    deviation = 1 / tl.sqrt(tl.sum(apart * apart, 1) / width + eps)
    number = apart * deviation[:, None] * per_column(weight, columns, inside)
    place = row.to(tl.int64)[:, None] * normed_stride + columns[None, :]
    write(normed, number + per_column(shift, columns, inside), place, mask)
    tl.store(mean + row, average, mask=there)
    tl.store(scale + row, deviation, mask=there)


@triton.jit(do_not_specialize=["index"])
def add_and_norm_back(
    grad_stream, grad_normed, more, stream, weight, mean, scale, grad_x, grad_branch, sums, seeds,
    index, drop, num_rows, width, normed_stride, turns, num_programs,
    STREAM: tl.constexpr, MORE: tl.constexpr, BRANCH: tl.constexpr, DROP: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Its gradients; those of bias, weight and shift summed over the rows of a program."""
    columns = tl.arange(0, WIDTH)
    inside = columns < width
    by_bias = tl.zeros((ROWS, WIDTH), tl.float32)
    by_weight = tl.zeros((ROWS, WIDTH), tl.float32)
    by_shift = tl.zeros((ROWS, WIDTH), tl.float32)
    gain = per_column(weight, columns, inside)
    if DROP:
        seed = tl.load(seeds + index)
    for turn in tl.range(turns, num_stages=STAGES):
        row = (tl.program_id(0) * turns + turn) * ROWS + tl.arange(0, ROWS)
        there = row < num_rows
        mask = there[:, None] & inside[None, :]
        at = row.to(tl.int64)[:, None] * width + columns[None, :]
        average = tl.load(mean + row, mask=there, other=0.0)[:, None]
        deviation = tl.load(scale + row, mask=there, other=0.0)[:, None]
        even = tl.where(mask, (read(stream, at, mask) - average) * deviation, 0.0)
        place = row.to(tl.int64)[:, None] * normed_stride + columns[None, :]
        grad = read(grad_normed, place, mask)
        if MORE:
            grad += read(more, at, mask)
        by_weight += grad * even
        by_shift += grad
        grad *= gain
        along = tl.sum(grad * even, 1)[:, None] / width
        by_x = deviation * (grad - even * along - tl.sum(grad, 1)[:, None] / width)
        if STREAM:
            by_x += read(grad_stream, at, mask)
        write(grad_x, by_x, at, mask)
        if BRANCH:
            if DROP:
                by_x *= kept(seed, row, drop, ROWS, WIDTH)
            write(grad_branch, by_x, at, mask)
            by_bias += tl.where(mask, by_x, 0.0)
    where = tl.program_id(0) * width + columns
    part = num_programs * width
    tl.store(sums + where, tl.sum(by_weight, 0), mask=inside)
    tl.store(sums + part + where, tl.sum(by_shift, 0), mask=inside)
    if BRANCH:
        tl.store(sums + 2 * part + where, tl.sum(by_bias, 0), mask=inside)


@triton.jit
def add_up(parts, out, num_parts, width, AT_ONCE: tl.constexpr, WIDTH: tl.constexpr):
    """Sums of ``parts: (s, num_parts, width)`` along the second dimension."""
    columns = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    inside = columns < width
    total = tl.zeros((AT_ONCE, WIDTH), tl.float32)
    for start in range(0, num_parts, AT_ONCE):
        part = start + tl.arange(0, AT_ONCE)
        at = (tl.program_id(1) * num_parts + part)[:, None] * width + columns[None, :]
        total += read(parts, at, (part < num_parts)[:, None] & inside[None, :])
    tl.store(out + tl.program_id(1) * width + columns, tl.sum(total, 0), mask=inside)
