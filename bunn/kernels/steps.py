"""What runs on the device: what :mod:`bunn.kernels.walk` launches.

Names in capitals are known when a kernel is compiled; an argument whose flag is off is not there.
Sums have the type of the entries of ``S``. Where neighbours are alike, every term of a long sum is
rounded the same way: for features in float32, those of long rows are added up in float64.
"""

import triton
import triton.language as tl


@triton.jit
def entry_of(col, value, beta, at, there, BETA: tl.constexpr):
    """The neighbours and the weights of some entries."""
    neighbour = tl.load(col + at, mask=there, other=0)
    weight = tl.load(value + at, mask=there, other=0.0)
    if BETA:
        weight *= tl.load(beta + neighbour, mask=there, other=0.0)
    return neighbour.to(tl.int64), weight


@triton.jit
def features_of(x, neighbour, there, columns, inside, stride):
    """Their rows of features."""
    where = neighbour[:, None] * stride + columns[None, :]
    return tl.load(x + where, mask=there[:, None] & inside[None, :], other=0.0)


@triton.jit
def gather_one(
    x, col, value, beta, first, last, columns, inside, stride,
    BETA: tl.constexpr, AT_ONCE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The sum of ``S_vu beta_u x_u`` over entries ``first`` to ``last``: ``(1, WIDTH)``."""
    narrow: tl.constexpr = value.dtype.element_ty
    wide: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float32 else narrow
    total = tl.zeros((WIDTH,), wide)
    for start in range(first, last, AT_ONCE):
        at = start + tl.arange(0, AT_ONCE)
        there = at < last
        neighbour, weight = entry_of(col, value, beta, at, there, BETA)
        rows = features_of(x, neighbour, there, columns, inside, stride).to(narrow)
        total += tl.sum(weight[:, None] * rows, axis=0).to(wide)
    return total.to(narrow)[None, :]


@triton.jit
def gather_side_by_side(
    x, col, value, beta, first, last, columns, inside, stride,
    BETA: tl.constexpr, EACH: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The sums of ``ROWS`` rows, three or four entries of each at once: ``(ROWS, WIDTH)``."""
    total = tl.zeros((ROWS, WIDTH), value.dtype.element_ty)
    for start in range(0, tl.max(last - first, 0), EACH):
        at = first + start
        there_0, there_1, there_2 = at < last, at + 1 < last, at + 2 < last
        u_0, w_0 = entry_of(col, value, beta, at, there_0, BETA)
        u_1, w_1 = entry_of(col, value, beta, at + 1, there_1, BETA)
        u_2, w_2 = entry_of(col, value, beta, at + 2, there_2, BETA)
        if EACH == 4:
            there_3 = at + 3 < last
            u_3, w_3 = entry_of(col, value, beta, at + 3, there_3, BETA)
        x_0 = features_of(x, u_0, there_0, columns, inside, stride).to(total.dtype)
        x_1 = features_of(x, u_1, there_1, columns, inside, stride).to(total.dtype)
        x_2 = features_of(x, u_2, there_2, columns, inside, stride).to(total.dtype)
        if EACH == 4:
            x_3 = features_of(x, u_3, there_3, columns, inside, stride).to(total.dtype)
        some = w_0[:, None] * x_0 + w_1[:, None] * x_1
        if x.dtype.element_ty == tl.float32:  # one rounding of the total, where that matters
            more = w_2[:, None] * x_2
            if EACH == 4:
                more += w_3[:, None] * x_3
            total += some + more
        else:
            total += some
            total += w_2[:, None] * x_2
            if EACH == 4:
                total += w_3[:, None] * x_3
    return total


@triton.jit
def coefficient(number, columns, inside, PER_COLUMN: tl.constexpr):
    """A coefficient, of all columns or of each."""
    if PER_COLUMN:
        return tl.load(number + columns, mask=inside, other=0.0)[None, :]
    else:  # noqa: RET505  (one of the two is all that is compiled)
        return number


@triton.jit
def factor(number, row, there):
    """A factor of every row."""
    return tl.load(number + row, mask=there, other=0.0)[:, None]


@triton.jit
def finish(
    total, row, there, x, p, y, r, out, a, b, c, beta, gamma, delta, alpha, columns, inside, width,
    x_stride, out_stride,
    P: tl.constexpr, MINUS: tl.constexpr, Y: tl.constexpr, R: tl.constexpr, OUT: tl.constexpr,
    B: tl.constexpr, C: tl.constexpr, BETA: tl.constexpr, GAMMA: tl.constexpr,
    DELTA: tl.constexpr, PER_COLUMN: tl.constexpr,
):  # fmt: skip
    """From the sums of some rows to what is written of them."""
    at = row.to(tl.int64)[:, None] * width + columns[None, :]
    mask = there[:, None] & inside[None, :]
    new = alpha * total
    if P:
        previous = tl.load(p + at, mask=mask, other=0.0).to(total.dtype)
        if DELTA:
            previous *= factor(delta, row, there)
        if MINUS:
            new -= previous
    if Y:
        tl.store(y + at, new.to(y.dtype.element_ty), mask=mask)
    if OUT:
        heat = new * coefficient(a, columns, inside, PER_COLUMN)
        if B:
            heat += previous * coefficient(b, columns, inside, PER_COLUMN)
        if C:
            place = row.to(tl.int64)[:, None] * x_stride + columns[None, :]
            own = tl.load(x + place, mask=mask, other=0.0).to(total.dtype)
            if BETA:
                own *= factor(beta, row, there)
            heat += own * coefficient(c, columns, inside, PER_COLUMN)
        if R:
            heat += tl.load(r + at, mask=mask, other=0.0)
        if GAMMA:
            heat *= factor(gamma, row, there)
        place = row.to(tl.int64)[:, None] * out_stride + columns[None, :]
        tl.store(out + place, heat.to(out.dtype.element_ty), mask=mask)


@triton.jit
def walk_rows(
    x, p, y, r, out, partial, crow, col, value, segments, a, b, c, beta, gamma, delta, alpha,
    num_rows, num_segments, width, x_stride, out_stride,
    LONG: tl.constexpr, CUT: tl.constexpr, P: tl.constexpr, MINUS: tl.constexpr, Y: tl.constexpr,
    R: tl.constexpr, OUT: tl.constexpr, B: tl.constexpr, C: tl.constexpr, BETA: tl.constexpr,
    GAMMA: tl.constexpr, DELTA: tl.constexpr, PER_COLUMN: tl.constexpr, ROWS: tl.constexpr,
    EACH: tl.constexpr, AT_ONCE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Segments of long rows come first: they take longest. Then the other rows, ``ROWS`` each."""
    program = tl.program_id(0)
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = columns < width
    if CUT:
        if program < num_segments:
            begin = tl.load(segments + 4 * program + 1)
            end = tl.load(segments + 4 * program + 2)
            piece = gather_one(
                x, col, value, beta, begin, end, columns, inside, x_stride, BETA, AT_ONCE, WIDTH
            )
            where = program.to(tl.int64) * width + columns
            tl.store(partial + where[None, :], piece, mask=inside[None, :])
    row = (program - num_segments) * ROWS + tl.arange(0, ROWS)
    there = (row >= 0) & (row < num_rows)
    first = tl.load(crow + row, mask=there, other=0)
    last = tl.load(crow + row + 1, mask=there, other=0)
    if CUT:
        there = there & (last - first <= LONG)
        last = tl.where(there, last, first)
    if ROWS == 1:
        total = gather_one(
            x, col, value, beta, tl.sum(first, 0), tl.sum(last, 0), columns, inside, x_stride,
            BETA, AT_ONCE, WIDTH,
        )  # fmt: skip
    else:
        total = gather_side_by_side(
            x, col, value, beta, first, last, columns, inside, x_stride, BETA, EACH, WIDTH, ROWS
        )
    finish(
        total, row, there, x, p, y, r, out, a, b, c, beta, gamma, delta, alpha, columns, inside,
        width, x_stride, out_stride, P, MINUS, Y, R, OUT, B, C, BETA, GAMMA, DELTA, PER_COLUMN,
    )  # fmt: skip


@triton.jit
def add_segments(
    x, p, y, r, out, partial, segments, a, b, c, beta, gamma, delta, alpha, width, x_stride,
    out_stride,
    P: tl.constexpr, MINUS: tl.constexpr, Y: tl.constexpr, R: tl.constexpr, OUT: tl.constexpr,
    B: tl.constexpr, C: tl.constexpr, BETA: tl.constexpr, GAMMA: tl.constexpr,
    DELTA: tl.constexpr, PER_COLUMN: tl.constexpr, AT_ONCE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The first segment of a row adds all of them up."""
    program = tl.program_id(0)
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = columns < width
    row = tl.load(segments + 4 * program + tl.arange(0, 1))
    count = tl.load(segments + 4 * program + 3)
    if count > 0:
        narrow: tl.constexpr = partial.dtype.element_ty
        wide: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float32 else narrow
        total = tl.zeros((WIDTH,), wide)
        for start in range(0, count, AT_ONCE):
            segment = start + tl.arange(0, AT_ONCE)
            where = (program + segment).to(tl.int64)[:, None] * width + columns[None, :]
            mask = (segment < count)[:, None] & inside[None, :]
            total += tl.sum(tl.load(partial + where, mask=mask, other=0.0).to(wide), axis=0)
        finish(
            total.to(narrow)[None, :], row, row >= 0, x, p, y, r, out, a, b, c, beta, gamma, delta,
            alpha, columns, inside, width, x_stride, out_stride, P, MINUS, Y, R, OUT, B, C, BETA,
            GAMMA, DELTA, PER_COLUMN,
        )  # fmt: skip
