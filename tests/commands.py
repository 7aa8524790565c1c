"""The real command line, in processes of its own that a test may signal and kill.

A process is started cold, as a shell starts it; or, since importing torch takes seconds, forked
from one that has imported torch and the like, and of bunn what needs no extras: ``python -m
tests.commands``.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parent.parent
PYTHON = [sys.executable, "-W", "ignore::DeprecationWarning"]
#: What takes long to import.
LIBRARIES = (
    *("torch", "torch_geometric.nn", "torch_geometric.datasets", "torch_geometric.transforms"),
    *("lightning.fabric", "torchmetrics", "safetensors.torch", "matplotlib.figure", "typer"),
    *("rich.progress", "rich.table", "scipy.sparse.linalg"),
    *("bunn", "bunn.baselines", "bunn.data.transforms", "bunn.theory"),
)
#: Seconds after which a process or a condition is given up; a busy machine is slow.
PATIENCE = 120.0

Finished = subprocess.CompletedProcess[str]


def run(*arguments: str, cwd: Path, before: str = "", **environment: str) -> Finished:
    """``bunn ARGUMENTS`` in a new process, after a line of Python if there is one."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {before}\n"
    code += "from bunn.__main__ import main; main()"
    return subprocess.run(
        [*PYTHON, "-c", code, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
        env={**os.environ, **environment},
    )


def wait_until(condition: Callable[[], Any], every: float = 0.01) -> Any:
    """What ``condition`` returns, once it is true."""
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < end, f"{condition} did not come true in {PATIENCE} s"
        time.sleep(every)
    return value


class Command:
    """A command under way in a process that was forked.

    Args:
        warm: Where it was forked.
        pid: Of its process.
        output: The folder with what it has printed.
    """

    def __init__(self, warm: Warm, pid: int, output: Path) -> None:
        self.warm, self.pid, self.output = warm, pid, output
        self.returncode: int | None = None
        self.stopped = False

    def poll(self) -> int | None:
        """Its exit code, minus the signal that ended it; :obj:`None` as long as it lives."""
        if self.returncode is None:
            self.returncode, self.stopped = self.warm.ask({"poll": self.pid})
        return self.returncode

    def wait_for_stop(self) -> None:
        """Waits until it has stopped itself, by SIGSTOP."""
        wait_until(lambda: self.poll() is not None or self.stopped)
        assert self.stopped, "it ended without stopping"

    def signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def finish(self) -> Finished:
        """Waits for its end."""
        try:
            wait_until(lambda: self.poll() is not None)
        finally:
            self.signal(signal.SIGKILL)
        printed = [(self.output / name).read_text() for name in ("stdout", "stderr")]
        return Finished([], self.returncode or 0, *printed)


class Warm:
    """A process that has imported what takes long, and forks to run a command.

    Args:
        environment: Variables of all commands.
    """

    def __init__(self, **environment: str) -> None:
        self.environment = environment

    def __enter__(self) -> Self:
        self._server = subprocess.Popen(
            [*PYTHON, "-m", "tests.commands"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self._folder = tempfile.TemporaryDirectory(prefix="bunn-commands-")
        self._commands: list[Command] = []
        return self

    def __exit__(self, *_: object) -> None:
        for command in self._commands:  # of a test that failed before their end
            command.signal(signal.SIGKILL)
        self._server.communicate()  # closes its input, at whose end it ends
        self._folder.cleanup()

    def ask(self, question: dict[str, Any]) -> Any:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(question) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())

    def start(self, *arguments: str, cwd: Path, before: str = "", **environment: str) -> Command:
        """``bunn ARGUMENTS``, under way."""
        output = Path(self._folder.name) / str(len(self._commands))
        output.mkdir()
        question = {
            "arguments": arguments,
            "cwd": str(cwd),
            "before": before,
            "environment": {**self.environment, **environment},
            "output": str(output),
        }
        self._commands.append(Command(self, self.ask(question), output))
        return self._commands[-1]

    def run(self, *arguments: str, cwd: Path, before: str = "", **environment: str) -> Finished:
        """``bunn ARGUMENTS``, when it is over."""
        return self.start(*arguments, cwd=cwd, before=before, **environment).finish()


def serve() -> dict[str, Any] | None:
    """Forks whenever it is asked to; in the new process, returns what it was asked."""
    for line in sys.stdin:
        question = json.loads(line)
        if "poll" in question:
            answer = state(question["poll"])
        else:
            answer = pid = os.fork()
            if pid == 0:
                return question
        print(json.dumps(answer), flush=True)
    return None


def state(pid: int) -> tuple[int | None, bool]:
    """The exit code of a process that has ended, and whether one that has not just stopped."""
    found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
    if not found or os.WIFSTOPPED(status):
        return None, bool(found)
    return os.waitstatus_to_exitcode(status), False


def become(question: dict[str, Any]) -> None:
    """Turns the new process into the one that was asked for."""
    descriptors = [os.open(os.devnull, os.O_RDONLY)]
    for name in ("stdout", "stderr"):
        path = Path(question["output"]) / name
        descriptors.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
    for target, source in enumerate(descriptors):
        os.dup2(source, target)
        os.close(source)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(question["environment"])
    os.chdir(question["cwd"])
    sys.argv = ["bunn", *question["arguments"]]
    exec(question["before"], {"sys": sys})


if __name__ == "__main__":
    for library in LIBRARIES:
        importlib.import_module(library)
    gc.freeze()  # or every command would take all of this apart at its end
    if asked := serve():
        become(asked)
        from bunn.__main__ import main

        main()
