"""PascalVOC-SP of the Long Range Graph Benchmark (Dwivedi et al.,
https://arxiv.org/abs/2206.08164), through PyG, with the split it comes with. Features of nodes and
edges are standardised, by the mean and the deviation of those in training graphs.

Its peptides are read from the original files: :mod:`bunn.data.peptides`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch_geometric.datasets import LRGBDataset

from bunn.data.dataset import PARTS, DatasetSpec, GraphDataset, Split, Task, only_split
from bunn.data.mirror import read_processed
from bunn.data.options import NoOptions
from bunn.data.pack import Pack, PackedGraphs

NAME = "pascalvoc-sp"
TASK = Task("node", "multiclass", "macro-f1")
FILES = tuple(f"lrgb/{NAME}/raw/{part}.pickle" for part in PARTS)
#: Classes of Pascal VOC, background included; a small file need not have all of them.
CLASSES = 21


def _build(folder: Path) -> LRGBDataset:
    return LRGBDataset(str(folder / "lrgb"), NAME)


def _load(options: NoOptions, root: Path) -> GraphDataset:
    outputs = [f"lrgb/{NAME}/processed/{part}.pt" for part in PARTS]
    parts = [list(part) for part in read_processed(root, FILES, outputs, _build)]
    for data in (graphs := [data for part in parts for data in part]):
        data.y = data.y.long()
    for name in ("x", "edge_attr"):  # coordinates are in the hundreds, colours below one
        training = torch.cat([data[name] for data in parts[0]]).double()
        mean, std = training.mean(0), training.std(0).clamp(min=1e-6)
        for data in graphs:
            data[name] = ((data[name] - mean) / std).to(data[name].dtype)
    pack, rows = Pack.of(graphs), torch.arange(len(graphs)).split([len(part) for part in parts])
    split = Split(*(PackedGraphs(pack, members) for members in rows))
    first = split.train[0]
    return GraphDataset(
        NAME,
        TASK,
        first.x.size(1),
        CLASSES,
        1,
        partial(only_split, split),
        edge_channels=first.edge_attr.size(1),
    )


SPECS = (
    DatasetSpec(
        NAME,
        TASK,
        "11,355 graphs of 479 nodes on average",
        "Pascal VOC 2011 (custom)",
        LRGBDataset.urls[NAME],
        _load,
        NoOptions,
        FILES,
        _build,
    ),
)
