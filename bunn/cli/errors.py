"""Errors that a user can do something about, as one message instead of a traceback."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

#: What a shell makes of Ctrl-C.
INTERRUPTED = 130


@contextmanager
def explained() -> Iterator[None]:
    """Turns the errors of data, configuration, folders and training into messages.

    Exits with 2 where the command was not right, with 1 where it could not be carried out, with
    130 after Ctrl-C.
    """
    from bunn.data import MissingDataError  # noqa: PLC0415
    from bunn.training import (  # noqa: PLC0415
        CheckpointError,
        ConfigError,
        InterruptedRunError,
        NonFiniteLossError,
        RunFolderError,
    )

    try:
        yield
    except ConfigError as error:
        _fail(error, 2)
    except (MissingDataError, RunFolderError, CheckpointError, NonFiniteLossError) as error:
        _fail(error, 1)
    except (ValueError, OSError) as error:  # a damaged file, a full disk, an option of a model
        _fail(error, 1)
    except InterruptedRunError as error:
        _fail(error, INTERRUPTED)
    except KeyboardInterrupt:
        _fail(KeyboardInterrupt("stopped at once; go on from the last checkpoint"), INTERRUPTED)


def _fail(error: BaseException, code: int) -> None:
    print(f"bunn: {error}", file=sys.stderr)
    raise typer.Exit(code) from error


def tolerate_any_terminal() -> None:
    """Prints a question mark where the terminal knows no Greek."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
