"""Eigenpairs of ``I - S``: dense and batched for small components, Lanczos for large ones.

The null space is known beforehand, one vector ``sqrt(d)`` per component, so it is never computed:
each solver works on the Laplacian with that vector moved out of the way, and the exact vector is
put back. However small the spectral gap, no null vector is lost and all others are orthogonal to
it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, eye_array
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh
from torch import Tensor

from bunn.cores import MANY, by_cores
from bunn.graph.interval import Interval, find_interval
from bunn.graph.operator import before_compiling

if TYPE_CHECKING:
    from bunn.laplacian import Laplacian

#: Components up to this size are diagonalised densely even if few eigenpairs are asked for.
DENSE_SIZE = 512
#: Entries of the matrices that all cores diagonalise at a time.
LOT = 2**26
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


class Eigenpairs:
    """The eigenpairs of one Laplacian: computed when they are asked for, and kept.

    Args:
        gap: The smallest non-zero eigenvalue, if it is known. (default: it is not)
        interval: Where the eigenvalues of ``S`` lie, likewise.
    """

    def __init__(self, gap: float | None = None, interval: Interval | None = None) -> None:
        self.gap, self.interval = gap, interval
        #: All of them by component, if they have been computed.
        self.blocks: BlockSpectrum | None = None
        #: The same by the type of the features: bunn.diffusion.spectral.
        self.bases: dict[torch.dtype, Any] = {}
        self._lowest: tuple[Tensor, Tensor, list[float]] | None = None

    @property
    def known(self) -> bool:
        """Whether :meth:`by_blocks` computes nothing."""
        return self.blocks is not None

    @property
    def num_lowest(self) -> int:
        """How many :meth:`lowest` returns without computing any."""
        return 0 if self._lowest is None else self._lowest[0].numel()

    def lowest(self, lap: Laplacian, count: int) -> tuple[Tensor, Tensor]:
        """The ``count <= n`` lowest, ``(count,)`` and ``(n, count)``."""
        values, vectors, _ = self._at_least(lap, count)
        return values[:count], vectors[:, :count]

    def value(self, lap: Laplacian, index: int) -> float:
        """One eigenvalue, without asking the device for it each time."""
        return self._at_least(lap, index + 1)[2][index]

    def by_blocks(self, lap: Laplacian) -> BlockSpectrum:
        """All of them, component by component."""
        if self.blocks is None:
            self.blocks = before_compiling(block_spectrum, lap)
        return self.blocks

    def smallest_nonzero(self, lap: Laplacian) -> float:
        """The smallest non-zero eigenvalue."""
        if self.gap is None:
            self.gap = before_compiling(smallest_nonzero, lap)
        return self.gap

    def between(self, lap: Laplacian) -> Interval:
        """Two numbers with all eigenvalues of ``S`` but those of the null space between them."""
        if self.interval is None:
            self.interval = before_compiling(find_interval, lap)
        return self.interval

    def adopt(self, spectrum: BlockSpectrum | tuple[Tensor, Tensor]) -> None:
        """Takes what :meth:`by_blocks` or :meth:`lowest` returned elsewhere."""
        if isinstance(spectrum, BlockSpectrum):
            self.blocks, self.bases = spectrum, {}
        else:
            values, vectors = spectrum
            self._lowest = values, vectors, values.tolist()

    def _at_least(self, lap: Laplacian, count: int) -> tuple[Tensor, Tensor, list[float]]:
        if self._lowest is None or self.num_lowest < count:
            self.adopt(before_compiling(lowest_eigenpairs, lap, count))
        assert self._lowest is not None
        return self._lowest


def block_spectrum(lap: Laplacian) -> BlockSpectrum:
    """Every eigenpair of every component, component sizes one after the other.

    Where there are many, every core of the host takes some; what is on a GPU comes there for it.
    """
    roots = lap.blocks.split(lap.null_vector.unsqueeze(1))
    stacks = zip(lap.blocks.dense(*lap.coordinates()), roots, strict=True)

    def solve(s: Tensor, root: Tensor) -> tuple[Tensor, ...]:
        values, vectors = _dense(s, root)
        return values.to(lap.dtype), vectors.to(lap.dtype)

    if lap.num_components < MANY:
        pairs = list(starmap(solve, stacks))
    else:
        pairs = [pair for lot in _lots(stacks) for pair in by_cores(solve, lot)]
    values, vectors = zip(*([part.to(lap.device) for part in pair] for pair in pairs), strict=True)
    return BlockSpectrum(values, vectors)


def _lots(stacks: Iterable[tuple[Tensor, Tensor]]) -> Iterator[list[tuple[Tensor, ...]]]:
    """As many stacks at a time as have :data:`LOT` entries, on the host."""
    lot: list[tuple[Tensor, ...]] = []
    entries = 0
    for s, root in stacks:
        lot.append((s.cpu(), root.cpu()))
        entries += s.numel()
        if entries >= LOT:
            yield lot
            lot, entries = [], 0
    if lot:
        yield lot


def lowest_eigenpairs(lap: Laplacian, count: int) -> tuple[Tensor, Tensor]:
    """The ``count <= n`` lowest eigenvalues ``(count,)`` and eigenvectors ``(n, count)``."""
    n, device = lap.num_nodes, lap.device
    candidates: list[tuple[Tensor, Tensor, Tensor]] = []  # nodes, eigenvalues, eigenvectors
    for nodes, null, block in _component_groups(lap):
        values, vectors = _lowest_of_group(block, null, min(count, nodes.size(1)))
        candidates += zip(nodes, values, vectors, strict=True)

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
    gaps = [
        float(_lowest_of_group(block, null, 2)[0][:, 1].min())
        for nodes, null, block in _component_groups(lap)
        if nodes.size(1) > 1
    ]
    return min(gaps, default=float("inf"))


def _component_groups(lap: Laplacian) -> Iterator[tuple[Tensor, Tensor, csr_array[np.float64]]]:
    """For each size: the nodes ``(m, s)``, the null vectors ``(m, s, 1)``, the blocks of ``S``."""
    row, col, value = (part.cpu().numpy() for part in lap.coordinates())
    rank, order = lap.blocks.rank.cpu().numpy(), lap.blocks.order.cpu()
    ordered = csr_array((value, (rank[row], rank[col])), shape=(lap.num_nodes, lap.num_nodes))
    null = lap.null_vector.cpu()[order]
    start = 0
    for m, s in lap.blocks.shapes:
        part = slice(start, start + m * s)
        yield order[part].view(m, s), null[part].view(m, s, 1), ordered[part, part]
        start += m * s


def _lowest_of_group(
    block: csr_array[np.float64], null: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """The ``count <= s`` lowest eigenpairs ``(m, count)``, ``(m, s, count)`` of each component."""
    m, s, _ = null.shape
    if s <= max(DENSE_SIZE, 2 * count):
        entries = block.tocoo()
        stack = np.zeros((m, s, s))
        stack[entries.row // s, entries.row % s, entries.col % s] = entries.data
        values, vectors = _dense(torch.from_numpy(stack), null)
        return values[:, :count], vectors[:, :, :count]
    pairs = [
        _lanczos(block[i * s : (i + 1) * s, i * s : (i + 1) * s], null[i, :, 0].numpy(), count)
        for i in range(m)
    ]
    return torch.stack([values for values, _ in pairs]), torch.stack([found for _, found in pairs])
