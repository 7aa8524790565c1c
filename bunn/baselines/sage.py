"""GraphSAGE: a node and its neighbours, apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch_geometric.nn import SAGEConv

from bunn.baselines.baseline import Baseline
from bunn.baselines.frame import Block, ConvLayer
from bunn.baselines.options import FrameOptions, check_choice
from bunn.baselines.propagation import propagate_sum


@dataclass(frozen=True)
class SAGEOptions(FrameOptions):
    """Options of :class:`SAGELayer`.

    Args:
        aggr: How the neighbours are aggregated: ``"mean"``, ``"sum"`` or ``"max"``.
    """

    aggr: Literal["mean", "sum", "max"] = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "aggr", ("mean", "sum", "max"))


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


SAGE = Baseline(
    "sage",
    SAGEOptions,
    "Hamilton, Ying, Leskovec 2017, https://arxiv.org/abs/1706.02216",
    lambda options: Block(SAGELayer(options), options),
)
