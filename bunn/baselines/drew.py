"""DRew: every layer reaches a hop farther, and farther messages may be older ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch_geometric.nn.inits import glorot, zeros

from bunn.baselines.averages import sum_dtype
from bunn.baselines.baseline import Baseline
from bunn.baselines.frame import Block, GraphModule
from bunn.baselines.hops import Hops
from bunn.baselines.options import FrameOptions, check_count


@dataclass(frozen=True)
class DRewOptions(FrameOptions):
    r"""Options of :class:`DRew`.

    Args:
        nu: The hops :math:`\nu` that messages make without delay: one for the longest delays,
            :obj:`None` for none at all.
        max_hops: The farthest a layer reaches, :obj:`None` for one hop more with every layer. A
            graph of small diameter has most of its pairs of nodes within a few hops.
    """

    nu: int | None = 1
    max_hops: int | None = None

    @property
    def num_blocks(self) -> int:
        """One, that holds all layers: they read what earlier ones did."""
        return 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("nu", "max_hops"):
            if getattr(self, name) is not None:
                check_count(self, name)


class DRewLayer(GraphModule):
    r"""Layer :math:`\ell = 0, 1, \dots` of :class:`DRew`, which has a matrix for every distance.

    With the pairs of nodes it is handed what the layers before it read, by their index, and adds
    what it reads itself.
    """

    def __init__(self, index: int, options: DRewOptions) -> None:
        super().__init__()
        width, hops = options.hidden_channels, index + 1
        if options.max_hops is not None:
            hops = min(hops, options.max_hops)
        nu = hops if options.nu is None else options.nu
        self.index, self.reads = index, [index - max(0, k - nu) for k in range(1, hops + 1)]
        self.weight = nn.Parameter(torch.empty(hops, width, width))
        self.bias = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        glorot(self.weight)
        zeros(self.bias)

    def forward(
        self,
        x: Tensor,
        edge_index: tuple[Hops, dict[int, Tensor]],
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
    ) -> Tensor:
        hops, past = edge_index
        past[self.index] = x
        z = torch.stack([past[layer] for layer in self.reads]) @ self.weight
        return hops.sums(z) + self.bias


class DRew(GraphModule):
    r"""The dynamically rewired network of Gutteridge, Dong, Bronstein and Di Giovanni, "DRew:
    Dynamically Rewired Message Passing with Delay", 2023, https://arxiv.org/abs/2305.08018, with
    the aggregation of a GCN.

    .. math::
        x_v^{\ell + 1} = x_v^\ell + \sigma\Big(\sum_{k = 1}^{\ell + 1} W_k^\ell
            \sum_{u : d(u, v) = k} \frac{x_u^{\ell - \max(0, k - \nu)}}{\sqrt{n_k(u) \, n_k(v)}}
            + b^\ell\Big)

    where :math:`n_k(v)` nodes have the distance :math:`k` from :math:`v`. Norms and dropout are
    those of the frame's :class:`Block`; what is delayed is what a layer reads, which is normalised
    if norms come first. A loop is at no distance, and repeated edges count once.
    """

    def __init__(self, options: DRewOptions) -> None:
        super().__init__()
        self.farthest = min(options.num_layers, options.max_hops or options.num_layers)
        self.layers = nn.ModuleList(
            Block(DRewLayer(index, options), options) for index in range(options.num_layers)
        )

    def prepare(
        self,
        edge_index: Tensor,
        edge_weight: Tensor | None,
        num_nodes: int,
        dtype: torch.dtype,
        batch: Tensor | None = None,
    ) -> tuple[Hops, None]:
        return Hops.of(edge_index, num_nodes, self.farthest, sum_dtype(dtype)), None

    def forward(
        self,
        x: Tensor,
        edge_index: Hops,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
    ) -> Tensor:
        past: dict[int, Tensor] = {}
        for layer in self.layers:
            x = layer(x, (edge_index, past))
        return x


DREW = Baseline(
    "drew",
    DRewOptions,
    "Gutteridge, Dong, Bronstein, Di Giovanni 2023, https://arxiv.org/abs/2305.08018",
    DRew,
)
