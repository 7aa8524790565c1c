"""Peak memory of a training step at degree 8 against degree 64.

Each in a process of its own, by the operating system's count of resident memory, less what the
process held before its first step.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.graphs import heterophilous_graphs
from benchmarks.results import save
from bunn import BuNN, Laplacian

CHANNELS, LAYERS, STEPS = 512, 4, 3
DEGREES = (8, 64)


def peak_bytes() -> int:
    """The high-water mark of this process (``ru_maxrss`` would start at that of its parent)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("no VmHWM in /proc/self/status: this benchmark needs Linux")


def child(graph: str, degree: int) -> None:
    """Trains a few steps and prints the peak."""
    edge_index, num_nodes = heterophilous_graphs()[graph]
    lap = Laplacian(edge_index, num_nodes=num_nodes)
    torch.manual_seed(0)
    model = BuNN(CHANNELS, CHANNELS, LAYERS, 2, num_bundles=16, method="chebyshev", degree=degree)
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(num_nodes, CHANNELS)
    before = peak_bytes()
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(x, lap).square().mean().backward()
        optimizer.step()
    print(json.dumps({"before": before, "peak": peak_bytes()}))


def main() -> None:
    rows: list[dict[str, Any]] = []
    for name, (edge_index, num_nodes) in heterophilous_graphs().items():
        used = {}
        for degree in DEGREES:
            command = [sys.executable, "-m", "benchmarks.memory", name, str(degree)]
            printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            counts = json.loads(printed)
            used[str(degree)] = counts["peak"] - counts["before"]
        low, high = (used[str(degree)] for degree in DEGREES)
        rows.append(
            {
                "graph": name,
                "nodes": num_nodes,
                "entries": edge_index.size(1),
                "bytes": used,
                "ratio": high / low,
            }
        )
        print(name, f"degree {DEGREES[1]} takes {high / low:.3f} of the memory of {DEGREES[0]}")
    save(
        "memory",
        rows,
        what="peak resident memory of a training step above the start of the process",
        channels=CHANNELS,
        layers=LAYERS,
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        child(sys.argv[1], int(sys.argv[2]))
    else:
        main()
