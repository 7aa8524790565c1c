"""Why a BuNN works on minesweeper: the tuned model with one thing changed at a time.

One split, three seeds. Heat is exact but for ``time-1-taylor-8``: a Taylor polynomial of degree 8
means little at the tuned time of 3, so it is compared with exact heat at the released one of 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bunn.experiments.heterophilous import preset
from bunn.experiments.jobs import Job
from bunn.experiments.request import Request
from bunn.experiments.requested import measured
from bunn.training import Config, ConfigError
from bunn.training.options import nearest
from bunn.training.watch import Watcher

EXPERIMENT = "ablations"
DATASET, SPLIT, SEEDS = "minesweeper", 0, 3
#: What is changed, as ``bunn train --set`` takes it.
ABLATIONS: dict[str, tuple[str, ...]] = {
    "unchanged": (),
    # In dimension 1 the only rotation is the identity; phi computes nothing.
    "trivial-bundle": ("model.maps=exp", "model.bundle_dim=1", "model.phi=mlp"),
    "reflections": ("model.maps=o2",),
    "phi-mlp": ("model.phi=mlp",),
    "phi-1-layer": ("model.phi_layers=1",),
    "phi-2-layers": ("model.phi_layers=2",),
    "phi-4-layers": ("model.phi_layers=4",),
    "phi-32-wide": ("model.phi_channels=32",),
    "phi-256-wide": ("model.phi_channels=256",),
    "phi-shared": ("model.shared_phi=true",),
    "time-0-1": ("model.time=0.1",),
    "time-1": ("model.time=1",),
    "time-1-taylor-8": ("model.time=1", "model.method=taylor", "model.degree=8"),
    "time-10": ("model.time=10",),
    "time-100": ("model.time=100",),
    "time-learned": ("model.learn_time=true", "optimizer.time_lr=0.01"),
    "no-concatenation": ("model.update=mlp",),
    "linear-update": ("model.update=before",),
    "bundles-1": ("model.num_bundles=1",),
    "bundles-8": ("model.num_bundles=8",),
    "bundles-32": ("model.num_bundles=32",),
    "all-nodes-shown": ("model.node_dropout=0.0",),
}


def config(name: str) -> Config:
    """The tuned model with something changed."""
    return preset(DATASET, "bunn", "tuned").override(ABLATIONS[name])


def jobs(request: Request) -> list[Job]:
    """One job for every row of the table."""
    for name in request.presets or ():
        if name not in ABLATIONS:
            raise ConfigError(f"--preset {name} is unknown; {nearest(name, ABLATIONS)}")
    seeds = request.seeds_or(SEEDS)
    return [
        Job(name, row, (name, seeds, request), runs=len(seeds))
        for name in request.presets or ABLATIONS
    ]


def row(watcher: Watcher, name: str, seeds: Sequence[int], request: Request) -> Path:
    """Measures one row of the table and writes its result file, after every run."""
    runs = [(SPLIT, seed) for seed in seeds]
    for result in measured(watcher, config(name), runs, EXPERIMENT, name, request):
        path = result.write(request.results)
    return path
