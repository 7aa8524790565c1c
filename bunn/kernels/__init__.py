"""Triton kernels behind heat, the mean of neighbours, products with a matrix for every component,
the maps of planes and attention along edges, for CUDA devices.

They are there where Triton is, which comes with the CUDA builds of torch; everything else goes the
way that torch offers. Sums have float32, or float64 for features in float64.

``BUNN_KERNELS=0`` (or ``false``, ``no``, ``off``) in the environment switches them off, to compare
or to find a fault.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from bunn.calling import batched, plain
from bunn.graph.spans import ranges
from bunn.kernels.arguments import Blocks, Decay, Factor, Patches, Rows, Tiles

#: The types whose sums are formed in float32.
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
#: Up to this degree features of 16 bits stay so between products: what is rounded there adds up to
#: little more than rounding the result does, twice as much where features are constant.
NARROW_DEGREE = 40

#: Entries of the largest operator: indices have 32 bits, and go a little beyond the last.
MOST_ENTRIES = 2**31 - 2**10
#: Entries of the longest row that is summed in one piece.
LONG = 256
#: Entries of a short row. Those of graphs with short rows are summed a few at a time, and longer
#: ones apart, however few there are: see :func:`longest`.
SHORT = 32
#: Terms of float32 that tensor cores add up, which cut off what does not fit, before others do.
TERMS = 32
#: Columns of the longest piece of a patch, whose chunks are added up in float32 one by one.
LONGEST = 2048
#: Columns of the widest features that chains of operations take in one pass.
WIDEST = 4096
#: Columns of the narrowest features that are taken by blocks of rows.
NARROWEST = 64
#: Nodes of the largest component whose matrix is multiplied where the component lies.
LARGEST = 1024


def switched_off(setting: str) -> bool:
    """Whether a value of ``BUNN_KERNELS`` says so."""
    return setting.lower() in ("0", "false", "no", "off")


_WANTED = (
    not switched_off(os.environ.get("BUNN_KERNELS", "1"))
    and importlib.util.find_spec("triton") is not None
)


def wanted() -> bool:
    """Whether Triton is there to compile kernels, and nobody asked to do without."""
    return _WANTED


def longest(num_rows: int, num_entries: int) -> int:
    """Entries of the longest row that is not taken apart, by the mean."""
    return LONG if num_entries > SHORT * num_rows else min(SHORT, LONG)


def cut_long_rows(crow: Tensor) -> Tensor | None:
    """The pieces of rows that are longer than :func:`longest`, of :data:`LONG` entries at most.

    Args:
        crow: ``(n + 1,)`` row pointers.

    Returns:
        ``(s, 4)`` int32: row, first entry, end, and the number of pieces of the row where it is the
        first of them, else 0. :obj:`None` if no row is as long.
    """
    length = (crow[1:] - crow[:-1]).long()
    rows = (length > longest(length.numel(), int(crow[-1]))).nonzero().squeeze(1)
    if rows.numel() == 0:
        return None
    count = (length[rows] + LONG - 1) // LONG
    position, owner = ranges(torch.zeros_like(count), count, int(count.sum()))
    first = crow.long()[rows][owner] + LONG * position
    last = torch.minimum(first + LONG, crow.long()[rows + 1][owner])
    pieces = torch.where(position == 0, count[owner], 0)
    return torch.stack((rows[owner], first, last, pieces), 1).to(torch.int32).contiguous()


def serve(x: Tensor, value: Tensor) -> bool:
    """Whether there is a kernel for features ``x`` and an operator with entries ``value``."""
    wide = x.dtype == value.dtype == torch.float64
    known = wide or (x.dtype in DTYPES and value.dtype == torch.float32)
    return x.is_cuda and known and value.numel() < MOST_ENTRIES and wanted()


def serve_blocks(x: Tensor, rows: Rows, before: Tensor | None) -> Blocks | None:
    """The blocks of rows, if features ``x``, with factors ``before``, are to be taken by them.

    Other factors than the root are multiplied and rounded first, for which float16 has no room.
    """
    blocks = rows.blocks
    if blocks is None or x.dtype.itemsize != 2 or x.size(1) < NARROWEST:
        return None
    return blocks if x.dtype == torch.bfloat16 or blocks.has_root(before) else None


def serve_maps(x: Tensor, cos: Tensor) -> bool:
    """Whether there is a kernel for maps with cosines ``cos``, applied to features ``x``."""
    known = x.dtype in DTYPES and cos.dtype == torch.float32
    return x.is_cuda and known and wanted() and not batched(x)


def serve_angles(x: Tensor, angle: Tensor) -> bool:
    """Whether there is a kernel for maps with angles ``angle``, applied to features ``x``, and
    nobody is going to look at their sines and cosines."""
    return _know(x, angle)


def turn_by(x: Tensor, angle: Tensor, turned: int, inverse: bool) -> Tensor:
    """Rotations of the first ``turned`` bundles, reflections of the rest, or their inverses.

    Args:
        x: ``(n, b, 2, p)`` features.
        angle: ``(n, b)`` in float32 or 16 bits.
        turned: How many bundles rotate.
        inverse: Whether the inverse maps are meant.
    """
    from bunn.kernels.planes import turn_planes  # noqa: PLC0415

    return turn_planes(x, angle, None, turned, inverse)


def turn_by_back(
    grad: Tensor, x: Tensor, angle: Tensor, turned: int, inverse: bool
) -> tuple[Tensor, ...]:
    """The gradients of :func:`turn_by` by ``x`` and ``angle``, in one pass.

    Args:
        grad: ``(n, b, 2, p)`` that of the result.
        x: As there, like what follows.
        angle: ``(n, b)``, whose gradient has its type.
        turned: How many bundles rotate.
        inverse: Whether the inverse maps are meant.
    """
    from bunn.kernels.planes import turn_planes_back  # noqa: PLC0415

    return turn_planes_back(grad, x, angle, None, turned, inverse)


def turn(x: Tensor, cos: Tensor, sin: Tensor, turned: int) -> Tensor:
    """Rotations of the first ``turned`` bundles, reflections of the rest.

    Args:
        x: ``(n, b, 2, p)`` features.
        cos: ``(n, b)`` float32.
        sin: ``(n, b)`` float32.
        turned: How many bundles rotate.
    """
    from bunn.kernels.planes import turn_planes  # noqa: PLC0415

    return turn_planes(x, cos, sin, turned)


def turn_back(grad: Tensor, x: Tensor, cos: Tensor, sin: Tensor, turned: int) -> tuple[Tensor, ...]:
    """The gradients of :func:`turn` by ``x``, ``cos`` and ``sin``, in one pass.

    Args:
        grad: ``(n, b, 2, p)`` that of the result.
        x: As there, like what follows.
        cos: ``(n, b)`` float32.
        sin: ``(n, b)`` float32.
        turned: How many bundles rotate.
    """
    from bunn.kernels.planes import turn_planes_back  # noqa: PLC0415

    return turn_planes_back(grad, x, cos, sin, turned)


def serve_chains(x: Tensor) -> bool:
    """Whether there are kernels for chains of operations on features ``x``."""
    fits = x.is_cuda and x.dtype in DTYPES and x.dim() == 2 and x.size(1) <= WIDEST
    return fits and wanted() and plain()


def serve_components(value: Tensor, largest: int) -> bool:
    """Whether matrices of components are multiplied where these lie, for an operator with entries
    ``value`` whose largest component has so many nodes."""
    fits = value.is_cuda and value.dtype == torch.float32 and largest <= LARGEST
    return fits and wanted() and torch.version.hip is None  # where products are others


def serve_attention(*tensors: Tensor) -> bool:
    """Whether there are kernels for attention along edges between features ``tensors``."""
    return _know(*tensors)


def _know(*tensors: Tensor) -> bool:
    """Whether kernels read such tensors, of which nobody wants more than their numbers."""
    known = all(x.is_cuda and x.dtype in DTYPES for x in tensors)
    return known and wanted() and plain(*tensors)


def product(
    x: Tensor, out: Tensor, rows: Rows, before: Tensor | None, after: Tensor | None
) -> None:
    """``after * S (before * x)``, into ``out``.

    Args:
        x: ``(n, c)`` features, contiguous but for their rows, which may lie apart.
        out: ``(n, c)`` where the result goes, likewise.
        rows: The graph.
        before: ``(n, 1)`` factors of the rows of ``x``.
        after: ``(n, 1)`` factors of the rows of the result.
    """
    blocks = serve_blocks(x, rows, before)
    if blocks is not None:
        from bunn.kernels.blocks import block_product  # noqa: PLC0415

        block_product(x, out, blocks, before, after)
        return
    from bunn.kernels.walk import walk  # noqa: PLC0415

    walk(x, rows, beta=before, out=out, gamma=after)


def heat(
    x: Tensor,
    rows: Rows,
    polynomial: Sequence[float] | Sequence[Factor] | Tensor,
    before: Tensor | None,
    after: Tensor | None,
) -> Tensor:
    """``after * p(S) (before * x)`` for a polynomial of degree 1 or more.

    Args:
        x: ``(n, c)`` contiguous features.
        rows: The graph.
        polynomial: Its factors; or its ``K + 1`` coefficients in Chebyshev form, numbers or
            ``(K + 1, c)`` in the type of sums.
        before: ``(n, 1)`` factors of the rows of ``x``.
        after: ``(n, 1)`` factors of the rows of the result.
    """
    from bunn.kernels.chebyshev import chebyshev_heat  # noqa: PLC0415
    from bunn.kernels.factored import factored_heat  # noqa: PLC0415
    from bunn.kernels.frame import Frame  # noqa: PLC0415

    factors = cast(Sequence[Factor], polynomial) if isinstance(polynomial[0], Factor) else None
    degree = len(polynomial) - 1
    if factors is not None:
        degree = sum(len(factor.steps) for factor in factors)
    storage = x.dtype if degree <= NARROW_DEGREE else rows.value.dtype
    frame = Frame.of(x, rows, before, after, storage)
    if factors is not None:
        return factored_heat(frame, factors)
    return chebyshev_heat(frame, cast(Sequence[float] | Tensor, polynomial))


def multiply_components(
    x: Tensor, matrices: Tensor, tiles: Tiles, transposed: bool, decay: Decay | None = None
) -> Tensor:
    """``M_i x_i`` for the rows ``x_i`` of every component, times ``decay``.

    Args:
        x: ``(n, c)`` features, in float32 or 16 bits.
        matrices: The entries of all ``M_i``, one after the other, in the type of ``x``.
        tiles: Where they are.
        transposed: Whether their transposes are meant.
        decay: What the result is multiplied with.
    """
    from bunn.kernels.grouped import multiply_grouped  # noqa: PLC0415

    return multiply_grouped(x, matrices, tiles, transposed, decay)


def multiply_components_back(
    x: Tensor, matrices: Tensor, tiles: Tiles, transposed: bool, decay: Decay, other: Tensor
) -> tuple[Tensor, Tensor]:
    """The same and its sums with others, ``-sum_i lambda_i other_ij (M x)_ij``, before the decay.

    Args:
        x: As there, like what follows.
        matrices: The entries of all matrices.
        tiles: Where they are.
        transposed: Whether their transposes are meant.
        decay: What the product is multiplied with.
        other: ``(n, c)`` in the type of ``x``.

    Returns:
        ``(n, c)`` the product and ``(c,)`` float32 sums.
    """
    from bunn.kernels.grouped import multiply_grouped_back  # noqa: PLC0415

    return multiply_grouped_back(x, matrices, tiles, transposed, decay, other)


def multiply_patches(
    x: Tensor,
    patches: Patches,
    out: Tensor | None = None,
    before: Tensor | None = None,
    after: Tensor | None = None,
) -> Tensor:
    """``after * M (before * x)``.

    Args:
        x: ``(n, c)`` features, in float32 or in the type of the matrix.
        patches: The matrix.
        out: ``(n, c)`` where the result goes, contiguous but for its rows. (default: a new place)
        before: ``(n, 1)`` factors of the rows of ``x``, in float32.
        after: ``(n, 1)`` factors of the rows of the result, likewise.
    """
    from bunn.kernels.patches import multiply  # noqa: PLC0415

    return multiply(x, patches, out, before, after)
