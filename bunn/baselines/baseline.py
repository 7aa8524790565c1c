"""A comparison model: its name, its options, its paper, and its block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from torch import nn

from bunn.baselines.frame import GraphModel, GraphModule, Options
from bunn.nn.pooling import Pooling


@dataclass(frozen=True)
class Baseline(Generic[Options]):
    """A model that BuNN is compared with.

    Args:
        name: What it is called in tables and on the command line.
        options: The class of its options, all of which have defaults.
        reference: The paper it is from, with a link.
        block: From options to one block of the frame.
    """

    name: str
    options: type[Options]
    reference: str
    block: Callable[[Options], GraphModule]

    def build(
        self,
        options: Options,
        in_channels: int,
        out_channels: int,
        *,
        pooling: Pooling | None = None,
        pe_channels: int = 0,
        encoder: nn.Module | None = None,
        edge_channels: int = 0,
        edge_encoder: nn.Module | None = None,
    ) -> GraphModel:
        """The model, with the arguments of :class:`bunn.baselines.GraphModel`."""
        if not isinstance(options, self.options):
            raise TypeError(
                f"options is a {type(options).__name__}; {self.name!r} is built with "
                f"{self.options.__name__}"
            )
        return GraphModel(
            options,
            in_channels,
            out_channels,
            self.block,
            pooling=pooling,
            pe_channels=pe_channels,
            encoder=encoder,
            edge_channels=edge_channels,
            edge_encoder=edge_encoder,
        )
