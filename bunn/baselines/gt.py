"""GT: a transformer whose nodes attend to their neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.nn import Linear

from bunn.baselines.attention import AttentionEdges
from bunn.baselines.baseline import Baseline
from bunn.baselines.frame import GraphModule
from bunn.baselines.options import FrameOptions, check_divides, check_flag
from bunn.baselines.resnet import ResNetLayer
from bunn.baselines.transformer import TransformerBlock
from bunn.nn.precision import as_factor


@dataclass(frozen=True)
class GTOptions(FrameOptions):
    """Options of :class:`GTBlock`.

    Args:
        heads: Attention heads, each of ``hidden_channels / heads`` channels.
        separate: Whether a node is read beside what it hears from its neighbours, instead of
            attending to itself, too.
    """

    heads: int = 8
    separate: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_divides(self, "heads")
        check_flag(self, "separate")


@dataclass(frozen=True)
class GTSepOptions(GTOptions):
    """The same for GT-sep."""

    separate: bool = True


class GTLayer(GraphModule):
    r"""Multi-head attention of every node to its neighbours.

    .. math::
        x_v' = W_o m_v + b_o, \qquad
        m_v = \Big\Vert_{\text{heads}} \sum_{u \to v} \operatorname{softmax}_u
              \Big(\tfrac{1}{\sqrt{k}} \langle q_v, k_u \rangle\Big) v_u,
        \qquad (q, k, v) = W x + b

    with a loop at every node; or without loops and :math:`x_v' = W_o [x_v, m_v] + b_o` if
    ``separate``. It has its non-linearity inside, and the block adds none.
    """

    activated = True

    def __init__(self, options: GTOptions) -> None:
        super().__init__()
        width, self.heads, self.separate = options.hidden_channels, options.heads, options.separate
        self.lin_in = Linear(width, 3 * width)
        self.lin_out = Linear(2 * width if self.separate else width, width)

    def prepare(
        self,
        edge_index: Tensor,
        edge_weight: Tensor | None,
        num_nodes: int,
        dtype: torch.dtype,
        batch: Tensor | None = None,
    ) -> tuple[AttentionEdges, None]:
        return AttentionEdges.of(edge_index, num_nodes, not self.separate), None

    def forward(
        self,
        x: Tensor,
        edge_index: AttentionEdges,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
    ) -> Tensor:
        x = as_factor(x)
        query, key, value = self.lin_in(x).unflatten(-1, (3, self.heads, -1)).unbind(1)
        scores = edge_index.products(query * query.size(-1) ** -0.5, key)
        heard = edge_index.weighted_sum(value, edge_index.softmax(scores)).flatten(1)
        out: Tensor = self.lin_out(torch.cat((x, heard), -1) if self.separate else heard)
        return out


class GTBlock(TransformerBlock):
    r"""The graph transformer of Shi et al., "Masked Label Prediction: Unified Message Passing Model
    for Semi-Supervised Classification", 2021, https://arxiv.org/abs/2009.03509, in the form of the
    heterophilous benchmark: two blocks, one of :class:`GTLayer` and one of
    :class:`bunn.baselines.resnet.ResNetLayer`.

    .. math::
        y = x + \operatorname{attention}(\operatorname{norm}(x)), \qquad
        x' = y + \operatorname{MLP}(\operatorname{norm}(y))

    Dropout follows each of the two.
    """

    def __init__(self, options: GTOptions) -> None:
        super().__init__(GTLayer(options), ResNetLayer(options), options)


GT = Baseline("gt", GTOptions, "Shi et al. 2021, https://arxiv.org/abs/2009.03509", GTBlock)

GT_SEP = Baseline(
    "gt-sep",
    GTSepOptions,
    "Platonov et al. 2023, https://arxiv.org/abs/2302.11640",
    GTBlock,
)
