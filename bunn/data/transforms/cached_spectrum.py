"""The spectrum of a graph, computed once and carried along with its data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.transforms import BaseTransform

from bunn.data.transforms.cache import DiskCache
from bunn.data.transforms.graph import Graph
from bunn.graph.operator import for_keeps, random_walk
from bunn.graph.spectrum import BlockSpectrum
from bunn.laplacian import Laplacian, Normalization
from bunn.sharing import laplacian_of

#: The end of an error message.
ANOTHER_GRAPH = (
    "belongs to another graph: apply CachedSpectrum after all transforms that change edges"
)


class CachedSpectrum(BaseTransform):  # type: ignore[misc]
    """Attaches the eigenpairs of ``I - S``, so that nobody has to compute them again.

    :func:`known_laplacian` hands them to the Laplacian of the data, or of a batch of such data: a
    loader that batches a thousand graphs anew in each epoch never diagonalises one twice. With a
    cache they also survive the run.

    They are stored in one tensor that PyG batches by concatenation. All eigenpairs: for each
    component, by its first node, the ``s`` eigenvalues and then the ``(s, s)`` eigenvectors, in
    a row; ``sum s (s + 1)`` numbers. The lowest ``num_eigs``: a ``(1 + n, k)`` matrix, the
    eigenvalues in its first row; for a single graph, not for batches.

    Args:
        num_eigs: How many of the lowest eigenpairs, as in :meth:`bunn.Laplacian.spectrum`.
            (default: all, component by component)
        attr: Where they are stored. (default: ``"spectrum"``)
        cache: Where they are kept between runs. (default: nowhere)
    """

    def __init__(
        self,
        num_eigs: int | None = None,
        *,
        attr: str = "spectrum",
        cache: DiskCache | None = None,
    ) -> None:
        if num_eigs is not None and (not isinstance(num_eigs, int) or num_eigs < 1):
            raise ValueError(
                f"num_eigs={num_eigs!r}; ask for at least one eigenpair, or None for all"
            )
        self.num_eigs, self.attr, self.cache = num_eigs, attr, cache

    def forward(self, data: Any) -> Any:
        graph = Graph.of(data)
        if self.num_eigs is not None and data.get("batch") is not None:
            raise ValueError(
                f"num_eigs={self.num_eigs}; the lowest eigenpairs of a batch are of no use: use "
                "num_eigs=None, or apply the transform to each graph"
            )
        dtype = torch.float64 if graph.dtype == torch.float64 else torch.float32

        def compute() -> dict[str, Tensor]:
            return {"spectrum": _spectrum(graph.laplacian(), self.num_eigs).to(dtype)}

        inputs = {**graph.content, "num_eigs": self.num_eigs, "dtype": str(dtype)}
        if self.cache is None:
            result = compute()
        else:
            result = self.cache.load_or_compute("spectrum", inputs, compute)
        data[self.attr] = result["spectrum"].to(graph.edge_index.device)
        return data

    def __repr__(self) -> str:
        return f"{type(self).__name__}(num_eigs={self.num_eigs})"


def known_laplacian(
    data: Any, *, normalization: Normalization = "rw", attr: str = "spectrum"
) -> Laplacian:
    """The Laplacian of the data, with the spectrum that :class:`CachedSpectrum` left in it.

    It is the one that a model builds for ``data.edge_index``: call this before the model, and pass
    the model either. Without a spectrum in the data it is simply the Laplacian.

    Args:
        data: A ``Data``, or a batch of them, on any device.
        normalization: That of the model. (default: ``"rw"``)
        attr: Where the spectrum is stored. (default: ``"spectrum"``)

    Raises:
        ValueError: If the spectrum is not that of the graph, as when edges were changed since.
    """
    graph = Graph.of(data)
    lap = laplacian_of(graph.edge_index, graph.edge_weight, graph.num_nodes, normalization)
    stored = data.get(attr)
    if stored is not None:
        _hand_over(stored, lap.matching(stored.new_empty(lap.num_nodes, 0)))
    return lap


@for_keeps()
def _hand_over(stored: Tensor, lap: Laplacian) -> None:
    """Gives the Laplacian the spectrum, once, if it is the graph's.

    Whether the vectors are orthonormal eigenvectors is checked on a random combination of them, to
    the square root of the precision.
    """
    if stored.dim() == 2:
        if lap.known_num_eigs >= stored.size(1):
            return
        if stored.size(0) != 1 + lap.num_nodes:
            raise ValueError(
                f"spectrum has shape {tuple(stored.shape)}, the graph asks for "
                f"({1 + lap.num_nodes}, num_eigs); it {ANOTHER_GRAPH}, and use num_eigs=None for "
                "graphs that are batched"
            )
        values, vectors = stored[0], stored[1:]
        weights = _probe(values)
        field, image = vectors @ weights, vectors @ (values.unsqueeze(-1) * weights)
        _check(lap, field, image, vectors.mT @ field - weights)
        lap.adopt_spectrum((values, vectors))
    elif lap.known_block_spectrum is None:
        spectrum, join = _unpacked(stored, lap), lap.blocks.join
        probe = [_probe(values) for values in spectrum.values]
        parts = list(zip(*spectrum, probe, strict=True))
        field = join([vectors @ weights for _, vectors, weights in parts])
        image = join([vectors @ (values.unsqueeze(-1) * w) for values, vectors, w in parts])
        back = [v.mT @ f for v, f in zip(spectrum.vectors, lap.blocks.split(field), strict=True)]
        _check(lap, field, image, join(back) - join(probe))
        lap.adopt_spectrum(spectrum)


def _probe(values: Tensor) -> Tensor:
    """Random weights ``(..., k, 1)`` for eigenvectors."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*values.shape, 1, generator=generator).to(values)


