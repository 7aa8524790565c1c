"""Reading raw files through PyG where the data root may be read-only.

PyG's dataset classes write what they compute beside what they read. They are therefore run in a
private folder that holds links to the raw files, and what they computed is kept in the cache
folder, under a name made of the raw files' paths, sizes and times. A file gets there whole, by
renaming: two processes at once each do the work, and either result is good. A damaged one is
computed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch_geometric
from torch_geometric.data import InMemoryDataset

from bunn.data.root import cache_root


def read_processed(
    root: Path, files: Sequence[str], outputs: Sequence[str], process: Callable[[Path], object]
) -> list[InMemoryDataset]:
    """What PyG makes of raw files, computed once.

    Args:
        root: The data root.
        files: The raw files, relative to ``root``. They exist: nothing is ever downloaded.
        outputs: What ``process`` writes, relative to its folder, in files of different names.
        process: Builds the PyG dataset on a folder with the layout of ``root``.

    Returns:
        One dataset per output.
    """
    folder = cache_root() / "processed" / _fingerprint(root, files)
    cached = [folder / Path(output).name for output in outputs]
    if all(_is_sound(path) for path in cached):
        with contextlib.suppress(Exception):  # what is sound may still be foreign
            return [_load(path) for path in cached]
    with _workspace(folder.parent) as mirror:
        for file in files:
            _link(root / file, mirror / file)
        with reading(root, files), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old pickles name what numpy and scipy have renamed
            process(mirror)
        datasets = [_load(mirror / output) for output in outputs]
        with contextlib.suppress(OSError):  # no cache is no error
            folder.mkdir(parents=True, exist_ok=True)
            for output, path in zip(outputs, cached, strict=True):
                (mirror / output).replace(path)
    return datasets


@contextlib.contextmanager
def reading(root: Path, files: Sequence[str]) -> Iterator[None]:
    """Turns whatever goes wrong in reading raw files into a :class:`ValueError` that names them."""
    try:
        yield
    except Exception as error:
        # Not the fault of the files: a full disk, no permission, no memory.
        if isinstance(error, MemoryError) or getattr(error, "errno", None) is not None:
            raise
        paths = ", ".join(str(root / file) for file in files)
        raise ValueError(
            f"{paths}; cannot be read ({type(error).__name__}: {error}), so damaged or not the "
            "original; delete and get anew"
        ) from error


def _fingerprint(root: Path, files: Sequence[str]) -> str:
    digest = hashlib.sha256(torch_geometric.__version__.encode())
    for file in files:
        status = (root / file).stat()
        key = (str((root / file).resolve()), status.st_size, status.st_mtime_ns)
        digest.update(repr(key).encode())
    return digest.hexdigest()[:24]


def check_archive(path: Path) -> None:
    """Raises an error unless ``path`` is a whole zip archive, such as numpy and torch write.

    Loading one checks no checksums (torch), or leaves the file open when it fails (numpy).
    """
    with zipfile.ZipFile(path) as archive:
        member = archive.testzip()
    if member is not None:
        raise zipfile.BadZipFile(f"bad checksum of {member}")


def _is_sound(path: Path) -> bool:
    try:
        check_archive(path)
    except Exception:  # absence is one thing; damage has many faces
        return False
    return True


def _load(path: Path) -> InMemoryDataset:
    dataset = InMemoryDataset()
    dataset.load(str(path))
    return dataset


@contextlib.contextmanager
def _workspace(parent: Path) -> Iterator[Path]:
    """A private folder, in ``parent`` if that can be written to."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        made = tempfile.TemporaryDirectory(dir=parent, prefix="building-")
    except OSError:
        made = tempfile.TemporaryDirectory(prefix="bunn-")
    with made as folder:
        yield Path(folder)


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.symlink(source.resolve(), target)
    except OSError:  # where links are a privilege
        shutil.copyfile(source, target)
