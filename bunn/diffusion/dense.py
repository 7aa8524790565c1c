"""Heat as one product with a kernel that is formed once per time, and kept.

The kernel ``H(t)`` does not depend on the learned bundle, so for a fixed time it is paid for once.
Kernels are kept per component, so a batch of small graphs holds ``sum s_i^2`` entries, and are
dropped by least use when a Laplacian's kernels outgrow :func:`kernel_bytes`.

Products of float32 are formed in float64: a sum over ``s`` nodes could be off by ``s / 4``
roundings. On a GPU its tensor cores form them: small components are multiplied where they lie
(:mod:`bunn.diffusion.blockwise`); nodes that reach few others, and features of float32, by blocks
of rows (:mod:`bunn.diffusion.patchwise`); and other features of 16 bits by a matrix of their type
(:mod:`bunn.diffusion.products`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bunn import kernels as device_kernels
from bunn.diffusion.blockwise import BlockMatrix, block_product, lost_in_sums
from bunn.diffusion.chebyshev import chebyshev_degree, check_degree
from bunn.diffusion.options import Options, Time
from bunn.diffusion.patchwise import (
    FORMED_ENTRIES,
    LEAST_TOL,
    LOST_IN_SUMS,
    PatchMatrix,
    heat_patches,
    patch_product,
    reach,
    rows_of_blocks,
    spread,
)
from bunn.diffusion.polynomial import Polynomial, heat
from bunn.diffusion.products import filled_up, narrow_product
from bunn.diffusion.tolerance import polynomial_heat
from bunn.graph.operator import for_keeps
from bunn.keeping import handed_out
from bunn.laplacian import Laplacian

#: Bytes of heat kernels that one Laplacian keeps, of the largest two; the one in use always stays.
KERNEL_BYTES = 2**29
#: The share of a GPU's memory that they may take where its tensor cores multiply them.
KERNEL_SHARE = 1 / 16
#: Entries of the largest kernel that is formed unasked, elsewhere.
KERNEL_ENTRIES = 2**25

#: Nodes of the largest graph that is taken by blocks of rows.
PATCHED_NODES = 2**16
#: How many times as large as the smallest the largest degree of a component may be.
SPREAD = 2.0**20
#: The share of all nodes within reach from which on a whole product of 16 bits is faster.
WHOLE = 0.35

#: One stack for every size of a component, or one matrix for all.
Kernel = tuple[Tensor, ...] | BlockMatrix | PatchMatrix


class Form(NamedTuple):
    """Which kernel is kept.

    Args:
        time: The time.
        degree: That of the polynomial that it is.
        dtype: The type of its entries; float32 by blocks of rows is two numbers of float16.
        rows: Those of a block, 0 where it is not kept by them.
    """

    time: float
    degree: int
    dtype: torch.dtype
    rows: int = 0


def on_tensor_cores(lap: Laplacian) -> bool:
    """Whether tensor cores multiply what is kept in 16 bits, and small components."""
    return lap.device.type == "cuda" and lap.dtype == torch.float32 and device_kernels.wanted()


def in_place(lap: Laplacian) -> bool:
    """Whether components are multiplied where they lie: several ones, all of them small."""
    largest = lap.blocks.largest
    return largest < lap.num_nodes and device_kernels.serve_components(lap.operator.value, largest)


def kernel_bytes(lap: Laplacian) -> int:
    """The bytes of heat kernels that a Laplacian keeps."""
    if lap.device.type != "cuda" or not on_tensor_cores(lap):
        return KERNEL_BYTES
    return int(KERNEL_SHARE * torch.cuda.get_device_properties(lap.device).total_memory)


def kernel_entries(lap: Laplacian, dtype: torch.dtype) -> int:
    """Entries of the largest kernel of some type that is formed unasked."""
    if not on_tensor_cores(lap):
        return KERNEL_ENTRIES
    return kernel_bytes(lap) // max(4, dtype.itemsize)


def dense(x: Tensor, lap: Laplacian, time: Time, options: Options) -> Tensor:
    """Heat for ``x: (n, c)`` by a product with the kernel.

    The kernel is the Chebyshev polynomial that meets ``tol``, or what rounding leaves of it: both
    methods agree to rounding where their degrees are the same.

    A time that is learned, or known to the device alone, is another one at every step and has no
    kernel worth keeping: then the recurrence that would form the kernel is run on ``x`` itself, as
    it is where a compiler watches.
    """
    if not time.fixed or torch.compiler.is_compiling():
        return polynomial_heat(x, lap, time, "chebyshev", options)
    if not isinstance(time.value, Tensor):
        return _apply(kernel(lap, time.value, options.tol, x.dtype), lap, x)
    distinct, owner = torch.unique(time.value, return_inverse=True)
    columns = [(owner == index).nonzero().squeeze(1) for index in range(distinct.numel())]
    parts = [
        _apply(kernel(lap, t, options.tol, x.dtype), lap, x[:, part])
        for t, part in zip(distinct.tolist(), columns, strict=True)
    ]
    return torch.cat(parts, dim=1)[:, torch.argsort(torch.cat(columns))]


def storage(lap: Laplacian, dtype: torch.dtype) -> torch.dtype:
    """The type in which a kernel for features of some type is kept."""
    if dtype.itemsize == 2:  # whose rounding is far above that of sums in float32
        return dtype if on_tensor_cores(lap) else lap.dtype
    return dtype if in_place(lap) and dtype == torch.float32 else torch.float64


def patched(lap: Laplacian, dtype: torch.dtype, tol: float) -> bool:
    """Whether kernels for features of some type may be kept by blocks of rows.

    In 16 bits not where degrees differ so much that entries, which have them, do not fit.
    """
    if not on_tensor_cores(lap) or in_place(lap) or lap.num_nodes > PATCHED_NODES:
        return False
    if torch.version.hip is not None:  # where programs have less memory
        return False
    if dtype.itemsize == 2:
        return spread(lap) <= SPREAD
    return dtype == torch.float32 and tol >= LEAST_TOL


def form_of(lap: Laplacian, time: float, tol: float, dtype: torch.dtype) -> Form:
    """How a kernel for features of some type is kept.

    For features of float32, of ``tol`` that is left which it takes to round the result, and what is
    lost in sums where these are not formed in float64.
    """
    lost = torch.finfo(dtype).eps / 2 if dtype == torch.float32 else 0.0
    in_blocks = patched(lap, dtype, tol)
    if dtype == torch.float32 and in_blocks:
        lost += LOST_IN_SUMS
    elif dtype == torch.float32 and in_place(lap):
        lost += lost_in_sums(lap.blocks.largest)
    degree = chebyshev_degree(time, max(tol - lost, tol / 3))
    if in_blocks and (dtype == torch.float32 or reach(lap, degree) <= WHOLE * lap.num_nodes):
        return Form(time, degree, dtype, rows_of_blocks(lap, degree, dtype))
    return Form(time, degree, storage(lap, dtype))


def kernel(lap: Laplacian, time: float, tol: float, dtype: torch.dtype) -> Kernel:
    """``H(t)``: blocks ``(m, s, s)``, one stack per component size, or all in one; cached."""
    kernels, form = lap.kernels, form_of(lap, time, tol, dtype)
    if form in kernels:
        kernels.move_to_end(form)
    else:
        check_degree(form.degree, time)
        kernels[form] = heat_patches(lap, *form) if form.rows else _form(lap, *form[:3])
        room = kernel_bytes(lap)
        while len(kernels) > 1 and sum(map(_bytes, kernels.values())) > room:
            kernels.popitem(last=False)
    found: Kernel = handed_out(kernels[form])
    return found


@for_keeps()
def _form(lap: Laplacian, time: float, degree: int, dtype: torch.dtype) -> Kernel:
    """All blocks at once: column ``j`` lets heat out of the ``j``-th node of every component."""
    blocks, polynomial = lap.blocks, Polynomial("chebyshev", degree, 0.0, time)
    local = blocks.local.unsqueeze(1)
    operator = lap.matching(local.double()).operator  # formed once: as exact as can be
    stacks = [local.new_empty(m, s, s, dtype=dtype) for m, s in blocks.shapes]
    width = max(1, FORMED_ENTRIES // max(1, lap.num_nodes))
    for first in range(0, blocks.largest, width):
        nodes = torch.arange(first, min(first + width, blocks.largest), device=lap.device)
        columns = heat((local == nodes).double(), None, operator, polynomial)
        for stack, part in zip(stacks, blocks.split(columns), strict=True):
            end = min(stack.size(2), first + width)
            stack[:, :, first:end] = part[:, :, : max(0, end - first)]
    if in_place(lap) and dtype != torch.float64:
        return BlockMatrix.of(stacks, blocks, dtype)
    if not on_tensor_cores(lap):
        return tuple(stacks)
    merged = blocks.merged.fill(stacks)
    return tuple(filled_up(stack) if dtype.itemsize == 2 else stack for stack in merged)


def _apply(kernel: Kernel, lap: Laplacian, x: Tensor) -> Tensor:
    if isinstance(kernel, BlockMatrix):
        return block_product(kernel, x)
    if isinstance(kernel, PatchMatrix):
        return patch_product(kernel, x)
    blocks = lap.blocks.merged if on_tensor_cores(lap) else lap.blocks
    products = [_product(h, f) for h, f in zip(kernel, blocks.split(x), strict=True)]
    return blocks.join(products).to(x.dtype)


def _product(stack: Tensor, field: Tensor) -> Tensor:
    if stack.dtype.itemsize == 2:
        return narrow_product(stack, field)
    return stack @ field.to(stack.dtype)


def _bytes(kernel: Kernel) -> int:
    if isinstance(kernel, PatchMatrix):
        return kernel.num_bytes
    stacks = (kernel.entries,) if isinstance(kernel, BlockMatrix) else kernel
    return sum(stack.numel() * stack.element_size() for stack in stacks)
