"""Checks of what is handed in: sizes, shares, types, and the graph that every node belongs to."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral, Real

import torch
from torch import Tensor

from bunn.calling import plain


def check_size(name: str, value: object, least: int = 1, inferred: bool = False) -> None:
    """Whether a size is an integer, and large enough.

    Args:
        name: What the argument is called.
        value: What was given.
        least: The smallest that makes sense. (default: ``1``)
        inferred: Whether ``-1`` stands for one that the first input shows. (default: :obj:`False`)
    """
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name}={value!r}; it must be an integer")
    if value < least and not (inferred and value == -1):
        raise ValueError(f"{name}={value}; it must be >= {least}{', or -1 to infer it' * inferred}")


def check_share(name: str, value: object, all_of_it: bool = True) -> None:
    """Whether a share, of features that are dropped say, is a number from 0 to 1.

    Args:
        name: What the argument is called.
        value: What was given.
        all_of_it: Whether it may be 1. (default: :obj:`True`)
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{name}={value!r}; it must be a number from 0 to 1")
    share = float(value)
    if not 0 <= share <= 1 or (share == 1 and not all_of_it):
        raise ValueError(f"{name}={value}; it must be in [0, 1{']' if all_of_it else ')'}")


def check_dtype(x: Tensor, weights: Iterable[Tensor]) -> None:
    """Whether features ``x`` have the type of what multiplies them; under autocast any will do."""
    weight = next(iter(weights), x)
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        wanted = str(weight.dtype).removeprefix("torch.")
        raise TypeError(
            f"x has dtype {x.dtype}, and the layer {weight.dtype}; use x.to(torch.{wanted}), or "
            "move the layer to the type of x"
        )


def check_batch(batch: Tensor | None, num_nodes: int, batch_size: int | None = None) -> None:
    """Whether ``batch`` is ``(n,)`` the graph of every node.

    Which graphs it names is looked at on a CPU alone: elsewhere that would stall the device.

    Args:
        batch: As in PyG; :obj:`None` for one graph.
        num_nodes: The number of nodes ``n``.
        batch_size: The number of graphs, if it is known. (default: it is not)
    """
    if batch is None:
        return
    if not isinstance(batch, Tensor):
        raise TypeError(f"batch is a {type(batch).__name__}; pass a ({num_nodes},) tensor")
    if batch.shape != (num_nodes,):
        raise ValueError(
            f"batch has shape {tuple(batch.shape)}; it holds one graph index for each of the "
            f"{num_nodes} nodes"
        )
    if batch.dtype != torch.int64:
        raise TypeError(f"batch has dtype {batch.dtype}; use batch.long()")
    if batch.device.type != "cpu" or num_nodes == 0 or not plain(batch):
        return
    first, last = (int(bound) for bound in torch.aminmax(batch))
    if first < 0:
        raise ValueError(f"batch holds {first}; graphs are numbered from 0")
    if batch_size is not None and last >= batch_size:
        raise ValueError(
            f"batch holds graph {last}, but batch_size={batch_size}; there are {last + 1} graphs "
            "at least"
        )
