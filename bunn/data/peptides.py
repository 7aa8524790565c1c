"""Peptides-func and Peptides-struct of the Long Range Graph Benchmark (Dwivedi et al.,
https://arxiv.org/abs/2206.08164), from the original files.

A table of SMILES and targets, and a pickle of the split. Molecules become graphs once, by the
featurisation of ``ogb`` on all cores; then they are read from one file of three megabytes, which
needs neither ``rdkit`` nor ``ogb``. It lies in the cache folder. Copied to
``peptides/NAME.npz`` below the data root of another machine, it stands for the original files.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import pickle
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import download_url
from tqdm.auto import tqdm

from bunn.data.dataset import PARTS, DatasetSpec, GraphDataset, Split, Task, only_split
from bunn.data.encoders import ATOM_FEATURES, BOND_FEATURES, AtomEncoder, BondEncoder
from bunn.data.mirror import check_archive, reading
from bunn.data.pack import Pack, PackedGraphs
from bunn.data.root import cache_root
from bunn.data.smiles import MissingPackageError, featurise
from bunn.data.transforms.cache import DamagedCacheWarning, UnwritableCacheWarning

FOLDER = "peptides"
TASKS = {
    "peptides-func": Task("graph", "multilabel", "average-precision"),
    "peptides-struct": Task("graph", "regression", "mae"),
}
#: Raise it when packed files change: old ones are made anew.
FORMAT = 1
#: The columns of targets of Peptides-struct.
PROPERTIES = (
    *("Inertia_mass_a", "Inertia_mass_b", "Inertia_mass_c"),
    *("Inertia_valence_a", "Inertia_valence_b", "Inertia_valence_c"),
    *("length_a", "length_b", "length_c", "Spherocity", "Plane_best_fit"),
)

#: Functions that a peptide may have, and properties.
OUTPUTS = {"peptides-func": 10, "peptides-struct": len(PROPERTIES)}
#: What a pickle of arrays calls.
ARRAY_PARTS = frozenset({"_reconstruct", "ndarray", "dtype", "scalar"})

Row = dict[str, str]
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class PeptidesOptions:
    """How the original files are read.

    Args:
        verify: Whether they have to be the published ones, by their checksums; without, any files
            of the same form will do. (default: :obj:`True`)
    """

    verify: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.verify, bool):
            raise TypeError(f"verify={self.verify!r}; neither true nor false; use one of them")


@dataclass(frozen=True)
class Original:
    """A published file.

    Args:
        file: Relative to the data root.
        md5: Its checksum.
        url: Where it comes from.
    """

    file: str
    md5: str
    url: str

    def read(self, root: Path, verify: bool) -> bytes:
        """Its content, if it is what was published."""
        content = (root / self.file).read_bytes()
        if verify and (md5 := hashlib.md5(content).hexdigest()) != self.md5:
            raise ValueError(f"md5 {md5} instead of {self.md5}")
        return content


_DROPBOX = "https://www.dropbox.com/s"
_SPLITS_MD5 = "5a0114bdadc80b94fc7ae974f13ef061"
#: Table and split of each, with the addresses and checksums that Dwivedi et al. publish.
ORIGINALS = {
    "peptides-func": (
        Original(
            f"{FOLDER}/peptide_multi_class_dataset.csv.gz",
            "701eb743e899f4d793f0e13c8fa5a1b4",
            f"{_DROPBOX}/ol2v01usvaxbsr8/peptide_multi_class_dataset.csv.gz?dl=1",
        ),
        Original(
            f"{FOLDER}/splits_random_stratified_peptide.pickle",
            _SPLITS_MD5,
            f"{_DROPBOX}/j4zcnx2eipuo0xz/splits_random_stratified_peptide.pickle?dl=1",
        ),
    ),
    "peptides-struct": (
        Original(
            f"{FOLDER}/peptide_structure_normalized_dataset.csv.gz",
            "c240c1c15466b5c907c63e180fa8aa89",
            f"{_DROPBOX}/0d4aalmq4b4e2nh/peptide_structure_normalized_dataset.csv.gz?dl=1",
        ),
        Original(
            f"{FOLDER}/splits_random_stratified_peptide_structure.pickle",
            _SPLITS_MD5,
            f"{_DROPBOX}/9dfifzft1hqgow6/splits_random_stratified_peptide_structure.pickle?dl=1",
        ),
    ),
}


def read_functions(rows: list[Row]) -> NDArray[np.float32]:
    """The ten labels of every peptide, a list in one column."""
    labels = np.array([json.loads(row["labels"]) for row in rows], dtype=np.float32)
    if labels.shape != (len(rows), OUTPUTS["peptides-func"]):
        raise ValueError(f"labels of {len(rows)} rows have shape {labels.shape}")
    return labels


def read_properties(rows: list[Row]) -> NDArray[np.float32]:
    """The eleven properties of every peptide, each with mean zero and variance one."""
    values = np.array([[float(row[name]) for name in PROPERTIES] for row in rows])
    standardised: NDArray[np.float64] = (values - values.mean(0)) / values.std(0, ddof=1)
    return standardised.astype(np.float32)


TARGETS: dict[str, Callable[[list[Row]], NDArray[np.float32]]] = {
    "peptides-func": read_functions,
    "peptides-struct": read_properties,
}


class _ArraysOnly(pickle.Unpickler):
    """A pickle of dictionaries, lists, numbers and arrays; whatever else it names is not called."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "numpy" and name in ARRAY_PARTS:
            # numpy.core, as older pickles have it, is numpy._core by now
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        raise pickle.UnpicklingError(f"it names {module}.{name}, which a split has no need of")


