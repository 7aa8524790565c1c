"""Random bundles of every family, as the library builds them and as the formulas have them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bunn.bundle import MAPS, FlatBundle, num_map_params
from bunn.nn import BuNNConv
from bunn.theory import reference
from bunn.theory.graphs import Graph
from bunn.theory.networks import FixedMaps


class Sample(NamedTuple):
    """Two bundles of dimension ``d`` on a graph; side by side they are one of dimension ``2 d``.

    Args:
        graph: The graph.
        bundle: What the library makes of the parameters.
        params: ``(n, 2, k)`` the parameters.
        maps: ``(n, 2d, 2d)`` what the formulas make of them, block-diagonal.
    """

    graph: Graph
    bundle: FlatBundle
    params: Tensor
    maps: Tensor

    @property
    def size(self) -> int:
        """The dimension ``2 d`` of all stalks of a node together."""
        return self.maps.size(-1)

    def laplacian(self) -> Tensor:
        """The bundle Laplacian ``(2dn, 2dn)``, assembled edge by edge from the formulas."""
        transport = reference.flat_transport(self.graph, self.maps)
        return reference.bundle_laplacian(self.graph, transport)

    def field(self, generator: torch.Generator) -> Tensor:
        """Random features ``(n, 2d)``."""
        size = (self.graph.num_nodes, self.size)
        return torch.randn(size, dtype=torch.float64, generator=generator)

    def layer(self, **options: Any) -> BuNNConv:
        """A layer of the library with these maps; ``W`` and the rest as ``options`` say."""
        return BuNNConv(
            self.size,
            self.size,
            num_bundles=self.bundle.num_bundles,
            bundle_dim=self.bundle.bundle_dim,
            maps=self.bundle.maps,
            phi=FixedMaps(self.params),
            **options,
        ).double()


def samples(graph: Graph, seed: int, dims: tuple[int, ...] = (2, 3, 4)) -> Iterator[Sample]:
    """A sample of every family of maps in every dimension; both halves of ``"o2"`` are in it."""
    generator = torch.Generator().manual_seed(seed)
    for d in dims:
        for maps, family in MAPS.items():
            if family.dims is None or d in family.dims:
                size = (graph.num_nodes, 2, num_map_params(maps, d))
                params = torch.randn(size, dtype=torch.float64, generator=generator)
                blocks = [
                    [reference.orthogonal_map(maps, row[b], d, first_half=b == 0) for b in range(2)]
                    for row in params
                ]
                joint = torch.stack([torch.block_diag(*pair) for pair in blocks])
                yield Sample(graph, FlatBundle(params, maps, d), params, joint)


def matrices(bundle: FlatBundle) -> Tensor:
    """The library's maps of all bundles of a node as one, ``(n, bd, bd)``, block-diagonal."""
    return torch.stack([torch.block_diag(*maps) for maps in bundle.matrices()])
