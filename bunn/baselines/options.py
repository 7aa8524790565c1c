"""The options that all baselines share, and the checks that name a bad one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from numbers import Real

from torch_geometric.nn.resolver import activation_resolver

from bunn.nn.block import Norm


@dataclass(frozen=True)
class FrameOptions:
    """What every baseline is built with; a model adds its own fields in a subclass.

    Args:
        hidden_channels: Width of the stream.
        num_layers: The number of blocks.
        dropout: In the encoder and after every layer.
        act: The non-linearity, as PyG's resolver takes it.
        norm: ``"layer"``, ``"batch"`` or :obj:`None`.
        norm_first: Whether a block normalises before the layer, or after it.
        residual: Whether blocks add to the stream or replace it.
        head_layers: Depth of the head.
        head_dropout: Of what each layer of the head reads.
        head_act: Its non-linearity, :obj:`None` for that of the blocks.
        linear_encoder: Whether features enter through a linear map alone, as if the first layer
            read them raw, or through a non-linearity too.
        norm_residual: Whether a block that normalises after the layer does so after its residual
            connection, too, as GPS always does.
    """

    hidden_channels: int = 128
    num_layers: int = 2
    dropout: float = 0.0
    act: str = "relu"
    norm: Norm = "layer"
    norm_first: bool = True
    residual: bool = True
    head_layers: int = 1
    head_dropout: float = 0.0
    head_act: str | None = None
    linear_encoder: bool = False
    norm_residual: bool = False

    @property
    def reads_edges(self) -> bool:
        """Whether blocks read the features of edges."""
        return False

    @property
    def may_be_filled(self) -> bool:
        """Whether batches may be filled up with isolated nodes: nodes hear of each other along
        edges alone, and nobody waits to know how many there are."""
        return False

    @property
    def num_blocks(self) -> int:
        """How often the frame repeats a block: once for every layer, or once at all for a model
        that holds its layers in one block, because they hand on more than features of nodes."""
        return self.num_layers

    def __post_init__(self) -> None:
        for name in ("hidden_channels", "num_layers", "head_layers"):
            check_count(self, name)
        for name in ("norm_first", "residual", "linear_encoder", "norm_residual"):
            check_flag(self, name)
        if self.norm_first and self.norm_residual:
            raise ValueError(
                "norm_residual=True normalises after the layer, but norm_first=True; set one of "
                "them to False"
            )
        check_probability(self, "dropout")
        check_probability(self, "head_dropout")
        check_choice(self, "norm", ("layer", "batch", None))
        check_activation(self, "act")
        if self.head_act is not None:
            check_activation(self, "head_act")


def check_count(options: object, name: str, least: int = 1) -> None:
    """An integer of at least one, or ``least``."""
    value = getattr(options, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}={value!r}; it must be an integer >= {least}")


def check_flag(options: object, name: str) -> None:
    """A boolean: a string, such as ``"false"``, would count as true."""
    value = getattr(options, name)
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r}; it must be True or False")


def check_probability(options: object, name: str) -> None:
    """A number in ``[0, 1)``."""
    value = getattr(options, name)
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < 1:
        raise ValueError(f"{name}={value!r}; it must be a number >= 0 and < 1")


def check_choice(options: object, name: str, choices: Collection[object]) -> None:
    """One of ``choices``."""
    value = getattr(options, name)
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name}={value!r}; use one of {listed}")


def check_activation(options: object, name: str) -> None:
    """The name of an activation."""
    value = getattr(options, name)
    try:
        known = isinstance(value, str) and activation_resolver(value) is not None
    except ValueError:
        known = False
    if not known:
        raise ValueError(
            f"{name}={value!r} is unknown; use the name of an activation of torch.nn, such as "
            "'relu', 'gelu', 'elu' or 'tanh'"
        )


def check_divides(options: FrameOptions, name: str) -> None:
    """A count that the width is a multiple of."""
    check_count(options, name)
    width, value = options.hidden_channels, getattr(options, name)
    if width % value:
        fitting = max(1, round(width / value)) * value
        raise ValueError(
            f"hidden_channels={width} is no multiple of {name}={value}; use "
            f"hidden_channels={fitting}, for example"
        )
