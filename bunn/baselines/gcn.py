"""GCN: the mean of the neighbours, weighted by degrees."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.nn import GCNConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import add_remaining_self_loops

from bunn.baselines.averages import Averages, has_operator, sum_dtype
from bunn.baselines.baseline import Baseline
from bunn.baselines.feed_forward import FeedForwardLayer
from bunn.baselines.frame import Block, ConvLayer, GraphModule
from bunn.baselines.options import FrameOptions, check_flag
from bunn.baselines.propagation import propagate_sum
from bunn.laplacian import Laplacian


@dataclass(frozen=True)
class GCNOptions(FrameOptions):
    """Options of :class:`GCNLayer`.

    Args:
        self_loops: Whether a node is its own neighbour.
        improved: Whether it counts twice as such.
        feed_forward: Whether the sum goes through a two-layer network, as in the heterophilous
            benchmark, instead of a linear map: :class:`GCNFeedForward`.
    """

    self_loops: bool = True
    improved: bool = False
    feed_forward: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flag(self, "self_loops")
        check_flag(self, "improved")
        check_flag(self, "feed_forward")
        if self.improved and not self.self_loops:
            raise ValueError(
                "improved=True weighs self-loops, but self_loops=False; set it to True"
            )

    @property
    def may_be_filled(self) -> bool:
        return not self.feed_forward  # which waits for its edges


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
        self,
        edge_index: Tensor,
        edge_weight: Tensor | None,
        num_nodes: int,
        dtype: torch.dtype,
        batch: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        if edge_weight is None:  # PyG would weigh added loops by one, improved or not
            edge_weight = torch.ones(edge_index.shape[1:], dtype=dtype, device=edge_index.device)
        if self.self_loops:
            loop = 2.0 if self.improved else 1.0
            edge_index, edge_weight = with_loops(edge_index, edge_weight, loop, num_nodes)
        edges: tuple[Tensor, Tensor] = gcn_norm(
            edge_index, edge_weight, num_nodes, add_self_loops=False, dtype=dtype
        )
        return edges


def with_loops(
    edge_index: Tensor, weight: Tensor, loop: float, num_nodes: int
) -> tuple[Tensor, Tensor]:
    """A loop at every node, of weight ``loop`` where there was none; waits for no device.

    As PyG's ``add_remaining_self_loops``; but a loop that is there stays, without its weight, which
    the new one has, so that the number of edges is known.
    """
    source, target = edge_index
    there, nodes = source == target, torch.arange(num_nodes, device=source.device)
    place = torch.where(there, source, num_nodes)  # past the last node where it is none
    loops = weight.new_full((num_nodes + 1,), loop).scatter(0, place, weight)[:num_nodes]
    weight = torch.cat((weight.masked_fill(there, 0.0), loops))
    return torch.cat((edge_index, nodes.expand(2, -1)), dim=1), weight


class GCNFeedForward(FeedForwardLayer):
    r"""The same convolution with a two-layer network for :math:`W`: a
    :class:`bunn.baselines.feed_forward.FeedForwardLayer` with

    .. math::
        M = \hat D^{-1/2} \hat A \hat D^{-1/2} X, \qquad \hat A = A + I.
    """

    weighted = True

    def __init__(self, options: GCNOptions) -> None:
        super().__init__(options)
        self.self_loops, self.improved = options.self_loops, options.improved

    def prepare(
        self,
        edge_index: Tensor,
        edge_weight: Tensor | None,
        num_nodes: int,
        dtype: torch.dtype,
        batch: Tensor | None = None,
    ) -> tuple[Averages, None]:
        dtype, loop = sum_dtype(dtype), 2.0 if self.improved else 1.0
        weight = edge_weight
        if weight is None:
            weight = torch.ones(edge_index.shape[1:], dtype=dtype, device=edge_index.device)
        if self.self_loops:
            edge_index, weight = add_remaining_self_loops(edge_index, weight, loop, num_nodes)
        _, normed = gcn_norm(edge_index, weight, num_nodes, add_self_loops=False, dtype=dtype)
        # Weights may be learned, and an isolated node without a loop has one in a Laplacian.
        plain = edge_weight is None and self.self_loops
        if not plain or not has_operator(edge_index, num_nodes):
            return Averages(edge_index, normed), None
        own = weight if self.improved else None
        lap = Laplacian(edge_index, own, num_nodes, normalization="sym").to(dtype)
        return Averages(edge_index, normed, lap.operator), None

    def aggregate(self, x: Tensor, edges: Averages) -> Tensor:
        return edges.apply(x)


def _layer(options: GCNOptions) -> GraphModule:
    return GCNFeedForward(options) if options.feed_forward else GCNLayer(options)


GCN = Baseline(
    "gcn",
    GCNOptions,
    "Kipf, Welling 2017, https://arxiv.org/abs/1609.02907",
    lambda options: Block(_layer(options), options),
)
