"""Heat as one product with a kernel that is formed once per time, and kept.

The kernel ``H(t)`` does not depend on the learned bundle, so for a fixed time it is paid for once.
Kernels are kept per component, so a batch of small graphs holds ``sum s_i^2`` entries, and are
dropped by least use when a Laplacian's kernels outgrow :data:`KERNEL_BYTES`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bunn.diffusion.chebyshev import chebyshev_degree
from bunn.diffusion.options import Options, Time
from bunn.diffusion.polynomial import Polynomial, heat, polynomial_heat
from bunn.laplacian import Laplacian
from bunn.operator import for_keeps

#: Bytes of heat kernels that one Laplacian keeps; the one in use is always kept.
KERNEL_BYTES = 2**28


def dense(x: Tensor, lap: Laplacian, time: Time, options: Options) -> Tensor:
    """Heat for ``x: (n, c)`` by a product with the kernel.

    The kernel is the Chebyshev polynomial that meets ``tol``, so both methods agree to rounding.

    A time that is learned, or known to the device alone, is another one at every step and has no
    kernel worth keeping: then the recurrence that would form the kernel is run on ``x`` itself, as
    it is where a compiler watches.
    """
    if not time.fixed or torch.compiler.is_compiling():
        return polynomial_heat(x, lap, time, "chebyshev", options)
    if not isinstance(time.value, Tensor):
        return _apply(kernel(lap, time.value, options.tol), lap, x)
    distinct, owner = torch.unique(time.value, return_inverse=True)
    columns = [(owner == index).nonzero().squeeze(1) for index in range(distinct.numel())]
    parts = [
        _apply(kernel(lap, t, options.tol), lap, x[:, part])
        for t, part in zip(distinct.tolist(), columns, strict=True)
    ]
    return torch.cat(parts, dim=1)[:, torch.argsort(torch.cat(columns))]


def kernel(lap: Laplacian, time: float, tol: float) -> tuple[Tensor, ...]:
    """The blocks ``(m, s, s)`` of ``H(t)``, one stack per component size; cached."""
    kernels, key = lap.kernels, (time, chebyshev_degree(time, tol))
    if key in kernels:
        kernels.move_to_end(key)
        return kernels[key]
    kernels[key] = _form(lap, *key)
    while len(kernels) > 1 and sum(map(_bytes, kernels.values())) > KERNEL_BYTES:
        kernels.popitem(last=False)
    return kernels[key]


@for_keeps()
def _form(lap: Laplacian, time: float, degree: int) -> tuple[Tensor, ...]:
    """All blocks at once: column ``j`` lets heat out of the ``j``-th node of every component."""
    blocks = lap.blocks
    sources = torch.zeros(
        lap.num_nodes, blocks.largest, dtype=torch.float64, device=lap.device
    ).scatter_(1, blocks.local.unsqueeze(1), 1.0)
    operator = lap.matching(sources).operator  # formed once: as exact as can be
    columns = heat(sources, None, operator, Polynomial("chebyshev", degree, 0.0, time))
    return tuple(
        stack[:, :, : stack.size(1)].to(lap.dtype).contiguous() for stack in blocks.split(columns)
    )


def _apply(stacks: tuple[Tensor, ...], lap: Laplacian, x: Tensor) -> Tensor:
    fields = lap.blocks.split(x.to(lap.dtype))
    return lap.blocks.join([h @ f for h, f in zip(stacks, fields, strict=True)]).to(x.dtype)


def _bytes(stacks: tuple[Tensor, ...]) -> int:
    return sum(stack.numel() * stack.element_size() for stack in stacks)