def read_splits(content: bytes, count: int) -> dict[str, NDArray[np.int32]]:
    """The rows of each part, from a pickle, without running what it may contain.

    Args:
        content: The pickle.
        count: The number of rows.
    """
    splits = _ArraysOnly(io.BytesIO(content)).load()
    parts = {}
    for part in PARTS:
        rows = np.asarray(splits[part])
        if rows.ndim != 1 or rows.size == 0 or not np.issubdtype(rows.dtype, np.integer):
            raise ValueError(f"its part {part!r} is no list of rows, one at least")
        parts[part] = rows.astype(np.int32)
    every = np.sort(np.concatenate(list(parts.values())))
    if not np.array_equal(np.unique(every), every) or every[0] < 0 or every[-1] >= count:
        raise ValueError(f"its parts are not rows of the {count} of the table, each once at most")
    return parts


def read_table(name: str, root: Path, verify: bool = True) -> tuple[list[str], Arrays]:
    """SMILES, and targets and parts, from the original files."""
    table, splits = ORIGINALS[name]
    with reading(root, [table.file]):
        text = gzip.decompress(table.read(root, verify)).decode("utf-8-sig")
        rows = list(csv.DictReader(io.StringIO(text)))
        smiles, targets = [row["smiles"] for row in rows], TARGETS[name](rows)
    with reading(root, [splits.file]):
        parts = read_splits(splits.read(root, verify), len(rows))
    return smiles, {"targets": targets, **parts}


def pack(name: str, root: Path, verify: bool = True) -> Arrays:
    """The original files as arrays: graphs, targets and parts."""
    smiles, arrays = read_table(name, root, verify)
    with tqdm(total=len(smiles), desc=f"molecules of {name}", disable=None) as bar:
        try:
            graphs = featurise(smiles, bar.update)
        except MissingPackageError as error:
            packed = root / packed_file(name)
            raise MissingPackageError(
                f"{error}; or copy {packed.name} from the cache folder of a machine that has it "
                f"to {packed}"
            ) from error
        except ValueError as error:
            with reading(root, [ORIGINALS[name][0].file]):
                raise error
    return {**graphs, **arrays, "source": _source(name, root)}


def packed_file(name: str) -> str:
    """What stands for the original files, relative to the data root."""
    return f"{FOLDER}/{name}.npz"


def _source(name: str, root: Path | None = None) -> NDArray[np.uint8]:
    """What a packed file is made of: checksums of the files below ``root``, or of the published
    ones, and the format of its own."""
    digest = hashlib.sha256(f"{name} {FORMAT}".encode())
    for original in ORIGINALS[name]:
        md5 = original.md5
        if root is not None:
            md5 = hashlib.md5((root / original.file).read_bytes()).hexdigest()
        digest.update(md5.encode())
    return np.frombuffer(digest.digest(), dtype=np.uint8)


def _read(path: Path) -> Arrays:
    check_archive(path)
    with np.load(path, allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in archive.files}
    sizes = (arrays["num_nodes"].sum(), arrays["num_bonds"].sum(), len(arrays["num_nodes"]))
    if sizes != tuple(len(arrays[key]) for key in ("atoms", "bonds", "targets")):
        raise ValueError("its arrays do not belong together")
    return arrays


