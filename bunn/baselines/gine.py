"""GINE: GIN whose messages carry the features of edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch_geometric.nn import GINEConv

from bunn.baselines.baseline import Baseline
from bunn.baselines.frame import Block, GraphModule
from bunn.baselines.gin import GINOptions
from bunn.baselines.networks import build_network
from bunn.baselines.options import check_flag
from bunn.baselines.propagation import propagate_messages


@dataclass(frozen=True)
class GINEOptions(GINOptions):
    """Options of :class:`GINELayer`.

    Args:
        learn_eps: Whether the weight of the node itself is learned, or one as in the paper.
        outer_act: Whether the non-linearity follows the network, too, as in the paper; not so in
            the benchmark of Tönshoff et al., https://arxiv.org/abs/2309.00367.
    """

    learn_eps: bool = False
    outer_act: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flag(self, "outer_act")

    @property
    def reads_edges(self) -> bool:
        return True

    @property
    def may_be_filled(self) -> bool:
        return True


class _GINEConv(GINEConv):  # type: ignore[misc]
    """PyG's layer."""

    propagate = propagate_messages


class GINELayer(GraphModule):
    r"""The layer of Hu, Liu, Gomes, Zitnik, Liang, Pande and Leskovec, "Strategies for Pre-training
    Graph Neural Networks", 2020, https://arxiv.org/abs/1905.12265.

    .. math::
        x_v' = \operatorname{MLP}\Big((1 + \epsilon) x_v
               + \sum_{u \to v} \operatorname{ReLU}(x_u + e_{uv})\Big)

    with two layers in the MLP, and :math:`\epsilon` starting at zero. The ReLU in the message is
    that of PyG and of the benchmarks: the paper sums :math:`x_u + e_{uv}`, where edges cannot act
    on what a neighbour says. The features of edges stay as they are from layer to layer.
    """

    def __init__(self, options: GINEOptions) -> None:
        super().__init__()
        width, self.activated = options.hidden_channels, not options.outer_act
        network = build_network(width, width, options.act, options.dropout)
        self.conv = _GINEConv(network, train_eps=options.learn_eps)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
        edge_attr: Tensor | None = None,
    ) -> Any:
        """``(n, c)`` nodes and ``(e, c)`` edges to both."""
        return self.conv(x, edge_index, edge_attr), edge_attr


GINE = Baseline(
    "gine",
    GINEOptions,
    "Hu et al. 2020, https://arxiv.org/abs/1905.12265",
    lambda options: Block(GINELayer(options), options),
)
