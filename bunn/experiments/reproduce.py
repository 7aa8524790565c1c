"""What ``bunn reproduce`` runs: the jobs of an experiment, and its picture."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from bunn.data import TreeOptions
from bunn.experiments import neighborsmatch, synthetic
from bunn.experiments.jobs import Job
from bunn.experiments.pictures import bundle_figure
from bunn.experiments.plots import depth_figure, strokes_for
from bunn.experiments.published import PUBLISHED
from bunn.experiments.results import read_results
from bunn.theory.drawing import save
from bunn.training import ConfigError
from bunn.training.options import nearest


@dataclass(frozen=True)
class Request:
    """What is to be measured, and where it goes; :obj:`None` is what the experiment has.

    Args:
        experiment: ``"synthetic"`` or ``"neighborsmatch"``.
        runs: Where runs are recorded, and go on.
        results: Where result files go.
        command: What was typed.
        quick: Synthetic: few models, fewer epochs, one seed.
        models: The models.
        seeds: How many.
        depths: Neighborsmatch: the depths of the trees.
        epochs: Neighborsmatch: of a run.
        preset: Neighborsmatch: of the models that have one of that name.
        device: Neighborsmatch: where it runs.
        compile: Neighborsmatch: whether through :func:`torch.compile`.
    """

    experiment: str
    runs: Path
    results: Path
    command: str
    quick: bool = False
    models: tuple[str, ...] | None = None
    seeds: int | None = None
    depths: tuple[int, ...] | None = None
    epochs: int | None = None
    preset: str = "paper"
    device: str = "auto"
    compile: bool = False

    def __post_init__(self) -> None:
        if self.experiment == "synthetic":
            known: tuple[str, ...] = (*synthetic.CONSTANTS, *synthetic.MODELS)
            misplaced: dict[str, object] = {
                "--depths": self.depths,
                "--epochs": self.epochs,
                "--preset": None if self.preset == "paper" else self.preset,
                "--device": "cuda" if self.device == "cuda" else None,
                "--compile": self.compile or None,
            }
        else:
            known, misplaced = neighborsmatch.MODELS, {"--quick": self.quick or None}
        for name in self.models or ():
            if name not in known:
                raise ConfigError(f"--models: there is no {name!r} here; {nearest(name, known)}")
        for option, value in misplaced.items():
            if value is not None:
                raise ConfigError(f"{option} is no option of {self.experiment}; leave it out")
        try:
            for depth in self.depths or ():
                TreeOptions(depth=depth)
        except ValueError as error:
            raise ConfigError(f"--depths: {error}") from error
        if self.preset not in neighborsmatch.PRESETS:
            raise ConfigError(
                f"--preset {self.preset} is unknown; {nearest(self.preset, neighborsmatch.PRESETS)}"
            )

    @property
    def default_workers(self) -> int:
        """A process per core; one on a GPU, which it fills alone."""
        on_gpu = self.experiment == "neighborsmatch" and self.device != "cpu"
        if on_gpu and torch.cuda.is_available():
            return 1
        return os.cpu_count() or 1


def jobs_of(request: Request) -> list[Job]:
    """The jobs of an experiment."""
    if request.experiment == "synthetic":
        table = (*synthetic.CONSTANTS, *synthetic.MODELS)
        everything: tuple[str, ...] = synthetic.QUICK_MODELS if request.quick else table
        return synthetic.jobs(
            request.models or everything,
            quick=request.quick,
            seeds=request.seeds or (1 if request.quick else synthetic.SEEDS),
            runs=request.runs,
            results=request.results,
            command=request.command,
        )
    return neighborsmatch.jobs(
        request.models or neighborsmatch.MODELS,
        request.depths or neighborsmatch.DEPTHS,
        name=request.preset,
        seeds=request.seeds or 1,
        epochs=request.epochs,
        device=request.device,
        compile=request.compile,
        runs=request.runs,
        results=request.results,
        command=request.command,
    )


def write_picture(request: Request) -> Path | None:
    """The learned bundle, or accuracy against depth, drawn from the result files."""
    results = [
        result
        for result in read_results(request.results)
        if result.experiment == request.experiment
    ]
    path = request.results / request.experiment / f"{request.experiment}.png"
    if request.experiment == "synthetic":
        preset = "quick" if request.quick else "paper"
        with_bundle = [
            result for result in results if "bundle" in result.extra and result.preset == preset
        ]
        if not with_bundle:
            return None
        save(bundle_figure(with_bundle), path)
    else:
        printed = [entry.model for entry in PUBLISHED if entry.experiment == request.experiment]
        strokes = strokes_for([*printed, *(result.model for result in results)])
        save(depth_figure(results, strokes, named=True), path)
    return path
