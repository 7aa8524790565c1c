"""The graphs that are measured: the real ones if their files are here, generated ones otherwise."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_geometric.utils import coalesce, to_undirected

#: Nodes and undirected edges of the heterophilous benchmark (Platonov et al.).
SIZES = {
    "roman-empire": (22_662, 32_927),
    "amazon-ratings": (24_492, 93_050),
    "minesweeper": (10_000, 39_402),
    "tolokers": (11_758, 519_000),
    "questions": (48_921, 153_540),
}


def random_graph(num_nodes: int, num_edges: int, seed: int = 0) -> Tensor:
    """An ``edge_index`` of about ``num_edges`` undirected edges between random nodes."""
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(num_nodes, (2, num_edges), generator=generator)
    ends = ends[:, ends[0] != ends[1]]
    edges: Tensor = coalesce(torch.cat((ends, ends.flip(0)), dim=1), num_nodes=num_nodes)
    return edges


def heterophilous_graphs() -> dict[str, tuple[Tensor, int]]:
    """``edge_index`` and number of nodes by name.

    minesweeper and tolokers from ``$BUNN_DATA`` where they are; else random graphs of the sizes of
    all five, called ``random-...``.
    """
    root = os.environ.get("BUNN_DATA")
    found = {}
    for name in ("minesweeper", "tolokers"):
        path = Path(root or "", name, "raw", f"{name}.npz")
        if root and path.is_file():
            with np.load(path) as arrays:
                edges, num_nodes = arrays["edges"], arrays["node_features"].shape[0]
            found[name] = (to_undirected(torch.from_numpy(edges).long().T), num_nodes)
    if found:
        return found
    return {f"random-{name}": (random_graph(n, e), n) for name, (n, e) in SIZES.items()}


def graphs_of_the_table() -> dict[str, tuple[Tensor, int]]:
    """minesweeper and tolokers, and graphs of the sizes of the other three, called ``like-...``."""
    found = heterophilous_graphs()
    found["like-roman-empire"] = (chain_graph(*SIZES["roman-empire"]), SIZES["roman-empire"][0])
    for name in ("amazon-ratings", "questions"):
        found[f"like-{name}"] = (random_graph(*SIZES[name]), SIZES[name][0])
    return found


def chain_graph(num_nodes: int, num_edges: int, reach: int = 8, seed: int = 0) -> Tensor:
    """An ``edge_index`` of a path with extra edges between nodes at most ``reach`` apart.

    Like the sentences of roman-empire, one after the other: a diameter in the thousands.
    """
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(num_nodes - reach, (num_edges - num_nodes + 1,), generator=generator)
    apart = torch.randint(2, reach + 1, first.shape, generator=generator)
    path = torch.arange(num_nodes - 1)
    ends = torch.cat((torch.stack((path, path + 1)), torch.stack((first, first + apart))), dim=1)
    edges: Tensor = coalesce(torch.cat((ends, ends.flip(0)), dim=1), num_nodes=num_nodes)
    return edges
