"""From the features of nodes to those of graphs."""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch_geometric.nn import global_add_pool, global_max_pool, global_mean_pool

Pooling = Literal["mean", "sum", "max"]

#: By their names.
POOLINGS = {"mean": global_mean_pool, "sum": global_add_pool, "max": global_max_pool}


def pool(x: Tensor, pooling: Pooling, batch: Tensor | None, batch_size: int | None) -> Tensor:
    """``(n, c)`` to ``(num_graphs, c)``, in the type of ``x``.

    Features of 16 bits are added up, and counted, in float32: a GPU adds one by one, and in
    bfloat16 does not count beyond 256.

    Args:
        x: Those of nodes.
        pooling: What becomes of those of a graph.
        batch: ``(n,)`` the graph of every node; :obj:`None` for one of all.
        batch_size: How many graphs there are; :obj:`None` to find out.
    """
    wide = x.float() if x.dtype.itemsize == 2 and pooling != "max" else x
    found: Tensor = POOLINGS[pooling](wide, batch, batch_size)
    return found.to(x.dtype)
