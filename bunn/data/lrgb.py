"""The Long Range Graph Benchmark (Dwivedi et al., https://arxiv.org/abs/2206.08164), through PyG.

Three of its five tasks, with the split they come with.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from torch import nn
from torch_geometric.data import InMemoryDataset
from torch_geometric.datasets import LRGBDataset

from bunn.data.dataset import PARTS, DatasetSpec, GraphDataset, GraphList, Split, Task
from bunn.data.encoders import AtomEncoder
from bunn.data.mirror import read_processed
from bunn.data.options import NoOptions

FOLDER = "lrgb"
FUNC = Task("graph", "multilabel", "average-precision")
STRUCT = Task("graph", "regression", "mae")
VOC = Task("node", "multiclass", "macro-f1")

#: Classes of Pascal VOC, background included; a small file need not have all of them.
VOC_CLASSES = 21


def _files(name: str) -> tuple[str, ...]:
    suffix = "pickle" if name.endswith("-sp") else "pt"
    return tuple(f"{FOLDER}/{name}/raw/{part}.{suffix}" for part in PARTS)


def _build(name: str, folder: Path) -> LRGBDataset:
    return LRGBDataset(str(folder / FOLDER), name)


def _load(name: str, task: Task, options: NoOptions, root: Path) -> GraphDataset:
    outputs = [f"{FOLDER}/{name}/processed/{part}.pt" for part in PARTS]
    parts = read_processed(root, _files(name), outputs, partial(_build, name))
    split = Split(*(_graphs(part, task) for part in parts))
    first = split.train[0]
    classes = VOC_CLASSES if task is VOC else first.y.size(1)
    encoder: Callable[[int], nn.Module] | None = None if task is VOC else AtomEncoder
    make_split = partial(_only, split)
    return GraphDataset(name, task, first.x.size(1), classes, 1, make_split, encoder)


def _graphs(part: InMemoryDataset, task: Task) -> GraphList:
    graphs = list(part)
    for data in graphs:
        data.y = data.y.long() if task is VOC else data.y.float().view(1, -1)
    return GraphList(graphs)


def _only(split: Split, index: int) -> Split:
    return split


def _spec(name: str, task: Task, size: str, licence: str) -> DatasetSpec:
    return DatasetSpec(
        name,
        task,
        size,
        licence,
        LRGBDataset.urls[name],
        partial(_load, name, task),
        NoOptions,
        _files(name),
        partial(_build, name),
    )


SPECS = (
    _spec("peptides-func", FUNC, "15,535 graphs of 151 nodes on average", "CC BY-NC 4.0"),
    _spec("peptides-struct", STRUCT, "15,535 graphs of 151 nodes on average", "CC BY-NC 4.0"),
    _spec("pascalvoc-sp", VOC, "11,355 graphs of 479 nodes on average", "Pascal VOC 2011 (custom)"),
)
