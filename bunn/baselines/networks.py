"""The two-layer network that many layers hold, and dropout."""

from __future__ import annotations

from torch import nn
from torch_geometric.nn import Linear
from torch_geometric.nn.resolver import activation_resolver

from bunn.nn.dropout import Dropout


def build_network(channels: int, inside: int, act: str, dropout: float) -> nn.Sequential:
    r""":math:`W_2 \operatorname{dropout}(\sigma(W_1 x + b_1)) + b_2`.

    Args:
        channels: Size of the features before and after it.
        inside: Size between its layers.
        act: The non-linearity :math:`\sigma`, as PyG's resolver takes it.
        dropout: Its probability.
    """
    return nn.Sequential(
        Linear(channels, inside),
        activation_resolver(act),
        build_dropout(dropout),
        Linear(inside, channels),
    )


def build_dropout(p: float) -> nn.Module:
    """Dropout; nothing at all for ``p = 0``, which ``vmap`` would ask about its randomness."""
    return Dropout(p) if p else nn.Identity()
