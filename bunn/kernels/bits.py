"""What runs on the device for :mod:`bunn.kernels.blocks`; conventions as in ``steps.py``."""

import triton
import triton.language as tl

from bunn.kernels.steps import factor, finish


@triton.jit
def scale_rows(
    x, out, number, other, num_rows, width, stride,
    OTHER: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """``number * other * x``, rounded."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    there = row < num_rows
    mask = there[:, None] & (columns < width)[None, :]
    line = row.to(tl.int64)[:, None]
    product = tl.load(x + line * stride + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    product *= factor(number, row, there)
    if OTHER:
        product *= factor(other, row, there)
    tl.store(out + line * width + columns[None, :], product.to(out.dtype.element_ty), mask=mask)


@triton.jit
def tile_of(words, low, high, like: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr):
    """Which of the neighbours are those of each row: ``(ROWS, CHUNK)`` zeros and ones.

    It comes from nothing but what was loaded, ``low`` and ``high`` with the bits of the neighbours
    included: so the compiler forms it in the registers that the tensor cores read. Transposed, it
    loads every word but twice.
    """
    lane = tl.arange(0, ROWS)
    own = tl.load(words + lane)[None, :] & low[:, None]
    if CHUNK == 64:
        own |= tl.load(words + ROWS + lane)[None, :] & high[:, None]
    return tl.trans(tl.where(own != 0, 1.0, 0.0).to(like))


@triton.jit
def walk_blocks(
    x, p, y, r, out, partial, chunks, pieces, a, b, c, left, gamma, alpha, width, x_stride,
    out_stride,
    CUT: tl.constexpr, P: tl.constexpr, MINUS: tl.constexpr, Y: tl.constexpr, R: tl.constexpr,
    OUT: tl.constexpr, B: tl.constexpr, C: tl.constexpr, GAMMA: tl.constexpr,
    PER_COLUMN: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """A block of rows, or a piece of it, whose sums then go to ``partial``."""
    program = tl.program_id(0)
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = columns < width
    piece = pieces + program * (4 + ROWS)
    low = tl.load(chunks + tl.arange(0, CHUNK))
    high = low
    if CHUNK == 64:
        high = tl.load(chunks + CHUNK + tl.arange(0, CHUNK))
    chunk = chunks + tl.load(piece).to(tl.int64) * (CHUNK + ROWS * CHUNK // 32)
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    for _ in tl.range(0, tl.load(piece + 1), num_stages=STAGES):
        neighbour = tl.load(chunk + tl.arange(0, CHUNK))
        where = neighbour.to(tl.int64)[:, None] * x_stride + columns[None, :]
        features = tl.load(x + where, mask=inside[None, :], other=0.0)
        tile = tile_of(chunk + CHUNK, low, high, features.dtype, ROWS, CHUNK)
        total = tl.dot(tile, features, total)
        chunk += CHUNK + ROWS * CHUNK // 32
    lane = tl.arange(0, ROWS)
    row = tl.load(piece + 4 + lane)
    whole = True
    if CUT:
        whole = tl.load(piece + 2) == 1
        if not whole:
            where = (program * ROWS + lane).to(tl.int64)[:, None] * width + columns[None, :]
            tl.store(partial + where, total, mask=inside[None, :])
    if whole:
        there = row >= 0
        total *= factor(left, row, there)
        # One half of the columns after the other: all at once would take twice the registers.
        halves = tl.split(tl.permute(tl.reshape(total, (ROWS, 2, WIDTH // 2)), (0, 2, 1)))
        for half in tl.static_range(2):
            some = tl.program_id(1) * WIDTH + half * (WIDTH // 2) + tl.arange(0, WIDTH // 2)
            finish(
                halves[half], row, there, x, p, y, r, out, a, b, c, None, gamma, None, alpha,
                some, some < width, width, x_stride, out_stride, P, MINUS, Y, R, OUT, B, C, False,
                GAMMA, False, PER_COLUMN,
            )  # fmt: skip


@triton.jit
def add_pieces(
    x, p, y, r, out, partial, pieces, a, b, c, left, gamma, alpha, width, x_stride, out_stride,
    P: tl.constexpr, MINUS: tl.constexpr, Y: tl.constexpr, R: tl.constexpr, OUT: tl.constexpr,
    B: tl.constexpr, C: tl.constexpr, GAMMA: tl.constexpr, PER_COLUMN: tl.constexpr,
    ROWS: tl.constexpr, AT_ONCE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The first piece of a block adds all of them up, ``AT_ONCE`` rows to a program."""
    program = tl.program_id(0)
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = columns < width
    lane = tl.program_id(2) * AT_ONCE + tl.arange(0, AT_ONCE)
    piece = pieces + program * (4 + ROWS)
    count = tl.load(piece + 2)
    if count > 1:
        row = tl.load(piece + 4 + lane)
        there = row >= 0
        total = tl.zeros((AT_ONCE, WIDTH), tl.float32)
        for other in range(0, count):
            place = ((program + other) * ROWS + lane).to(tl.int64)[:, None] * width
            total += tl.load(partial + place + columns[None, :], mask=inside[None, :], other=0.0)
        finish(
            total * factor(left, row, there), row, there, x, p, y, r, out, a, b, c, None, gamma,
            None, alpha, columns, inside, width, x_stride, out_stride, P, MINUS, Y, R, OUT, B, C,
            False, GAMMA, False, PER_COLUMN,
        )  # fmt: skip
