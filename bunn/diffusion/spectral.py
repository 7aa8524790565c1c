r"""Heat from eigenpairs: Algorithm 2 of the paper.

.. math::
    y = D^{-1/2} \sum_i e^{-t\lambda_i} \phi_i \phi_i^\top D^{1/2} x

with eigenpairs of :math:`I - S` (the paper's :math:`\phi\phi^\top`, without the degrees, is right
for the symmetric Laplacian). With all eigenpairs it is exact; with the lowest :math:`k` it is off
by :math:`e^{-t\lambda_{k+1}}`, which is checked. All eigenvectors of all components are two batched
products, in float64: in float32 a sum over ``n`` nodes could be off by ``n / 4`` roundings. On a
GPU, tensor cores multiply features of 16 bits (:mod:`bunn.diffusion.products`), and small
components are two passes where they lie (:mod:`bunn.diffusion.blockwise`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bunn.diffusion.blockwise import Basis, basis_heat, decay_factors
from bunn.diffusion.dense import in_place, storage
from bunn.diffusion.options import Options, Time
from bunn.diffusion.products import filled_up, narrow_product
from bunn.graph.operator import for_keeps
from bunn.keeping import handed_out
from bunn.laplacian import Laplacian

#: Without ``num_eigs``, a component up to this size is diagonalised in full.
FULL_SIZE = 2048


def spectral(x: Tensor, lap: Laplacian, time: Time, options: Options) -> Tensor:
    """Heat for ``x: (n, c)`` from as many eigenpairs as ``tol`` asks for, or ``num_eigs``.

    Too few eigenpairs for ``tol`` are an error; ``tol=inf`` accepts any truncation, as the
    authors' code does.
    """
    whole = takes_all(lap, options)
    if whole and not torch.compiler.is_compiling() and in_place(lap):
        return basis_heat(x, time.value, _basis(lap, x.dtype))
    root = lap.operator.before
    z = x.to(lap.dtype) if root is None else x.to(lap.dtype) * root
    if whole:
        y = _all_blocks(z, lap, time, storage(lap, x.dtype))
    else:
        y = _decayed(*_eigenpairs(lap, time, options), time, z)
    return (y if root is None else y / root).to(x.dtype)


def takes_all(lap: Laplacian, options: Options) -> bool:
    """Whether all eigenpairs are taken, whatever the times are."""
    known = lap.eigenpairs.known or lap.blocks.largest <= FULL_SIZE
    return options.num_eigs is None and known


def _all_blocks(z: Tensor, lap: Laplacian, time: Time, dtype: torch.dtype) -> Tensor:
    if dtype.itemsize == 2 and not torch.compiler.is_compiling():
        blocks = lap.blocks.merged
        parts = zip(*_bases(lap, dtype), blocks.split(z.to(dtype)), strict=True)
        return blocks.join(
            [_heated(basis, decay_factors(at, time.value), f) for basis, at, f in parts]
        )
    values, vectors = lap.block_spectrum() if torch.compiler.is_compiling() else _wide(lap)
    stacks = zip(values, vectors, lap.blocks.split(z), strict=True)
    return lap.blocks.join([_decayed(at, basis, time, stack) for at, basis, stack in stacks])


@for_keeps()
def _wide(lap: Laplacian) -> tuple[list[Tensor], list[Tensor]]:
    """All eigenpairs in float64; cached."""
    if torch.float64 not in lap.eigenpairs.bases:
        both = [[stack.double() for stack in stacks] for stacks in lap.block_spectrum()]
        lap.eigenpairs.bases[torch.float64] = both
    values, vectors = handed_out(lap.eigenpairs.bases[torch.float64])
    return values, vectors


def _decayed(values: Tensor, vectors: Tensor, time: Time, z: Tensor) -> Tensor:
    """``Phi exp(-t Lambda) Phi^T z``, in float64."""
    wide = vectors.double()
    return wide @ (decay_factors(values.double(), time.value) * (wide.mT @ z.double()))


def _heated(basis: Tensor, decay: Tensor, stack: Tensor) -> Tensor:
    """The same by tensor cores, for features of 16 bits."""
    return narrow_product(basis, (decay * narrow_product(basis.mT, stack)).to(stack.dtype))


@for_keeps()
def _bases(lap: Laplacian, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    """The eigenvectors in 16 bits, as tensor cores multiply them, and the eigenvalues; cached."""
    if dtype not in lap.eigenpairs.bases:
        spectrum, fill = lap.block_spectrum(), lap.blocks.merged.fill
        vectors = [filled_up(stack.to(dtype)) for stack in fill(spectrum.vectors)]
        lap.eigenpairs.bases[dtype] = (vectors, fill(spectrum.values))
    found: tuple[list[Tensor], list[Tensor]] = handed_out(lap.eigenpairs.bases[dtype])
    return found


@for_keeps()
def _basis(lap: Laplacian, dtype: torch.dtype) -> Basis:
    """The same for components that are multiplied where they lie; cached."""
    if dtype not in lap.eigenpairs.bases:
        if lap.origin is not None and lap.origin.whole.has_room:
            found = _basis(lap.origin.whole.lap, dtype).part(lap.origin)
        else:
            root, blocks = lap.operator.before, lap.blocks
            found = Basis.of(*lap.block_spectrum(), root, blocks, dtype)
        lap.eigenpairs.bases[dtype] = found
    basis: Basis = handed_out(lap.eigenpairs.bases[dtype])
    return basis


def _eigenpairs(lap: Laplacian, time: Time, options: Options) -> tuple[Tensor, Tensor]:
    """The lowest eigenpairs: ``num_eigs`` if that meets ``tol``, or as many as it takes."""
    count = min(options.num_eigs or 64, lap.num_nodes)
    if options.tol == math.inf:
        return lap.spectrum(count)
    while True:
        values, vectors = lap.spectrum(count + 1)
        if count == lap.num_nodes:
            return values, vectors
        if time.lower is None:
            raise ValueError(
                "method='spectral' with tol needs to know the times, and only the device does; "
                "pass tol=float('inf') to accept any truncation"
            )
        error = math.exp(-time.lower * lap.eigenvalue(count))
        if error <= options.tol:
            return values[:count], vectors[:, :count]
        if options.num_eigs is not None:
            raise ValueError(
                f"num_eigs={options.num_eigs} leaves an error of {error:.1e} at "
                f"time={time.lower:g}, more than tol={options.tol:g}; leave num_eigs out to "
                "take as many as it needs, or pass tol=float('inf') to accept the truncation"
            )
        count = min(2 * count, lap.num_nodes)
