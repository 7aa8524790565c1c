"""Encoders of nodes that read their positional encodings beside their features."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch_geometric.nn import Linear
from torch_geometric.nn.inits import reset

from bunn.nn.norm import BatchNorm


class RandomWalkEncoder(nn.Module):
    """Return probabilities of random walks, normalised over the batch and mapped linearly.

    Args:
        steps: The number of steps.
        out_channels: Size of the output.

    Shapes:
        - **input:** ``(n, steps)``
        - **output:** ``(n, out_channels)``
    """

    def __init__(self, steps: int, out_channels: int) -> None:
        super().__init__()
        self.in_channels, self.out_channels = steps, out_channels
        self.norm = BatchNorm(steps)
        self.lin = Linear(steps, out_channels)

    def reset_parameters(self) -> None:
        self.norm.reset_parameters()
        self.lin.reset_parameters()

    def forward(self, pe: Tensor) -> Tensor:
        out: Tensor = self.lin(self.norm(pe))
        return out


class EigenvectorEncoder(nn.Module):
    r"""A set of eigenpairs of the Laplacian, whatever their order: a *DeepSet*.

    .. math::
        p_v = \sum_i \rho(\phi_i(v), \lambda_i)

    with a perceptron :math:`\rho`, whose last layer has a non-linearity, too. Eigenpairs that a
    small graph does not have, which are zero, do not count.

    Args:
        num_eigs: The number of eigenpairs ``k``.
        out_channels: Size of the output.
        num_layers: Of the perceptron, twice as wide as the output inside. (default: ``2``)

    Shapes:
        - **input:** ``(n, 2k)``, eigenvectors and then eigenvalues
        - **output:** ``(n, out_channels)``
    """

    def __init__(self, num_eigs: int, out_channels: int, num_layers: int = 2) -> None:
        super().__init__()
        self.in_channels, self.out_channels = 2 * num_eigs, out_channels
        sizes = [2, *[2 * out_channels] * (num_layers - 1), out_channels]
        self.network = nn.Sequential(
            *(part for ends in pairwise(sizes) for part in (Linear(*ends), nn.ReLU()))
        )

    def reset_parameters(self) -> None:
        reset(self.network)

    def forward(self, pe: Tensor) -> Tensor:
        vectors, values = pe.chunk(2, dim=-1)
        pairs = self.network(torch.stack((vectors, values), dim=-1))
        out: Tensor = (pairs * (values > 0).unsqueeze(-1)).sum(-2)
        return out


class PositionalEncoder(nn.Module):
    """Features and positional encodings, each through an encoder of its own, side by side.

    Args:
        features: From ``x`` to ``(n, out_channels)`` less what encodings take.
        positions: Encoders with ``in_channels`` and ``out_channels``, which share the columns of
            ``pe`` in their order.

    Shapes:
        - **input:** ``x`` as ``features`` reads it, ``pe`` ``(n, pe_channels)``
        - **output:** ``(n, out_channels)``
    """

    def __init__(self, features: nn.Module, positions: Sequence[nn.Module]) -> None:
        super().__init__()
        self.features, self.positions = features, nn.ModuleList(positions)
        self._widths = [int(encoder.in_channels) for encoder in positions]  # type: ignore[arg-type]
        self.pe_channels = sum(self._widths)

    def reset_parameters(self) -> None:
        reset(self.features)
        reset(self.positions)

    def forward(self, x: Tensor, pe: Tensor | None) -> Tensor:
        if pe is None or pe.dim() != 2 or pe.size(1) != self.pe_channels:
            seen = "None" if pe is None else f"of shape {tuple(pe.shape)}"
            raise ValueError(
                f"pe is {seen}; the encoder reads (num_nodes, {self.pe_channels}) positional "
                "encodings"
            )
        pieces = pe.split(self._widths, dim=1)
        parts = [encoder(piece) for encoder, piece in zip(self.positions, pieces, strict=True)]
        return torch.cat([self.features(x), *parts], dim=-1)
