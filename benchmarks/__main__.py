"""Runs benchmarks by name, all by default, and brings the page in the docs up to date."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

from benchmarks import (
    diffusion,
    floors,
    gpu_diffusion,
    layer,
    memory,
    performance,
    report,
    reuse,
    rounding,
    scaling,
)

BENCHMARKS: dict[str, Callable[[], None]] = {
    "diffusion": diffusion.main,
    "layer": layer.main,
    "memory": memory.main,
    "scaling": scaling.main,
    "floors": floors.main,
    "rounding": rounding.main,
    "reuse": reuse.main,
}
if torch.cuda.is_available():
    BENCHMARKS["gpu_diffusion"] = gpu_diffusion.main


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    for name in names or BENCHMARKS:
        print(f"== {name}")
        BENCHMARKS[name]()
    report.main()
    performance.main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
