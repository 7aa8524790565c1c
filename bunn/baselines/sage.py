"""GraphSAGE: a node and its neighbours, apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch_geometric.nn import SAGEConv

from bunn.baselines.averages import Averages, has_operator, sum_dtype
from bunn.baselines.baseline import Baseline
from bunn.baselines.feed_forward import FeedForwardLayer
from bunn.baselines.frame import Block, ConvLayer, GraphModule
from bunn.baselines.options import FrameOptions, check_choice, check_flag
from bunn.baselines.propagation import propagate_sum
from bunn.laplacian import Laplacian


@dataclass(frozen=True)
class SAGEOptions(FrameOptions):
    """Options of :class:`SAGELayer`.

    Args:
        aggr: How the neighbours are aggregated: ``"mean"``, ``"sum"`` or ``"max"``.
        feed_forward: Whether a node and its neighbours go through a two-layer network, as in the
            heterophilous benchmark, instead of a linear map: :class:`SAGEFeedForward`.
    """

    aggr: Literal["mean", "sum", "max"] = "mean"
    feed_forward: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "aggr", ("mean", "sum", "max"))
        check_flag(self, "feed_forward")
        if self.feed_forward and self.aggr == "max":
            raise ValueError("feed_forward=True knows no aggr='max'; use 'mean' or 'sum'")


class _SAGEConv(SAGEConv):  # type: ignore[misc]
    """PyG's layer with a sum or a mean."""

    propagate = propagate_sum


class SAGELayer(ConvLayer):
    r"""GraphSAGE, from Hamilton, Ying and Leskovec, "Inductive Representation Learning on Large
    Graphs", 2017, https://arxiv.org/abs/1706.02216.

    .. math::
        x_v' = W_s x_v + W_n \operatorname{aggr}_{u \to v} x_u + b
    """

    def __init__(self, options: SAGEOptions) -> None:
        super().__init__()
        width = options.hidden_channels
        conv = SAGEConv if options.aggr == "max" else _SAGEConv
        self.conv = conv(width, width, aggr=options.aggr)


class SAGEFeedForward(FeedForwardLayer):
    r"""The same with a two-layer network for :math:`W_s, W_n`: a
    :class:`bunn.baselines.feed_forward.FeedForwardLayer` that keeps the node separate, with

    .. math::
        m_v = \operatorname{aggr}_{u \to v} x_u.
    """

    def __init__(self, options: SAGEOptions) -> None:
        super().__init__(options, separate=True)
        self.aggr: Literal["mean", "sum"] = "sum" if options.aggr == "sum" else "mean"

    def prepare(
        self,
        edge_index: Tensor,
        edge_weight: Tensor | None,
        num_nodes: int,
        dtype: torch.dtype,
        batch: Tensor | None = None,
    ) -> tuple[Averages, None]:
        dtype, target = sum_dtype(dtype), edge_index[1]
        weight = torch.ones(target.shape, dtype=dtype, device=target.device)
        if self.aggr == "mean":
            weight = weight.new_zeros(num_nodes).index_add(0, target, weight).reciprocal()[target]
        if not has_operator(edge_index, num_nodes):
            return Averages(edge_index, weight), None
        lap = Laplacian(edge_index, num_nodes=num_nodes).to(dtype)
        return Averages(edge_index, weight, lap.aggregation(self.aggr)), None

    def aggregate(self, x: Tensor, edges: Averages) -> Tensor:
        return edges.apply(x)


def _layer(options: SAGEOptions) -> GraphModule:
    return SAGEFeedForward(options) if options.feed_forward else SAGELayer(options)


SAGE = Baseline(
    "sage",
    SAGEOptions,
    "Hamilton, Ying, Leskovec 2017, https://arxiv.org/abs/1706.02216",
    lambda options: Block(_layer(options), options),
)
