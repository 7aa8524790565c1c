"""Graph ViT and Graph MLP-Mixer: a graph as a short sequence of patches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch_geometric.nn import Linear

from bunn.baselines.baseline import Baseline
from bunn.baselines.frame import Block, GraphModule
from bunn.baselines.gine import GINELayer, GINEOptions
from bunn.baselines.mixer import MixerLayer, MixerOptions
from bunn.baselines.options import check_count
from bunn.baselines.patches import Patches
from bunn.baselines.propagation import gather


@dataclass(frozen=True)
class GraphViTOptions(MixerOptions):
    """Options of :class:`GraphViTBlock`, which beside these has those of its mixer.

    Args:
        num_layers: The number of blocks; the paper's model has one, with layers of its own.
        norm: That of the patch encoder; mixer layers have layer norms in any case.
        norm_first: Whether the patch encoder normalises before layers, or after them as in the
            paper.
        residual: Whether a node keeps what the patch encoder found for it beside the tokens of its
            patches, or has the tokens alone, as in the paper where a graph is read as a whole. The
            patch encoder adds to its stream in any case.
        patch_layers: Layers of message passing within patches.
        mixer_layers: Layers that mix tokens.
        walk_steps: Size of the positional encodings of patches.
    """

    num_layers: int = 1
    norm_first: bool = False
    patch_layers: int = 4
    mixer_layers: int = 4
    walk_steps: int = 8

    @property
    def reads_edges(self) -> bool:
        return True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("patch_layers", "mixer_layers", "walk_steps"):
            check_count(self, name)


class PatchedGraph(NamedTuple):
    """The patches of a batch and their encodings, ``(graphs, P, walk_steps)``."""

    patches: Patches
    walks: Tensor


class GraphViTBlock(GraphModule):
    r"""The model of He, Hooi, Laurent, Perold, LeCun and Bresson, "A Generalization of
    ViT/MLP-Mixer to Graphs", 2023, https://arxiv.org/abs/2212.13350.

    A graph is cut into :math:`P` patches, which then reach one step beyond their borders, so that
    node :math:`i` has a copy in each of some patches :math:`p \ni i`. Message passing within
    patches, by blocks of :class:`bunn.baselines.gine.GINELayer` with a learned :math:`\epsilon`,
    gives :math:`h_{ip}`. Between two of these every copy hears the mean of its patch, and the
    copies of a node are averaged:

    .. math::
        h_{ip} \leftarrow \operatorname{mean}_{q \ni i} \big(h_{iq}
            + \operatorname{relu}(U \operatorname{mean}_{j \in q} h_{jq} + u)\big)

    A patch is then a token, with a map of its positional encoding, the probabilities
    :math:`r_{pk}` that a walk over patches returns after :math:`k` steps, and tokens go through
    layers of :class:`MixerLayer`:

    .. math::
        t_p = \operatorname{mean}_{i \in p} h_{ip} + T r_p + b, \qquad
        t \leftarrow \operatorname{norm}(\operatorname{mixer}(\cdots \operatorname{mixer}(t)))

    The frame reads nodes, and so they are handed the tokens of their patches:

    .. math::
        x_i' = \operatorname{mean}_{p \ni i} (h_{ip} + t_p)

    or with :math:`t_p` alone if not ``residual``. The mean of those over a graph is, as the patches
    are of about the same size, about the mean of its tokens, which is what the paper reads; for
    outputs at nodes it has both :math:`h_{ip}` and :math:`t_p`, too, side by side.

    What else differs from the paper: patches are those of :func:`bunn.baselines.patches.partition`
    instead of METIS, and not drawn anew in every epoch; token mixing sees zeros where a graph has
    no patch. How a graph is cut depends on the order of its nodes, and with it the output, unless
    every node is a patch and they are mixed by attention.
    """

    activated = True

    def __init__(self, options: GraphViTOptions) -> None:
        super().__init__()
        width, self.options = options.hidden_channels, options
        count, within = options.patch_layers, replace(options, residual=True)
        own = GINEOptions(width, act=options.act, learn_eps=True)
        self.layers = nn.ModuleList(Block(GINELayer(own), within) for _ in range(count))
        self.lin_patches = nn.ModuleList(Linear(width, width) for _ in range(count - 1))
        self.lin_walks = Linear(options.walk_steps, width)
        self.mixers = nn.ModuleList(MixerLayer(options) for _ in range(options.mixer_layers))
        self.norm = nn.LayerNorm(width)

    def prepare(
        self,
        edge_index: Tensor,
        edge_weight: Tensor | None,
        num_nodes: int,
        dtype: torch.dtype,
        batch: Tensor | None = None,
    ) -> tuple[PatchedGraph, None]:
        if batch is None:
            batch = edge_index.new_zeros(num_nodes)
        patches = Patches.of(edge_index, batch, self.options.patches, dtype)
        return PatchedGraph(patches, patches.return_probabilities(self.options.walk_steps)), None

    def forward(
        self,
        x: Tensor,
        edge_index: PatchedGraph,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
        edge_attr: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        assert edge_attr is not None  # which the frame sees to
        patches, walks = edge_index
        h = self._encode(gather(x, patches.node), gather(edge_attr, patches.edge), patches)
        tokens = patches.patch_mean(h).view(*walks.shape[:2], -1) + self.lin_walks(walks)
        filled = patches.filled
        for mixer in self.mixers:
            tokens = mixer(tokens, patches.overlap, filled)
        heard = patches.of_patches(self.norm(tokens).flatten(0, 1))
        return patches.node_mean(h + heard if self.options.residual else heard), edge_attr

    def _encode(self, h: Tensor, of_edges: Tensor, patches: Patches) -> Tensor:
        """``(m, c)`` copies and ``(f, c)`` edges between them to ``(m, c)``."""
        for i, layer in enumerate(self.layers):
            if i > 0:
                told = self.lin_patches[i - 1](patches.patch_mean(h)).relu()
                h = gather(patches.node_mean(h + patches.of_patches(told)), patches.node)
            h, of_edges = layer(h, patches.edge_index, None, None, of_edges)
        return h


GRAPH_VIT = Baseline(
    "graph-vit",
    GraphViTOptions,
    "He, Hooi, Laurent, Perold, LeCun, Bresson 2023, https://arxiv.org/abs/2212.13350",
    GraphViTBlock,
)
