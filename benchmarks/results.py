"""Result files: what was measured, by which command, on what."""

from __future__ import annotations

import json
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy
import scipy
import torch
import torch_geometric

import bunn

FOLDER = Path(__file__).parent / "results"


def environment() -> dict[str, Any]:
    """Versions and machine."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].split(":", 1)[1].strip() if names else cpu
    return {
        "python": platform.python_version(),
        "bunn": bunn.__version__,
        "torch": torch.__version__,
        "torch_geometric": torch_geometric.__version__,
        "numpy": numpy.__version__,
        "scipy": scipy.__version__,
        "cpu": cpu,
        "threads": torch.get_num_threads(),
    }


def save(name: str, rows: list[dict[str, Any]], **about: Any) -> None:
    """Writes ``results/<name>.json``."""
    FOLDER.mkdir(exist_ok=True)
    content = {
        "benchmark": name,
        "command": f"python -m benchmarks {name}",
        "date": datetime.now(UTC).date().isoformat(),
        **about,
        "environment": environment(),
        "rows": rows,
    }
    (FOLDER / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    print(f"wrote {FOLDER.name}/{name}.json", file=sys.stderr)


def unfinished(name: str, complete: int) -> list[dict[str, Any]]:
    """The rows of a file that has fewer than all: a run that was cut short, to be gone on with."""
    there = (FOLDER / f"{name}.json").is_file()
    rows: list[dict[str, Any]] = load(name)["rows"] if there else []
    return rows if len(rows) < complete else []


def load(name: str) -> dict[str, Any]:
    """Reads ``results/<name>.json``."""
    content: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return content
