"""Fixed averages of neighbours, through the sparse operator of a Laplacian where there is one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bunn.baselines import propagation
from bunn.baselines.propagation import neighbor_sum
from bunn.graph.operator import SymmetricOperator, random_walk


class Averages(NamedTuple):
    r"""A map :math:`y_v = \sum_{u \to v} w_{uv} x_u` with weights that the graph alone determines.

    Args:
        edge_index: ``(2, e)`` edges.
        weight: ``(e,)`` the weights, in the precision that sums are formed in.
        operator: The same map as an operator, :obj:`None` for a graph that has none.
    """

    edge_index: Tensor
    weight: Tensor
    operator: SymmetricOperator | None = None

    def apply(self, x: Tensor) -> Tensor:
        """``(n, c) -> (n, c)``."""
        if self.operator is None or x.size(0) <= propagation.DENSE_SIZE:
            return neighbor_sum(x, self.edge_index, self.weight).to(x.dtype)
        return random_walk(x, self.operator)


def has_operator(edge_index: Tensor, num_nodes: int) -> bool:
    """Whether a graph is one that a :class:`bunn.Laplacian` takes as it is: undirected, without
    repeated edges, and too large for a dense matrix."""
    if num_nodes <= propagation.DENSE_SIZE:
        return False
    source, target = edge_index
    there = (source * num_nodes + target).sort().values
    back = (target * num_nodes + source).sort().values
    return torch.equal(there, back) and not bool((there[1:] == there[:-1]).any())


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """The precision sums of features of some type are formed in."""
    return torch.promote_types(dtype, torch.float32)
