"""Small files in the formats of the original ones."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import os
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch

from bunn.data import DATASETS, peptides
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


def write_pascal(folder: Path) -> None:
    """Three files of a few paths each."""
    for count, part in enumerate(("train", "val", "test"), start=2):
        write(folder / f"{part}.pickle", pickle.dumps([_picture(3 + i) for i in range(count)]))


def _picture(n: int) -> tuple[object, ...]:
    path = torch.stack((torch.arange(n - 1), torch.arange(1, n)))
    edge_index = torch.cat((path, path.flip(0)), 1)
    return torch.randn(n, 14), torch.rand(2 * n - 2, 2), edge_index, [v % 21 for v in range(n)]


#: Small molecules: chains, rings, charges, one of a single atom, one in two pieces.
SMILES = (
    *("CC(=O)O", "c1ccccc1", "NCC(=O)NCC(=O)O", "C", "CC[C@H](C)N", "[NH4+].[Cl-]"),
    *("C1CCCCC1O", "N[C@@H](CO)C(=O)O", "O=C(O)c1ccccc1"),
)


def write_peptides(root: Path, name: str, smiles: Sequence[str] = SMILES) -> None:
    """A table and a split in the format of the benchmark; and says that these are published."""
    random, count = np.random.default_rng(0), len(smiles)
    if name == "peptides-func":
        targets = {"labels": [str(row.tolist()) for row in random.integers(0, 2, (count, 10))]}
    else:
        values = random.standard_normal((count, 11))
        targets = {key: values[:, i].tolist() for i, key in enumerate(peptides.PROPERTIES)}
    text = io.StringIO()
    columns = {"": range(count), "smiles": smiles, **targets, "identifier": range(count)}
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    order = random.permutation(count)
    ends = (2 * count // 9, 5 * count // 9)  # of nine 2, 3 and 4
    parts = dict(zip(("train", "val", "test"), np.split(order, ends), strict=True))
    contents = (gzip.compress(text.getvalue().encode(), mtime=0), pickle.dumps(parts))
    published = []
    for original, content in zip(peptides.ORIGINALS[name], contents, strict=True):
        write(root / original.file, content)
        published.append(replace(original, md5=hashlib.md5(content).hexdigest()))
    peptides.ORIGINALS[name] = (published[0], published[1])


def write_dataset(root: Path, name: str) -> None:
    """The files of a dataset of the registry, in small."""
    file = root / DATASETS[name].files[0]
    if file.suffix == ".npz":
        write_npz(file, classes=2 if DATASETS[name].task.kind == "binary" else 3)
    elif file.parent.name == "peptides":
        write_peptides(root, name)
    elif file.parts[-4] == "planetoid":
        write_planetoid(file.parent, name)
    else:
        write_pascal(file.parent)


def real_root(name: str) -> Path:
    """The data root of the original files, if it is set and has them."""
    root = os.environ.get("BUNN_DATA")
    if not root or not DATASETS[name].is_present(Path(root)):
        pytest.skip(f"$BUNN_DATA has no {name}")
    return Path(root)
