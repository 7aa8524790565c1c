"""Runs benchmarks by name, all by default, and brings the pages in the docs up to date."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

import torch

from benchmarks import (
    diffusion,
    ends,
    floors,
    gpu_accuracy,
    gpu_batches,
    gpu_desync,
    gpu_diffusion,
    gpu_layers,
    gpu_models,
    gpu_peptides,
    gpu_scale,
    gpu_seconds,
    gpu_splits,
    gpu_tests,
    gpu_times,
    layer,
    memory,
    mines,
    peptides,
    performance,
    report,
    reuse,
    rounding,
    scaling,
)
from bunn.keeping import lasting


class Benchmark(NamedTuple):
    """A module with a ``main`` that writes ``results/<name>.json``."""

    module: ModuleType

    @property
    def about(self) -> str:
        return (self.module.__doc__ or "").strip().partition("\n")[0]

    @property
    def needs_gpu(self) -> bool:
        return self.module.__name__.rpartition(".")[2].startswith("gpu_")


BENCHMARKS = {
    module.__name__.rpartition(".")[2]: Benchmark(module)
    for module in (
        *(diffusion, ends, layer, memory, scaling, peptides, floors, rounding, reuse, mines),
        *(gpu_diffusion, gpu_batches, gpu_layers, gpu_models, gpu_scale, gpu_splits, gpu_times),
        *(gpu_accuracy, gpu_desync, gpu_peptides, gpu_seconds, gpu_tests),
    )
}
GROUPS = {
    "cpu": tuple(name for name, entry in BENCHMARKS.items() if not entry.needs_gpu),
    "gpu": tuple(name for name, entry in BENCHMARKS.items() if entry.needs_gpu),
}


def expand(names: Sequence[str]) -> list[str]:
    """The names of benchmarks, those of groups among them in full."""
    return [name for asked in names for name in GROUPS.get(asked, (asked,))]


def main(names: list[str]) -> int:
    """Runs some, by their names or those of groups; none means all that can be run here."""
    names = expand(names)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    there = torch.cuda.is_available()
    missing = [name for name in names if BENCHMARKS[name].needs_gpu and not there]
    if missing:
        print(f"{', '.join(missing)}: no CUDA device is here; run it where one is", file=sys.stderr)
        return 1
    for name in names or [*GROUPS["cpu"], *(GROUPS["gpu"] if there else ())]:
        print(f"== {name}")
        with lasting():  # what is measured is what is called again and again
            BENCHMARKS[name].module.main()
    report.main()
    performance.main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
