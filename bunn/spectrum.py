"""Eigenpairs of ``I - S``: dense and batched for small components, Lanczos for large ones.

The null space is known beforehand, one vector ``sqrt(d)`` per component, so it is never computed:
each solver works on the Laplacian with that vector moved out of the way, and the exact vector is
put back. However small the spectral gap, no null vector is lost and all others are orthogonal to
it.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, eye_array
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh
from torch import Tensor

if TYPE_CHECKING:
    from bunn.laplacian import Laplacian

#: Components up to this size are diagonalised densely even if few eigenpairs are asked for.
DENSE_SIZE = 512
#: Restarts after which Lanczos gives up.
LANCZOS = 300


class BlockSpectrum(NamedTuple):
    """All eigenpairs of a block-diagonal Laplacian, components of one size stacked.

    Args:
        values: For each size ``s``, ``(m, s)`` eigenvalues in ascending order.
        vectors: For each size ``s``, ``(m, s, s)`` eigenvectors in columns.
    """

    values: tuple[Tensor, ...]
    vectors: tuple[Tensor, ...]


def block_spectrum(lap: Laplacian) -> BlockSpectrum:
    """Every eigenpair of every component, by one batched ``eigh`` per component size."""
    blocks, (row, col, value) = lap.blocks, lap.coordinates()
    roots = blocks.split(lap.null_vector.unsqueeze(1))
    pairs = [_dense(s, root) for s, root in zip(blocks.dense(row, col, value), roots, strict=True)]
    return BlockSpectrum(
        tuple(values.to(lap.dtype) for values, _ in pairs),
        tuple(vectors.to(lap.dtype) for _, vectors in pairs),
    )


def lowest_eigenpairs(lap: Laplacian, count: int) -> tuple[Tensor, Tensor]:
    """The ``count <= n`` lowest eigenvalues ``(count,)`` and eigenvectors ``(n, count)``."""
    n, device = lap.num_nodes, lap.device
    row, col, value = (part.cpu().numpy() for part in lap.coordinates())
    matrix = csr_array((value, (row, col)), shape=(n, n))
    root = lap.null_vector.cpu()
    order = lap.blocks.order.cpu()
    candidates: list[tuple[Tensor, Tensor, Tensor]] = []  # nodes, eigenvalues, eigenvectors
    start = 0
    for m, s in lap.blocks.shapes:
        nodes = order[start : start + m * s].view(m, s)
        start += m * s
        keep = min(count, s)
        if s <= max(DENSE_SIZE, 2 * keep):
            values, vectors = _dense(_dense_blocks(matrix, nodes), root[nodes].unsqueeze(-1))
            candidates += zip(nodes, values[:, :keep], vectors[:, :, :keep], strict=True)
        else:
            for part in nodes:
                index = part.numpy()
                pair = _lanczos(matrix[index][:, index], root[part].numpy(), keep)
                candidates.append((part, *pair))

    merged = torch.cat([values for _, values, _ in candidates])
    lowest = torch.argsort(merged, stable=True)[:count]
    column = torch.full((merged.numel(),), -1).index_put_((lowest,), torch.arange(lowest.numel()))
    basis = torch.zeros(n, lowest.numel(), dtype=torch.float64)
    offset = 0
    for part, values, vectors in candidates:
        place = column[offset : offset + values.numel()]
        offset += values.numel()
        chosen = place >= 0
        basis[part[:, None], place[chosen][None, :]] = vectors[:, chosen]
    return merged[lowest].to(device, lap.dtype), basis.to(device, lap.dtype)


def _dense(s: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenpairs of ``I - S`` for a stack ``s: (m, k, k)`` of connected blocks.

    Args:
        s: The blocks of ``S``.
        root: ``(m, k, 1)`` square roots of the degrees, the null vectors.
    """
    null = root / root.norm(dim=1, keepdim=True)
    # The spectrum lies in [0, 2]: at 3 the null vector is apart from all others, and comes last.
    shifted = 3 * null @ null.mT - s
    shifted.diagonal(dim1=-2, dim2=-1).add_(1)
    values, vectors = torch.linalg.eigh(shifted)
    values = torch.cat([torch.zeros_like(values[:, :1]), values[:, :-1].clamp(0, 2)], dim=1)
    return values, torch.cat([null, vectors[:, :, :-1]], dim=2)


