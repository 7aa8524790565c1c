"""What a model learns on a GPU, with the kernels of this package and without.

A BuNN of four layers, 128 wide, each with a phi of two SAGE layers, on five splits of minesweeper
and of tolokers, with bf16 autocast: the metric on test data at the best epoch on validation data.
Dropout draws other numbers in the two; their distributions should be the same.
"""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.device import save_measured
from bunn import kernels
from bunn.training import Config, train

DATASETS = ("minesweeper", "tolokers")
SPLITS, EPOCHS = 5, 500
SETTINGS = (
    *("model.hidden_channels=128", "model.num_layers=4", "model.num_bundles=64"),
    *("model.phi=sage", "model.phi_layers=2", "model.phi_channels=128", "model.dropout=0.2"),
    *("model.update=mlp-concat", "optimizer.lr=0.001", f"training.epochs={EPOCHS}"),
    *("training.precision=bf16-mixed", "training.eval_every=5", "training.together=false"),
)


def learn(dataset: str, with_kernels: bool) -> dict[str, Any]:
    """Trains every split."""
    kernels._WANTED = with_kernels  # which BUNN_KERNELS sets, once
    config = Config(dataset).override(SETTINGS)
    outcomes = train(config, [(split, 0) for split in range(SPLITS)], device="cuda")
    found = [outcome.best.metrics["test"] for outcome in outcomes]
    return {
        "dataset": dataset,
        "kernels": with_kernels,
        "test": found,
        "mean": statistics.mean(found),
        "deviation": statistics.stdev(found),
    }


def main() -> None:
    rows: list[dict[str, Any]] = []
    for dataset in DATASETS:
        for with_kernels in (True, False):
            rows.append(learn(dataset, with_kernels))
            print(rows[-1])
    save_measured("gpu_accuracy", rows, __doc__, epochs=EPOCHS)


if __name__ == "__main__":
    main()
