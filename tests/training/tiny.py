"""Experiments that take milliseconds, made-up datasets, and what a run left behind."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import erdos_renyi_graph

from bunn.data import DATASETS, DatasetSpec, GraphDataset, NoOptions, Split, Task
from bunn.training import Config, Progressed

CLUSTERS = {"cluster_size": 3, "num_train": 4, "num_val": 4, "num_test": 4}
BOARD = {"height": 6, "width": 6}
DATA = {
    "barbell": CLUSTERS,
    "clique": CLUSTERS,
    "minesweeper-board": BOARD,
    "tree-neighborsmatch": {"depth": 2, "max_permutations": 3},
}


def tiny(dataset: str = "barbell", architecture: str = "bunn", **sections: Any) -> Config:
    """A small experiment with any sections changed: ``tiny(training={"epochs": 3})``."""
    values: dict[str, Any] = {
        "data": DATA.get(dataset, {}),
        "model": {"hidden_channels": 8},
        "optimizer": {"lr": 0.01},
        "training": {"epochs": 4},
    }
    if dataset in ("barbell", "clique"):
        values["training"]["batch_size"] = 1
    for name, options in sections.items():
        values[name] = {**values.get(name, {}), **options}
    return Config.from_dict({"dataset": dataset, "architecture": architecture, **values})


def molecule(index: int, task: Task, channels: int = 3, outputs: int = 2) -> Data:
    """A random graph of five to nine nodes with a target that can be learned from its features."""
    random = torch.Generator().manual_seed(index)
    nodes = 5 + index % 5
    torch.manual_seed(index)  # PyG draws edges from the global stream
    edge_index = erdos_renyi_graph(nodes, 0.4)
    x = torch.randn(nodes, channels, generator=random)
    value = 2 * x.mean(0, keepdim=True)[:, :outputs]
    if task.level == "node":
        value = 2 * x[:, :outputs]
    targets = {
        "regression": value,
        "multilabel": (value > 0).float(),
        "binary": (value[:, 0] > 0).float(),
        "multiclass": value.argmax(1),
    }
    return Data(x=x, edge_index=edge_index, y=targets[task.kind])


def molecules(monkeypatch: pytest.MonkeyPatch, task: Task, outputs: int = 2) -> GraphDataset:
    """Registers ``"molecules"``: graphs of their own in every part, others in every split."""

    def make_split(index: int) -> Split:
        starts = {"train": 0, "val": 100, "test": 200}
        parts = {
            part: [molecule(1000 * index + start + i, task) for i in range(8)]
            for part, start in starts.items()
        }
        return Split(**parts)

    width = 1 if task.kind == "binary" else outputs
    return register(monkeypatch, GraphDataset("molecules", task, 3, width, None, make_split))


def citations(monkeypatch: pytest.MonkeyPatch, num_graphs: int = 3) -> GraphDataset:
    """Registers ``"citations"``: one graph to a split, the same one in splits of equal parity."""
    task = Task("node", "multiclass", "accuracy")
    graphs = [molecule(9 + i, task) for i in range(num_graphs)]

    def make_split(index: int) -> Split:
        data = graphs[index % 2].clone()
        order = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(index))
        for part, nodes in zip(("train", "val", "test"), order.chunk(3), strict=True):
            data[f"{part}_mask"] = torch.isin(torch.arange(data.num_nodes), nodes)
        alone = [data]
        return Split(alone, alone, alone)

    return register(monkeypatch, GraphDataset("citations", task, 3, 2, None, make_split))


def register(monkeypatch: pytest.MonkeyPatch, dataset: GraphDataset) -> GraphDataset:
    """Lists a dataset for the time of a test."""
    spec = DatasetSpec(
        dataset.name,
        dataset.task,
        "small",
        "MIT",
        "generated",
        partial(_give, dataset),
        NoOptions,
    )
    monkeypatch.setitem(DATASETS, dataset.name, spec)
    return dataset


def _give(dataset: GraphDataset, options: NoOptions, root: Path) -> GraphDataset:
    return dataset


class StoppedError(Exception):
    """What a test raises in the middle of a training."""


def stop_after(epoch: int, run: str | None = None) -> Any:
    """A watcher that ends the training, as a kill would, when a run has done some epochs."""

    def watch(progressed: Progressed) -> None:
        if progressed.epoch >= epoch and run in (None, progressed.run):
            raise StoppedError

    return watch


def left_behind(folder: Path) -> dict[str, bytes]:
    """What must not depend on interruptions: metrics, weights, and all that resuming needs."""
    patterns = ("*/metrics.jsonl", "*/*.safetensors", "checkpoints/*/epoch-*/*.safetensors")
    last = max(path.parent.name for path in folder.glob("checkpoints/*/epoch-*/values.json"))
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for pattern in patterns
        for path in folder.glob(pattern)
        if "checkpoints" not in path.parts or path.parent.name == last
    }


def listing(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }
