"""Ten splits of minesweeper on a GPU: trained one after the other, or stacked in one step.

A BuNN of five layers with an MLP for phi, as ``bunn train minesweeper --splits all`` trains it:
every step is a CUDA graph. Milliseconds of a training step to a split, by the width of the model:
the median of several epochs.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from benchmarks.device import save_measured
from bunn.data import load_dataset
from bunn.training import Config, Run
from bunn.training.device import Device
from bunn.training.drive import Driver

WIDTHS = (16, 32, 64, 128, 256, 512)
SPLITS, LAYERS, EPOCHS, SAMPLES = 10, 5, 5, 5
PRECISIONS = ("tf32", "bf16-mixed")


def config(width: int, precision: str) -> Config:
    model = (f"model.hidden_channels={width}", f"model.num_layers={LAYERS}")
    training = (f"training.precision={precision}", "training.eval_every=1000000")
    return Config("minesweeper").override([*model, *training])


def milliseconds(runs: list[Run]) -> float:
    """Of a training step to a run."""
    driver = Driver(runs)
    for _ in range(5):
        driver.train_epoch()
    samples = []
    for _ in range(SAMPLES):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(EPOCHS):
            driver.train_epoch()
        torch.cuda.synchronize()
        samples.append(time.perf_counter() - start)
    return 1e3 * statistics.median(samples) / EPOCHS / len(runs)


def main() -> None:
    rows: list[dict[str, Any]] = []
    for precision in PRECISIONS:
        for width in WIDTHS:
            chosen = config(width, precision)
            data, device = load_dataset(chosen.dataset), Device("cuda", precision)
            runs = [Run(chosen, data, split, 0, device) for split in range(SPLITS)]
            alone = [Run(chosen, data, 0, 0, device)]
            taken = {"stacked": milliseconds(runs), "alone": milliseconds(alone)}
            rows.append({"precision": precision, "width": width, "milliseconds": taken})
            print(rows[-1])
    save_measured("gpu_splits", rows, __doc__, splits=SPLITS)


if __name__ == "__main__":
    main()
