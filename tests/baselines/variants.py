"""Every baseline and every setting that changes what it computes, small enough to run often."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from bunn.baselines import BASELINES
from bunn.baselines.frame import GraphModel
from bunn.theory import graphs

#: Baseline and options; all with width 8 and two layers.
VARIANTS = {
    "mlp": ("mlp", {}),
    "resnet": ("resnet", {}),
    "gcn": ("gcn", {}),
    "gcn-improved": ("gcn", {"improved": True}),
    "gcn-bare": ("gcn", {"self_loops": False}),
    "gcn-ff": ("gcn", {"feed_forward": True}),
    "gcn-ff-improved": ("gcn", {"feed_forward": True, "improved": True}),
    "gcn-ff-bare": ("gcn", {"feed_forward": True, "self_loops": False}),
    "sage": ("sage", {}),
    "sage-sum": ("sage", {"aggr": "sum"}),
    "sage-max": ("sage", {"aggr": "max"}),
    "sage-ff": ("sage", {"feed_forward": True}),
    "sage-ff-sum": ("sage", {"feed_forward": True, "aggr": "sum"}),
    "gat": ("gat", {"heads": 2}),
    "gat-bare": ("gat", {"heads": 4, "self_loops": False}),
    "gat-ff": ("gat", {"feed_forward": True}),
    "gat-sep": ("gat-sep", {"heads": 2}),
    "gin": ("gin", {}),
    "gin-fixed": ("gin", {"learn_eps": False}),
    "ggnn": ("ggnn", {}),
    "ggnn-tied": ("ggnn", {"steps": 3}),
    "ggnn-untied": ("ggnn", {"steps": 3, "tied": False}),
    "gps": ("gps", {}),
    "gps-first": ("gps", {"norm_first": True, "local": "gin"}),
    "gps-gat": ("gps", {"local": "gat", "residual": False}),
    "gps-sage": ("gps", {"local": "sage", "norm_first": True, "residual": False}),
    "gps-attention": ("gps", {"local": None}),
    "gps-gine": ("gps", {"local": "gine"}),
    "gps-gatedgcn": ("gps", {"local": "gatedgcn"}),
    "gps-gatedgcn-first": ("gps", {"local": "gatedgcn", "norm_first": True, "residual": False}),
    "gt": ("gt", {"heads": 2}),
    "gt-sep": ("gt-sep", {"heads": 2}),
    "nsd": ("nsd", {}),
    "nsd-diagonal": ("nsd", {"maps": "diagonal", "map_channels": 5}),
    "nsd-general": ("nsd", {"maps": "general", "stalk_dim": 4}),
    "nsd-rotation": ("nsd", {"orthogonal": "rotation", "damping": 0.0, "steps": 2}),
    "nsd-cayley": ("nsd", {"orthogonal": "cayley", "stalk_dim": 4, "norm": "layer"}),
    "gine": ("gine", {}),
    "gine-linear": ("gine", {"outer_act": False}),
    "gine-learned": ("gine", {"learn_eps": True}),
    "gatedgcn": ("gatedgcn", {}),
    "gatedgcn-first": ("gatedgcn", {"norm_first": True}),
    "gatedgcn-stream": ("gatedgcn", {"norm_residual": True, "residual": False}),
    "drew": ("drew", {}),
    "drew-prompt": ("drew", {"nu": None}),
    "drew-near": ("drew", {"max_hops": 1, "norm_first": False}),
    "exphormer": ("exphormer", {}),
    "exphormer-first": ("exphormer", {"norm_first": True, "num_virtual": 2, "local": "gin"}),
    "exphormer-attention": ("exphormer", {"local": None, "num_virtual": 0, "residual": False}),
    "exphormer-virtual": ("exphormer", {"expander_degree": 0, "num_virtual": 2}),
    "exphormer-edges": ("exphormer", {"expander_degree": 0, "num_virtual": 0, "local": None}),
    "exphormer-gine": ("exphormer", {"local": "gine"}),
    "exphormer-gatedgcn": ("exphormer", {"local": "gatedgcn", "expander_degree": 0}),
    "san": ("san", {"heads": 2}),
    "san-first": ("san", {"norm_first": True, "norm_residual": False, "gamma": 2.0}),
    "graph-vit": ("graph-vit", {"patch_layers": 2, "mixer_layers": 1}),
    "graph-vit-few": ("graph-vit", {"patches": 3, "patch_layers": 1, "mixer_layers": 2}),
    "graph-vit-mlp": (
        "graph-vit",
        {"mixer": "mlp", "patches": 5, "norm_first": True, "patch_layers": 2, "mixer_layers": 2},
    ),
    "graph-vit-tokens": ("graph-vit", {"residual": False, "patches": 4}),
}

WEIGHTED = {
    name for name in VARIANTS if name.split("-")[0] in {"mlp", "resnet", "gcn", "ggnn", "nsd"}
}
WEIGHTED |= {"gps", "gps-attention"}

READS_EDGES = {
    name for name, (model, own) in VARIANTS.items() if BASELINES[model].options(**own).reads_edges
}

#: Those that read the numbers of nodes, so that in another order they are others: an expander is a
#: random graph on them, and they decide how a graph is cut into fewer patches than nodes.
NUMBERED = {"exphormer", "exphormer-first", "exphormer-attention", "exphormer-gine"}
NUMBERED |= {"graph-vit-few", "graph-vit-mlp", "graph-vit-tokens"}


def build(variant: str, in_channels: int = 3, out_channels: int = 2, **keywords) -> GraphModel:
    """The model called ``variant``; keywords are options of it or arguments of ``build``."""
    name, own = VARIANTS[variant]
    baseline = BASELINES[name]
    arguments = {"pooling", "pe_channels", "encoder", "edge_channels", "edge_encoder"}
    outer = {key: keywords.pop(key) for key in arguments & keywords.keys()}
    options = baseline.options(**{"hidden_channels": 8, "num_layers": 2, **own, **keywords})
    return baseline.build(options, in_channels, out_channels, **outer)


def livened(model: nn.Module) -> nn.Module:
    """The model with every parameter off its initial value, where some are zero."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def some_graphs(channels: int = 3, dtype: torch.dtype = torch.float32) -> list[Data]:
    """Graphs of several sizes, one with isolated nodes, one without edges, one of a single node."""
    shapes = [graphs.random(9, seed=1), graphs.star(4), graphs.complete(5)]
    pairs: list[tuple[Tensor, int]] = [(graph.edge_index, graph.num_nodes) for graph in shapes]
    pairs.append((graphs.cycle(4).edge_index, 6))
    pairs += [(torch.zeros(2, 0, dtype=torch.long), n) for n in (3, 1)]
    return [Data(x=torch.randn(n, channels, dtype=dtype), edge_index=e) for e, n in pairs]


def batch_of(items: list[Data]) -> Batch:
    return Batch.from_data_list(items)
