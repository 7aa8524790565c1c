"""Random signs for eigenvectors, whose own are arbitrary."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.transforms import BaseTransform

from bunn.graph.components import sent
from bunn.sizes import check_batch


class RandomSignFlip(BaseTransform):  # type: ignore[misc]
    """Multiplies every eigenvector of every graph by a random sign, anew at each call.

    A training loop that moves batches around calls :func:`flip_signs`, which this is.

    Args:
        attr: The encoding ``(n, k)``. (default: ``"lap_pe"``)
        generator: The source of randomness; it can be seeded, saved and restored.
            (default: torch's own)
    """

    def __init__(self, attr: str = "lap_pe", *, generator: torch.Generator | None = None) -> None:
        self.attr, self.generator = attr, generator

    def forward(self, data: Any) -> Any:
        pe = data.get(self.attr)
        if not isinstance(pe, Tensor):
            raise ValueError(
                f"attr={self.attr!r}; the data has no such tensor: apply LaplacianEncoding first"
            )
        batch = data.get("batch")
        size = None if batch is None else data.num_graphs
        data[self.attr] = flip_signs(pe, batch, self.generator, batch_size=size)
        return data

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.attr!r})"


def flip_signs(
    pe: Tensor,
    batch: Tensor | None = None,
    generator: torch.Generator | None = None,
    *,
    batch_size: int | None = None,
) -> Tensor:
    """``pe`` with one random sign per graph and eigenvector; a new tensor.

    Signs are drawn on the generator's device and depend on its state and the number of graphs
    alone: a CPU generator gives the same ones wherever ``pe`` is.

    Args:
        pe: ``(n, k)`` eigenvectors.
        batch: ``(n,)`` the graph of every node. Any labels will do: with those of connected
            components, each component is flipped on its own. (default: one graph)
        generator: (default: torch's own, on the CPU)
        batch_size: The number of graphs. (default: one more than the last in ``batch``)
    """
    if pe.dim() != 2:
        raise ValueError(f"pe has shape {tuple(pe.shape)}; it must be (num_nodes, k)")
    check_batch(batch, pe.size(0), batch_size)
    if batch is None:
        batch_size = 1
    elif batch_size is None:
        batch_size = int(batch.max()) + 1 if batch.numel() else 0
    return apply_signs(pe, random_signs(batch_size, pe.size(1), generator, pe.dtype), batch)


def random_signs(
    num_graphs: int, count: int, generator: torch.Generator | None, dtype: torch.dtype
) -> Tensor:
    """``(num_graphs, count)`` those of :func:`flip_signs`, on the generator's device."""
    device = torch.device("cpu") if generator is None else generator.device
    flips = torch.randint(2, (num_graphs, count), generator=generator, device=device)
    return (1 - 2 * flips).to(dtype)


def apply_signs(pe: Tensor, signs: Tensor, batch: Tensor | None) -> Tensor:
    """``pe`` with the signs of its graphs; a new tensor.

    Args:
        pe: ``(n, k)`` eigenvectors.
        signs: ``(num_graphs, k)``, on any device.
        batch: ``(n,)`` the graph of every node, :obj:`None` if there is one.
    """
    signs = sent(signs, pe.device)
    return pe * (signs if batch is None else signs[batch])
