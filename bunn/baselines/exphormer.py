"""Exphormer: GPS with sparse attention, to neighbours, along an expander, and to virtual nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch_geometric.nn import Linear

from bunn.baselines.averages import sum_dtype
from bunn.baselines.baseline import Baseline
from bunn.baselines.frame import GraphModule
from bunn.baselines.gps import GPSBlock, GPSOptions
from bunn.baselines.interactions import Interactions, num_kinds
from bunn.baselines.options import check_count
from bunn.baselines.propagation import gather
from bunn.nn.precision import as_factor


@dataclass(frozen=True)
class ExphormerOptions(GPSOptions):
    """Options of :class:`Exphormer`.

    Args:
        heads: Attention heads, each of ``hidden_channels / heads`` channels.
        expander_degree: The degree of the random graph, an even number, zero for no such graph.
        num_virtual: Virtual nodes of every graph.
    """

    heads: int = 4
    expander_degree: int = 6
    num_virtual: int = 1

    @property
    def reads_edges(self) -> bool:
        """They say how much neighbours attend to each other."""
        return True

    @property
    def num_blocks(self) -> int:
        """One, that holds all layers: they hand on features of virtual nodes, too."""
        return 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self, "expander_degree", least=0)
        check_count(self, "num_virtual", least=0)
        if self.expander_degree % 2:
            raise ValueError(
                f"expander_degree={self.expander_degree}; it must be even: an expander is made of "
                "cycles, each of which adds two to the degree"
            )


class SparseAttention(nn.Module):
    r"""Multi-head attention along pairs of nodes that have features :math:`e`.

    .. math::
        y_v = W_o \Big\Vert_{\text{heads}} \sum_{u \to v} \operatorname{softmax}_u
              \Big(\tfrac{1}{\sqrt{k}} \langle q_v, W_e e_{uv} \odot k_u \rangle\Big) v_u + b_o,
        \qquad (q, k, v) = W x + b

    Args:
        channels: Size of the features, a multiple of ``heads``.
        heads: The number of heads.
        dropout: Of the coefficients. (default: ``0.0``)
    """

    def __init__(self, channels: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.lin_in = Linear(channels, 3 * channels)
        self.lin_pair = Linear(channels, channels, bias=False)
        self.lin_out = Linear(channels, channels)

    def reset_parameters(self) -> None:
        for child in (self.lin_in, self.lin_pair, self.lin_out):
            child.reset_parameters()

    def forward(self, x: Tensor, pairs: Interactions, features: Tensor) -> Tensor:
        """``(n, c)`` nodes and features of pairs as ``pairs.feature`` names them, to ``(n, c)``."""
        query, key, value = self.lin_in(as_factor(x)).unflatten(-1, (3, self.heads, -1)).unbind(1)
        source, target = pairs.edges.edge_index
        modulated = gather(self.lin_pair(features), pairs.feature).unflatten(-1, (self.heads, -1))
        product = gather(query * query.size(-1) ** -0.5, target) * gather(key, source) * modulated
        weights = pairs.edges.softmax(product.sum(-1, dtype=sum_dtype(product.dtype)))
        if self.dropout and self.training:
            weights = torch.dropout(weights, self.dropout, train=True)
        out: Tensor = self.lin_out(pairs.edges.weighted_sum(value, weights).flatten(1))
        return out


class ExphormerLayer(GPSBlock):
    """A layer of GPS with a :class:`SparseAttention` of nodes and, after them, virtual nodes.

    What it says to virtual nodes is added to them, without a norm, message passing or an MLP.
    """

    def _build_attention(self, options: GPSOptions) -> nn.Module:
        return SparseAttention(options.hidden_channels, options.heads, options.attention_dropout)

    def forward(
        self,
        x: Tensor,
        edge_index: Any,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
        edge_attr: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """``(n + virtual, c)`` nodes and ``(e, c)`` edges to both, with the pairs that attend, the
        edges as the message passing reads them, and the features of pairs for ``edge_index``."""
        context: tuple[Interactions, Any, Tensor] = edge_index
        pairs, local, features = context
        n = x.size(0) - pairs.virtual.numel()
        nodes, virtual = x[:n], x[n:]
        z = self.norm_global(nodes) if self.norm_first else nodes
        heard = self.dropout(self.attention(torch.cat((z, virtual)), pairs, features))
        told, edge_attr = self._pass_messages(z, local, edge_weight, batch, edge_attr)
        nodes = self._combine(nodes, [heard[:n], *told])
        virtual = virtual + heard[n:] if self.residual else heard[n:]
        return torch.cat((nodes, virtual)), edge_attr


class Exphormer(GraphModule):
    r"""The network of Shirzad, Velingker, Venkatachalam, Sutherland and Sinop, "Exphormer: Sparse
    Transformers for Graphs", 2023, https://arxiv.org/abs/2303.06147: that of
    :class:`bunn.baselines.gps.GPSBlock`, with attention not to all nodes but

    - to neighbours in the graph, by the features of the edges;
    - along a random regular graph, :func:`bunn.baselines.interactions.expander`;
    - to and from virtual nodes, which all nodes of a graph share.

    The initial features of virtual nodes are learned, and so are those of all pairs that are no
    edges, one for each kind. What is learned for the edges is added to the features they have. A
    pair that is there twice, as an edge and in the expander, is attended to twice. Where message
    passing reads the features of edges and changes them, as GatedGCN does, the changed ones are for
    its next layer; attention reads those that the edges came with.
    """

    activated = True

    def __init__(self, options: ExphormerOptions) -> None:
        super().__init__()
        width, self.num_virtual = options.hidden_channels, options.num_virtual
        self.expander_degree = options.expander_degree
        kinds = num_kinds(options.expander_degree, options.num_virtual)
        self.kinds = nn.Embedding(1 + kinds, width)
        self.virtual = nn.Embedding(self.num_virtual, width) if self.num_virtual else None
        self.layers = nn.ModuleList(ExphormerLayer(options) for _ in range(options.num_layers))

    def prepare(
        self,
        edge_index: Tensor,
        edge_weight: Tensor | None,
        num_nodes: int,
        dtype: torch.dtype,
        batch: Tensor | None = None,
    ) -> tuple[tuple[Interactions, Any], Tensor | None]:
        first = cast(ExphormerLayer, self.layers[0])
        # Without the batch, whose table is for attention between all nodes.
        edges, edge_weight = first.prepare(edge_index, None, num_nodes, dtype)
        graph = edge_index.new_zeros(num_nodes) if batch is None else batch
        pairs = Interactions.of(edge_index, graph, self.expander_degree, self.num_virtual)
        return (pairs, edges.local), edge_weight

    def end_edges(self) -> None:
        cast(ExphormerLayer, self.layers[-1]).end_edges()

    def forward(
        self,
        x: Tensor,
        edge_index: tuple[Interactions, Any],
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
        edge_attr: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        assert edge_attr is not None  # options.reads_edges
        (pairs, local), n = edge_index, x.size(0)
        features = torch.cat((edge_attr + self.kinds.weight[0], self.kinds.weight[1:]))
        if self.virtual is not None:
            x = torch.cat((x, gather(self.virtual.weight, pairs.virtual)))
        for layer in self.layers:
            x, edge_attr = layer(x, (pairs, local, features), edge_weight, batch, edge_attr)
        return x[:n], edge_attr


EXPHORMER = Baseline(
    "exphormer",
    ExphormerOptions,
    "Shirzad, Velingker, Venkatachalam, Sutherland, Sinop 2023, https://arxiv.org/abs/2303.06147",
    Exphormer,
)
