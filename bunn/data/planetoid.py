"""The citation graphs Cora, CiteSeer and PubMed with their public split, read by PyG.

As PyG hands them out: undirected, without self-loops or repeated edges; features as in the files,
not normalised; CiteSeer has isolated nodes.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from torch_geometric.datasets import Planetoid

from bunn.data.dataset import DatasetSpec, GraphDataset, Task
from bunn.data.mirror import read_processed
from bunn.data.options import NoOptions
from bunn.data.transductive import transductive

TASK = Task("node", "multiclass", "accuracy")
FOLDER = "planetoid"
RAW = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")


def _files(name: str) -> tuple[str, ...]:
    return tuple(f"{FOLDER}/{name}/raw/ind.{name.lower()}.{part}" for part in RAW)


def _build(name: str, folder: Path) -> Planetoid:
    return Planetoid(str(folder / FOLDER), name)


def _load(name: str, options: NoOptions, root: Path) -> GraphDataset:
    outputs = [f"{FOLDER}/{name}/processed/data.pt"]
    (graphs,) = read_processed(root, _files(name), outputs, partial(_build, name))
    return transductive(name.lower(), TASK, graphs[0])


def _spec(name: str, size: str) -> DatasetSpec:
    return DatasetSpec(
        name.lower(),
        TASK,
        size,
        "MIT",
        Planetoid.url,
        partial(_load, name),
        NoOptions,
        _files(name),
        partial(_build, name),
        transductive=True,
    )


SPECS = (
    _spec("Cora", "2,708 nodes, 5,278 edges"),
    _spec("CiteSeer", "3,327 nodes, 4,552 edges"),
    _spec("PubMed", "19,717 nodes, 44,324 edges"),
)
