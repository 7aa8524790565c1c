"""Tree-NeighborsMatch (Alon and Yahav, https://arxiv.org/abs/2006.05205): over-squashing, pure.

A complete binary tree of depth ``r``, node 0 its root, the ``L = 2^r`` leaves its last nodes. Leaf
``i`` holds key ``i`` and a value, the values a permutation of 1 to ``L``; the root holds a query
key; the class of the root is the value of the leaf with that key. All of it must pass the root's
two children.

The examples of a split are all pairs of a key and one of ``P = min(max_permutations, L!,
max_examples // L)`` permutations: distinct ones for ``r <= 3``, where they can be listed (for
``r = 2`` that is all 24), and independent draws above, where a repetition has probability below
``1e-7``. The training part is ``train_fraction`` of them, every value equally often up to one
(stratified, as the original is); of the rest the original tests on all, here half are for
validation. What the literature reports is the accuracy on the **training** part: it asks whether
the answer can be fitted at all.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import partial
from typing import Literal, Self, get_args

import torch
from torch import Tensor

from bunn.data.dataset import DatasetSpec, GraphDataset, Split, Task
from bunn.data.encoders import KeyValueEncoder
from bunn.data.options import check_count, check_fraction
from bunn.data.seeds import generator
from bunn.data.stack import GraphStack, SharedGraph

TASK = Task("node", "multiclass", "accuracy")

TreeEdges = Literal["undirected", "to-root"]


@dataclass(frozen=True)
class TreeOptions:
    """The size of the task.

    Args:
        depth: The depth ``r`` of the tree. (default: ``4``)
        max_permutations: At most this many permutations of the values. (default: ``1000``)
        max_examples: At most this many examples in all parts together. (default: ``32000``)
        train_fraction: The share of the training part. (default: ``0.8``)
        edges: ``"undirected"``, both directions of the tree, for BuNN; or ``"to-root"``, from child
            to parent and a self-loop at every node, for message passing. (default:
            ``"undirected"``)
    """

    depth: int = 4
    max_permutations: int = 1000
    max_examples: int = 32_000
    train_fraction: float = 0.8
    edges: TreeEdges = "undirected"

    def __post_init__(self) -> None:
        check_count("depth", self.depth, 2)
        check_count("max_permutations", self.max_permutations)
        check_count("max_examples", self.max_examples)
        check_fraction("train_fraction", self.train_fraction)
        if self.edges not in get_args(TreeEdges):
            raise ValueError(
                f"edges={self.edges!r}; no such edges; use one of {list(get_args(TreeEdges))}"
            )
        if self.max_examples < self.num_leaves:
            raise ValueError(
                f"max_examples={self.max_examples}; a permutation at depth {self.depth} makes "
                f"{self.num_leaves} examples; raise it to that or lower depth"
            )
        rest = self.num_examples - self.num_train
        if self.num_train < 1 or rest < 2:
            raise ValueError(
                f"train_fraction={self.train_fraction}; of {self.num_examples} examples it leaves "
                f"{self.num_train} to train and {rest} to validate and test; use a less extreme one"
            )

    @property
    def num_leaves(self) -> int:
        """``L = 2^r``."""
        return int(2**self.depth)

    @property
    def num_nodes(self) -> int:
        """``2L - 1``."""
        return 2 * self.num_leaves - 1

    @property
    def num_permutations(self) -> int:
        """``P``."""
        # 20! is beyond any number of permutations that fits into memory.
        possible = math.factorial(min(self.num_leaves, 20))
        return min(self.max_permutations, possible, self.max_examples // self.num_leaves)

    @property
    def num_examples(self) -> int:
        """``P L``."""
        return self.num_permutations * self.num_leaves

    @property
    def num_train(self) -> int:
        """Examples in the training part."""
        return int(self.train_fraction * self.num_examples)


class TreeExamples(GraphStack):
    """Examples as indices into a table of permutations; features are made when asked for.

    A member has ``x`` ``(n, 2)`` int64, the key and the value of every node, 0 for none; ``y``
    ``(n,)`` int64, the value less one at the root and 0 elsewhere; and ``mask`` ``(n,)``, the root.

    Args:
        graph: The tree.
        permutations: ``(P, L)`` int64, the values of the leaves, 1 to ``L``.
        examples: ``(num_graphs,)`` int64, ``p * L + k`` for permutation ``p`` and key ``k + 1``.
    """

    def __init__(self, graph: SharedGraph, permutations: Tensor, examples: Tensor) -> None:
        super().__init__(graph)
        self.permutations = permutations
        self.examples = examples

    def __len__(self) -> int:
        return self.examples.numel()

    def fields(self, indices: Tensor) -> dict[str, Tensor]:
        leaves = self.permutations.size(1)
        example = self.examples[indices]
        values = self.permutations[example.div(leaves, rounding_mode="floor")]
        key = (example % leaves).unsqueeze(1)
        x = values.new_zeros(indices.numel(), self.graph.num_nodes, 2)
        x[:, -leaves:, 0] = torch.arange(1, leaves + 1, device=x.device)
        x[:, -leaves:, 1] = values
        x[:, :1, 0] = key + 1
        y = values.new_zeros(indices.numel(), self.graph.num_nodes)
        y[:, :1] = values.gather(1, key) - 1
        return {"x": x, "y": y}

    def to(self, device: torch.device | str) -> Self:
        graph, permutations = self.graph.to(device), self.permutations.to(device)
        return type(self)(graph, permutations, self.examples.to(device))


def tree_neighborsmatch(options: TreeOptions | None = None) -> GraphDataset:
    """The dataset; split ``i`` is drawn from seed ``i``."""
    options = options or TreeOptions()
    child = torch.arange(1, options.num_nodes)
    up = torch.stack((child, (child - 1).div(2, rounding_mode="floor")))
    if options.edges == "undirected":
        edge_index = torch.cat((up, up.flip(0)), 1)
    else:
        edge_index = torch.cat((up, torch.arange(options.num_nodes).expand(2, -1)), 1)
    root = torch.arange(options.num_nodes) == 0
    graph = SharedGraph(edge_index, options.num_nodes, mask=root)
    return GraphDataset(
        "tree-neighborsmatch",
        TASK,
        2,
        options.num_leaves,
        None,
        partial(_split, graph, options),
        partial(KeyValueEncoder, options.num_leaves),
    )


def _split(graph: SharedGraph, options: TreeOptions, index: int) -> Split:
    permutations = _permutations(options, generator("tree", index, "values"))
    order = _stratified_order(permutations, generator("tree", index, "parts"))
    rest = options.num_examples - options.num_train
    parts = order.split([options.num_train, rest // 2, rest - rest // 2])
    return Split(*(TreeExamples(graph, permutations, examples) for examples in parts))


def _permutations(options: TreeOptions, random: torch.Generator) -> Tensor:
    """``(P, L)`` int64 permutations of 1 to ``L``."""
    count, leaves = options.num_permutations, options.num_leaves
    if leaves <= 8:
        every = torch.tensor(list(itertools.permutations(range(1, leaves + 1))))
        return every[torch.randperm(len(every), generator=random)[:count]]
    return torch.rand(count, leaves, generator=random, dtype=torch.float64).argsort(1) + 1


def _stratified_order(permutations: Tensor, random: torch.Generator) -> Tensor:
    """The ``P L`` examples in a random order, any prefix of which has every value equally often.

    Every value is the answer of ``P`` examples. Each is ranked among those with its answer, at
    random, and the examples are taken by rank.
    """
    count = permutations.numel()
    order = torch.randperm(count, generator=random)
    by_value = torch.argsort(permutations.flatten()[order], stable=True)
    rank = torch.empty_like(order)
    rank[by_value] = torch.arange(count) % len(permutations)
    return order[torch.argsort(rank, stable=True)]


SPECS = (
    DatasetSpec(
        "tree-neighborsmatch",
        TASK,
        "up to 32,000 trees of 2^(depth+1) - 1 nodes",
        "MIT",
        "generated",
        lambda options, root: tree_neighborsmatch(options),
        TreeOptions,
        reported_part="train",
    ),
)
