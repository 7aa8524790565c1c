r"""How well mines can be known: what the numbers on the board of *minesweeper* tell by themselves.

Boards that agree with the numbers are drawn by Gibbs sampling, from

.. math::
    p(z) \propto \prod_v q^{z_v} (1 - q)^{1 - z_v}
        \exp\Bigl(-\beta \sum_{v \text{ shows } k_v} \bigl(k_v - \sum_{u \sim v} z_u\bigr)^2\Bigr)

with mines ``z``, which a share ``q`` of the cells has. The share of boards with a mine in a cell
predicts it, as well as one can who knows how the board was made and no label. One chain starts at
the board itself, and predicts too well if it is too short; the other at random, with ``beta``
growing to its value, and predicts too badly. Validation nodes of the ten splits say how well.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.ndimage import convolve
from torchmetrics.functional.classification import binary_auroc

from benchmarks.results import save
from bunn.data import load_dataset

SIDE, SPLITS = 100, 10
#: The largest number that is shown stands for itself and more.
MOST = 5
BETA, SWEEPS = 2.5, 8000
#: The share of a chain in which ``beta`` grows, and after which boards count.
GROWING, COUNTING = 0.3, 0.35
AROUND = np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1]])


class Board:
    """What is seen of a board.

    Args:
        numbers: ``(h, w)`` mines around a cell, -1 where that is not shown.
        share: Of cells with a mine.
    """

    def __init__(self, numbers: Any, share: float) -> None:
        self.numbers, self.odds = numbers, np.log(share / (1 - share))
        row, column = np.indices(numbers.shape)
        # Cells of a colour are neighbours of no common cell: they are drawn together.
        self.colours = [(row % 3 == i) & (column % 3 == j) for i in range(3) for j in range(3)]

    def mismatch(self, count: Any) -> Any:
        """The squares, cell by cell."""
        off = np.where(self.numbers == MOST, np.minimum(count - MOST, 0), count - self.numbers)
        return np.where(self.numbers >= 0, off**2, 0)

    def sweep(self, mines: Any, beta: float, random: np.random.Generator) -> Any:
        """Every cell drawn once, given all others."""
        for colour in self.colours:
            others = np.where(colour, 0, mines)
            count = convolve(others, AROUND, mode="constant")
            more = self.mismatch(count + 1) - self.mismatch(count)
            energy = beta * convolve(more, AROUND, mode="constant") - self.odds
            mine = random.random(mines.shape) < 1 / (1 + np.exp(np.clip(energy, -50, 50)))
            mines = np.where(colour, mine, others)
        return mines

    def chances(self, mines: Any, growing: bool) -> Any:
        """The share of drawn boards with a mine, by cell."""
        random, total, boards = np.random.default_rng(0), np.zeros(mines.shape), 0
        for step in range(SWEEPS):
            grown = min(1.0, 0.1 + step / (GROWING * SWEEPS)) if growing else 1.0
            mines = self.sweep(mines, BETA * grown, random)
            if step >= COUNTING * SWEEPS:
                total, boards = total + mines, boards + 1
        return total / boards


def main() -> None:
    data = load_dataset("minesweeper")
    graphs = [data.split(split).train[0] for split in range(SPLITS)]
    shown, label = graphs[0].x.numpy(), graphs[0].y.numpy().ravel().astype(int)
    numbers = (shown.argmax(1) - 1).reshape(SIDE, SIDE)
    board, mines = Board(numbers, float(label.mean())), label.reshape(SIDE, SIDE)
    random = (np.random.default_rng(1).random(mines.shape) < label.mean()).astype(int)
    rows = []
    for name, start, growing in (("the board", mines, False), ("random", random, True)):
        chances, truth = map(torch.from_numpy, (board.chances(start, growing).ravel(), label))
        found = [float(binary_auroc(chances[g.val_mask], truth[g.val_mask])) for g in graphs]
        rows.append({"start": name, "val": found, "mean": float(np.mean(found))})
        print(name, rows[-1]["mean"])
    save("mines", rows, what=(__doc__ or "").strip(), beta=BETA, sweeps=SWEEPS)


if __name__ == "__main__":
    main()
