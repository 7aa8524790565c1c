"""Small files in the formats of the original ones."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch

from bunn.data import DATASETS
from bunn.data.planetoid import RAW


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def write_npz(path: Path, num_nodes: int = 30, classes: int = 3, **changed: np.ndarray) -> None:
    """The format of the heterophilous benchmark: a directed path and random everything else."""
    random = np.random.default_rng(0)
    part = np.stack([random.permutation(num_nodes) % 4 for _ in range(10)])
    arrays = {
        "node_features": random.standard_normal((num_nodes, 5)).astype(np.float32),
        "node_labels": np.arange(num_nodes) % classes,
        "edges": np.stack((np.arange(num_nodes - 1), np.arange(1, num_nodes)), axis=1),
        "train_masks": part < 2,
        "val_masks": part == 2,
        "test_masks": part == 3,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **(arrays | changed))


def write_planetoid(folder: Path, name: str) -> None:
    """Eight files: 6 training nodes, 504 others with labels, 4 to test, in a cycle."""
    n, train, test = 514, 6, 4
    features = scipy.sparse.csr_matrix(np.eye(n, 7, dtype=np.float32) + 1)
    labels = np.eye(3, dtype=np.int32)[np.arange(n) % 3]
    parts = {
        "x": features[:train],
        "tx": features[n - test :],
        "allx": features[: n - test],
        "y": labels[:train],
        "ty": labels[n - test :],
        "ally": labels[: n - test],
        "graph": {v: [(v - 1) % n, (v + 1) % n, v] for v in range(n)},
    }
    for part in RAW:
        path = folder / f"ind.{name}.{part}"
        if part == "test.index":
            write(path, "".join(f"{v}\n" for v in range(n - test, n)).encode())
        else:
            write(path, pickle.dumps(parts[part]))


def write_lrgb(folder: Path, name: str) -> None:
    """Three files of a few paths each."""
    for count, part in enumerate(("train", "val", "test"), start=2):
        graphs = [_lrgb_graph(name, 3 + i) for i in range(count)]
        folder.mkdir(parents=True, exist_ok=True)
        if name == "pascalvoc-sp":
            write(folder / f"{part}.pickle", pickle.dumps(graphs))
        else:
            torch.save(graphs, folder / f"{part}.pt")


def _lrgb_graph(name: str, n: int) -> tuple[torch.Tensor, ...]:
    path = torch.stack((torch.arange(n - 1), torch.arange(1, n)))
    edge_index = torch.cat((path, path.flip(0)), 1)
    if name == "pascalvoc-sp":
        x, edge_attr, y = torch.randn(n, 14), torch.rand(2 * n - 2, 2), [v % 21 for v in range(n)]
    else:
        x, edge_attr = torch.ones(n, 9, dtype=torch.long), torch.ones(2 * n - 2, 3)
        y = torch.ones(1, 10) if name == "peptides-func" else torch.randn(1, 11)
    return x, edge_attr, edge_index, y


def write_dataset(root: Path, name: str) -> None:
    """The files of a dataset of the registry, in small."""
    file = root / DATASETS[name].files[0]
    if file.suffix == ".npz":
        write_npz(file, classes=2 if DATASETS[name].task.kind == "binary" else 3)
    elif file.parts[-4] == "planetoid":
        write_planetoid(file.parent, name)
    else:
        write_lrgb(file.parent, name)


def real_root(name: str) -> Path:
    """The data root of the original files, if it is set and has them."""
    root = os.environ.get("BUNN_DATA")
    if not root or not DATASETS[name].is_present(Path(root)):
        pytest.skip(f"$BUNN_DATA has no {name}")
    return Path(root)
