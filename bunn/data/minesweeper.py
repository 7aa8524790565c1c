"""A generated relative of minesweeper (Platonov et al., https://arxiv.org/abs/2302.11640).

The file of the benchmark is one board of 100 x 100: this generator reproduces how it was made, as
read off the file, for boards of any size. Nodes are cells, row by row, each joined to its up to
eight neighbours. Exactly a fifth of the cells hold a mine. Exactly half of the cells, mines or not,
are hidden: their features are column 0 alone. Every other cell, mines too, shows the number of its
neighbouring mines as one of columns 1 to 6, for 0, 1, 2, 3, 4 and "5 or more". The parts have 50,
25 and 25 % of the cells with a mine, and of those without.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from bunn.data.dataset import DatasetSpec, GraphDataset, GraphList, Split, Task
from bunn.data.options import check_count, check_fraction
from bunn.data.seeds import generator

TASK = Task("node", "binary", "roc-auc")

#: The columns of ``x``: hidden; then 0, 1, 2, 3, 4 and at least 5 neighbouring mines.
NUM_FEATURES = 7


@dataclass(frozen=True)
class BoardOptions:
    """The board.

    Args:
        height: (default: ``100``)
        width: (default: ``100``)
        mine_fraction: The share of cells with a mine. (default: ``0.2``)
        hidden_fraction: The share of cells that show nothing. (default: ``0.5``)
    """

    height: int = 100
    width: int = 100
    mine_fraction: float = 0.2
    hidden_fraction: float = 0.5

    def __post_init__(self) -> None:
        check_count("height", self.height)
        check_count("width", self.width)
        check_fraction("mine_fraction", self.mine_fraction)
        check_fraction("hidden_fraction", self.hidden_fraction)
        if not 4 <= self.num_mines <= self.num_cells - 4:
            raise ValueError(
                f"mine_fraction={self.mine_fraction}; of {self.height} x {self.width} cells it "
                f"makes {self.num_mines} mines; the three parts need four cells with and four "
                "without: use a larger board or another fraction"
            )

    @property
    def num_cells(self) -> int:
        """``n``."""
        return self.height * self.width

    @property
    def num_mines(self) -> int:
        """Cells with a mine."""
        return round(self.mine_fraction * self.num_cells)


def minesweeper_board(options: BoardOptions | None = None) -> GraphDataset:
    """The dataset; split ``i`` is another board, drawn from seed ``i``, on the same edges."""
    options = options or BoardOptions()
    edge_index = board_edges(options.height, options.width)
    make_split = partial(_split, edge_index, options)
    return GraphDataset("minesweeper-board", TASK, NUM_FEATURES, 1, None, make_split)


def board_edges(height: int, width: int) -> Tensor:
    """``(2, e)`` both directions of the edges between cells that share a side or a corner."""
    cell = torch.arange(height * width).view(height, width)
    pairs = (
        (cell[:, :-1], cell[:, 1:]),
        (cell[:-1], cell[1:]),
        (cell[:-1, :-1], cell[1:, 1:]),
        (cell[:-1, 1:], cell[1:, :-1]),
    )
    edges = torch.cat([torch.stack((a.flatten(), b.flatten())) for a, b in pairs], 1)
    both: Tensor = to_undirected(edges, num_nodes=height * width)
    return both


def board_features(mine: Tensor, hidden: Tensor, edge_index: Tensor) -> Tensor:
    """What the cells show.

    Args:
        mine: ``(n,)`` bool.
        hidden: ``(n,)`` bool.
        edge_index: ``(2, e)`` edges of the board.

    Returns:
        ``(n, 7)`` float32, one-hot.
    """
    neighbours = torch.zeros_like(mine, dtype=torch.long)
    neighbours.index_add_(0, edge_index[1], mine[edge_index[0]].long())
    column = torch.where(hidden, 0, 1 + neighbours.clamp(max=NUM_FEATURES - 2))
    return torch.nn.functional.one_hot(column, NUM_FEATURES).float()


def _split(edge_index: Tensor, options: BoardOptions, index: int) -> Split:
    n = options.num_cells
    mine = _choose(n, options.num_mines, generator("board", index, "mines"))
    hidden = _choose(n, round(options.hidden_fraction * n), generator("board", index, "hidden"))
    part = _parts(mine, generator("board", index, "parts"))
    data = Data(
        x=board_features(mine, hidden, edge_index),
        edge_index=edge_index,
        y=mine.float(),
        train_mask=part == 0,
        val_mask=part == 1,
        test_mask=part == 2,
    )
    graphs = GraphList([data])
    return Split(graphs, graphs, graphs)


def _choose(n: int, count: int, random: torch.Generator) -> Tensor:
    """``(n,)`` bool, :obj:`True` in ``count`` places."""
    chosen = torch.zeros(n, dtype=torch.bool)
    chosen[torch.randperm(n, generator=random)[:count]] = True
    return chosen


def _parts(mine: Tensor, random: torch.Generator) -> Tensor:
    """``(n,)`` the part of every cell: of those with a mine, and of the others, 50, 25 and 25 %."""
    part = torch.full(mine.shape, 2)
    for cells in (mine.nonzero()[:, 0], (~mine).nonzero()[:, 0]):
        shuffled = cells[torch.randperm(len(cells), generator=random)]
        train, val = len(cells) // 2, len(cells) // 4
        part[shuffled[:train]] = 0
        part[shuffled[train : train + val]] = 1
    return part


SPECS = (
    DatasetSpec(
        "minesweeper-board",
        TASK,
        "10,000 nodes, 39,402 edges",
        "MIT",
        "generated",
        lambda options, root: minesweeper_board(options),
        BoardOptions,
        transductive=True,
    ),
)
