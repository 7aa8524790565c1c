"""GCN: the mean of the neighbours, weighted by degrees."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.nn import GCNConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from bunn.baselines.baseline import Baseline
from bunn.baselines.frame import Block, ConvLayer
from bunn.baselines.options import FrameOptions, check_flag
from bunn.baselines.propagation import propagate_sum


@dataclass(frozen=True)
class GCNOptions(FrameOptions):
    """Options of :class:`GCNLayer`.

    Args:
        self_loops: Whether a node is its own neighbour.
        improved: Whether it counts twice as such.
    """

    self_loops: bool = True
    improved: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flag(self, "self_loops")
        check_flag(self, "improved")
        if self.improved and not self.self_loops:
            raise ValueError(
                "improved=True weighs self-loops, but self_loops=False; set it to True"
            )


class _GCNConv(GCNConv):  # type: ignore[misc]
    """PyG's layer, on edges that are normalised already."""

    propagate = propagate_sum


class GCNLayer(ConvLayer):
    r"""The graph convolution of Kipf and Welling, "Semi-Supervised Classification with Graph
    Convolutional Networks", 2017, https://arxiv.org/abs/1609.02907.

    .. math::
        X' = \hat D^{-1/2} \hat A \hat D^{-1/2} X W + b, \qquad \hat A = A + I

    with :math:`\hat A = A + 2I` if ``improved`` and :math:`\hat A = A` without ``self_loops``. On
    a complete graph every row of :math:`\hat D^{-1/2} \hat A \hat D^{-1/2}` is the same: all nodes
    get the same features.
    """

    weighted = True

    def __init__(self, options: GCNOptions) -> None:
        super().__init__()
        width = options.hidden_channels
        self.conv = _GCNConv(width, width, normalize=False)
        self.self_loops, self.improved = options.self_loops, options.improved

    def prepare(
        self, edge_index: Tensor, edge_weight: Tensor | None, num_nodes: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor | None]:
        if edge_weight is None:  # PyG would weigh added loops by one, improved or not
            edge_weight = torch.ones(edge_index.shape[1:], dtype=dtype, device=edge_index.device)
        edges: tuple[Tensor, Tensor] = gcn_norm(
            edge_index, edge_weight, num_nodes, self.improved, self.self_loops, dtype=dtype
        )
        return edges


GCN = Baseline(
    "gcn",
    GCNOptions,
    "Kipf, Welling 2017, https://arxiv.org/abs/1609.02907",
    lambda options: Block(GCNLayer(options), options),
)
