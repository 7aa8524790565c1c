"""Return probabilities of random walks as structural encodings."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import starmap
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch import Tensor
from torch_geometric.transforms import BaseTransform

from bunn.cores import MANY, by_cores
from bunn.data.transforms.cache import DiskCache
from bunn.data.transforms.graph import DENSE_SIZE, Graph, pieces
from bunn.laplacian import Laplacian

#: Walks are followed from this many nodes at a time.
CHUNK = 32


class RandomWalkEncoding(BaseTransform):  # type: ignore[misc]
    r"""The probability that a random walk is back at its start after each number of steps.

    .. math::
        \mathrm{rwse}_{v, i} = (P^{k_i})_{vv}, \qquad P = D^{-1} A

    Exact. With :math:`S = D^{-1/2} A D^{-1/2}` the diagonals of :math:`P^k` and :math:`S^k` are the
    same, and since :math:`S` is symmetric, :math:`(S^{a+b})_{vv} = \langle S^a e_v, S^b e_v
    \rangle`: half as many products as steps. Components of up to 512 nodes are dense matrices;
    in larger ones a few columns at a time are followed no farther than walks that return can get,
    so memory grows like ``n`` and, on graphs of bounded degree, so does time.

    No walk leaves an isolated node and none returns: its encoding is zero, as is usual for this
    encoding (and unlike its row in :class:`bunn.Laplacian`, where heat stays).

    Args:
        steps: The numbers of steps ``k_i >= 1``, or one integer ``k`` for ``1, ..., k``.
        attr: Where the encoding ``(n, len(steps))`` is stored. (default: ``"rwse"``)
        cache: Where encodings are kept between runs. (default: nowhere)
    """

    def __init__(
        self, steps: int | Iterable[int], *, attr: str = "rwse", cache: DiskCache | None = None
    ) -> None:
        numbers = tuple(range(1, steps + 1) if isinstance(steps, int) else steps)
        if not numbers or not all(isinstance(k, int) and k >= 1 for k in numbers):
            raise ValueError(
                f"steps={steps!r}; pass an integer >= 1, or several: range(1, 21), for example"
            )
        self.steps, self.attr, self.cache = numbers, attr, cache

    def forward(self, data: Any) -> Any:
        graph = Graph.of(data)

        def compute() -> dict[str, Tensor]:
            return {"encoding": _encoding(graph.laplacian(), self.steps)}

        inputs = {**graph.content, "steps": torch.tensor(self.steps)}
        if self.cache is None:
            result = compute()
        else:
            result = self.cache.load_or_compute("random-walk-encoding", inputs, compute)
        data[self.attr] = graph.attach(result["encoding"])
        return data

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self.steps)})"


def _encoding(lap: Laplacian, steps: tuple[int, ...]) -> Tensor:
    """``(n, len(steps))`` float64."""
    columns = torch.tensor(steps) - 1
    encoding = torch.zeros(lap.num_nodes, len(steps), dtype=torch.float64)
    for nodes, piece in pieces(lap):
        dense = piece.blocks.largest <= DENSE_SIZE
        diagonals = _dense_diagonals if dense else _sparse_diagonals
        encoding[nodes] = diagonals(piece, max(steps))[:, columns]
    isolated = torch.bincount(lap.edge_index[0], minlength=lap.num_nodes) == 0
    return encoding.masked_fill(isolated.unsqueeze(1), 0.0)


def _dense_diagonals(lap: Laplacian, length: int) -> Tensor:
    """The diagonals of ``S, ..., S^length``, ``(n, length)``, for small components."""

    def follow(s: Tensor) -> tuple[Tensor]:
        power, diagonals = s, [s.diagonal(dim1=1, dim2=2)]
        while len(diagonals) < length:
            diagonals.append(power.square().sum(dim=1))
            following = s @ power
            diagonals.append((power * following).sum(dim=1))
            power = following
        return (torch.stack(diagonals[:length], dim=2),)

    stacks = [(s,) for s in lap.blocks.dense(*lap.coordinates())]
    many = lap.num_components >= MANY
    found = by_cores(follow, stacks) if many else list(starmap(follow, stacks))
    return lap.blocks.join([stack for (stack,) in found])


def _sparse_diagonals(lap: Laplacian, length: int) -> Tensor:
    """The same for one large component, a few columns at a time."""
    n, (row, col, value) = lap.num_nodes, (part.numpy() for part in lap.coordinates())
    s = csr_array((value, (row, col)), shape=(n, n))
    diagonals = np.zeros((n, length))
    # Neighbours in this order are close in the graph, so that walks from a chunk stay together.
    order = reverse_cuthill_mckee(s, symmetric_mode=True)
    for start in range(0, n, CHUNK):
        nodes = order[start : start + CHUNK]
        ball = _ball(s, nodes, length // 2)
        if ball.size > n // 2:
            diagonals[nodes] = _chunk_diagonals(s, nodes, length)
        else:
            places = np.searchsorted(ball, nodes)
            diagonals[nodes] = _chunk_diagonals(s[ball][:, ball], places, length)
    return torch.from_numpy(diagonals)


def _ball(s: csr_array[np.float64], nodes: NDArray[Any], radius: int) -> NDArray[Any]:
    """The nodes within ``radius`` steps of any in ``nodes``, ascending."""
    inside = np.zeros(s.shape[0], dtype=bool)
    inside[nodes] = True
    edge = nodes
    for _ in range(radius):
        reached = s[edge].indices
        edge = np.unique(reached[~inside[reached]])
        if edge.size == 0:
            break
        inside[edge] = True
    return np.flatnonzero(inside)


def _chunk_diagonals(
    s: csr_array[np.float64], nodes: NDArray[Any], length: int
) -> NDArray[np.float64]:
    """``(S^k)_{vv}`` for ``v`` in ``nodes: (c,)`` and ``k = 1, ..., length``."""
    power = np.zeros((s.shape[0], nodes.size))
    power[nodes, np.arange(nodes.size)] = 1.0
    diagonals: list[NDArray[np.float64]] = []
    while len(diagonals) < length:
        following = s @ power
        diagonals.append(np.einsum("vc,vc->c", power, following))
        diagonals.append(np.einsum("vc,vc->c", following, following))
        power = following
    return np.stack(diagonals[:length], axis=1)
