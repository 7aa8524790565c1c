"""Results made up for the tests; none of them was measured."""

from __future__ import annotations

from typing import Any

from bunn.experiments.results import Result


def sample(**changes: Any) -> Result:
    """A result of BuNN on the barbell, with any field changed."""
    fields: dict[str, Any] = {
        "experiment": "synthetic",
        "dataset": "barbell",
        "model": "bunn",
        "preset": "paper",
        "metric": "mse",
        "seeds": [0, 1, 2],
        "test": [0.001, 0.002, 0.003],
        "val": [0.002, 0.002, 0.002],
        "epochs": 500,
        "seconds": 12.5,
        "device": "a processor",
        "versions": {"bunn": "0.1.0", "torch": "2.8.0"},
        "git_commit": "unknown",
        "command": "bunn reproduce synthetic",
    }
    if "test" in changes:
        count = len(changes["test"])
        fields |= {"seeds": list(range(count)), "val": list(changes["test"])}
    return Result(**fields | changes)


def with_curves(**changes: Any) -> Result:
    """The same, with a training curve of three points."""
    curves = {"epoch": [0, 250, 500], "train_loss": [30.0, 1.0, 0.01], "val": [31.0, 1.1, 0.012]}
    return sample(**{"curves": curves, **changes})


def trees(model: str, accuracies: dict[int, float], **changes: Any) -> list[Result]:
    """Results on Tree-NeighborsMatch, by depth."""
    return [
        sample(
            experiment="neighborsmatch",
            dataset=f"tree-neighborsmatch-r{depth}",
            model=model,
            metric="accuracy",
            test=[accuracy],
            part="train",
            **changes,
        )
        for depth, accuracy in accuracies.items()
    ]
