"""MLP: every node by itself."""

from __future__ import annotations

from torch import Tensor
from torch_geometric.nn import Linear

from bunn.baselines.baseline import Baseline
from bunn.baselines.frame import Block, GraphModule
from bunn.baselines.options import FrameOptions


class MLPLayer(GraphModule):
    r"""A linear map, blind to the graph: :math:`x_v' = W x_v + b`.

    Rosenblatt, "The perceptron: a probabilistic model for information storage and organization in
    the brain", Psychological Review 65, 1958, in the layered form of Rumelhart, Hinton and
    Williams, "Learning representations by back-propagating errors", Nature 323, 1986.

    It reads no edges, and so takes any edge weights.
    """

    weighted = True

    def __init__(self, options: FrameOptions) -> None:
        super().__init__()
        self.lin = Linear(options.hidden_channels, options.hidden_channels)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
    ) -> Tensor:
        out: Tensor = self.lin(x)
        return out


MLP = Baseline(
    "mlp",
    FrameOptions,
    "Rumelhart, Hinton, Williams 1986, https://doi.org/10.1038/323533a0",
    lambda options: Block(MLPLayer(options), options),
)
