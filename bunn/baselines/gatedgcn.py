"""GatedGCN: neighbours weighed by gates, which are the features of edges and learned with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch_geometric.nn import Linear
from torch_geometric.nn.resolver import activation_resolver

from bunn.baselines.averages import sum_dtype
from bunn.baselines.baseline import Baseline
from bunn.baselines.frame import GraphModule
from bunn.baselines.networks import build_dropout
from bunn.baselines.options import FrameOptions
from bunn.baselines.propagation import gather, scatter_sum
from bunn.nn.block import BuNNBlock

#: What keeps the sum of the gates of a node off zero.
SMALLEST_GATES = 1e-6


@dataclass(frozen=True)
class GatedGCNOptions(FrameOptions):
    """Options of :class:`GatedGCNBlock`. Those of a block are for nodes and edges alike.

    Args:
        norm_first: Whether to normalise before the layer, or after it as in the paper.
    """

    norm_first: bool = False

    @property
    def reads_edges(self) -> bool:
        return True

    @property
    def may_be_filled(self) -> bool:
        return True


class Stream(nn.Module):
    """What surrounds a layer for one kind of features, of nodes or of edges.

    Post-norm, ``x + dropout(act(norm(h)))`` with ``h`` the layer's result; pre-norm, ``x +
    dropout(act(h))`` where the layer reads ``norm(x)``; or, with ``norm_residual``, ``norm(x +
    dropout(act(h)))``.

    Args:
        options: The frame's.
    """

    def __init__(self, options: FrameOptions) -> None:
        super().__init__()
        self.norm = BuNNBlock.build_norm(options.norm, options.hidden_channels)
        self.act = activation_resolver(options.act)
        self.dropout = build_dropout(options.dropout)
        self.norm_first, self.residual = options.norm_first, options.residual
        self.norm_residual = options.norm_residual

    def enter(self, x: Tensor) -> Tensor:
        """What the layer reads."""
        z: Tensor = self.norm(x) if self.norm_first else x
        return z

    def leave(self, x: Tensor, h: Tensor) -> Tensor:
        """The stream with the layer's result in it."""
        if not self.norm_first and not self.norm_residual:
            h = self.norm(h)
        h = self.dropout(self.act(h))
        out: Tensor = x + h if self.residual else h
        return self.norm(out) if self.norm_residual else out


class GatedGCNLayer(GraphModule):
    r"""The layer of Bresson and Laurent, "Residual Gated Graph ConvNets", 2017,
    https://arxiv.org/abs/1711.07553, with gates that add up to one, from Dwivedi, Joshi, Luu,
    Laurent, Bengio and Bresson, "Benchmarking Graph Neural Networks", 2020,
    https://arxiv.org/abs/2003.00982.

    .. math::
        \hat e_{uv} = D x_v + E x_u + C e_{uv}, \qquad
        \eta_{uv} = \frac{\sigma(\hat e_{uv})}{\sum_{w \to v} \sigma(\hat e_{wv}) + 10^{-6}},
        \qquad x_v' = A x_v + \sum_{u \to v} \eta_{uv} \odot B x_u

    with a bias in each of the five maps, and :math:`\sigma` the logistic function. Nodes leave
    without norm, non-linearity and residual connection, which are the block's; edges have theirs
    here, :math:`e_{uv}' = e_{uv} + \operatorname{act}(\operatorname{norm}(\hat e_{uv}))`.
    """

    def __init__(self, options: FrameOptions) -> None:
        super().__init__()
        width = options.hidden_channels
        self.lin_nodes = Linear(width, 4 * width)  # A, B, D, E
        self.lin_edges = Linear(width, width)  # C
        self.edges, self.ends = Stream(options), False

    def end_edges(self) -> None:
        self.ends = True
        if not self.edges.norm_first:
            self.edges.norm = nn.Identity()

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
        edge_attr: Tensor | None = None,
    ) -> Any:
        """``(n, c)`` nodes and ``(e, c)`` edges to both."""
        assert edge_attr is not None
        source, target = edge_index
        own, sent, at_target, at_source = self.lin_nodes(x).chunk(4, dim=-1)
        scores = gather(at_target, target) + gather(at_source, source)
        scores = scores + self.lin_edges(self.edges.enter(edge_attr))
        gates = scores.to(sum_dtype(scores.dtype)).sigmoid()
        heard = scatter_sum(gates * gather(sent, source), target, x.size(0))
        weight = scatter_sum(gates, target, x.size(0)) + SMALLEST_GATES
        out = own + (heard / weight).to(own.dtype)
        return out, edge_attr if self.ends else self.edges.leave(edge_attr, scores)


class GatedGCNBlock(GraphModule):
    r""":class:`GatedGCNLayer` with the norm, non-linearity, dropout and residual connection of the
    nodes, :math:`x_v + \operatorname{dropout}(\operatorname{act}(\operatorname{norm}(x_v')))`.

    It differs from a :class:`bunn.baselines.Block` after the layer, where dropout comes last.
    """

    activated = True

    def __init__(self, options: GatedGCNOptions) -> None:
        super().__init__()
        self.layer, self.nodes = GatedGCNLayer(options), Stream(options)

    def end_edges(self) -> None:
        self.layer.end_edges()

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
        edge_attr: Tensor | None = None,
    ) -> Any:
        """``(n, c)`` nodes and ``(e, c)`` edges to both."""
        z = self.nodes.enter(x)
        h, edge_attr = self.layer(z, edge_index, edge_weight, batch, edge_attr)
        return self.nodes.leave(x, h), edge_attr


GATEDGCN = Baseline(
    "gatedgcn",
    GatedGCNOptions,
    "Bresson, Laurent 2017, https://arxiv.org/abs/1711.07553",
    GatedGCNBlock,
)
