"""GPS: message passing and attention between all nodes, side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from bunn.baselines.baseline import Baseline
from bunn.baselines.frame import Block, GraphModule
from bunn.baselines.gat import GATLayer, GATOptions
from bunn.baselines.gatedgcn import GatedGCNLayer
from bunn.baselines.gcn import GCNLayer, GCNOptions
from bunn.baselines.gin import GINLayer, GINOptions
from bunn.baselines.gine import GINELayer, GINEOptions
from bunn.baselines.global_attention import GlobalAttention
from bunn.baselines.networks import build_dropout, build_network
from bunn.baselines.options import FrameOptions, check_choice, check_divides, check_probability
from bunn.baselines.padding import Padding
from bunn.baselines.sage import SAGELayer, SAGEOptions
from bunn.nn.block import BuNNBlock


@dataclass(frozen=True)
class GPSOptions(FrameOptions):
    """Options of :class:`GPSBlock`.

    Args:
        norm_first: Whether to normalise before layers, or after them as in the paper.
        heads: Attention heads, each of ``hidden_channels / heads`` channels.
        local: The message passing: ``"gcn"``, ``"sage"``, ``"gat"``, ``"gin"``; ``"gine"`` or
            ``"gatedgcn"``, which read the features of edges; or :obj:`None` for a transformer that
            sees the graph through positional encodings only.
        attention_dropout: Dropout of attention coefficients.
    """

    norm_first: bool = False
    heads: int = 2
    local: Literal["gcn", "sage", "gat", "gin", "gine", "gatedgcn"] | None = "gcn"
    attention_dropout: float = 0.0

    @property
    def reads_edges(self) -> bool:
        return self.local in EDGE_READERS

    def __post_init__(self) -> None:
        super().__post_init__()
        check_divides(self, "heads")
        check_choice(self, "local", (*LOCAL, None))
        check_probability(self, "attention_dropout")


#: The message passing that reads the features of edges.
EDGE_READERS = {"gine", "gatedgcn"}

#: The message passing that a block can hold, with the options the two have in common.
LOCAL: dict[str, Callable[[GPSOptions], GraphModule]] = {
    "gcn": lambda own: GCNLayer(GCNOptions(own.hidden_channels)),
    "sage": lambda own: SAGELayer(SAGEOptions(own.hidden_channels)),
    "gat": lambda own: GATLayer(GATOptions(own.hidden_channels, heads=own.heads)),
    "gin": lambda own: GINLayer(
        GINOptions(own.hidden_channels, dropout=own.dropout, act=own.act),
    ),
    "gine": lambda own: GINELayer(
        GINEOptions(own.hidden_channels, dropout=own.dropout, act=own.act),
    ),
    # With its norm and non-linearity, but not with the dropout and residual connection of its
    # nodes, which are those of the block; edges have their own.
    "gatedgcn": lambda own: Block(
        GatedGCNLayer(own),
        FrameOptions(
            own.hidden_channels,
            act=own.act,
            norm=None if own.norm_first else own.norm,
            norm_first=False,
            residual=False,
        ),
    ),
}


class GPSEdges(NamedTuple):
    """What the graph alone determines.

    Args:
        local: The edges as the message passing reads them.
        padding: The table of a batch, as attention reads it, :obj:`None` for a single graph.
    """

    local: Any
    padding: Padding | None


class GPSBlock(GraphModule):
    r"""The layer of Rampášek et al., "Recipe for a General, Powerful, Scalable Graph Transformer",
    2022, https://arxiv.org/abs/2205.12454.

    .. math::
        y = \operatorname{norm}(x + \operatorname{MPNN}(x))
          + \operatorname{norm}(x + \operatorname{attention}(x)), \qquad
        x' = \operatorname{norm}(y + \operatorname{MLP}(y))

    or, with ``norm_first``, :math:`y = x + \operatorname{MPNN}(z) + \operatorname{attention}(z)`
    with :math:`z = \operatorname{norm}(x)`, and :math:`x' = y +
    \operatorname{MLP}(\operatorname{norm}(y))`. Dropout follows each of the three. It is a block
    by itself, having its norms and residual connections inside; attention is within a graph.

    Features of edges are the message passing's, :math:`(m, e') = \operatorname{MPNN}(x, e)`: GINE
    leaves them as they are, GatedGCN adds to them after a norm of their own. For the nodes of a
    GatedGCN, :math:`m` is the gated sum after a norm and the non-linearity, as in the authors'
    code, so that nodes are normalised before and after its residual connection; with ``norm_first``
    it has no norm of its own.
    """

    activated = True

    def __init__(self, options: GPSOptions) -> None:
        super().__init__()
        width = options.hidden_channels
        self.norm_first, self.residual = options.norm_first, options.residual
        self.local = LOCAL[options.local](options) if options.local is not None else None
        self.weighted = self.local is None or self.local.weighted
        self.local_reads_edges = options.local in EDGE_READERS
        self.attention = self._build_attention(options)
        self.mlp = nn.Sequential(
            *build_network(width, 2 * width, options.act, options.dropout),
            build_dropout(options.dropout),
        )
        self.dropout = build_dropout(options.dropout)
        self.norm_global = BuNNBlock.build_norm(options.norm, width)
        self.norm_mlp = BuNNBlock.build_norm(options.norm, width)
        self.norm_local: nn.Module | None = None
        if self.local is not None and not options.norm_first:
            self.norm_local = BuNNBlock.build_norm(options.norm, width)

    def _build_attention(self, options: GPSOptions) -> nn.Module:
        return GlobalAttention(options.hidden_channels, options.heads, options.attention_dropout)

    def prepare(
        self,
        edge_index: Tensor,
        edge_weight: Tensor | None,
        num_nodes: int,
        dtype: torch.dtype,
        batch: Tensor | None = None,
    ) -> tuple[GPSEdges, Tensor | None]:
        local: Any = edge_index
        if self.local is not None:
            local, edge_weight = self.local.prepare(
                edge_index, edge_weight, num_nodes, dtype, batch
            )
        return GPSEdges(local, None if batch is None else Padding.of(batch)), edge_weight

    def end_edges(self) -> None:
        if self.local is not None:
            self.local.end_edges()

    def forward(
        self,
        x: Tensor,
        edge_index: GPSEdges,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
        edge_attr: Tensor | None = None,
    ) -> Any:
        z = self.norm_global(x) if self.norm_first else x
        heard = [self.dropout(self.attention(z, edge_index.padding))]
        told, edge_attr = self._pass_messages(z, edge_index.local, edge_weight, batch, edge_attr)
        out = self._combine(x, heard + told)
        return out if edge_attr is None else (out, edge_attr)

    def _pass_messages(
        self,
        z: Tensor,
        edges: Any,
        edge_weight: Tensor | None,
        batch: Tensor | None,
        edge_attr: Tensor | None,
    ) -> tuple[list[Tensor], Tensor | None]:
        """What the message passing says, if there is any, and the features of edges after it."""
        if self.local is None:
            return [], edge_attr
        if self.local_reads_edges:
            h, edge_attr = self.local(z, edges, edge_weight, batch, edge_attr)
        else:
            h = self.local(z, edges, edge_weight, batch)
        return [self.dropout(h)], edge_attr

    def _combine(self, x: Tensor, parts: list[Tensor]) -> Tensor:
        """The features ``(n, c)`` with what attention and, if there is any, message passing say."""
        if self.norm_first:
            y = sum(parts, x) if self.residual else sum(parts[1:], parts[0])
            h = self.mlp(self.norm_mlp(y))
            out: Tensor = y + h if self.residual else h
        else:
            if self.residual:
                parts = [x + part for part in parts]
            y = self.norm_global(parts[0])
            if self.norm_local is not None:
                y = y + self.norm_local(parts[1])
            h = self.mlp(y)
            out = self.norm_mlp(y + h if self.residual else h)
        return out


GPS = Baseline(
    "gps",
    GPSOptions,
    "Rampášek et al. 2022, https://arxiv.org/abs/2205.12454",
    GPSBlock,
)
