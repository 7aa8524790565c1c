"""Tree-NeighborsMatch: accuracy against the depth of the tree (Appendix of the paper).

Protocol of Alon and Yahav (2021): width 32, a layer more than the tree is deep, messages from child
to parent with self-loops, residual connections and LayerNorm, Adam at 1e-3 with a plateau schedule
on the training accuracy, which is also what is reported: the task asks what can be fitted at all. A
BuNN has two layers, an infinite time and 32 two-dimensional bundles, on the undirected tree; the
paper does not say how wide it is. What the root hears through one mean are all leaves at once, so
the width that keeps them apart grows with their number.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from bunn.baselines import BASELINES
from bunn.data import TreeOptions
from bunn.experiments.jobs import Job
from bunn.experiments.measure import measure
from bunn.experiments.request import Request
from bunn.training import Config, ConfigError, Optimizer, Schedule, Training
from bunn.training.models import BuNNOptions
from bunn.training.options import nearest
from bunn.training.watch import Watcher

EXPERIMENT = "neighborsmatch"
MODELS = ("gcn", "gin", "gat", "ggnn", "bunn")
DEPTHS = (2, 3, 4, 5)
#: Names of presets, and the models that have them; others then keep to the paper's.
PRESETS = {"paper": MODELS, "narrow": ("bunn",), "long": ("gcn", "gin", "gat", "ggnn")}
BUNDLES = 32
#: Trees to a step for each leaf, up to 1024, and channels of a BuNN for each leaf, up to 2048.
PER_LEAF = 16
#: What one of its steps may hold: trees times leaves times channels.
STEP_SIZE = 2**28
#: Epochs of a run; it stops earlier when every training example is right.
EPOCHS = 1000
LONG_EPOCHS = 10_000


def preset(depth: int, model: str, name: str = "paper", epochs: int | None = None) -> Config:
    """The configuration for a tree of some depth.

    Args:
        depth: The depth ``r``.
        model: One of :data:`MODELS`.
        name: ``"paper"``; for a BuNN ``"narrow"``, which has 64 channels for a tree of any size,
            the fewest that 32 bundles of the plane have; for message passing ``"long"``, which goes
            on ten times as long, with patience.
        epochs: Of a run. (default: :data:`EPOCHS`, or :data:`LONG_EPOCHS`)
    """
    if epochs is None:
        epochs = LONG_EPOCHS if name == "long" else EPOCHS
    options: Any
    leaves = 2**depth
    # At depth 2 an epoch is two steps; in deep trees messages take hundreds of epochs to get going.
    slow = depth == 2 or (model != "bunn" and depth > 4) or name == "long"
    batch_size = min(PER_LEAF * leaves, 1024)
    if model == "bunn":
        channels = 2 * BUNDLES if name == "narrow" else min(PER_LEAF * leaves, 2048)
        batch_size = min(batch_size, STEP_SIZE // (leaves * channels))
        options = BuNNOptions(
            hidden_channels=channels,
            num_layers=2,
            num_bundles=BUNDLES,
            time=math.inf,
            act="relu",
            norm_first=False,
        )
    else:
        options = BASELINES[model].options(
            hidden_channels=32, num_layers=depth + 1, norm_first=False, norm_residual=True
        )
    return Config(
        "tree-neighborsmatch",
        model,
        data=TreeOptions(depth=depth, edges="undirected" if model == "bunn" else "to-root"),
        model=options,
        optimizer=Optimizer("adam", lr=1e-3),
        schedule=Schedule("plateau", patience=100 if slow else 10, monitor="train"),
        training=Training(
            epochs=epochs, batch_size=batch_size, eval_every=5, goal=1.0, precision="tf32"
        ),
    )


def jobs(request: Request) -> list[Job]:
    """One job for every model and depth, the deep ones first."""
    name = preset_of(request)
    depths = request.depths or DEPTHS
    try:
        for depth in depths:
            TreeOptions(depth=depth)
    except ValueError as error:
        raise ConfigError(f"--depths: {error}") from error
    return [
        Job(
            f"r={depth} {model}",
            point,
            (depth, model, name if model in PRESETS[name] else "paper", request),
        )
        for depth in sorted(depths, reverse=True)
        for model in request.models or MODELS
    ]


def preset_of(request: Request) -> str:
    """The preset that was asked for, or the paper's."""
    name, *more = request.presets or ("paper",)
    if more:
        raise ConfigError(f"--preset {','.join((name, *more))}: one at a time; use {name}")
    if name not in PRESETS:
        raise ConfigError(f"--preset {name} is unknown; {nearest(name, PRESETS)}")
    return name


def point(watcher: Watcher, depth: int, model: str, name: str, request: Request) -> Path:
    """Measures one point of the curve and writes its result file."""
    dataset = f"tree-neighborsmatch-r{depth}"
    result = measure(
        preset(depth, model, name, request.epochs),
        [(seed, seed) for seed in request.seeds_or(1)],
        experiment=EXPERIMENT,
        preset=name,
        command=request.command,
        folder=request.runs / f"{dataset}-{model}-{name}",
        watcher=watcher,
        device=request.device,
        compile=request.compile,
        name=dataset,
    )
    if min(result.test) < 1:
        note = f"{result.epochs} epochs; Alon and Yahav trained for far longer."
        result = replace(result, notes=note)
    return result.write(request.results)
