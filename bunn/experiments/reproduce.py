"""What ``bunn reproduce`` runs: the jobs of an experiment, and its picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bunn.experiments import (
    ablations,
    heterophilous,
    lrgb,
    lrgb_ablations,
    lrgb_runtime,
    neighborsmatch,
    runtime,
    synthetic,
)
from bunn.experiments.jobs import Job, default_workers
from bunn.experiments.pictures import bundle_figure
from bunn.experiments.plots import depth_figure, strokes_for
from bunn.experiments.published import PUBLISHED
from bunn.experiments.request import Request
from bunn.experiments.results import Result, read_results
from bunn.theory.drawing import save
from bunn.training import ConfigError
from bunn.training.options import nearest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Drawing = Callable[[Request, list[Result]], "Figure | None"]


@dataclass(frozen=True)
class Experiment:
    """Something that can be reproduced.

    Args:
        jobs: From a request to what is to be done.
        models: What it has.
        options: Of the command line, those that mean something to it.
        draw: From its results to a picture. (default: there is none)
        tables: What its results are called. (default: as it is)
        folder: Below which of the folder of results they are. (default: right there)
    """

    jobs: Callable[[Request], list[Job]]
    models: tuple[str, ...]
    options: frozenset[str]
    draw: Drawing | None = None
    tables: tuple[str, ...] = ()
    folder: str = ""


def _draw_bundle(request: Request, results: list[Result]) -> Figure | None:
    preset = "quick" if request.quick else "paper"
    with_bundle = [
        result for result in results if "bundle" in result.extra and result.preset == preset
    ]
    return bundle_figure(with_bundle) if with_bundle else None


def _draw_depths(request: Request, results: list[Result]) -> Figure:
    printed = [entry.model for entry in PUBLISHED if entry.experiment == request.experiment]
    strokes = strokes_for([*printed, *(result.model for result in results)])
    return depth_figure(results, strokes, named=True)


_TRAINED = frozenset({"--epochs", "--preset", "--device", "--compile"})

EXPERIMENTS: dict[str, Experiment] = {
    "synthetic": Experiment(
        synthetic.jobs,
        (*synthetic.CONSTANTS, *synthetic.MODELS),
        frozenset({"--quick", "--seeds"}),
        _draw_bundle,
    ),
    "neighborsmatch": Experiment(
        neighborsmatch.jobs,
        neighborsmatch.MODELS,
        _TRAINED | {"--seeds", "--depths"},
        _draw_depths,
    ),
    "heterophilous": Experiment(
        heterophilous.jobs,
        heterophilous.MODELS,
        _TRAINED | {"--datasets", "--splits", "--data-root", "--missing"},
    ),
    "runtime": Experiment(
        runtime.jobs,
        runtime.MODELS,
        _TRAINED - {"--preset"} | {"--datasets", "--seeds", "--data-root"},
        tables=(runtime.EXPERIMENT,),
    ),
    "heterophilous-ablations": Experiment(
        ablations.jobs,
        ("bunn",),
        _TRAINED | {"--seeds", "--data-root", "--missing"},
        tables=(ablations.EXPERIMENT,),
        folder="heterophilous",
    ),
    "lrgb": Experiment(
        lrgb.jobs,
        lrgb.MODELS,
        _TRAINED | {"--datasets", "--seeds", "--data-root", "--missing"},
    ),
    "lrgb-runtime": Experiment(
        lrgb_runtime.jobs,
        lrgb_runtime.MODELS,
        _TRAINED - {"--preset"} | {"--datasets", "--data-root"},
    ),
    "ablations": Experiment(
        lrgb_ablations.jobs,
        ("bunn",),
        _TRAINED - {"--preset"} | {"--datasets", "--seeds", "--data-root", "--missing"},
        tables=tuple(lrgb_ablations.TABLES),
    ),
}


def jobs_of(request: Request) -> list[Job]:
    """The jobs of an experiment, if what was asked for belongs to it."""
    experiment = EXPERIMENTS[request.experiment]
    for name in request.models or ():
        if name not in experiment.models:
            raise ConfigError(
                f"--models: there is no {name!r} here; {nearest(name, experiment.models)}"
            )
    for option in request.given():
        if option not in experiment.options:
            raise ConfigError(f"{option} is no option of {request.experiment}; leave it out")
    return experiment.jobs(request)


def workers_for(request: Request) -> int:
    """How many processes an experiment takes unasked."""
    anywhere = "--device" in EXPERIMENTS[request.experiment].options
    return default_workers(request.device if anywhere else "cpu")


def write_picture(request: Request) -> Path | None:
    """The picture of an experiment that has one, drawn from the result files."""
    draw = EXPERIMENTS[request.experiment].draw
    if draw is None:
        return None
    results = [
        result
        for result in read_results(request.results)
        if result.experiment == request.experiment
    ]
    figure = draw(request, results)
    if figure is None:
        return None
    path = request.results / request.experiment / f"{request.experiment}.png"
    save(figure, path)
    return path
