"""Proposition 4.2, constructed: a BuNN that keeps two nodes apart at any depth."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from bunn.laplacian import Laplacian
from bunn.nn import BuNNConv
from bunn.theory.networks import lookup_network, mixing


class SeparatingBuNN(nn.Module):
    """The network of the proof of Proposition 4.2: as deep as one likes, it keeps two nodes apart.

    In the global frame the first layer makes the signal ``(a, 0)`` with ``a > 0``: the mean of the
    features if that is not zero, else a bias of one. Node ``u``, and whoever shares its encoding,
    holds it turned by a quarter, ``(0, a)``; all others hold it as it is, and ReLU changes nothing.
    Every further layer has ``W = I`` and no bias, and leaves this fixed point where it is.

    Args:
        x: ``(n, 2)`` the features it is made for.
        edge_index: The edges of a connected graph.
        pe: ``(n, f)`` positional encodings.
        u: The node that is turned.
        depth: The number of layers ``K``.
    """

    def __init__(self, x: Tensor, edge_index: Tensor, pe: Tensor, u: int, depth: int) -> None:
        super().__init__()
        turned = (pe == pe[u]).all(1)
        phi = lookup_network(pe, torch.where(turned, math.pi / 2, 0.0).unsqueeze(1).double())
        size = pe.size(1)
        layers = [
            BuNNConv(2, 2, maps="rotation", time=math.inf, phi=phi, pe_channels=size).double()
            for _ in range(depth)
        ]
        lap = Laplacian(edge_index, num_nodes=x.size(0)).to(torch.float64)
        with torch.no_grad():
            synced = layers[0].bundle(x[:, :0], lap, pe=pe).sync(x)
            self.signal = (lap.degree / lap.degree.sum()) @ synced
            largest = int(self.signal.abs().argmax())
            for layer in layers:
                mixing(layer).weight.copy_(torch.eye(2))
                mixing(layer).bias.zero_()
            mixing(layers[0]).weight.zero_()
            if self.signal[largest] != 0:  # Case 1: the mean signal, made positive
                mixing(layers[0]).weight[0, largest] = self.signal[largest].sign()
            else:  # Case 2
                mixing(layers[0]).bias[0] = 1.0
        self.phi, self.layers = phi, nn.ModuleList(layers)

    @property
    def delta(self) -> float:
        """What the separation exceeds at every depth: ``a``; it is ``sqrt(2) a``."""
        return float(self.signal.abs().max()) or 1.0

    def forward(self, x: Tensor, edge_index: Tensor, pe: Tensor) -> list[Tensor]:
        """The features ``(n, 2)`` after every layer."""
        outputs = []
        for layer in self.layers:
            x = torch.relu(layer(x, edge_index, pe=pe, phi_x=x[:, :0]))
            outputs.append(x)
        return outputs
