"""Attention between all nodes of a graph."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch_geometric.nn import Linear

from bunn.baselines.padding import Padding

#: Graphs of more nodes use the fused attention kernels, which save memory but are foreign to vmap.
FUSED_SIZE = 512


class GlobalAttention(nn.Module):
    r"""Multi-head attention of every node to all nodes of its graph.

    .. math::
        y_v = W_o \Big\Vert_{\text{heads}} \sum_u \operatorname{softmax}_u
              \Big(\tfrac{1}{\sqrt{k}} q_v^\top k_u\Big) v_u,
        \qquad (q, k, v) = W x + b

    Args:
        channels: Size of the features, a multiple of ``heads``.
        heads: The number of heads.
        dropout: Of the coefficients. (default: ``0.0``)
    """

    def __init__(self, channels: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.lin_in = Linear(channels, 3 * channels)
        self.lin_out = Linear(channels, channels)

    def reset_parameters(self) -> None:
        self.lin_in.reset_parameters()
        self.lin_out.reset_parameters()

    def forward(self, x: Tensor, padding: Padding | None = None) -> Tensor:
        """``(n, c) -> (n, c)``, with the table of a batch, :obj:`None` for a single graph."""
        packed = self.lin_in(x)
        if padding is None:
            y = self._attend(packed.unsqueeze(0)).squeeze(0)
        else:
            allowed = padding.filled[:, None, None, :]
            y = padding.collect(self._attend(padding.spread(packed), allowed))
        out: Tensor = self.lin_out(y)
        return out

    def _attend(self, packed: Tensor, allowed: Tensor | None = None) -> Tensor:
        """``(graphs, nodes, 3c)`` queries, keys and values to ``(graphs, nodes, c)``."""
        query, key, value = packed.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        if query.size(-2) > FUSED_SIZE:
            y = scaled_dot_product_attention(query, key, value, allowed, dropout)
        else:
            scores = query @ key.mT * query.size(-1) ** -0.5
            if allowed is not None:
                scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
            weights = scores.softmax(dim=-1)
            if dropout:
                weights = torch.dropout(weights, dropout, train=True)
            y = weights.to(value.dtype) @ value
        return y.transpose(1, 2).flatten(2)
