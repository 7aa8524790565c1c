r"""The paper's synthetic tasks: say the mean of the cluster you are not in (Section 6.1).

With ``n`` nodes per cluster, the features of the first are uniform on ``[-2 sqrt(3n), 0]``, those
of the second on ``[0, 2 sqrt(3n)]``: means ``-+sqrt(3n)``, standard deviation ``sqrt(n)``. The
target of a node is the mean feature of the other cluster, of variance 1. The best constant per
cluster has therefore MSE 1, and predicting 0 has ``3n + 1``: the first two rows of the paper's
table, which the scale in its text does not give.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch_geometric.utils import dense_to_sparse

from bunn.data.dataset import PARTS, DatasetSpec, GraphDataset, Split, Task
from bunn.data.options import check_count
from bunn.data.seeds import generator
from bunn.data.stack import SharedGraph, TensorStack

TASK = Task("node", "regression", "mse")


@dataclass(frozen=True)
class ClusterOptions:
    """The size of the task.

    Args:
        cluster_size: Nodes per cluster. (default: ``10``)
        num_train: Training graphs. (default: ``100``)
        num_val: Validation graphs, which the paper does without. (default: ``100``)
        num_test: Test graphs. (default: ``100``)
    """

    cluster_size: int = 10
    num_train: int = 100
    num_val: int = 100
    num_test: int = 100

    def __post_init__(self) -> None:
        for name in ("cluster_size", "num_train", "num_val", "num_test"):
            check_count(name, getattr(self, name))


def barbell(options: ClusterOptions | None = None) -> GraphDataset:
    """Two ``n``-cliques, the clusters, joined by one edge: over-squashing.

    Every graph has ``x`` ``(2n, 1)``, ``y`` ``(2n, 1)`` and ``cluster`` ``(2n,)`` int64, and all
    have the same ``edge_index`` tensor. Split ``i`` is drawn from seed ``i``, its parts from
    streams of their own.
    """
    options = options or ClusterOptions()
    n = options.cluster_size
    adjacency = torch.block_diag(torch.ones(n, n), torch.ones(n, n))
    adjacency[n - 1, n] = adjacency[n, n - 1] = 1.0
    return _dataset("barbell", adjacency, options)


def clique(options: ClusterOptions | None = None) -> GraphDataset:
    """One ``2n``-clique in which half the nodes are a cluster: over-smoothing.

    The graphs are those of :func:`barbell` but for their edges.
    """
    options = options or ClusterOptions()
    n = options.cluster_size
    return _dataset("clique", torch.ones(2 * n, 2 * n), options)


def constant_baselines(split: Split) -> dict[str, float]:
    """The two rows of the table that need no model, as MSE over the test graphs of either task.

    ``"base-1"`` predicts 0, ``"base-2"`` the expected mean of the other cluster, ``+-sqrt(3n)``.
    """
    error = {"base-1": 0.0, "base-2": 0.0}
    for data in split.test:
        first = (data.cluster == 0).double().unsqueeze(1)
        constant = (2 * first - 1) * math.sqrt(3 * data.num_nodes / 2)
        target = data.y.double()
        error["base-1"] += float(target.square().mean())
        error["base-2"] += float((target - constant).square().mean())
    return {name: total / len(split.test) for name, total in error.items()}


def _dataset(name: str, adjacency: Tensor, options: ClusterOptions) -> GraphDataset:
    edge_index, _ = dense_to_sparse(adjacency.fill_diagonal_(0.0))
    cluster = torch.arange(2).repeat_interleave(options.cluster_size)
    graph = SharedGraph(edge_index, 2 * options.cluster_size, cluster=cluster)
    return GraphDataset(name, TASK, 1, 1, None, partial(_split, graph, options))


def _split(graph: SharedGraph, options: ClusterOptions, index: int) -> Split:
    counts = (options.num_train, options.num_val, options.num_test)
    parts = {
        part: _draw(graph, options.cluster_size, count, generator("clusters", index, part))
        for part, count in zip(PARTS, counts, strict=True)
    }
    return Split(**parts)


def _draw(graph: SharedGraph, n: int, count: int, random: torch.Generator) -> TensorStack:
    x = 2 * math.sqrt(3 * n) * torch.rand(count, 2, n, generator=random, dtype=torch.float64)
    x[:, 0] *= -1
    y = x.mean(2, keepdim=True).flip(1).expand_as(x)
    return TensorStack(graph, x=_per_node(x), y=_per_node(y))


def _per_node(value: Tensor) -> Tensor:
    """``(graphs, 2, n)`` float64 as ``(graphs, 2n, 1)`` float32."""
    return value.flatten(1).unsqueeze(2).float().contiguous()


SPECS = (
    DatasetSpec(
        "barbell",
        TASK,
        "300 graphs of 20 nodes, 91 edges",
        "MIT",
        "generated",
        lambda options, root: barbell(options),
        ClusterOptions,
    ),
    DatasetSpec(
        "clique",
        TASK,
        "300 graphs of 20 nodes, 190 edges",
        "MIT",
        "generated",
        lambda options, root: clique(options),
        ClusterOptions,
    ),
)
