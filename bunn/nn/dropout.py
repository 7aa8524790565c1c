"""Dropout of input features."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class NodeDropout(nn.Module):
    """Hides nodes: while training, all features of a share of them are zero.

    Unlike with dropout of features, the others stay as they are: what a node shows does not depend
    on how many are hidden.

    Args:
        p: The share of nodes.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"p={p}; the share of hidden nodes must be in [0, 1)")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        return x * (1 - self.p) * F.dropout(x.new_ones(x.size(0), 1), self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def hiding(input_dropout: float, node_dropout: float) -> list[nn.Module]:
    """What comes before an encoder, in order."""
    found: list[nn.Module] = [NodeDropout(node_dropout)] if node_dropout else []
    return [*found, nn.Dropout(input_dropout)] if input_dropout else found