def _check(lap: Laplacian, field: Tensor, image: Tensor, skew: Tensor) -> None:
    """Raises an error unless a combination of the vectors behaves as one of eigenvectors.

    Args:
        lap: The graph.
        field: ``(n, 1)`` the combination ``phi w``.
        image: ``(n, 1)`` what ``I - S`` makes of it, ``phi lambda w``.
        skew: ``phi^T phi w - w``, zero if the vectors are orthonormal.
    """
    applied = field - random_walk(field, lap.operator._replace(before=None, after=None))
    error = float(torch.maximum((applied - image).abs().max(), skew.abs().max()))
    allowed = torch.finfo(lap.dtype).eps ** 0.5
    if not error <= allowed:
        raise ValueError(
            f"spectrum is off by {error:.1e}, rounding explains {allowed:.1e}; it {ANOTHER_GRAPH}"
        )


def _spectrum(lap: Laplacian, num_eigs: int | None) -> Tensor:
    """All eigenpairs or the lowest ones, as :class:`CachedSpectrum` stores them."""
    if num_eigs is not None:
        values, vectors = lap.spectrum(num_eigs)
        return torch.cat((values.unsqueeze(0), vectors))
    rows = [
        row
        for values, vectors in zip(*lap.block_spectrum(), strict=True)
        for row in torch.cat((values, vectors.flatten(1)), dim=1)
    ]
    return torch.cat([rows[component] for component in _by_first_node(lap)])


def _unpacked(packed: Tensor, lap: Laplacian) -> BlockSpectrum:
    """The inverse: for each size ``(m, s)`` eigenvalues and ``(m, s, s)`` eigenvectors."""
    sizes = [s for m, s in lap.blocks.shapes for _ in range(m)]
    order = _by_first_node(lap)
    lengths = [sizes[component] * (sizes[component] + 1) for component in order]
    if packed.numel() != sum(lengths):
        raise ValueError(
            f"spectrum has {packed.numel()} numbers, the graph asks for {sum(lengths)}; it "
            f"{ANOTHER_GRAPH}"
        )
    rows = dict(zip(order, packed.split(lengths), strict=True))
    values, vectors, start = [], [], 0
    for m, s in lap.blocks.shapes:
        stack = torch.stack([rows[component] for component in range(start, start + m)])
        values.append(stack[:, :s].contiguous())
        vectors.append(stack[:, s:].reshape(m, s, s))
        start += m
    return BlockSpectrum(tuple(values), tuple(vectors))


def _by_first_node(lap: Laplacian) -> list[int]:
    """The components, counted as ``lap.blocks`` lists them, in the order of their first nodes."""
    nodes = torch.arange(lap.num_nodes, device=lap.device).unsqueeze(1)
    first = torch.cat([stack[:, 0, 0] for stack in lap.blocks.split(nodes)])
    order: list[int] = first.argsort().tolist()
    return order
