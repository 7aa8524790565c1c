"""What a dataset is: a task, its splits, and the entry under which the registry lists it."""

from __future__ import annotations

import copy
import operator
import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, overload

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from bunn.data.root import MissingDataError

LEVELS = ("node", "graph")
KINDS = ("multiclass", "binary", "multilabel", "regression")
METRICS = ("accuracy", "roc-auc", "average-precision", "macro-f1", "mae", "mse")
PARTS = ("train", "val", "test")


@dataclass(frozen=True)
class Task:
    """What is predicted, and how a prediction is scored.

    Args:
        level: Whether nodes or whole graphs carry the targets.
        kind: ``"multiclass"`` (``y`` long ``(n,)``), ``"binary"`` (float ``(n,)``),
            ``"multilabel"`` or ``"regression"`` (float ``(n, outputs)``); with one row per graph
            instead of one per node at graph level.
        metric: One of :data:`METRICS`.
    """

    level: Literal["node", "graph"]
    kind: Literal["multiclass", "binary", "multilabel", "regression"]
    metric: str

    def __post_init__(self) -> None:
        for name, allowed in (("level", LEVELS), ("kind", KINDS), ("metric", METRICS)):
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(f"{name}={value!r}; no such {name}; use one of {list(allowed)}")


class GraphCollection(Sequence[Data]):
    """A sequence of graphs that also hands out mini-batches and moves between devices."""

    @abstractmethod
    def get(self, index: int) -> Data:
        """The graph at ``0 <= index < len(self)``."""

    @abstractmethod
    def collate(self, indices: Tensor) -> Data:
        """The block-diagonal graph of some of the graphs.

        Args:
            indices: ``(k,)`` int64, ``k >= 1``.

        Returns:
            A graph with the nodes of all ``k``, ``batch`` ``(n,)``, the graph of every node, and
            ``batch_size``, the number ``k``.
        """

    @abstractmethod
    def to(self, device: torch.device | str) -> Self:
        """The same graphs on another device."""

    @overload
    def __getitem__(self, index: int) -> Data: ...

    @overload
    def __getitem__(self, index: slice) -> GraphCollection: ...

    def __getitem__(self, index: int | slice) -> Data | GraphCollection:
        if isinstance(index, slice):
            return GraphList([self.get(i) for i in range(*index.indices(len(self)))])
        position = operator.index(index)
        position += len(self) if position < 0 else 0
        if not 0 <= position < len(self):
            raise IndexError(f"index={index}; the collection has {len(self)} graphs")
        return self.get(position)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} graphs)"


def check_indices(indices: Tensor) -> None:
    """Whether ``indices`` are what :meth:`GraphCollection.collate` takes; waits for no device."""
    if indices.dtype != torch.long or indices.dim() != 1 or indices.numel() == 0:
        raise ValueError(
            f"indices has shape {tuple(indices.shape)} and dtype {indices.dtype}; a batch needs at "
            "least one graph; pass a (k,) int64 tensor"
        )


class GraphList(GraphCollection):
    """Any graphs, batched by PyG.

    A batch of one keeps the graph's own tensors, so that whatever is remembered for its
    ``edge_index`` (a Laplacian) serves every step.

    Args:
        graphs: The graphs.
    """

    def __init__(self, graphs: Sequence[Data]) -> None:
        self._graphs = list(graphs)

    def __len__(self) -> int:
        return len(self._graphs)

    def get(self, index: int) -> Data:
        return self._graphs[index]

    def collate(self, indices: Tensor) -> Data:
        check_indices(indices)
        graphs = [self[i] for i in indices.tolist()]
        if len(graphs) > 1:
            return Batch.from_data_list(graphs)
        data = copy.copy(graphs[0])
        data.batch = torch.zeros(data.num_nodes, dtype=torch.long, device=data.edge_index.device)
        data.batch_size = 1
        return data

    def to(self, device: torch.device | str) -> Self:
        return type(self)([copy.copy(data).to(device) for data in self._graphs])


