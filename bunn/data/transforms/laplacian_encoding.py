"""Laplacian eigenvectors as positional encodings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.transforms import BaseTransform

from bunn.data.transforms.cache import DiskCache
from bunn.data.transforms.eigenbasis import eigenspaces, settled_eigenvectors, with_settled_signs
from bunn.data.transforms.graph import DENSE_SIZE, Graph, pieces
from bunn.laplacian import Laplacian, Normalization, check_normalization

#: Eigenpairs beyond the wanted ones that tell whether the last eigenspace is complete, and how
#: often their number is doubled where it is not.
SPARE, DOUBLINGS = 8, 2


class LaplacianEncoding(BaseTransform):  # type: ignore[misc]
    r"""The first :math:`k` non-trivial Laplacian eigenvectors **of each connected component**.

    .. math::
        \mathrm{pe}_{v, i} = \phi^{(C)}_i(v), \qquad L_C \, \phi^{(C)}_i = \lambda^{(C)}_i
        \phi^{(C)}_i, \qquad v \in C, \quad |\phi^{(C)}_i| = 1, \quad i = 1, \dots, k

    The null vector of each component (:math:`i = 0`) is left out, so as many are left out as there
    are components. Every component is encoded as if it were alone: what an encoding says about a
    node does not depend on what else is in the graph or the batch, and the encoding of a batch is
    the encodings of its graphs. (The eigenvectors of the whole graph, sorted by eigenvalue, would
    leave all but a few components without any; PyG's ``AddLaplacianEigenvectorPE`` moreover leaves
    out a single null vector, and so returns the others as an encoding.)

    Components of ``k`` nodes or fewer have fewer than ``k`` eigenvectors: the rest is zero, as it
    all is for an isolated node. Signs and the bases of multiple eigenvalues are settled by
    :mod:`bunn.data.transforms.eigenbasis`; in a component of more than 512 nodes an eigenspace
    that is far larger than ``k`` is represented by the part that Lanczos finds. In training, draw
    signs at random with :class:`RandomSignFlip`.

    Args:
        k: The number of eigenvectors.
        normalization: ``"sym"``, the eigenvectors of ``I - D^-1/2 A D^-1/2``, or ``"rw"``, the
            right eigenvectors of ``I - D^-1 A``: ``D^-1/2`` times these, scaled to norm one.
            (default: ``"sym"``)
        attr: Where the encoding ``(n, k)`` is stored. (default: ``"lap_pe"``)
        eigenvalues_attr: Where the eigenvalues ``(n, k)`` are stored, those of the node's
            component, zero where there is no eigenvector; :obj:`None` to leave them out.
            (default: ``"lap_eigenvalues"``)
        cache: Where encodings are kept between runs. (default: nowhere)
    """

    def __init__(
        self,
        k: int,
        *,
        normalization: Normalization = "sym",
        attr: str = "lap_pe",
        eigenvalues_attr: str | None = "lap_eigenvalues",
        cache: DiskCache | None = None,
    ) -> None:
        if not isinstance(k, int) or k < 1:
            raise ValueError(f"k={k!r}; ask for at least one eigenvector, an integer")
        check_normalization(normalization)
        self.k, self.normalization = k, normalization
        self.attr, self.eigenvalues_attr = attr, eigenvalues_attr
        self.cache = cache

    def forward(self, data: Any) -> Any:
        graph = Graph.of(data)

        def compute() -> dict[str, Tensor]:
            return _encoding(graph.laplacian(), self.k, self.normalization)

        inputs = {**graph.content, "k": self.k, "normalization": self.normalization}
        if self.cache is None:
            result = compute()
        else:
            result = self.cache.load_or_compute("laplacian-encoding", inputs, compute)
        data[self.attr] = graph.attach(result["vectors"])
        if self.eigenvalues_attr is not None:
            data[self.eigenvalues_attr] = graph.attach(result["values"])
        return data

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.k}, normalization={self.normalization!r})"


def _encoding(lap: Laplacian, k: int, normalization: Normalization) -> dict[str, Tensor]:
    """Eigenvectors and eigenvalues, each ``(n, k)`` float64."""
    vectors = torch.zeros(lap.num_nodes, k, dtype=torch.float64)
    values = torch.zeros_like(vectors)
    for piece_nodes, piece in pieces(lap):
        for nodes, lowest, basis in _components(piece, k):
            count = min(k, lowest.numel())
            settled = settled_eigenvectors(lowest, basis, count)
            if normalization == "rw":
                settled = settled / piece.null_vector[nodes].unsqueeze(1)
                settled = with_settled_signs(settled / settled.norm(dim=0))
            vectors[piece_nodes[nodes], :count] = settled
            values[piece_nodes[nodes], :count] = lowest[:count]
    return {"vectors": vectors, "values": values}


def _components(lap: Laplacian, k: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """For each component its nodes ``(s,)`` and non-trivial eigenpairs ``(m,)``, ``(s, m)``.

    ``m`` is ``k``, and as many more as the last eigenspace has, or ``s - 1``.
    """
    if lap.blocks.largest > DENSE_SIZE:
        values, vectors = _lowest(lap, k)
        return [(torch.arange(lap.num_nodes), values[1:], vectors[:, 1:])]
    spectrum = lap.block_spectrum()
    nodes = lap.blocks.split(torch.arange(lap.num_nodes).unsqueeze(1))
    return [
        (block.squeeze(1), values[1:], vectors[:, 1:])
        for stack in zip(nodes, spectrum.values, spectrum.vectors, strict=True)
        for block, values, vectors in zip(*stack, strict=True)
        if values.numel() > 1
    ]


def _lowest(lap: Laplacian, k: int) -> tuple[Tensor, Tensor]:
    """The lowest eigenpairs of a connected graph, the null vector and at least ``k`` more."""
    count = k + 1 + SPARE
    for _ in range(DOUBLINGS):
        values, _ = lap.spectrum(count)
        space = eigenspaces(values)
        if values.numel() == lap.num_nodes or space[k] != space[-1]:
            break
        count *= 2
    return lap.spectrum(count)
