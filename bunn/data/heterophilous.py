"""The heterophilous graphs of Platonov et al. (https://arxiv.org/abs/2302.11640).

The five they introduce are read by PyG. Their versions of older ones (chameleon and squirrel
without the nodes that leak) are in the same format, for which PyG has no class. All are made
undirected, as the benchmark does; none has self-loops; each has ten splits.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data, download_url
from torch_geometric.datasets import HeterophilousGraphDataset
from torch_geometric.utils import to_undirected

from bunn.data.dataset import DatasetSpec, GraphDataset, Task
from bunn.data.mirror import check_archive, read_processed, reading
from bunn.data.options import NoOptions
from bunn.data.transductive import MASKS, transductive

MULTICLASS = Task("node", "multiclass", "accuracy")
BINARY = Task("node", "binary", "roc-auc")
SMALL_FOLDER = "heterophilous-small"
ARRAYS = ("node_features", "node_labels", "edges", "train_masks", "val_masks", "test_masks")


def read_npz(path: Path) -> Data:
    """A graph in the format of the benchmark, undirected.

    Args:
        path: A file with ``node_features`` ``(n, c)``, ``node_labels`` ``(n,)``, ``edges``
            ``(e, 2)`` and ``train_masks``, ``val_masks``, ``test_masks`` ``(num_splits, n)``.

    Returns:
        ``x`` ``(n, c)``, ``y`` ``(n,)``, ``edge_index`` ``(2, 2e)`` and the three masks
        ``(n, num_splits)``.
    """
    check_archive(path)
    with np.load(path, allow_pickle=False) as arrays:
        features, labels, edges, *masks = (torch.from_numpy(arrays[name]) for name in ARRAYS)
    n = len(features)
    if labels.shape != (n,) or any(mask.shape[1:] != (n,) for mask in masks):
        raise ValueError(f"labels or masks are not for the {n} nodes of node_features")
    edge_index = to_undirected(edges.t().contiguous().long(), num_nodes=n)
    columns = {name: mask.t().contiguous() for name, mask in zip(MASKS, masks, strict=True)}
    return Data(x=features, edge_index=edge_index, y=labels, **columns)


def _load(name: str, task: Task, options: NoOptions, root: Path) -> GraphDataset:
    file = _file(name)
    outputs = [f"{file.split('/')[0]}/processed/data.pt"]
    (graphs,) = read_processed(root, [file], outputs, partial(_process, name))
    return transductive(name, task, graphs[0])


def _load_small(name: str, options: NoOptions, root: Path) -> GraphDataset:
    file = _small_file(name)
    with reading(root, [file]):
        data = read_npz(root / file)
    return transductive(name, MULTICLASS, data)


def _process(name: str, folder: Path) -> None:
    check_archive(folder / _file(name))
    _build(name, folder)


def _build(name: str, folder: Path) -> HeterophilousGraphDataset:
    return HeterophilousGraphDataset(str(folder), name)


def _download_small(name: str, folder: Path) -> None:
    file = _small_file(name)
    url = f"{HeterophilousGraphDataset.url}/{Path(file).name}"
    download_url(url, str((folder / file).parent))


def _file(name: str) -> str:
    stem = name.replace("-", "_")
    return f"{stem}/raw/{stem}.npz"


def _small_file(name: str) -> str:
    return f"{SMALL_FOLDER}/{name.replace('-', '_')}.npz"


def _spec(name: str, task: Task, size: str) -> DatasetSpec:
    return DatasetSpec(
        name,
        task,
        size,
        "MIT",
        f"{HeterophilousGraphDataset.url}/{Path(_file(name)).name}",
        partial(_load, name, task),
        NoOptions,
        (_file(name),),
        partial(_build, name),
        transductive=True,
    )


def _small_spec(name: str, size: str) -> DatasetSpec:
    return DatasetSpec(
        name,
        MULTICLASS,
        size,
        "MIT",
        f"{HeterophilousGraphDataset.url}/{Path(_small_file(name)).name}",
        partial(_load_small, name),
        NoOptions,
        (_small_file(name),),
        partial(_download_small, name),
        transductive=True,
    )


SPECS = (
    _spec("roman-empire", MULTICLASS, "22,662 nodes, 32,927 edges"),
    _spec("amazon-ratings", MULTICLASS, "24,492 nodes, 93,050 edges"),
    _spec("minesweeper", BINARY, "10,000 nodes, 39,402 edges"),
    _spec("tolokers", BINARY, "11,758 nodes, 519,000 edges"),
    _spec("questions", BINARY, "48,921 nodes, 153,540 edges"),
    _small_spec("actor", "7,600 nodes, 26,659 edges"),
    _small_spec("cornell", "183 nodes, 277 edges"),
    _small_spec("texas", "183 nodes, 279 edges"),
    _small_spec("wisconsin", "251 nodes, 450 edges"),
    _small_spec("chameleon-filtered", "890 nodes, 8,854 edges"),
    _small_spec("squirrel-filtered", "2,223 nodes, 46,998 edges"),
)
