"""What runs on the device for :mod:`bunn.kernels.planes`; conventions as in ``steps.py``."""

import triton
import triton.language as tl


@triton.jit
def cos_and_sin(angle):
    """Both, to rounding, for any angles: ``(ROWS,)``.

    Up to 4096 the next multiple of pi / 2 is subtracted, in three parts of few digits. For what is
    left there are polynomials, with the coefficients of S. Moshier's Cephes.
    """
    if tl.max(tl.abs(angle), 0) <= 4096.0:
        quarter = tl.floor(angle * 0.6366197723675814 + 0.5)
        left = angle - quarter * 1.5703125
        left -= quarter * 4.837512969970703e-4
        left -= quarter * 7.549789954891882e-8
        square = left * left
        odd = -1.6666654611e-1 + square * (8.3321608736e-3 - square * 1.9515295891e-4)
        odd = left + left * square * odd
        even = 4.166664568298827e-2 + square * (
            square * 2.443315711809948e-5 - 1.388731625493765e-3
        )
        even = 1 - 0.5 * square + square * square * even
        turn = quarter.to(tl.int32)
        across = (turn & 1) != 0
        c, s = tl.where(across, odd, even), tl.where(across, even, odd)
        c = tl.where(((turn + 1) & 2) != 0, -c, c)
        s = tl.where((turn & 2) != 0, -s, s)
    else:  # or where there is one that is no number
        c, s = tl.cos(angle), tl.sin(angle)
    return c, s


@triton.jit
def map_of(cos, sin, row, there, bundles, turned, ANGLE: tl.constexpr, INVERSE: tl.constexpr):
    """The numbers of some maps: cosine, sine, and 1 for a rotation or -1 for a reflection."""
    sign = tl.where(row % bundles < turned, 1.0, -1.0)
    c = tl.load(cos + row, mask=there, other=0.0).to(tl.float32)
    if ANGLE:
        c, s = cos_and_sin(c)
    else:
        s = tl.load(sin + row, mask=there, other=0.0)
    if INVERSE:  # a reflection is its own
        s *= -sign
    return c, s, sign


@triton.jit
def pair_of(x, at, mask, size):
    """Both coordinates of some vectors, in float32."""
    first = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    return first, tl.load(x + at + size, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def put_pair(out, at, mask, size, first, second):
    tl.store(out + at, first.to(out.dtype.element_ty), mask=mask)
    tl.store(out + at + size, second.to(out.dtype.element_ty), mask=mask)


@triton.jit
def only_pair_of(x, num_maps, ROWS: tl.constexpr):
    """The same of the vectors of ``ROWS`` maps that have one each: side by side they are read."""
    at = tl.program_id(0).to(tl.int64) * (2 * ROWS) + tl.arange(0, 2 * ROWS)
    both = tl.load(x + at, mask=at - num_maps < num_maps, other=0.0).to(tl.float32)
    return tl.split(tl.reshape(both, (ROWS, 2)))


@triton.jit
def put_only_pair(out, num_maps, first, second, ROWS: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * (2 * ROWS) + tl.arange(0, 2 * ROWS)
    both = tl.reshape(tl.join(first, second), (2 * ROWS,))
    tl.store(out + at, both.to(out.dtype.element_ty), mask=at - num_maps < num_maps)


@triton.jit
def turn_pairs(
    x, out, cos, sin, num_maps, bundles, turned, size,
    ANGLE: tl.constexpr, INVERSE: tl.constexpr, SINGLE: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """``ROWS`` maps, applied to ``WIDTH`` of their ``size`` vectors, or to the only one."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < num_maps
    c, s, sign = map_of(cos, sin, row, there, bundles, turned, ANGLE, INVERSE)
    if SINGLE:
        x_0, x_1 = only_pair_of(x, num_maps, ROWS)
        put_only_pair(out, num_maps, c * x_0 + s * x_1, sign * (c * x_1 - s * x_0), ROWS)
    else:
        c, s, sign = c[:, None], s[:, None], sign[:, None]
        columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
        mask = there[:, None] & (columns < size)[None, :]
        at = row.to(tl.int64)[:, None] * (2 * size) + columns[None, :]
        x_0, x_1 = pair_of(x, at, mask, size)
        put_pair(out, at, mask, size, c * x_0 + s * x_1, sign * (c * x_1 - s * x_0))


@triton.jit
def turn_pairs_back(
    grad, x, grad_x, cos, sin, grad_cos, grad_sin, num_maps, bundles, turned, size,
    ANGLE: tl.constexpr, INVERSE: tl.constexpr, SINGLE: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The gradients of ``ROWS`` maps, by their angles or sines and cosines, and of all that they
    were applied to."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < num_maps
    c, s, sign = map_of(cos, sin, row, there, bundles, turned, ANGLE, INVERSE)
    if SINGLE:
        x_0, x_1 = only_pair_of(x, num_maps, ROWS)
        g_0, g_1 = only_pair_of(grad, num_maps, ROWS)
        g_1 *= sign
        put_only_pair(grad_x, num_maps, c * g_0 - s * g_1, s * g_0 + c * g_1, ROWS)
        by_cos, by_sin = g_0 * x_0 + g_1 * x_1, g_0 * x_1 - g_1 * x_0
    else:
        by_cos, by_sin = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
        for start in range(0, size, WIDTH):
            columns = start + tl.arange(0, WIDTH)
            mask = there[:, None] & (columns < size)[None, :]
            at = row.to(tl.int64)[:, None] * (2 * size) + columns[None, :]
            x_0, x_1 = pair_of(x, at, mask, size)
            g_0, g_1 = pair_of(grad, at, mask, size)
            g_1 *= sign[:, None]
            by_first = c[:, None] * g_0 - s[:, None] * g_1
            put_pair(grad_x, at, mask, size, by_first, s[:, None] * g_0 + c[:, None] * g_1)
            by_cos += tl.sum(g_0 * x_0 + g_1 * x_1, axis=1)
            by_sin += tl.sum(g_0 * x_1 - g_1 * x_0, axis=1)
    if ANGLE:
        by_angle = c * by_sin - s * by_cos
        if INVERSE:
            by_angle *= -sign
        tl.store(grad_cos + row, by_angle.to(grad_cos.dtype.element_ty), mask=there)
    else:
        tl.store(grad_cos + row, by_cos, mask=there)
        tl.store(grad_sin + row, by_sin, mask=there)
