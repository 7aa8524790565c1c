"""What turns features of nodes or graphs into outputs."""

from __future__ import annotations

from torch import nn
from torch_geometric.nn import Linear
from torch_geometric.nn.resolver import activation_resolver

from bunn.nn.dropout import Dropout


def build_head(
    channels: int, out_channels: int, num_layers: int, act: str, dropout: float = 0.0
) -> nn.Sequential:
    """A perceptron ``(n, channels) -> (n, out_channels)``.

    Args:
        channels: Width of all layers but the last.
        out_channels: Size of the output.
        num_layers: Their number, 1 for a linear map.
        act: The non-linearity between them, as PyG's resolver takes it.
        dropout: Of what each layer reads, as in the heads of GraphGPS and of the Long Range Graph
            Benchmark. (default: ``0.0``)
    """
    parts: list[nn.Module] = []
    for layer in range(num_layers):
        last = layer == num_layers - 1
        parts += [Dropout(dropout)] if dropout else []
        parts += [Linear(channels, out_channels if last else channels)]
        parts += [] if last else [activation_resolver(act)]
    return nn.Sequential(*parts)
