"""Layers that end in a two-layer network, as in the heterophilous benchmark."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import Linear
from torch_geometric.nn.resolver import activation_resolver

from bunn.baselines.frame import GraphModule
from bunn.baselines.networks import build_dropout
from bunn.baselines.options import FrameOptions
from bunn.nn.chains import feed_forward
from bunn.nn.precision import as_factor


class FeedForwardLayer(GraphModule):
    r"""A two-layer network on what a node hears, from Platonov, Kuznedelev, Diskin, Babenko and
    Prokhorenkova, "A critical look at the evaluation of GNNs under heterophily: Are we really
    making progress?", 2023, https://arxiv.org/abs/2302.11640.

    .. math::
        x_v' = W_2\, \sigma(W_1 m_v + b_1) + b_2, \qquad \text{or} \qquad
        x_v' = W_2\, \sigma(W_1 [x_v, m_v] + b_1) + b_2

    if the node is kept ``separate``, with dropout before :math:`\sigma`; the block adds that after
    :math:`W_2`. A model says what :math:`m_v` is.

    Args:
        options: The frame's.
        separate: Whether the network reads the node beside what it hears. (default: :obj:`False`)
    """

    activated = True

    def __init__(self, options: FrameOptions, separate: bool = False) -> None:
        super().__init__()
        width, self.separate = options.hidden_channels, separate
        self.network = nn.Sequential(
            Linear(2 * width if separate else width, width),
            build_dropout(options.dropout),
            activation_resolver(options.act),
            Linear(width, width),
        )

    @abstractmethod
    def aggregate(self, x: Tensor, edges: Any) -> Tensor:
        """What the nodes hear, ``(n, c) -> (n, c)``, with edges from :meth:`prepare`."""

    def forward(
        self,
        x: Tensor,
        edge_index: Any,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
    ) -> Tensor:
        x = as_factor(x)
        heard = self.aggregate(x, edge_index)
        return feed_forward(self.network, torch.cat((x, heard), -1) if self.separate else heard)
