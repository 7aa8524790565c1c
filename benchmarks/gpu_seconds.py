"""How long a split of the heterophilous benchmark takes, from reading the data to its metric.

The first split of minesweeper and of tolokers, for every preset of a BuNN and for the baselines,
one after the other with nothing else on the card: seconds of wall time, in one process that has
trained something before.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.device import about, save_measured
from benchmarks.results import unfinished
from bunn.experiments.heterophilous import MODELS, names, preset
from bunn.training import train

DATASETS = ("minesweeper", "tolokers")
CELLS = [
    (dataset, model, name)
    for model in reversed(MODELS)
    for dataset in DATASETS
    for name in names(dataset, model)
]


def main() -> None:
    rows: list[dict[str, Any]] = unfinished("gpu_seconds", len(CELLS))
    there = {(row["dataset"], row["model"], row["preset"]) for row in rows}
    train(preset("minesweeper", "gcn").override(["training.epochs=20"]), [(0, 0)], device="cuda")
    for dataset, model, name in CELLS:
        if (dataset, model, name) in there:
            continue
        config, start = preset(dataset, model, name), time.perf_counter()
        (outcome,) = train(config, [(0, 0)], device="cuda")
        rows.append({"dataset": dataset, "model": model, "preset": name})
        rows[-1] |= {
            "seconds": time.perf_counter() - start,
            "epochs": config.training.epochs,
            "parameters": outcome.parameters,
            "commit": about()["git_commit"],
        }
        print(rows[-1])
        save_measured("gpu_seconds", rows, __doc__)


if __name__ == "__main__":
    main()
