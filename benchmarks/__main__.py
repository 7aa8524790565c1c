"""Runs benchmarks by name, all by default, and brings the page in the docs up to date."""

from __future__ import annotations

import sys
from collections.abc import Callable

from benchmarks import diffusion, layer, memory, report, scaling

BENCHMARKS: dict[str, Callable[[], None]] = {
    "diffusion": diffusion.main,
    "layer": layer.main,
    "memory": memory.main,
    "scaling": scaling.main,
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    for name in names or BENCHMARKS:
        print(f"== {name}")
        BENCHMARKS[name]()
    report.main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
