"""Blocks of a transformer: attention, and a network of every node by itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bunn.baselines.frame import Block, GraphModule
from bunn.baselines.memory import Edges
from bunn.baselines.options import FrameOptions


class TransformerBlock(GraphModule):
    """Two blocks, one of attention and one of a network, each with a norm, dropout and a residual
    connection; features of edges, where there are any, are the attention's.

    Args:
        attention: The layer that hears other nodes.
        network: The layer that does not.
        options: The frame's.
    """

    activated = True

    def __init__(self, attention: GraphModule, network: GraphModule, options: FrameOptions) -> None:
        super().__init__()
        self.attention, self.mlp = Block(attention, options), Block(network, options)

    def prepare(
        self,
        edge_index: Tensor,
        edge_weight: Tensor | None,
        num_nodes: int,
        dtype: torch.dtype,
        batch: Tensor | None = None,
    ) -> Edges:
        return self.attention.prepare(edge_index, edge_weight, num_nodes, dtype, batch)

    def forward(
        self,
        x: Tensor,
        edge_index: Any,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
        edge_attr: Tensor | None = None,
    ) -> Any:
        if edge_attr is None:
            return self.mlp(self.attention(x, edge_index), edge_index)
        x, edge_attr = self.attention(x, edge_index, None, batch, edge_attr)
        return self.mlp(x, edge_index), edge_attr
