"""One Laplacian per graph, however often the graph is handed over as a bare ``edge_index``."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from bunn.edges import Adjacency
from bunn.laplacian import Laplacian, Normalization


@dataclass(frozen=True)
class _Built:
    """A Laplacian and what it was built from, besides the ``edge_index`` it is filed under."""

    laplacian: Laplacian
    num_nodes: int
    version: int
    weight: weakref.ref[Tensor] | None
    weight_version: int

    def is_for(self, edge_index: Tensor, edge_weight: Tensor | None, num_nodes: int) -> bool:
        if self.version != edge_index._version or self.num_nodes != num_nodes:
            return False
        if self.weight is None or edge_weight is None:
            return self.weight is None and edge_weight is None
        return self.weight() is edge_weight and self.weight_version == edge_weight._version


#: For each living ``edge_index`` tensor, the last Laplacian of each normalisation.
_BUILT = WeakIdKeyDictionary()


def laplacian_of(
    edge_index: Adjacency | Laplacian,
    edge_weight: Tensor | None,
    num_nodes: int,
    normalization: Normalization,
) -> Laplacian:
    """The Laplacian of a graph, built once for all layers of a model and all steps of a run.

    It is remembered for as long as the ``edge_index`` tensor lives, and rebuilt when that tensor
    or ``edge_weight`` is another one or has been written to.
    """
    if isinstance(edge_index, Laplacian):
        if edge_weight is not None:
            raise ValueError("edge_weight is given, but a Laplacian already holds its weights")
        if edge_index.normalization != normalization:
            raise ValueError(
                f"the Laplacian has normalization={edge_index.normalization!r}, the layer "
                f"{normalization!r}; build both with the same one"
            )
        return edge_index
    built: Laplacian = _built(edge_index, edge_weight, num_nodes, normalization)
    return built


@torch.compiler.disable(  # type: ignore[untyped-decorator]
    reason="a graph is built before compiling: pass a bunn.Laplacian instead of edge_index"
)
def _built(
    edge_index: Adjacency, edge_weight: Tensor | None, num_nodes: int, normalization: Normalization
) -> Laplacian:
    tensors = [edge_index] if edge_weight is None else [edge_index, edge_weight]
    if not all(isinstance(t, Tensor) and not t.is_inference() for t in tensors):
        return Laplacian(edge_index, edge_weight, num_nodes, normalization=normalization)

    built = _BUILT.setdefault(edge_index, {})
    known = built.get(normalization)
    if known is None or not known.is_for(edge_index, edge_weight, num_nodes):
        known = built[normalization] = _Built(
            Laplacian(edge_index, edge_weight, num_nodes, normalization=normalization),
            num_nodes,
            edge_index._version,
            None if edge_weight is None else weakref.ref(edge_weight),
            0 if edge_weight is None else edge_weight._version,
        )
    laplacian: Laplacian = known.laplacian
    return laplacian
