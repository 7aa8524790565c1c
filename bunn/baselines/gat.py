"""GAT: neighbours weighted by attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.nn import GATConv
from torch_geometric.utils import add_self_loops, remove_self_loops

from bunn.baselines.baseline import Baseline
from bunn.baselines.frame import Block, ConvLayer
from bunn.baselines.options import FrameOptions, check_divides, check_flag, check_probability
from bunn.baselines.propagation import propagate_sum


@dataclass(frozen=True)
class GATOptions(FrameOptions):
    """Options of :class:`GATLayer`.

    Args:
        heads: Attention heads, each of ``hidden_channels / heads`` channels.
        self_loops: Whether a node attends to itself.
        attention_dropout: Dropout of attention coefficients.
    """

    heads: int = 2
    self_loops: bool = True
    attention_dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_divides(self, "heads")
        check_flag(self, "self_loops")
        check_probability(self, "attention_dropout")


class _GATConv(GATConv):  # type: ignore[misc]
    """PyG's layer, on edges that have their self-loops already."""

    propagate = propagate_sum


class GATLayer(ConvLayer):
    r"""Graph attention, from Veličković et al., "Graph Attention Networks", 2018,
    https://arxiv.org/abs/1710.10903.

    .. math::
        x_v' = \Big\Vert_{\text{heads}} \sum_{u \to v} \alpha_{vu} W x_u + b, \qquad
        \alpha_{vu} = \operatorname{softmax}_u
            \operatorname{LeakyReLU}(a_t^\top W x_v + a_s^\top W x_u)

    the neighbours of a node containing itself if ``self_loops``. The coefficients average: a
    complete graph's nodes differ only by how they weigh one and the same set.
    """

    def __init__(self, options: GATOptions) -> None:
        super().__init__()
        self.self_loops = options.self_loops
        self.conv = _GATConv(
            options.hidden_channels,
            options.hidden_channels // options.heads,
            heads=options.heads,
            dropout=options.attention_dropout,
            add_self_loops=False,
        )

    def prepare(
        self, edge_index: Tensor, edge_weight: Tensor | None, num_nodes: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor | None]:
        if self.self_loops:
            edge_index, _ = remove_self_loops(edge_index)
            edge_index, _ = add_self_loops(edge_index, num_nodes=num_nodes)
        return edge_index, None


GAT = Baseline(
    "gat",
    GATOptions,
    "Veličković et al. 2018, https://arxiv.org/abs/1710.10903",
    lambda options: Block(GATLayer(options), options),
)