@dataclass(frozen=True)
class Split:
    """The three parts of a dataset; plain sequences of graphs become a :class:`GraphList`.

    In a transductive task the three are the same collection of one graph, which has ``train_mask``,
    ``val_mask`` and ``test_mask`` ``(n,)``. A graph with ``mask`` ``(n,)`` is scored on those
    nodes alone, in every part.

    Args:
        train: What is fitted.
        val: What settings and the best step are selected on.
        test: What is reported, and never looked at before.
    """

    train: GraphCollection
    val: GraphCollection
    test: GraphCollection

    def __post_init__(self) -> None:
        wrapped: dict[int, GraphCollection] = {}
        for name in PARTS:
            part = getattr(self, name)
            if not isinstance(part, GraphCollection):
                part = wrapped.setdefault(id(part), GraphList(part))
                object.__setattr__(self, name, part)

    def to(self, device: torch.device | str) -> Split:
        """The same parts on another device; parts that were one collection stay one."""
        moved = {id(part): part for part in (self.train, self.val, self.test)}
        moved = {key: part.to(device) for key, part in moved.items()}
        return Split(*(moved[id(getattr(self, name))] for name in PARTS))


@dataclass(frozen=True)
class GraphDataset:
    """A dataset, ready to train on.

    Args:
        name: As the registry lists it.
        task: What is predicted.
        in_channels: Columns of ``x``.
        out_channels: Outputs of a model, ``1`` for a binary task.
        num_splits: How many splits there are; :obj:`None`: any ``index >= 0``, each drawn from
            that seed.
        make_split: From an index in range to its split; :meth:`split` checks the index first.
        encoder: From a width to a module that takes ``x`` to ``(n, width)``. (default: ``x`` holds
            floating-point features)
        edge_channels: Columns of ``edge_attr``. (default: ``0``, edges have no features)
        edge_encoder: The same for ``edge_attr``, to ``(e, width)``.
    """

    name: str
    task: Task
    in_channels: int
    out_channels: int
    num_splits: int | None
    make_split: Callable[[int], Split]
    encoder: Callable[[int], nn.Module] | None = None
    edge_channels: int = 0
    edge_encoder: Callable[[int], nn.Module] | None = None

    def split(self, index: int = 0) -> Split:
        """Split number ``index``."""
        if index < 0 or (self.num_splits is not None and index >= self.num_splits):
            last = "any index >= 0" if self.num_splits is None else f"0 to {self.num_splits - 1}"
            raise ValueError(f"index={index}; {self.name} has no such split; use {last}")
        return self.make_split(index)


def only_split(split: Split, index: int) -> Split:
    """The split of a dataset that has no other, for ``partial(only_split, split)``."""
    return split


@dataclass(frozen=True)
class DatasetSpec:
    """One line of the registry: everything known of a dataset without reading it.

    Args:
        name: Lower case, with hyphens.
        task: What is predicted.
        size: In words, for people.
        licence: Of the data.
        source: Where the files come from, or ``"generated"``.
        load: From options and data root to the dataset; the files are there.
        options: A frozen dataclass, all of whose fields have defaults.
        files: What must be there, relative to the data root.
        download: Brings the files to their places below a folder. (default: nothing to bring)
        reported_part: The part whose metric the literature reports. (default: ``"test"``)
        transductive: Whether all parts are nodes of one graph. (default: :obj:`False`)
        packed: A file that stands for all of ``files``, relative to the data root. (default: none)
    """

    name: str
    task: Task
    size: str
    licence: str
    source: str
    load: Callable[[Any, Path], GraphDataset]
    options: type[Any]
    files: tuple[str, ...] = ()
    download: Callable[[Path], object] | None = None
    reported_part: str = "test"
    transductive: bool = False
    packed: str | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", self.name):
            raise ValueError(f"name={self.name!r}; not a dataset name; use lower case and hyphens")
        if self.reported_part not in PARTS:
            raise ValueError(
                f"reported_part={self.reported_part!r}; no such part; use one of {list(PARTS)}"
            )

    def missing(self, root: Path) -> list[Path]:
        """The files that should be below ``root`` and are not."""
        if self.packed is not None and (root / self.packed).is_file():
            return []
        return [root / file for file in self.files if not (root / file).is_file()]

    def is_present(self, root: Path) -> bool:
        """Whether every file is below ``root``."""
        return not self.missing(root)

    def require(self, root: Path, reason: str = "") -> None:
        """Raises :class:`bunn.data.MissingDataError` unless every file is below ``root``."""
        missing = self.missing(root)
        if missing:
            raise MissingDataError(
                f"dataset={self.name!r}; {reason or 'its files are not under the data root'}; "
                f"expected at {', '.join(map(str, missing))}; get them from {self.source}, or, "
                f"where the net is reachable, with `bunn datasets --download {self.name}` or "
                f"load_dataset({self.name!r}, download=True); or name the folder that has them "
                "with --data-root, root=... or $BUNN_DATA"
            )
