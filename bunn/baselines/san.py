"""SAN: attention between all nodes, which knows the pairs that an edge joins from the others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch_geometric.nn import Linear

from bunn.baselines.attention import AttentionEdges
from bunn.baselines.averages import sum_dtype
from bunn.baselines.baseline import Baseline
from bunn.baselines.frame import GraphModule
from bunn.baselines.networks import build_network
from bunn.baselines.options import FrameOptions, check_divides
from bunn.baselines.padding import Padding
from bunn.baselines.propagation import gather, scatter_sum
from bunn.baselines.transformer import TransformerBlock
from bunn.nn.precision import as_factor

#: Scores are clamped to ``[-BOUND, BOUND]`` before they are exponents.
BOUND = 5.0

#: Less than any sum of their exponentials, other than the empty one.
LEAST = math.exp(-BOUND) / 2


@dataclass(frozen=True)
class SANOptions(FrameOptions):
    r"""Options of :class:`SANBlock`.

    Args:
        norm_first: Whether to normalise before layers, or after them as in the paper.
        norm_residual: Whether to normalise after residual connections, as in the paper.
        heads: Attention heads, each of ``hidden_channels / heads`` channels.
        gamma: The weight :math:`\gamma > 0` of pairs that no edge joins against pairs that one
            does. It is tuned for every data set.
    """

    norm_first: bool = False
    norm_residual: bool = True
    heads: int = 4
    gamma: float = 0.1

    @property
    def reads_edges(self) -> bool:
        return True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_divides(self, "heads")
        known = isinstance(self.gamma, Real) and not isinstance(self.gamma, bool)
        if not known or not 0 < self.gamma < math.inf:
            raise ValueError(f"gamma={self.gamma!r}; it must be a number > 0")


class Pairs(NamedTuple):
    """The pairs of different nodes within each graph, by whether an edge joins them.

    Args:
        joined: Those that one does, as edges from the second of a pair to the first. A loop joins
            a node and itself.
        apart: ``(graphs, 1, s, s)`` the others, in rows and columns of the table of ``padding``.
        padding: The table of all nodes, ``(graphs, s)``.
    """

    joined: AttentionEdges
    apart: Tensor
    padding: Padding

    @classmethod
    def of(cls, edge_index: Tensor, num_nodes: int, batch: Tensor | None) -> Pairs:
        if batch is None:
            batch = edge_index.new_zeros(num_nodes)
        padding, (source, target) = Padding.of(batch), edge_index
        size = padding.filled.size(1)
        apart = padding.filled.unsqueeze(1).repeat(1, size, 1)
        apart.diagonal(dim1=1, dim2=2).fill_(False)
        joined = padding.place[target] * size + padding.place[source] % size
        apart.view(-1)[joined] = False
        return cls(AttentionEdges.in_order(edge_index, num_nodes), apart.unsqueeze(1), padding)


class SANLayer(GraphModule):
    r"""Multi-head attention of every node to all others of its graph.

    .. math::
        x_i' = W_o \Big\Vert_{\text{heads}} \Big(
               \frac{1}{1 + \gamma} \sum_{j \to i} \operatorname{softmax}_{j \to i}(s_{ij})\, V x_j
               + \frac{\gamma}{1 + \gamma} \sum_{j \not\to i}
               \operatorname{softmax}_{j \not\to i}(s_{ij})\, V x_j \Big) + b_o

    .. math::
        s_{ij} = \frac{1}{\sqrt k} \begin{cases}
            \langle Q x_i,\; K x_j \odot (E e_{ij} + b) \rangle & \text{if } j \to i \\
            \langle \tilde Q x_i,\; \tilde K x_j \odot f \rangle & \text{otherwise}
        \end{cases}

    Scores are clamped to :math:`[-5, 5]`, as in the authors' code. A node does not attend to
    itself, unless it has a loop; where one of the two sums is empty, it is zero. Edges
    :math:`j \to i` have their features :math:`e_{ij}` and, beyond the paper, a bias :math:`b`,
    without which edges that have none would all score zero. The others share one learned vector
    :math:`f`, which in the paper stands for a matrix times such a vector.

    Scores of pairs without an edge are a dense table, ``(graphs, heads, s, s)`` for graphs of up to
    ``s`` nodes; those of edges are a list, ``(e, heads)``. The layer has its non-linearity inside,
    and the block adds none.
    """

    activated = True

    def __init__(self, options: SANOptions) -> None:
        super().__init__()
        width, self.heads, self.gamma = options.hidden_channels, options.heads, options.gamma
        self.lin_in = Linear(width, 5 * width, bias=False)
        self.lin_edge = Linear(width, width)
        self.apart = nn.Parameter(torch.empty(width))
        self.lin_out = Linear(width, width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.normal_(self.apart)

    def prepare(
        self,
        edge_index: Tensor,
        edge_weight: Tensor | None,
        num_nodes: int,
        dtype: torch.dtype,
        batch: Tensor | None = None,
    ) -> tuple[Pairs, None]:
        return Pairs.of(edge_index, num_nodes, batch), None

    def forward(
        self,
        x: Tensor,
        edge_index: Pairs,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
        edge_attr: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        assert edge_attr is not None  # which the frame sees to
        x, width = as_factor(x), x.size(-1)
        packed = self.lin_in(x)
        near = self._attend_joined(packed[:, : 3 * width], edge_attr, edge_index.joined)
        far = self._attend_apart(packed[:, 2 * width :], edge_index)
        heard = (near + self.gamma * far) / (1 + self.gamma)
        return self.lin_out(heard.to(packed.dtype)), edge_attr

    def _attend_joined(self, packed: Tensor, edge_attr: Tensor, edges: AttentionEdges) -> Tensor:
        """``(n, 3c)`` queries, keys and values and ``(e, c)`` edges to ``(n, c)``."""
        query, key, value = packed.unflatten(-1, (3, self.heads, -1)).unbind(1)
        of_edges = self.lin_edge(as_factor(edge_attr)).unflatten(-1, (self.heads, -1))
        source, target = edges.edge_index
        query = query * query.size(-1) ** -0.5
        pairs = gather(query, target) * gather(key, source) * of_edges
        weight = pairs.sum(-1, dtype=sum_dtype(pairs.dtype)).clamp(-BOUND, BOUND).exp()
        total = scatter_sum(weight, target, packed.size(0)).clamp(min=LEAST)
        return (edges.weighted_sum(value, weight) / total.unsqueeze(-1)).flatten(1)

    def _attend_apart(self, packed: Tensor, pairs: Pairs) -> Tensor:
        """``(n, 3c)`` values, queries and keys to ``(n, c)``."""
        table = pairs.padding.spread(packed).unflatten(-1, (3, self.heads, -1))
        value, query, key = table.permute(2, 0, 3, 1, 4)
        of_pairs = self.apart.view(self.heads, 1, -1) * query.size(-1) ** -0.5
        scores = (query * of_pairs) @ key.mT
        weight = scores.clamp(-BOUND, BOUND).masked_fill(~pairs.apart, -math.inf).exp()
        total = weight.sum(-1, keepdim=True).clamp(min=LEAST)
        heard = weight.to(value.dtype) @ value / total
        return pairs.padding.collect(heard.transpose(1, 2).flatten(2))


class WideNetwork(GraphModule):
    r"""The network of a transformer, :math:`W_2\, \sigma(W_1 x + b_1) + b_2`, of twice the width
    inside, with dropout after :math:`\sigma`."""

    activated = True

    def __init__(self, options: FrameOptions) -> None:
        super().__init__()
        width = options.hidden_channels
        self.network = build_network(width, 2 * width, options.act, options.dropout)

    def forward(
        self,
        x: Tensor,
        edge_index: object = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
    ) -> Tensor:
        out: Tensor = self.network(x)
        return out


class SANBlock(TransformerBlock):
    r"""The main layer of Kreuzer, Beaini, Hamilton, Létourneau and Tossou, "Rethinking Graph
    Transformers with Spectral Attention", 2021, https://arxiv.org/abs/2106.03893: two blocks, one
    of :class:`SANLayer` and one of :class:`WideNetwork`.

    .. math::
        y = \operatorname{norm}(x + \operatorname{attention}(x)), \qquad
        x' = \operatorname{norm}(y + \operatorname{MLP}(y))

    Dropout follows each of the two. The features of edges pass through unchanged. The paper's
    other half, positional encodings that a transformer learns from the spectrum of the Laplacian,
    is not here: encodings are for the frame's encoder.
    """

    def __init__(self, options: SANOptions) -> None:
        super().__init__(SANLayer(options), WideNetwork(options), options)


SAN = Baseline(
    "san",
    SANOptions,
    "Kreuzer, Beaini, Hamilton, Létourneau, Tossou 2021, https://arxiv.org/abs/2106.03893",
    SANBlock,
)
