"""The learnable update in the global frame: where it stands, and what it is (Equation 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn
from torch_geometric.nn import Linear
from torch_geometric.nn.resolver import activation_resolver

from bunn.nn.dropout import Dropout


@dataclass(frozen=True)
class Update:
    """How a layer mixes channels, always in the global frame.

    Args:
        position: Before the heat, as in the paper, or after it, as in the authors' code. With
            different times per bundle the two do not commute. (default: ``"before"``)
        num_layers: ``1`` for a linear map ``W``, ``2`` for a two-layer network.
        concat: What an update after the heat reads besides the diffused features: nothing, or the
            node's own features in the ``"global"`` or in the ``"local"`` frame. (default:
            :obj:`None`)
        dropout: After every linear layer of a two-layer network. (default: ``0.0``)
        act: The activation inside a two-layer network. (default: ``"gelu"``)
    """

    position: Literal["before", "after"] = "before"
    num_layers: Literal[1, 2] = 1
    concat: Literal["global", "local"] | None = None
    dropout: float = 0.0
    act: str = "gelu"

    def __post_init__(self) -> None:
        if self.position not in ("before", "after"):
            raise ValueError(f"position={self.position!r}; use 'before' or 'after'")
        if self.num_layers not in (1, 2):
            raise ValueError(f"num_layers={self.num_layers}; an update has 1 or 2 layers")
        if self.concat not in (None, "global", "local"):
            raise ValueError(f"concat={self.concat!r}; use None, 'global' or 'local'")
        if self.concat is not None and self.position == "before":
            raise ValueError(
                f"concat={self.concat!r} needs position='after': before the heat there is nothing "
                "but the node's own features"
            )

    def network(self, in_channels: int, out_channels: int, bias: bool) -> nn.Module:
        """The module, from ``in_channels`` (``-1`` to infer them) to ``out_channels``."""
        if self.num_layers == 1:
            linear: nn.Module = Linear(in_channels, out_channels, bias=bias)
            return linear
        return nn.Sequential(
            Linear(in_channels, out_channels, bias=bias),
            Dropout(self.dropout),
            activation_resolver(self.act),
            Linear(out_channels, out_channels, bias=bias),
            Dropout(self.dropout),
        )


UPDATES: dict[str, Update] = {
    "before": Update(),
    "after": Update("after"),
    "mlp": Update("after", 2),
    "mlp-concat": Update("after", 2, "global"),
}


def read_update(update: str | Update) -> Update:
    """An update by name, or as it is."""
    if isinstance(update, Update):
        return update
    if update not in UPDATES:
        raise ValueError(
            f"update={update!r} is unknown; use one of {list(UPDATES)}, or bunn.nn.Update(...)"
        )
    return UPDATES[update]
