"""The models BuNN is compared with, one to a file, all in one frame.

    from bunn.baselines import BASELINES

    gcn = BASELINES["gcn"]
    model = gcn.build(gcn.options(num_layers=3), in_channels=1, out_channels=1)
    model(x, edge_index)

To add one, write its file, with options, a block and a :class:`Baseline`, and name it in
:data:`BASELINES`: the contract suite in ``tests/baselines`` then tests it.
"""

from __future__ import annotations

from typing import Any

from bunn.baselines.baseline import Baseline
from bunn.baselines.drew import DREW, DRewOptions
from bunn.baselines.exphormer import EXPHORMER, ExphormerOptions
from bunn.baselines.frame import Block, GraphModel, GraphModule
from bunn.baselines.gat import GAT, GAT_SEP, GATOptions, GATSepOptions
from bunn.baselines.gatedgcn import GATEDGCN, GatedGCNOptions
from bunn.baselines.gcn import GCN, GCNOptions
from bunn.baselines.ggnn import GGNN, GGNNOptions
from bunn.baselines.gin import GIN, GINOptions
from bunn.baselines.gine import GINE, GINEOptions
from bunn.baselines.gps import GPS, GPSOptions
from bunn.baselines.graph_vit import GRAPH_VIT, GraphViTOptions
from bunn.baselines.gt import GT, GT_SEP, GTOptions, GTSepOptions
from bunn.baselines.mlp import MLP
from bunn.baselines.nsd import NSD, NSDOptions
from bunn.baselines.options import FrameOptions
from bunn.baselines.resnet import RESNET
from bunn.baselines.sage import SAGE, SAGEOptions
from bunn.baselines.san import SAN, SANOptions

__all__ = [
    "BASELINES",
    "Baseline",
    "Block",
    "DRewOptions",
    "ExphormerOptions",
    "FrameOptions",
    "GATOptions",
    "GATSepOptions",
    "GCNOptions",
    "GGNNOptions",
    "GINEOptions",
    "GINOptions",
    "GPSOptions",
    "GTOptions",
    "GTSepOptions",
    "GatedGCNOptions",
    "GraphModel",
    "GraphModule",
    "GraphViTOptions",
    "NSDOptions",
    "SAGEOptions",
    "SANOptions",
]

#: The comparison models by name.
BASELINES: dict[str, Baseline[Any]] = {
    baseline.name: baseline
    for baseline in (
        MLP,
        RESNET,
        GCN,
        SAGE,
        GAT,
        GAT_SEP,
        GIN,
        GGNN,
        GPS,
        GT,
        GT_SEP,
        NSD,
        GINE,
        GATEDGCN,
        DREW,
        EXPHORMER,
        SAN,
        GRAPH_VIT,
    )
}
