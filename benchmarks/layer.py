"""A ``BuNNConv`` against PyG's ``SAGEConv``, ``GCNConv`` and ``GATConv``, all given ``edge_index``.

One training step (forward and backward) of one layer, 512 to 512 channels, float32, interleaved.
BuNN at t = 1 and tol 1e-5 with its two-layer perceptron phi, with one bundle as in the paper's
table of run times, and with 256 as in its best models. What depends on the graph alone is built in
the warm-up: BuNN's Laplacian, the normalisation of a cached GCN. ``SAGEConv, CSR`` is given a
sparse matrix instead of ``edge_index``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

from benchmarks.graphs import heterophilous_graphs
from benchmarks.results import save
from benchmarks.timing import interleaved, medians, seconds
from bunn import BuNNConv, Laplacian

CHANNELS = 512
REPEATS = 15


def training_step(conv: nn.Module, x: torch.Tensor, edge_index: torch.Tensor) -> Callable[[], None]:
    def step() -> None:
        conv.zero_grad()
        x.grad = None
        conv(x, edge_index).square().mean().backward()

    return step


def sparse_adjacency(
    edge_index: torch.Tensor, num_nodes: int, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch on the state of its sparse tensors
        ones = torch.ones(edge_index.size(1), dtype=dtype)
        return torch.sparse_coo_tensor(edge_index, ones, (num_nodes, num_nodes)).to_sparse_csr()


def main() -> None:
    rows: list[dict[str, Any]] = []
    for name, (edge_index, num_nodes) in heterophilous_graphs().items():
        torch.manual_seed(0)
        x = torch.randn(num_nodes, CHANNELS, requires_grad=True)
        layers: dict[str, nn.Module] = {
            "BuNNConv, b=1": BuNNConv(CHANNELS, CHANNELS),
            "BuNNConv, b=256": BuNNConv(CHANNELS, CHANNELS, num_bundles=256),
            "SAGEConv": SAGEConv(CHANNELS, CHANNELS),
            "GCNConv": GCNConv(CHANNELS, CHANNELS),
            "GCNConv, cached": GCNConv(CHANNELS, CHANNELS, cached=True),
            "GATConv": GATConv(CHANNELS, CHANNELS),
        }
        steps = {key: training_step(conv, x, edge_index) for key, conv in layers.items()}
        adjacency = sparse_adjacency(edge_index, num_nodes)
        steps["SAGEConv, CSR"] = training_step(SAGEConv(CHANNELS, CHANNELS), x, adjacency)
        samples = interleaved(steps, REPEATS, patience=float("inf"))
        median = medians(samples)
        rows.append(
            {
                "graph": name,
                "nodes": num_nodes,
                "entries": edge_index.size(1),
                "seconds": median,
                "samples": samples,
                "build_seconds": seconds(partial(Laplacian, edge_index, num_nodes=num_nodes)),
                "over_sage": {key: value / median["SAGEConv"] for key, value in median.items()},
            }
        )
        print(name, {key: round(value, 2) for key, value in rows[-1]["over_sage"].items()})
    save(
        "layer",
        rows,
        what="forward + backward of one layer, float32, t=1; over_sage is the time over SAGEConv's",
        channels=CHANNELS,
        repeats=REPEATS,
    )


if __name__ == "__main__":
    main()
