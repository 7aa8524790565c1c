"""GAT: neighbours weighted by attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu
from torch_geometric.nn import GATConv, Linear
from torch_geometric.utils import add_self_loops, remove_self_loops

from bunn.baselines.attention import AttentionEdges
from bunn.baselines.baseline import Baseline
from bunn.baselines.feed_forward import FeedForwardLayer
from bunn.baselines.frame import Block, ConvLayer, GraphModule
from bunn.baselines.networks import build_dropout
from bunn.baselines.options import FrameOptions, check_divides, check_flag, check_probability
from bunn.baselines.propagation import propagate_sum


@dataclass(frozen=True)
class GATOptions(FrameOptions):
    """Options of :class:`GATLayer`.

    Args:
        heads: Attention heads, each of ``hidden_channels / heads`` channels.
        self_loops: Whether a node attends to itself.
        attention_dropout: Dropout of attention coefficients.
        feed_forward: Whether what is heard goes through a two-layer network, as in the
            heterophilous benchmark: :class:`GATFeedForward`.
        separate: Whether that network reads the node beside what it hears, for which it takes
            ``feed_forward`` and no ``self_loops``.
    """

    heads: int = 2
    self_loops: bool = True
    attention_dropout: float = 0.0
    feed_forward: bool = False
    separate: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_divides(self, "heads")
        for name in ("self_loops", "feed_forward", "separate"):
            check_flag(self, name)
        check_probability(self, "attention_dropout")
        if self.separate and (self.self_loops or not self.feed_forward):
            raise ValueError(
                "separate=True reads a node beside its neighbours, by the two-layer network: set "
                "self_loops=False and feed_forward=True"
            )


@dataclass(frozen=True)
class GATSepOptions(GATOptions):
    """The same for GAT-sep."""

    heads: int = 8
    self_loops: bool = False
    feed_forward: bool = True
    separate: bool = True


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
        self,
        edge_index: Tensor,
        edge_weight: Tensor | None,
        num_nodes: int,
        dtype: torch.dtype,
        batch: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        if self.self_loops:
            edge_index, _ = remove_self_loops(edge_index)
            edge_index, _ = add_self_loops(edge_index, num_nodes=num_nodes)
        return edge_index, None


class GATFeedForward(FeedForwardLayer):
    r"""Graph attention as the heterophilous benchmark has it: a
    :class:`bunn.baselines.feed_forward.FeedForwardLayer` with

    .. math::
        m_v = \Big\Vert_{\text{heads}} \sum_{u \to v} \alpha_{vu} z_u, \qquad
        \alpha_{vu} = \operatorname{softmax}_u
            \operatorname{LeakyReLU}(a_s^\top z_u + b_s + a_t^\top z_v), \qquad z = W x + b

    the neighbours of a node containing itself if ``self_loops``. The scores of a head are read off
    all of :math:`z`; in :class:`GATLayer`, off its part of it.
    """

    def __init__(self, options: GATOptions) -> None:
        super().__init__(options, options.separate)
        width = options.hidden_channels
        self.heads, self.self_loops = options.heads, options.self_loops
        self.lin_in = Linear(width, width)
        self.lin_source = Linear(width, self.heads)
        self.lin_target = Linear(width, self.heads, bias=False)
        self.attention_dropout = build_dropout(options.attention_dropout)

    def prepare(
        self,
        edge_index: Tensor,
        edge_weight: Tensor | None,
        num_nodes: int,
        dtype: torch.dtype,
        batch: Tensor | None = None,
    ) -> tuple[AttentionEdges, None]:
        return AttentionEdges.of(edge_index, num_nodes, self.self_loops), None

    def aggregate(self, x: Tensor, edges: AttentionEdges) -> Tensor:
        z = self.lin_in(x)
        scores = leaky_relu(edges.sums(self.lin_target(z), self.lin_source(z)), 0.2)
        alpha = self.attention_dropout(edges.softmax(scores))
        return edges.weighted_sum(z.unflatten(-1, (self.heads, -1)), alpha).flatten(1)


def _layer(options: GATOptions) -> GraphModule:
    return GATFeedForward(options) if options.feed_forward else GATLayer(options)


GAT = Baseline(
    "gat",
    GATOptions,
    "Veličković et al. 2018, https://arxiv.org/abs/1710.10903",
    lambda options: Block(_layer(options), options),
)

GAT_SEP = Baseline(
    "gat-sep",
    GATSepOptions,
    "Platonov et al. 2023, https://arxiv.org/abs/2302.11640",
    lambda options: Block(_layer(options), options),
)
