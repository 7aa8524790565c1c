"""Run folders: how to ask for a small one, and what is in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: A barbell of two triangles, a narrow model, one core: an epoch takes milliseconds.
SMALL = (
    *("data.cluster_size=3", "training.eval_every=1"),
    *("data.num_train=4", "data.num_val=2", "data.num_test=2"),
    *("model.hidden_channels=8", "model.num_layers=1", "model.phi_channels=8"),
)


def train(*settings: str, output: str, dataset: str = "barbell") -> list[str]:
    """The arguments of a small training."""
    small = SMALL if dataset == "barbell" else ()
    options = [word for setting in (*small, *settings) for word in ("--set", setting)]
    return ["train", dataset, *options, "--threads", "1", "--output", output]


def files(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, whatever it is for."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def outcome(folder: Path) -> dict[str, Any]:
    """What training has produced: weights and metrics byte by byte, results number by number."""
    kept = ("best.safetensors", "last.safetensors", "metrics.jsonl", "config.json")
    produced: dict[str, Any] = {
        name: content for name, content in files(folder).items() if name.split("/")[-1] in kept
    }
    produced = {name: value for name, value in produced.items() if "checkpoints" not in name}
    result = json.loads((folder / "result.json").read_text())
    timing = ("seconds", "command")
    return {**produced, "result": {key: result[key] for key in result if key not in timing}}


def evaluations(folder: Path) -> int:
    """How far training has come: whole lines of metrics, of all runs."""
    found = folder.glob("split*/metrics.jsonl")
    return sum(path.read_bytes().count(b"\n") for path in found)
