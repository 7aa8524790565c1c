"""What a model asks of its arguments, in errors that name the way out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bunn.laplacian import Laplacian
from bunn.nn.pooling import POOLINGS


def check_pooling(pooling: str | None) -> None:
    """One of :data:`POOLINGS`, or none."""
    if pooling is not None and pooling not in POOLINGS:
        raise ValueError(f"pooling={pooling!r}; use one of {list(POOLINGS)} or None")


def check_sizes(
    in_channels: int,
    out_channels: int,
    pe_channels: int,
    edge_channels: int,
    encoder: nn.Module | None,
) -> None:
    """Sizes of features; an ``encoder`` of the user's knows what it reads."""
    if encoder is None and in_channels < 1:
        raise ValueError(f"in_channels={in_channels}; it must be >= 1, or pass an encoder")
    if out_channels < 1:
        raise ValueError(f"out_channels={out_channels}; it must be >= 1")
    for name, value in (("pe_channels", pe_channels), ("edge_channels", edge_channels)):
        if value < 0:
            raise ValueError(f"{name}={value}; it must be >= 0")


def check_features(x: Tensor, pe: Tensor | None, in_channels: int | None, pe_channels: int) -> None:
    """Node features and encodings.

    Args:
        x: ``(n, in_channels)`` floating-point features, or whatever an encoder reads.
        pe: ``(n, pe_channels)`` encodings, :obj:`None` if there are none.
        in_channels: Size of each input feature, :obj:`None` with an encoder of the user's.
        pe_channels: Size of the encodings.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"x is a {type(x).__name__}; pass a (num_nodes, in_channels) tensor")
    if in_channels is not None:
        if x.dim() != 2 or x.size(1) != in_channels:
            raise ValueError(
                f"x has shape {tuple(x.shape)}; the model reads (num_nodes, {in_channels})"
            )
        if not x.is_floating_point():
            raise TypeError(f"x has dtype {x.dtype}; use a floating-point type: x.float()")
    if pe is None and pe_channels:
        raise ValueError(
            f"pe=None, but the model reads {pe_channels} positional encodings per node; "
            f"pass pe of shape ({x.size(0)}, {pe_channels}), or build it with pe_channels=0"
        )
    if pe is not None and pe.shape != (x.size(0), pe_channels):
        raise ValueError(
            f"pe has shape {tuple(pe.shape)}; with pe_channels={pe_channels} the model "
            f"reads ({x.size(0)}, {pe_channels})"
            + ("" if pe_channels else ": leave pe out, or build it with pe_channels")
        )


def check_edges(x: Tensor, edge_index: Tensor) -> None:
    """``(2, e)`` indices on the device of ``x``."""
    if not isinstance(edge_index, Tensor):
        given = "lap.edge_index" if isinstance(edge_index, Laplacian) else "a tensor"
        raise TypeError(
            f"edge_index is a {type(edge_index).__name__}; this model reads the (2, num_edges) "
            f"edges themselves: pass {given}"
        )
    if edge_index.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"edge_index has dtype {edge_index.dtype}; use .long() node indices")
    if edge_index.dim() != 2 or edge_index.size(0) != 2:
        raise ValueError(
            f"edge_index has shape {tuple(edge_index.shape)}; it must be (2, num_edges)"
        )
    if edge_index.device != x.device:
        raise ValueError(
            f"x is on {x.device} and edge_index on {edge_index.device}; move one of them"
        )


def check_edge_weight(edge_index: Tensor, edge_weight: Tensor | None, block: nn.Module) -> None:
    """``(e,)`` weights, if the ``block`` is one that is ``weighted``."""
    if edge_weight is None:
        return
    if not block.weighted:
        layer = getattr(block, "layer", block)
        raise ValueError(
            f"edge_weight has shape {tuple(edge_weight.shape)}, but a {type(layer).__name__} "
            "knows no edge weights; leave edge_weight out"
        )
    if edge_weight.shape != edge_index.shape[1:]:
        raise ValueError(
            f"edge_weight has shape {tuple(edge_weight.shape)}; edge_index asks for "
            f"({edge_index.size(1)},)"
        )


def check_edge_features(
    edge_index: Tensor,
    edge_attr: Tensor | None,
    edge_channels: int,
    reads_edges: bool,
    floating: bool,
) -> None:
    """Edge features.

    Args:
        edge_index: ``(2, e)`` edges.
        edge_attr: ``(e, edge_channels)`` features, :obj:`None` if there are none.
        edge_channels: Size of the features.
        reads_edges: Whether the model reads any.
        floating: Whether they have to be numbers, and not categories.
    """
    if edge_attr is None and not edge_channels:
        return
    if edge_attr is not None and not reads_edges:
        raise ValueError(
            f"edge_attr has shape {tuple(edge_attr.shape)}, but this model reads no edge "
            "features; leave edge_attr out"
        )
    asked = (edge_index.size(1), edge_channels)
    if edge_attr is None or edge_attr.shape != asked:
        seen = "None" if edge_attr is None else f"of shape {tuple(edge_attr.shape)}"
        raise ValueError(
            f"edge_attr is {seen}; with edge_channels={edge_channels} the model reads {asked}"
            + ("" if edge_channels else ": leave it out, or build it with edge_channels")
        )
    if floating and not edge_attr.is_floating_point():
        raise TypeError(
            f"edge_attr has dtype {edge_attr.dtype}; use a floating-point type, "
            "edge_attr.float(), or build the model with an edge_encoder"
        )


def check_encoded(name: str, encoded: Tensor, asked: tuple[int, int]) -> None:
    """What the encoder called ``name`` returned, if it is of the shape that blocks read."""
    if encoded.shape != asked:
        raise ValueError(
            f"the {name} returned shape {tuple(encoded.shape)}; the blocks read {asked}"
        )