def _carried(name: str, path: Path, verify: bool) -> Arrays:
    """A packed file that was brought here, and stands for the original ones."""
    try:
        arrays = _read(path)
        if verify and not np.array_equal(arrays["source"], _source(name)):
            raise ValueError("it was not made of the published files by this version")
    except Exception as error:
        files = " and ".join(original.file for original in ORIGINALS[name])
        raise ValueError(
            f"{path}; cannot be read ({type(error).__name__}: {error}), so damaged or of another "
            f"version; copy it anew, or delete it and put {files} below the data root"
        ) from error
    return arrays


def load_arrays(name: str, root: Path, verify: bool = True) -> Arrays:
    """Graphs, targets and parts; worked out once, then read from one file."""
    carried = root / packed_file(name)
    if carried.is_file():
        return _carried(name, carried, verify)
    source = _source(name, root)
    if verify and not np.array_equal(source, _source(name)):
        read_table(name, root)  # which says what is wrong
    path = cache_root() / FOLDER / f"{name}.npz"
    if path.is_file():
        try:
            arrays = _read(path)
            if np.array_equal(arrays["source"], source):
                return arrays
        except Exception as error:  # damage has many faces
            warnings.warn(
                f"{path} is damaged ({type(error).__name__}: {error}); it is made anew",
                DamagedCacheWarning,
                stacklevel=2,
            )
    arrays = pack(name, root, verify)
    try:
        _write(path, arrays)
    except OSError as error:
        warnings.warn(
            f"nothing can be kept in {path.parent} ({error.strerror or error}); molecules are read "
            "each time: set BUNN_CACHE to a writable folder with space left",
            UnwritableCacheWarning,
            stacklevel=2,
        )
    return arrays


def _write(path: Path, arrays: Arrays) -> None:
    """Puts a file in its place in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="building-") as folder:
        draft = Path(folder) / path.name
        np.savez_compressed(draft, allow_pickle=False, **arrays)
        draft.replace(path)


def _load(name: str, options: PeptidesOptions, root: Path) -> GraphDataset:
    arrays = load_arrays(name, root, options.verify)
    graphs = packed_graphs(arrays)
    members = {part: PackedGraphs(graphs, torch.from_numpy(arrays[part]).long()) for part in PARTS}
    return described(name, partial(only_split, Split(**members)))


def described(name: str, make_split: Callable[[int], Split]) -> GraphDataset:
    """A dataset of peptides, with the sizes that models are built for."""
    return GraphDataset(
        name,
        TASKS[name],
        len(ATOM_FEATURES),
        OUTPUTS[name],
        1,
        make_split,
        AtomEncoder,
        len(BOND_FEATURES),
        BondEncoder,
    )


def packed_graphs(arrays: Arrays) -> Pack:
    """All graphs, with both directions of every bond, one after the other."""
    bonds = torch.from_numpy(arrays["bonds"].astype(np.int64))
    both = torch.stack((bonds, bonds.flip(1)), dim=1).view(-1, 2)  # as ogb lists them
    features = torch.from_numpy(arrays["bond_features"]).long().repeat_interleave(2, dim=0)
    return Pack(
        torch.from_numpy(arrays["num_nodes"].astype(np.int64)),
        torch.from_numpy(2 * arrays["num_bonds"].astype(np.int64)),
        both.T.contiguous(),
        nodes={"x": torch.from_numpy(arrays["atoms"]).long()},
        edges={"edge_attr": features},
        graphs={"y": torch.from_numpy(arrays["targets"])},
    )


def _download(name: str, folder: Path) -> None:
    for original in ORIGINALS[name]:
        file = folder / original.file
        download_url(original.url, str(file.parent), filename=file.name)


def _spec(name: str) -> DatasetSpec:
    return DatasetSpec(
        name,
        TASKS[name],
        "15,535 graphs of 151 nodes on average",
        "CC BY-NC 4.0",
        " and ".join(original.url for original in ORIGINALS[name]),
        partial(_load, name),
        PeptidesOptions,
        tuple(original.file for original in ORIGINALS[name]),
        partial(_download, name),
        packed=packed_file(name),
    )


SPECS = tuple(map(_spec, TASKS))
