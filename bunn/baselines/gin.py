"""GIN: the sum of the neighbours, through a network."""

from __future__ import annotations

from dataclasses import dataclass

from torch_geometric.nn import GINConv

from bunn.baselines.baseline import Baseline
from bunn.baselines.frame import Block, ConvLayer
from bunn.baselines.networks import build_network
from bunn.baselines.options import FrameOptions, check_flag
from bunn.baselines.propagation import propagate_sum


@dataclass(frozen=True)
class GINOptions(FrameOptions):
    """Options of :class:`GINLayer`.

    Args:
        learn_eps: Whether the weight of the node itself is learned, or one.
    """

    learn_eps: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flag(self, "learn_eps")


class _GINConv(GINConv):  # type: ignore[misc]
    """PyG's layer."""

    propagate = propagate_sum


class GINLayer(ConvLayer):
    r"""The graph isomorphism layer of Xu, Hu, Leskovec and Jegelka, "How Powerful are Graph Neural
    Networks?", 2019, https://arxiv.org/abs/1810.00826.

    .. math::
        x_v' = \operatorname{MLP}\Big((1 + \epsilon) x_v + \sum_{u \to v} x_u\Big)

    with two layers in the MLP, and :math:`\epsilon` starting at zero.
    """

    def __init__(self, options: GINOptions) -> None:
        super().__init__()
        width = options.hidden_channels
        network = build_network(width, width, options.act, options.dropout)
        self.conv = _GINConv(network, train_eps=options.learn_eps)


GIN = Baseline(
    "gin",
    GINOptions,
    "Xu, Hu, Leskovec, Jegelka 2019, https://arxiv.org/abs/1810.00826",
    lambda options: Block(GINLayer(options), options),
)
