"""What was asked of ``bunn reproduce``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Request:
    """What is to be measured, and where it goes; :obj:`None` is what the experiment has.

    Args:
        experiment: A key of :data:`bunn.experiments.reproduce.EXPERIMENTS`.
        runs: Where runs are recorded, and go on.
        results: Where result files go.
        command: What was typed.
        quick: Few models, fewer epochs, one seed.
        models: The models.
        datasets: The datasets.
        splits: The splits.
        seeds: The seeds.
        depths: The depths of trees.
        epochs: Of a run.
        presets: Of the models that have them.
        device: Where it runs.
        compile: Whether through :func:`torch.compile`.
        data_root: Where data lives.
        missing: Only runs that the result file does not have, whichever machine measured them.
    """

    experiment: str
    runs: Path
    results: Path
    command: str
    quick: bool = False
    models: tuple[str, ...] | None = None
    datasets: tuple[str, ...] | None = None
    splits: tuple[int, ...] | None = None
    seeds: tuple[int, ...] | None = None
    depths: tuple[int, ...] | None = None
    epochs: int | None = None
    presets: tuple[str, ...] | None = None
    device: str = "auto"
    compile: bool = False
    data_root: Path | None = None
    missing: bool = False

    def seeds_or(self, usual: int) -> tuple[int, ...]:
        """The seeds that were asked for, or as many as are usual."""
        return self.seeds or tuple(range(usual))

    def given(self) -> dict[str, object]:
        """What was asked for, by the options of the command line; models aside, which all have."""
        options = {
            "--quick": self.quick,
            "--datasets": self.datasets,
            "--splits": self.splits,
            "--seeds": self.seeds,
            "--depths": self.depths,
            "--epochs": self.epochs,
            "--preset": self.presets,
            "--device": self.device if self.device == "cuda" else None,  # a CPU is everywhere
            "--compile": self.compile,
            "--data-root": self.data_root,
            "--missing": self.missing,
        }
        return {name: value for name, value in options.items() if value}
