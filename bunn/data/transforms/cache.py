"""Results kept on disk, found again by the content of what they were computed from."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bunn.data.root import user_cache

#: Part of every key: raise it when a result or its file changes, and old files are not looked at.
FORMAT = 1
#: The array in a file that holds the digest of all others.
DIGEST = "digest"
#: Names that no array may have: that one, and the arguments of :func:`numpy.savez`.
RESERVED = (DIGEST, "file", "allow_pickle")
#: Seconds after which a temporary file has been left by a process that is no more.
ABANDONED = 24 * 3600.0

#: What a result may depend on.
Input = Tensor | int | float | str | None


class CacheWarning(UserWarning):
    """The cache could not do its work; the result is right, but it was computed."""


class DamagedCacheWarning(CacheWarning):
    """A file of the cache cannot be read or is not what was written; it is replaced."""


class UnwritableCacheWarning(CacheWarning):
    """A result cannot be kept: the folder is not writable, or the disk is full."""


def cache_root() -> Path:
    """``$BUNN_CACHE``, else the folder ``bunn/computed`` in the user's cache folder."""
    if chosen := os.environ.get("BUNN_CACHE"):
        return Path(chosen).expanduser()
    return user_cache() / "computed"


@dataclass(frozen=True)
class DiskCache:
    """Tensors on disk, one file per result, named by a hash of all it was computed from.

    A file is complete or absent: it is written beside its place and moved there in one step, so
    that processes may share a folder without locks. Each file holds a digest of its content; one
    that does not match is computed anew, with a :class:`DamagedCacheWarning`. Where nothing can be
    written, results are computed and an :class:`UnwritableCacheWarning` says why. Files are NumPy
    archives, never pickles. Nothing is ever deleted: remove the folder to free its space.

    Args:
        folder: Where files are kept. (default: :func:`cache_root`)
    """

    folder: Path | str | None = None

    def __post_init__(self) -> None:
        folder = cache_root() if self.folder is None else Path(self.folder).expanduser()
        object.__setattr__(self, "folder", folder)

    def path(self, name: str, inputs: Mapping[str, Input]) -> Path:
        """The file of a result, whether it is there or not."""
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name):
            raise ValueError(f"name={name!r}; use lower case letters, digits, '.', '_' and '-'")
        assert isinstance(self.folder, Path)
        return self.folder / name / f"{_key(name, inputs)}.npz"

    def load_or_compute(
        self,
        name: str,
        inputs: Mapping[str, Input],
        compute: Callable[[], Mapping[str, Tensor]],
    ) -> dict[str, Tensor]:
        """The result of ``compute()``, from disk if it has been computed before.

        Args:
            name: What is computed; with ``inputs`` it must determine the result.
            inputs: All the result depends on. Tensors count by type, shape and content.
            compute: Called without arguments where there is no result yet.

        Returns:
            Tensors on the CPU without gradients, by name.
        """
        path = self.path(name, inputs)
        try:
            return _read(path)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except Exception as error:  # a damaged archive raises anything from EOFError to MemoryError
            warnings.warn(
                f"{path} is damaged ({type(error).__name__}: {error}); it is computed anew",
                DamagedCacheWarning,
                stacklevel=2,
            )
        result = {key: value.detach().cpu() for key, value in compute().items()}
        content = _archive(path.stem, result)
        try:
            _write(path, content)
        except OSError as error:
            # The text is the same for all files of a folder, so that Python shows it once.
            warnings.warn(
                f"nothing can be kept in {path.parent} ({error.strerror or error}); results are "
                "computed each time: set BUNN_CACHE to a writable folder with space left",
                UnwritableCacheWarning,
                stacklevel=2,
            )
        return result


def _key(name: str, inputs: Mapping[str, Input]) -> str:
    """The name of a file: a hash of everything the result depends on."""
    digest = hashlib.sha256(f"bunn {FORMAT} {name}\n".encode())
    for key in sorted(inputs):
        value = inputs[key]
        if isinstance(value, Tensor):
            entries = torch.empty(value.numel(), dtype=value.dtype).copy_(value.detach().flatten())
            digest.update(f"{key!r} {value.dtype} {tuple(value.shape)}\n".encode())
            digest.update(entries.view(torch.uint8).numpy().data)
        elif value is None or isinstance(value, int | float | str):
            digest.update(f"{key!r} {type(value).__name__} {value!r}\n".encode())
        else:
            raise TypeError(
                f"inputs[{key!r}] is a {type(value).__name__}; pass a tensor, a number, a string "
                "or None"
            )
    return digest.hexdigest()


def _digest(key: str, arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
    """``(32,)`` bytes that change with the key and with any name, type, shape or entry."""
    digest = hashlib.sha256(key.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name!r} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return np.frombuffer(digest.digest(), dtype=np.uint8)


def _archive(key: str, result: Mapping[str, Tensor]) -> memoryview:
    arrays: dict[str, Any] = {}
    for name, value in result.items():
        if name in RESERVED:
            raise ValueError(f"the result has a tensor named {name!r}; this name is taken")
        try:
            arrays[name] = value.numpy()
        except TypeError:
            raise TypeError(
                f"the result {name!r} has dtype {value.dtype}, which NumPy does not have; convert "
                "it to float32"
            ) from None
    buffer = io.BytesIO()
    np.savez(buffer, **(arrays | {DIGEST: _digest(key, arrays)}))
    return buffer.getbuffer()


def _read(path: Path) -> dict[str, Tensor]:
    """The tensors in a file; any exception but a missing file means that it is damaged."""
    with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    digest = arrays.pop(DIGEST)
    if not np.array_equal(digest, _digest(path.stem, arrays)):
        raise ValueError("its digest does not match its content")
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _write(path: Path, content: memoryview) -> None:
    """Puts a file in its place in one step, whatever other processes do at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path.parent)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:  # also where the user interrupts
        temporary.unlink(missing_ok=True)
        raise


@functools.cache
def _sweep(folder: Path) -> None:
    """Removes, once per process, the temporary files of processes that were killed."""
    for temporary in folder.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - temporary.stat().st_mtime > ABANDONED:
                temporary.unlink()
