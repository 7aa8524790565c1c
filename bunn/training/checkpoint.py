"""Checkpoints that a kill at any moment leaves whole.

A checkpoint is a folder of safetensors files and one JSON file. It is written under another name,
flushed, renamed, and only then named by the manifest ``last.json``, which is itself replaced in one
step and holds the checksum of every file. The one before stays, as ``previous.json``. So at any
moment the manifest names a whole checkpoint, and a file that was cut short or swapped is found out
before anything is read from it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bunn.files import write_atomically

FORMAT = "bunn-checkpoint"
VERSION = 1

Tensors = dict[str, Tensor]


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or must not be read."""


@dataclass(frozen=True)
class Snapshot:
    """What a checkpoint holds: tensors by file, and plain values.

    Args:
        tensors: File name, without its ending, to tensors by name.
        values: Anything JSON can hold.
    """

    tensors: dict[str, Tensors]
    values: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run, or of several that are trained together.

    Args:
        folder: Where they live.
        identity: What the checkpoint must belong to: a digest of the configuration.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        self.folder, self.identity = folder, identity

    def save(self, snapshot: Snapshot, label: str) -> Path:
        """Writes a checkpoint and lets the manifest name it.

        Returns:
            The folder with its files.
        """
        target = self._unused(label)
        work = self.folder / f".{target.name}.part"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            for name, tensors in snapshot.tensors.items():
                # Copies: parameters that layers share would share memory, which the format forbids.
                own = {key: value.detach().to("cpu", copy=True) for key, value in tensors.items()}
                own = {key: value.contiguous() for key, value in own.items()}
                save_file(own, work / f"{name}.safetensors")
            (work / "values.json").write_text(json.dumps(snapshot.values))
            digests = {file.name: _flushed_digest(file) for file in sorted(work.iterdir())}
            work.rename(target)
            manifest = {
                "format": FORMAT,
                "version": VERSION,
                "identity": self.identity,
                "folder": target.name,
                "files": digests,
            }
            last, previous = self.folder / "last.json", self.folder / "previous.json"
            if last.exists():
                write_atomically(previous, last.read_text())
            write_atomically(last, json.dumps(manifest, indent=2) + "\n")
        except (OSError, SafetensorError) as error:
            shutil.rmtree(work, ignore_errors=True)
            raise CheckpointError(
                f"the checkpoint {target} could not be written: {error}. The one before it is "
                "untouched; make room or make the folder writable, then resume"
            ) from error
        self._forget_all_but(last, previous)
        return target

    def load(self) -> Snapshot | None:
        """The last checkpoint; :obj:`None` if there is none yet."""
        manifest = self._manifest()
        return None if manifest is None else self._read(manifest)

    def folder_of_last(self) -> Path | None:
        """The files of the last checkpoint; :obj:`None` if there is none yet."""
        manifest = self._manifest()
        return None if manifest is None else self.folder / _parse(manifest)["folder"]

    def _manifest(self) -> Path | None:
        manifests = (self.folder / "last.json", self.folder / "previous.json")
        return next((manifest for manifest in manifests if manifest.exists()), None)

    def _unused(self, label: str) -> Path:
        """A folder that is not there yet: one that is there may be all that there is."""
        target, count = self.folder / label, 1
        while target.exists():
            count += 1
            target = self.folder / f"{label}.{count}"
        return target

    def _read(self, manifest: Path) -> Snapshot:
        content = _parse(manifest)
        if content["identity"] != self.identity:
            raise CheckpointError(
                f"{manifest} belongs to an experiment with another configuration or other splits "
                "and seeds; resume with those it was started with, or train into another folder"
            )
        folder = self.folder / content["folder"]
        for name, digest in content["files"].items():
            if not (folder / name).is_file():
                raise self._damaged(manifest, folder / name, "is missing")
            if _digest(folder / name) != digest:
                raise self._damaged(manifest, folder / name, "is damaged: its checksum has changed")
        tensors = {
            name.removesuffix(".safetensors"): load_file(folder / name)
            for name in content["files"]
            if name.endswith(".safetensors")
        }
        return Snapshot(tensors, json.loads((folder / "values.json").read_text()))

    def _damaged(self, manifest: Path, file: Path, what: str) -> CheckpointError:
        advice = "restore it, or train into another folder"
        with contextlib.suppress(CheckpointError):
            if _parse(self.folder / "previous.json")["folder"] != file.parent.name:
                advice = f"remove {manifest} to go on from the checkpoint before it"
        return CheckpointError(f"{file} {what}; nothing was changed: {advice}")

    def _forget_all_but(self, *manifests: Path) -> None:
        kept = {_parse(manifest)["folder"] for manifest in manifests if manifest.exists()}
        for entry in self.folder.iterdir():
            if entry.is_dir() and entry.name not in kept:
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.suffix == ".tmp":  # left by a process that was killed
                entry.unlink(missing_ok=True)


def _parse(manifest: Path) -> dict[str, Any]:
    try:
        content = json.loads(manifest.read_text())
        foreign = content.get("format") != FORMAT or content.get("version") != VERSION
        whole = foreign or all(content[key] for key in ("identity", "folder", "files"))
    except (OSError, ValueError, AttributeError, KeyError) as error:
        content, foreign, whole = error, False, False
    if foreign:
        raise CheckpointError(
            f"{manifest} is no checkpoint of this version of bunn (format="
            f"{content.get('format')!r}, version={content.get('version')!r}); nothing was changed: "
            "train into another folder"
        )
    if not whole:
        raise CheckpointError(
            f"{manifest} is damaged ({content}); nothing was changed: restore it, remove it to go "
            "on from the checkpoint before it, or train into another folder"
        )
    parsed: dict[str, Any] = content
    return parsed


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flushed_digest(path: Path) -> str:
    """The checksum of a file that is on the disk, not only on its way there."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def pack_optimizer(optimizer: torch.optim.Optimizer) -> tuple[Tensors, dict[str, Any]]:
    """The state of an optimiser as tensors and plain values."""
    state = optimizer.state_dict()
    tensors = {
        f"{index}.{key}": value
        for index, entries in state["state"].items()
        for key, value in entries.items()
    }
    return tensors, {"groups": state["param_groups"]}


def unpack_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Tensors, values: dict[str, Any]
) -> None:
    """Gives an optimiser the state that :func:`pack_optimizer` took."""
    state: dict[int, Tensors] = {}
    for name, value in tensors.items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = value.clone()  # not a view of the file
    groups = [{**group, "betas": tuple(group["betas"])} for group in values["groups"]]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
