"""ResNet: every node by itself, in residual blocks of two layers."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bunn.baselines.baseline import Baseline
from bunn.baselines.feed_forward import FeedForwardLayer
from bunn.baselines.frame import Block
from bunn.baselines.options import FrameOptions


class ResNetLayer(FeedForwardLayer):
    r"""A two-layer network, blind to the graph: :class:`FeedForwardLayer` with :math:`m_v = x_v`.

    He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition", 2016,
    https://arxiv.org/abs/1512.03385, in the form of the heterophilous benchmark. A block of
    :class:`bunn.baselines.mlp.MLPLayer` has one layer instead of two.

    It reads no edges, and so takes any edge weights.
    """

    weighted = True

    def aggregate(self, x: Tensor, edges: Any) -> Tensor:
        return x


RESNET = Baseline(
    "resnet",
    FrameOptions,
    "He, Zhang, Ren, Sun 2016, https://arxiv.org/abs/1512.03385",
    lambda options: Block(ResNetLayer(options), options),
)
