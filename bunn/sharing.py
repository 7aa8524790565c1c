"""One Laplacian per graph, however often the graph is handed over as a bare ``edge_index``."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bunn.graph.edges import Adjacency, check_no_gradient
from bunn.keeping import handed_out
from bunn.laplacian import Laplacian, Normalization


@dataclass(frozen=True)
class _Built:
    """A Laplacian and what it was built from."""

    laplacian: Laplacian
    num_nodes: int
    edges: weakref.ref[Tensor]
    version: int
    weight: weakref.ref[Tensor] | None
    weight_version: int

    def is_for(self, edge_index: Tensor, edge_weight: Tensor | None, num_nodes: int) -> bool:
        if self.edges() is not edge_index or self.version != edge_index._version:
            return False
        if self.num_nodes != num_nodes:
            return False
        if self.weight is None or edge_weight is None:
            return self.weight is None and edge_weight is None
        return self.weight() is edge_weight and self.weight_version == edge_weight._version


#: The last graphs seen, least recently used first.
_BUILT: OrderedDict[tuple[int, str], _Built] = OrderedDict()

#: How many graphs are remembered.
REMEMBERED = 256

#: How to build the Laplacians of edges that are part of something larger, for as long as they live.
_PROVIDED: dict[int, tuple[weakref.ref[Tensor], int, Callable[[Normalization], Laplacian]]] = {}


def known_edges(edge_index: Tensor, build: Callable[[Normalization], Laplacian]) -> None:
    """Says how the Laplacian of an ``edge_index`` tensor is built, unweighted, as long as it lives
    and is not written to.

    Args:
        edge_index: ``(2, e)`` edges of a graph all of whose nodes are known to ``build``.
        build: From a normalisation to the Laplacian. It must not hold on to ``edge_index``.
    """
    if edge_index.is_inference():  # which is not remembered either
        return
    key = id(edge_index)
    provided = _PROVIDED  # whose name is gone at the very end
    reference = weakref.ref(edge_index, lambda _: provided.pop(key, None))
    provided[key] = (reference, edge_index._version, build)


def _new(edge_index: Tensor, weight: Tensor | None, n: int, norm: Normalization) -> Laplacian:
    provided = _PROVIDED.get(id(edge_index))
    if provided is not None and weight is None:
        edges, version, build = provided
        same = edges() is edge_index and version == edge_index._version
        if same and (lap := build(norm)).num_nodes == n:
            return lap
    return Laplacian(edge_index, weight, n, normalization=norm)


def forget_graphs() -> None:
    """Drops the Laplacians that were built for bare ``edge_index`` tensors, and their memory."""
    _BUILT.clear()


def laplacian_of(
    edge_index: Adjacency | Laplacian,
    edge_weight: Tensor | None,
    num_nodes: int,
    normalization: Normalization,
) -> Laplacian:
    """The Laplacian of a graph, built once for all layers of a model and all steps of a run.

    The last :data:`REMEMBERED` graphs are remembered for as long as their ``edge_index`` tensors
    live, and rebuilt when that tensor or ``edge_weight`` is another one or has been written to.
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
    if (
        not isinstance(edge_index, Tensor)
        or edge_index.is_inference()
        or (edge_weight is not None and not isinstance(edge_weight, Tensor))
    ):
        return Laplacian(edge_index, edge_weight, num_nodes, normalization=normalization)
    if edge_weight is not None:
        if edge_weight.is_inference():
            return Laplacian(edge_index, edge_weight, num_nodes, normalization=normalization)
        check_no_gradient(
            edge_weight
        )  # also where the graph is known from a call without gradients

    key = (id(edge_index), normalization)
    known = _BUILT.pop(key, None)
    if known is None or not known.is_for(edge_index, edge_weight, num_nodes):
        known = _Built(
            _new(edge_index, edge_weight, num_nodes, normalization),
            num_nodes,
            weakref.ref(edge_index, lambda _: _BUILT.pop(key, None)),
            edge_index._version,
            None if edge_weight is None else weakref.ref(edge_weight),
            0 if edge_weight is None else edge_weight._version,
        )
    _BUILT[key] = known
    while len(_BUILT) > REMEMBERED:
        _BUILT.popitem(last=False)
    return handed_out(known.laplacian)
