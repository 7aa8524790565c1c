"""Every dataset by name."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from bunn.data import (
    heterophilous,
    lrgb,
    minesweeper,
    neighborsmatch,
    peptides,
    planetoid,
    synthetic,
)
from bunn.data.dataset import DatasetSpec, GraphDataset
from bunn.data.root import data_root
from bunn.names import did_you_mean

_SOURCES = (synthetic, neighborsmatch, minesweeper, heterophilous, planetoid, peptides, lrgb)

#: Every dataset, by name.
DATASETS: dict[str, DatasetSpec] = {spec.name: spec for module in _SOURCES for spec in module.SPECS}


def load_dataset(
    name: str,
    root: str | os.PathLike[str] | None = None,
    options: Any = None,
    *,
    download: bool = False,
) -> GraphDataset:
    """Loads a dataset.

    Args:
        name: A key of :data:`DATASETS`.
        root: The data root. (default: that of :func:`data_root`)
        options: The dataset's options, see ``DATASETS[name].options``. (default: their defaults)
        download: Whether files that are not there may be fetched from the net. (default:
            :obj:`False`)

    Raises:
        MissingDataError: The files are not there; the message says where they should be.
        ValueError: There is no such dataset, or a file is damaged.
    """
    spec = dataset_spec(name)
    options = spec.options() if options is None else options
    if not isinstance(options, spec.options):
        raise TypeError(
            f"options={options!r}; not the options of {name}; pass a "
            f"{spec.options.__module__}.{spec.options.__name__}"
        )
    folder = data_root(root)
    if download and not spec.is_present(folder):
        _fetch(spec, folder)
    spec.require(folder)
    return spec.load(options, folder)


def dataset_spec(name: str) -> DatasetSpec:
    """``DATASETS[name]``, with a helpful error for a name that is not there."""
    if name not in DATASETS:
        raise ValueError(
            f"name={name!r}; no such dataset{did_you_mean(name, DATASETS, '; ') or '.'} All: "
            f"{', '.join(DATASETS)}"
        )
    return DATASETS[name]


def _fetch(spec: DatasetSpec, root: Path) -> None:
    """Downloads beside the files' places and moves them there, so that none is ever half there."""
    assert spec.download is not None  # a generated dataset has no files to miss
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix="download-") as folder:
        try:
            spec.download(Path(folder))
        except Exception as error:  # PyG's downloads fail in as many ways as the net does
            reason = f"the download failed ({type(error).__name__}: {error})"
            spec.require(root, reason)
        for file in spec.files:
            if (Path(folder) / file).is_file():
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                (Path(folder) / file).replace(root / file)
