"""Where data lies: the data root, and the folder for what is computed from it."""

from __future__ import annotations

import os
import sys
from pathlib import Path


class MissingDataError(FileNotFoundError):
    """A dataset's files are not where they should be; the message says where, and how to get them.

    The message is the only argument: there may be several files, and no system call failed.
    """


def data_root(given: str | os.PathLike[str] | None = None) -> Path:
    """The folder of the datasets: ``given``, else ``$BUNN_DATA``, else the user's cache folder.

    It need not exist.
    """
    return _folder("root", given, "BUNN_DATA")


def cache_root(given: str | os.PathLike[str] | None = None) -> Path:
    """The folder of what can be computed again: ``given``, else ``$BUNN_CACHE``, else the user's
    cache folder. It need not exist.
    """
    return _folder("cache", given, "BUNN_CACHE")


def user_cache() -> Path:
    """``~/.cache/bunn``, or what the platform has for it."""
    home = Path.home()
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "bunn"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "bunn"
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # A relative path is to be ignored, says the XDG base directory specification.
    return (given if given.is_absolute() else home / ".cache") / "bunn"


def _folder(name: str, given: str | os.PathLike[str] | None, variable: str) -> Path:
    value = given or os.environ.get(variable)
    if not value:
        return user_cache()
    source = name if given else f"${variable}"
    folder = Path(value).expanduser().absolute()
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{source}={os.fspath(value)!r}; that is no folder; name a folder")
    return folder