def _lanczos(
    s: csr_array[np.float64], root: NDArray[np.float64], count: int
) -> tuple[Tensor, Tensor]:
    """The ``count`` lowest eigenpairs of ``I - S`` for one large connected block."""
    n = s.shape[0]
    null = root / np.linalg.norm(root)
    values, vectors = np.zeros(count), np.zeros((n, count))
    vectors[:, 0] = null
    if count > 1:
        top, found = _largest(s, null, count - 1)
        ascending = np.argsort(-top)
        values[1:] = np.clip(1 - top[ascending], 0, 2)
        vectors[:, 1:] = found[:, ascending]
    return torch.from_numpy(values), torch.from_numpy(vectors)


def _largest(
    s: csr_array[np.float64], null: NDArray[np.float64], count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The largest eigenpairs of ``S`` but for ``null``, whose eigenvalue 1 is moved to -2."""
    n = s.shape[0]
    deflated = LinearOperator(
        (n, n), matvec=lambda v: s @ v.ravel() - 3 * null * (null @ v.ravel()), dtype=np.float64
    )
    start = np.random.default_rng(0).standard_normal(n)
    try:
        width = min(n - 1, 2 * count + 20)
        top, vectors = eigsh(deflated, count, which="LA", v0=start, ncv=width, maxiter=LANCZOS)
    except ArpackError:
        pass
    else:
        return top, vectors
    try:  # eigenvalues crowded at zero are far apart in the inverse, if a factorisation fits
        return _shift_invert(s, null, count, start)
    except (ArpackError, MemoryError, RuntimeError):
        pass
    warnings.warn(
        f"Lanczos did not converge for the {count} lowest eigenpairs of a component of {n} "
        "nodes; falling back on a dense eigendecomposition",
        stacklevel=2,
    )
    top, vectors = np.linalg.eigh(s.toarray() - 3 * np.outer(null, null))
    return top[-count:], vectors[:, -count:]


def _shift_invert(
    s: csr_array[np.float64],
    null: NDArray[np.float64],
    count: int,
    start: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The same by inverse iteration on ``I - S``, the null vector taken out of what it finds."""
    laplacian = (eye_array(s.shape[0]) - s).tocsc()
    _, found = eigsh(laplacian, count + 1, sigma=-1e-6, which="LM", v0=start)
    found = np.linalg.qr(np.column_stack((null, found)))[0][:, 1:]
    top, mix = np.linalg.eigh(found.T @ (s @ found))
    return top[-count:], (found @ mix)[:, -count:]


def smallest_nonzero(lap: Laplacian) -> float:
    """The smallest non-zero eigenvalue of ``I - S``, component by component."""
    gap = float("inf")
    row, col, value = (part.cpu().numpy() for part in lap.coordinates())
    matrix = csr_array((value, (row, col)), shape=(lap.num_nodes, lap.num_nodes))
    root = lap.null_vector.cpu()
    order, start = lap.blocks.order.cpu(), 0
    for m, s in lap.blocks.shapes:
        nodes = order[start : start + m * s].view(m, s)
        start += m * s
        if s == 1:
            continue
        if s <= DENSE_SIZE:
            values, _ = _dense(_dense_blocks(matrix, nodes), root[nodes].unsqueeze(-1))
            gap = min(gap, float(values[:, 1].min()))
        else:
            for part in nodes:
                index = part.numpy()
                values, _ = _lanczos(matrix[index][:, index], root[part].numpy(), 2)
                gap = min(gap, float(values[1]))
    return gap


def _dense_blocks(matrix: csr_array[np.float64], nodes: Tensor) -> Tensor:
    return torch.stack(
        [torch.from_numpy(matrix[part][:, part].toarray()) for part in nodes.numpy()]
    )
