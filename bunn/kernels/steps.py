"""What runs on the device: the functions that :mod:`bunn.kernels.walk` launches.

Names in capitals are known when a kernel is compiled; an argument whose flag is off is not there.
"""

import triton
import triton.language as tl


@triton.jit
def gather(
    x, col, value, beta, first, last, columns, inside, stride,
    BETA: tl.constexpr, AT_ONCE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The sum of ``S_vu beta_u x_u`` over the entries from ``first`` to ``last``."""
    total = tl.zeros((WIDTH,), tl.float32)
    for start in range(first, last, AT_ONCE):
        entry = start + tl.arange(0, AT_ONCE)
        there = entry < last
        neighbour = tl.load(col + entry, mask=there, other=0)
        weight = tl.load(value + entry, mask=there, other=0.0)
        if BETA:
            weight *= tl.load(beta + neighbour, mask=there, other=0.0)
        where = neighbour.to(tl.int64)[:, None] * stride + columns[None, :]
        rows = tl.load(x + where, mask=there[:, None] & inside[None, :], other=0.0)
        total += tl.sum(weight[:, None] * rows.to(tl.float32), axis=0)
    return total


@triton.jit
def coefficient(number, columns, inside, PER_COLUMN: tl.constexpr):
    """A coefficient, of all columns or of each."""
    if PER_COLUMN:
        return tl.load(number + columns, mask=inside, other=0.0)
    else:  # noqa: RET505  (one of the two is all that is compiled)
        return number


@triton.jit
def finish(
    total, row, x, p, y, r, out, a, b, c, beta, gamma, delta, alpha, columns, inside, stride,
    P: tl.constexpr, Y: tl.constexpr, R: tl.constexpr, OUT: tl.constexpr, B: tl.constexpr,
    C: tl.constexpr, BETA: tl.constexpr, GAMMA: tl.constexpr, DELTA: tl.constexpr,
    PER_COLUMN: tl.constexpr,
):  # fmt: skip
    """From the sum of a row to what is written of it."""
    at = row.to(tl.int64) * stride + columns
    new = alpha * total
    if P:
        previous = tl.load(p + at, mask=inside, other=0.0).to(tl.float32)
        if DELTA:
            previous *= tl.load(delta + row)
        new -= previous
    if Y:
        tl.store(y + at, new.to(y.dtype.element_ty), mask=inside)
    if OUT:
        heat = new * coefficient(a, columns, inside, PER_COLUMN)
        if B:
            heat += previous * coefficient(b, columns, inside, PER_COLUMN)
        if C:
            own = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
            if BETA:
                own *= tl.load(beta + row)
            heat += own * coefficient(c, columns, inside, PER_COLUMN)
        if R:
            heat += tl.load(r + at, mask=inside, other=0.0)
        if GAMMA:
            heat *= tl.load(gamma + row)
        tl.store(out + at, heat.to(out.dtype.element_ty), mask=inside)


@triton.jit
def walk_rows(
    x, p, y, r, out, partial, crow, col, value, segments, a, b, c, beta, gamma, delta, alpha,
    num_rows, num_segments, width,
    LONG: tl.constexpr, CUT: tl.constexpr, P: tl.constexpr, Y: tl.constexpr, R: tl.constexpr,
    OUT: tl.constexpr, B: tl.constexpr, C: tl.constexpr, BETA: tl.constexpr, GAMMA: tl.constexpr,
    DELTA: tl.constexpr, PER_COLUMN: tl.constexpr, ROWS: tl.constexpr, AT_ONCE: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Segments of long rows come first: they take longest. Then the other rows, ``ROWS`` each."""
    program = tl.program_id(0)
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = columns < width
    if CUT:
        if program < num_segments:
            first = tl.load(segments + 4 * program + 1)
            last = tl.load(segments + 4 * program + 2)
            total = gather(
                x, col, value, beta, first, last, columns, inside, width, BETA, AT_ONCE, WIDTH
            )
            tl.store(partial + program.to(tl.int64) * width + columns, total, mask=inside)
    begin = (program - num_segments) * ROWS
    for offset in range(ROWS):
        row = begin + offset
        there = (row >= 0) & (row < num_rows)
        first = tl.load(crow + row, mask=there, other=0)
        last = tl.load(crow + row + 1, mask=there, other=0)
        if there & (last - first <= LONG):
            total = gather(
                x, col, value, beta, first, last, columns, inside, width, BETA, AT_ONCE, WIDTH
            )
            finish(
                total, row, x, p, y, r, out, a, b, c, beta, gamma, delta, alpha, columns, inside,
                width, P, Y, R, OUT, B, C, BETA, GAMMA, DELTA, PER_COLUMN,
            )  # fmt: skip


@triton.jit
def add_segments(
    x, p, y, r, out, partial, segments, a, b, c, beta, gamma, delta, alpha, width,
    P: tl.constexpr, Y: tl.constexpr, R: tl.constexpr, OUT: tl.constexpr, B: tl.constexpr,
    C: tl.constexpr, BETA: tl.constexpr, GAMMA: tl.constexpr, DELTA: tl.constexpr,
    PER_COLUMN: tl.constexpr, AT_ONCE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The first segment of a row adds all of them up."""
    program = tl.program_id(0)
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = columns < width
    row = tl.load(segments + 4 * program)
    count = tl.load(segments + 4 * program + 3)
    if count > 0:
        total = tl.zeros((WIDTH,), tl.float32)
        for start in range(0, count, AT_ONCE):
            segment = start + tl.arange(0, AT_ONCE)
            where = (program + segment).to(tl.int64)[:, None] * width + columns[None, :]
            mask = (segment < count)[:, None] & inside[None, :]
            total += tl.sum(tl.load(partial + where, mask=mask, other=0.0), axis=0)
        finish(
            total, row, x, p, y, r, out, a, b, c, beta, gamma, delta, alpha, columns, inside,
            width, P, Y, R, OUT, B, C, BETA, GAMMA, DELTA, PER_COLUMN,
        )  # fmt: skip
