"""Theorem 5.3 for continuous maps: two universal layers and a non-linearity between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from bunn.graph.edges import Adjacency
from bunn.laplacian import Laplacian
from bunn.theory.universal import UniversalLayer, check_lengths, universal_layer

Transformation = Callable[[Tensor], Tensor]


class UniversalNetwork(nn.Module):
    """Two universal layers and a non-linearity between them: Theorem 5.3 for continuous maps.

    Called as :class:`UniversalLayer`: ``network(x, edge_index, pe=encoding)``.
    """

    def __init__(
        self, first: UniversalLayer, second: UniversalLayer, activation: Transformation
    ) -> None:
        super().__init__()
        self.first, self.second, self.activation = first, second, activation

    @property
    def width(self) -> int:
        """Channels inside, ``2 m k`` for ``m`` hidden units per node."""
        return max(self.first.width, self.second.width)

    def forward(
        self,
        x: Tensor,
        edge_index: Adjacency | Laplacian,
        pe: Tensor,
    ) -> Tensor:
        """``(n, c) -> (n, c')``."""
        hidden = self.activation(self.first(x, edge_index, pe))
        out: Tensor = self.second(hidden, edge_index, pe)
        return out


def universal_network(
    edge_indices: Sequence[Tensor],
    encodings: Sequence[Tensor],
    transformations: Sequence[Transformation],
    *,
    in_channels: int = 1,
    units: int = 16,
    activation: Transformation = torch.tanh,
    samples: int = 2048,
    time: float = math.inf,
    seed: int = 0,
) -> UniversalNetwork:
    """Two BuNN layers that approximate a continuous map on each of several graphs.

    On ``[-1, 1]^(n c)``: the first layer is a random affine map to ``units`` hidden features per
    node, the second the affine map that fits ``samples`` random points best. Errors fall with
    ``units``, and with the width.

    Args:
        edge_indices: The edges of each graph.
        encodings: Injective positional encodings of each graph.
        transformations: For each graph a function from ``(batch, n, c)`` to ``(batch, n, c')``.
        in_channels: Size of each input feature ``c``. (default: ``1``)
        units: Hidden features per node ``m``. (default: ``16``)
        activation: The non-linearity between the layers, no polynomial. (default: ``tanh``)
        samples: Random points of the cube that the second layer is fitted to. (default: ``2048``)
        time: The diffusion time. (default: ``inf``)
        seed: Of the random hidden features and points. (default: ``0``)
    """
    lists = {"edge_indices": edge_indices, "encodings": encodings}
    check_lengths({**lists, "transformations": transformations})
    generator = torch.Generator().manual_seed(seed)
    first_maps, first_biases, second_maps, second_biases = [], [], [], []
    for encoding, transformation in zip(encodings, transformations, strict=True):
        n = encoding.size(0)
        size = n * in_channels
        x = cube(samples, n, in_channels, generator)
        first = torch.randn(n * units, size, dtype=torch.float64, generator=generator)
        first = first / math.sqrt(size)
        # Each unit bends where the points are: at a random one of them.
        bends = x[torch.randint(samples, (n * units,), generator=generator)].flatten(1)
        bias = -(first * bends).sum(1)
        hidden = activation(x.flatten(1) @ first.T + bias)
        hidden = torch.cat((hidden, torch.ones(samples, 1, dtype=torch.float64)), dim=1)
        target = transformation(x).reshape(samples, -1)
        solution = torch.linalg.lstsq(hidden, target, driver="gelsd").solution
        first_maps.append(first)
        first_biases.append(bias)
        second_maps.append(solution[:-1].T)
        second_biases.append(solution[-1])
    return UniversalNetwork(
        universal_layer(edge_indices, encodings, first_maps, first_biases, time=time),
        universal_layer(edge_indices, encodings, second_maps, second_biases, time=time),
        activation,
    )


def cube(samples: int, n: int, channels: int, generator: torch.Generator) -> Tensor:
    """Random points of ``[-1, 1]^(n c)`` as node features ``(samples, n, c)``."""
    return torch.rand(samples, n, channels, dtype=torch.float64, generator=generator) * 2 - 1
