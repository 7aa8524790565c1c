"""What a step reads: a batch of graphs, or a draft of one that is put together inside of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bunn.batches.rooms import Room
from bunn.kernels import wanted
from bunn.nn.norm import counts_rows
from bunn.training.config import Config


class Inputs(NamedTuple):
    """The arguments of a model.

    Args:
        x: ``(n, in_channels)``.
        edge_index: ``(2, e)``.
        edge_weight: ``(e,)``.
        pe: ``(n, pe_channels)``.
        batch: ``(n,)`` the graph of every node, if there are several.
        batch_size: The number of graphs.
        edge_attr: ``(e, edge_channels)``, for a model that reads them.
    """

    x: Tensor
    edge_index: Tensor
    edge_weight: Tensor | None
    pe: Tensor | None
    batch: Tensor | None
    batch_size: int
    edge_attr: Tensor | None = None

    @property
    def arguments(self) -> tuple[Any, ...]:
        """As a model is called; without edge features for one that reads none."""
        return tuple(self) if self.edge_attr is not None else tuple(self)[:-1]


class Batch(NamedTuple):
    """What a model reads, and what it should say.

    Args:
        inputs: The arguments of the model.
        y: Targets, one row per node or per graph.
        rows: The rows that count in each part; all where there is no entry.
        counts: Of :func:`bunn.nn.norm.counted_rows`, where the batch is filled up.
    """

    inputs: Inputs
    y: Tensor
    rows: dict[str, Tensor]
    counts: Mapping[int, Tensor] | None = None

    def select(self, output: Tensor, part: str) -> tuple[Tensor, Tensor]:
        """Outputs and targets of the rows that count in ``part``."""
        rows = self.rows.get(part)
        if rows is None:
            return output, self.y
        return output[rows], self.y[rows]

    def read(self) -> Batch:
        """Itself: there it is."""
        return self

    @property
    def device(self) -> torch.device:
        return self.inputs.x.device

    @property
    def numbers(self) -> list[Tensor]:
        """What may differ from batch to batch of a kind."""
        x, pe, y = self.inputs.x, self.inputs.pe, self.y
        return [x, y] if pe is None else [x, pe, y]

    def with_numbers(self, numbers: Sequence[Tensor]) -> Batch:
        """The same with other :attr:`numbers`."""
        x, *pe, y = numbers
        inputs = self.inputs._replace(x=x, pe=pe[0] if pe else None)
        return self._replace(inputs=inputs, y=y)

    @property
    def anchor(self) -> Tensor:
        """What lives as long as batches of this kind come."""
        return self.inputs.edge_index

    @property
    def kind(self) -> Hashable:
        """Equal for batches on the very same edges."""
        _, edge_index, edge_weight, pe, owner, size, edge_attr = self.inputs
        same = (edge_index, edge_weight, owner, edge_attr, *self.rows.values())
        return (size, pe is None, *map(id, same))


class Draft(NamedTuple):
    """A batch of graphs that is known by their numbers, and put together inside of a step.

    Args:
        numbers: On the host: a :class:`bunn.batches.rooms.Plan`, and what else is drawn for the
            batch.
        room: Where it is put together.
        build: From the numbers on the device to the batch.
    """

    numbers: Sequence[Tensor]
    room: Room
    build: Callable[[Sequence[Tensor]], Batch]

    def read(self) -> Batch:
        """The batch; nobody waits for the device."""
        return self.build([number.to(self.device, non_blocking=True) for number in self.numbers])

    @property
    def device(self) -> torch.device:
        return self.room.union.edge_index.device

    def with_numbers(self, numbers: Sequence[Tensor]) -> Draft:
        """The same with other :attr:`numbers`."""
        return self._replace(numbers=numbers)

    @property
    def anchor(self) -> Room:
        """What lives as long as batches of this kind come."""
        return self.room

    @property
    def kind(self) -> Hashable:
        """Equal for batches in the same room."""
        return id(self.room)


def may_have_rooms(config: Config, model: nn.Module, device: torch.device) -> bool:
    """Whether batches may be filled up, so that steps on batches drawn anew can be recorded.

    There are kernels for that on a GPU, but not in float64, and for models whose options say so.
    """
    known = config.training.precision not in ("16-mixed", "64")
    on_kernels = device.type == "cuda" and wanted() and known
    return on_kernels and bool(config.model.may_be_filled) and counts_rows(model)
