"""Errors that a user can do something about, as one message instead of a traceback."""

from __future__ import annotations

import io
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import typer

#: What a shell makes of Ctrl-C.
INTERRUPTED = 130


@contextmanager
def explained(going_on: str = "") -> Iterator[None]:
    """Turns the errors of data, configuration, folders and training into messages.

    Exits with 2 where the command was not right, with 1 where it could not be carried out, with
    130 after Ctrl-C. Warnings become messages too.

    Args:
        going_on: Which options go on in a run folder or choose another. (default: nothing is said)
    """
    with warnings.catch_warnings():
        warnings.showwarning = _say
        try:
            yield
        except KeyboardInterrupt as error:
            _fail(
                error, "stopped at once; a training goes on from its last checkpoint", INTERRUPTED
            )
        except Exception as error:
            code = _exit_code(error)
            if code is None:  # a defect: its traceback is what helps
                raise
            of_a_folder = _is_a(error, "RunFolderError", "CheckpointError", "InterruptedRunError")
            hint = f" ({going_on})" if going_on and of_a_folder else ""
            _fail(error, f"{error}{hint}", code)


@contextmanager
def writing(path: Path, option: str) -> Iterator[None]:
    """Says what could not be written, and which option would put it elsewhere."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"{path} cannot be written: {error}; make room, or choose another place with {option}"
        ) from error


def ensure_writable(folder: Path, option: str) -> None:
    """Makes a folder, and an error right away where nothing can be written to it."""
    with writing(folder, option):
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()


def _exit_code(error: Exception) -> int | None:
    """The exit code of an error that a user can do something about."""
    if _is_a(error, "ConfigError"):
        return 2
    if _is_a(error, "InterruptedRunError"):
        return INTERRUPTED
    if _is_a(error, "RunFolderError", "CheckpointError", "NonFiniteLossError", "CompileError"):
        return 1
    # A damaged file, a full disk, an option of a model that does not fit the others.
    return 1 if isinstance(error, ValueError | OSError) else None


def _is_a(error: Exception, *names: str) -> bool:
    """Whether it is an error of training; if that is not loaded, it is none."""
    training = sys.modules.get("bunn.training")
    return isinstance(error, tuple(getattr(training, name) for name in names if training))


def _fail(error: BaseException, message: str, code: int) -> NoReturn:
    if code == INTERRUPTED:
        with suppress(ValueError):  # not the main thread
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # one more says nothing new
    print(f"bunn: {message}", file=sys.stderr)
    raise typer.Exit(code) from error


def _say(message: Warning | str, *_: object, **__: object) -> None:
    print(f"bunn: warning: {message}", file=sys.stderr)


def tolerate_any_terminal() -> None:
    """Prints a question mark where the terminal knows no Greek."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
