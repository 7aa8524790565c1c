"""With what a number was measured: versions, device, commit."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import TypedDict

import torch

import bunn

#: Everything that could change a number.
PACKAGES = ("torch", "torch_geometric", "lightning", "torchmetrics", "numpy")


class Environment(TypedDict):
    """The fields of a :class:`~bunn.experiments.results.Result` that the machine decides."""

    versions: dict[str, str]
    device: str
    git_commit: str


def environment(device: str | torch.device = "cpu") -> Environment:
    """The versions of all that matters, ``device`` in words, and the commit of this package.

    What is not installed has the version ``"not installed"``.
    """
    versions = {"bunn": bunn.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return Environment(
        versions=versions,
        device=_device_name(torch.device(device)),
        git_commit=_own_commit(),
    )


@functools.cache
def _own_commit() -> str:
    """The commit that this process runs, whatever is committed while it does."""
    return git_commit(Path(bunn.__file__).parent)


def git_commit(package: Path) -> str:
    """The commit of the checkout that ``package`` is part of.

    ``"+dirty"`` follows if the code was modified since: any tracked file but those in ``results/``,
    which measuring itself changes, or a new file in the package. Without git, or outside a
    checkout, ``"unknown"``. ``$BUNN_COMMIT`` says it for a copy that was taken elsewhere.
    """
    if told := os.environ.get("BUNN_COMMIT"):
        return told
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return "unknown"  # perhaps inside a repository, but no part of it: an installed copy
    commit = _git(package, "rev-parse", "HEAD")
    tracked = ("status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)results")
    modified = _git(package, *tracked)
    added = _git(package, "ls-files", "--others", "--exclude-standard", ".")
    if commit is None or modified is None or added is None:
        return "unknown"
    return commit + ("+dirty" if modified or added else "")


def _git(folder: Path, *arguments: str) -> str | None:
    """What git says in ``folder``, or ``None`` if it says no or is not there."""
    # A hook of git sets variables that point git at another repository than the folder's.
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        answer = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(folder), *arguments],
            capture_output=True,
            check=False,
            env=clean,
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if answer.returncode else answer.stdout.decode(errors="replace").strip()


def _device_name(device: torch.device) -> str:
    """``"NVIDIA H100"``, or the processor and how many threads are used."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return str(device)
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        lines = info.read_text(errors="replace").splitlines()
        models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        name = models[0] if models else name
    return f"{name}, {torch.get_num_threads()} threads"
