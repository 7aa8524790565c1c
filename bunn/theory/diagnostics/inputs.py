"""What every diagnostic is handed: a model in evaluation mode, a graph, and nodes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from bunn.graph.edges import Adjacency
from bunn.laplacian import Laplacian
from bunn.sharing import laplacian_of

Nodes: TypeAlias = int | Sequence[int] | Tensor | None


@contextmanager
def evaluating(model: Callable[..., Any]) -> Iterator[None]:
    """Evaluation mode; afterwards every module has its own training flag back."""
    if not isinstance(model, nn.Module):
        yield
        return
    flags = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, training in flags:
            module.training = training


def graph_of(edge_index: Adjacency | Laplacian, x: Tensor, inputs: dict[str, Any]) -> Laplacian:
    """The graph the model is shown, with the weights it is shown."""
    if isinstance(edge_index, Laplacian):
        return edge_index
    return laplacian_of(edge_index, inputs.get("edge_weight"), x.size(0), "rw")


def node_indices(nodes: Nodes, count: int, name: str, owner: str, device: torch.device) -> Tensor:
    """``nodes`` as a one-dimensional tensor of indices below ``count``."""
    if nodes is None:
        return torch.arange(count, device=device)
    index = torch.as_tensor(nodes, device=device)
    if index.dtype == torch.bool:
        if index.shape != (count,):
            raise ValueError(
                f"{name} is a mask of shape {tuple(index.shape)}, but {owner} has {count} rows; "
                f"make it ({count},)"
            )
        return index.nonzero().squeeze(1)
    if index.numel() == 0:
        return index.new_zeros(0, dtype=torch.long)
    if index.is_floating_point() or index.is_complex():
        raise TypeError(f"{name} has dtype {index.dtype}; use integers or a boolean mask")
    if index.dim() > 1:
        raise ValueError(f"{name} has shape {tuple(index.shape)}; pass one index or a list of them")
    index = index.reshape(-1).long()
    wrong = (index < 0) | (index >= count)
    if bool(wrong.any()):
        raise ValueError(
            f"{name} names {int(index[wrong][0])}, but {owner} has {count} rows; use 0 to "
            f"{count - 1}"
        )
    return index
