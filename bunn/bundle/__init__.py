r"""Flat vector bundles: an orthogonal map :math:`O_v` per node, and what it does to features.

A map is a class or function that takes parameters ``(n, b, k)`` and the dimension ``d`` and returns
an :class:`OrthogonalMap`, with ``sync`` and ``desync`` on ``(n, b, d, p)``. To add one, write its
file and name it in :data:`MAPS`: :class:`FlatBundle` then offers it and the contract suite in
``tests/contracts`` tests it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bunn.bundle.householder import HouseholderMap
from bunn.bundle.rotation import PlaneMaps
from bunn.bundle.skew import cayley, exponential
from bunn.graph.operator import exact_arithmetic
from bunn.laplacian import Laplacian, check_laplacian

__all__ = ["MAPS", "FlatBundle", "MapFamily", "num_map_params"]


class OrthogonalMap(Protocol):
    """The maps of all nodes and bundles, ready to be applied to ``x: (n, b, d, p)``."""

    @property
    def any_precision(self) -> bool:
        """Whether ``x`` may have 16 bits; else it is widened before and rounded after."""

    def sync(self, x: Tensor) -> Tensor:
        """``O_v x_v``: from the node's own frame to the global one."""

    def desync(self, x: Tensor) -> Tensor:
        """``O_v^T x_v``: from the global frame back to the node's own."""


@dataclass(frozen=True)
class MapFamily:
    """A parameterisation of orthogonal matrices.

    Args:
        num_params: Parameters per node and bundle, as a function of ``d``.
        build: The maps from parameters ``(n, b, k)`` of any type and ``d``.
        dims: The dimensions ``d`` it exists in, :obj:`None` for all.
    """

    num_params: Callable[[int], int]
    build: Callable[[Tensor, int], OrthogonalMap]
    dims: tuple[int, ...] | None = None


def _rotation(params: Tensor, d: int) -> OrthogonalMap:
    return PlaneMaps(params.squeeze(-1), params.size(1))


def _o2(params: Tensor, d: int) -> OrthogonalMap:
    return PlaneMaps(params.squeeze(-1), (params.size(1) + 1) // 2)


def _householder(params: Tensor, d: int) -> OrthogonalMap:
    return HouseholderMap(_widened(params).unflatten(-1, (d, d)))


def _cayley(params: Tensor, d: int) -> OrthogonalMap:
    params = _widened(params)
    return _rotation(2 * torch.atan(params), d) if d == 2 else cayley(params, d)


def _exponential(params: Tensor, d: int) -> OrthogonalMap:
    return _rotation(params, d) if d == 2 else exponential(_widened(params), d)


def _widened(params: Tensor) -> Tensor:
    """Those of 16 bits in float32."""
    return params.float() if params.dtype.itemsize == 2 else params


def _strict_triangle(d: int) -> int:
    return d * (d - 1) // 2


MAPS: dict[str, MapFamily] = {
    "rotation": MapFamily(lambda d: 1, _rotation, dims=(2,)),
    "o2": MapFamily(lambda d: 1, _o2, dims=(2,)),
    "householder": MapFamily(lambda d: d * d, _householder),
    "cayley": MapFamily(_strict_triangle, _cayley),
    "exp": MapFamily(_strict_triangle, _exponential),
}


def map_family(maps: str, bundle_dim: int) -> MapFamily:
    """The family called ``maps``, if there is one in that dimension."""
    if maps not in MAPS:
        raise ValueError(f"maps={maps!r} is unknown; use one of {list(MAPS)}")
    if not isinstance(bundle_dim, int) or bundle_dim < 1:
        raise ValueError(f"bundle_dim={bundle_dim}; it must be an integer >= 1")
    family = MAPS[maps]
    if family.dims is not None and bundle_dim not in family.dims:
        general = [name for name, other in MAPS.items() if other.dims is None]
        raise ValueError(
            f"maps={maps!r} exists for bundle_dim in {family.dims}, not {bundle_dim}; use one of "
            f"{general}"
        )
    return family


def num_map_params(maps: str, bundle_dim: int = 2) -> int:
    """Parameters per node and bundle: 1 in the plane, ``d^2`` or ``d (d - 1) / 2`` elsewhere."""
    return map_family(maps, bundle_dim).num_params(bundle_dim)


class FlatBundle:
    r"""A flat vector bundle: ``b`` orthogonal maps :math:`O_v` of dimension ``d`` at every node.

    The transport from ``v`` to ``u`` is :math:`O_u^\top O_v`, so around any cycle it is the
    identity, and the bundle Laplacian is :math:`L_B = O^\top (L \otimes I) O`.

    Args:
        params: ``(n, b, k)`` with ``k = bunn.num_map_params(maps, bundle_dim)``; any real numbers.
        maps: ``"o2"`` (rotations for the first ``ceil(b/2)`` bundles, reflections for the rest),
            ``"rotation"``, ``"householder"``, ``"cayley"`` or ``"exp"``. (default: ``"o2"``)
        bundle_dim: The dimension ``d`` of a stalk. (default: ``2``)
    """

    def __init__(self, params: Tensor, maps: str = "o2", bundle_dim: int = 2) -> None:
        family = map_family(maps, bundle_dim)
        expected = family.num_params(bundle_dim)
        if not isinstance(params, Tensor) or not params.is_floating_point():
            kind = params.dtype if isinstance(params, Tensor) else type(params).__name__
            raise TypeError(f"params is of type {kind}; pass a floating-point tensor")
        if params.dim() != 3 or params.size(-1) != expected:
            raise ValueError(
                f"params has shape {tuple(params.shape)}; maps={maps!r} with "
                f"bundle_dim={bundle_dim} needs (num_nodes, num_bundles, {expected})"
            )
        self.maps, self.bundle_dim = maps, bundle_dim
        self.num_nodes, self.num_bundles = params.shape[:2]
        self.dtype = torch.float32 if params.dtype.itemsize == 2 else params.dtype
        self.device = params.device
        with exact_arithmetic(params):
            self._map = family.build(params, bundle_dim)

    def sync(self, x: Tensor) -> Tensor:
        """``O_v x_v`` for every node: into the global frame. ``(n, b*d*p)`` or ``(n, b, d, p)``."""
        return self._apply(self._map.sync, x)

    def desync(self, x: Tensor) -> Tensor:
        """``O_v^T x_v`` for every node: back into the local frames. Shapes as for :meth:`sync`."""
        return self._apply(self._map.desync, x)

    def _apply(self, apply: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Applies the maps in full precision, whatever that of ``x``, and rounds once."""
        field = self._fields(x)
        if x.dtype in (torch.float16, torch.bfloat16) and not self._map.any_precision:
            field = field.float()
        with exact_arithmetic(field):
            return apply(field).reshape(x.shape).to(x.dtype)

    def matrices(self) -> Tensor:
        """The maps ``O_v`` as ``(n, b, d, d)``."""
        d = self.bundle_dim
        identity = torch.eye(d, dtype=self.dtype, device=self.device)
        return self.sync(identity.expand(self.num_nodes, self.num_bundles, d, d))

    def laplacian(self, lap: Laplacian) -> Tensor:
        """The dense bundle Laplacians ``L_B = O^T (L x I) O``: ``(b, n*d, n*d)``.

        Block ``(v, u)`` is ``L[v, u] O_v^T O_u``; rows run over nodes, then stalk coordinates.
        """
        check_laplacian(lap)
        if lap.num_nodes != self.num_nodes:
            raise ValueError(
                f"lap has {lap.num_nodes} nodes, the bundle {self.num_nodes}; they must agree"
            )
        maps = self.matrices()
        size = self.num_nodes * self.bundle_dim
        with exact_arithmetic(maps):
            blocks = torch.einsum("vu,vbki,ubkj->bviuj", lap.dense().to(maps.dtype), maps, maps)
        return blocks.reshape(self.num_bundles, size, size)

    def energy(self, x: Tensor, lap: Laplacian) -> Tensor:
        r"""The bundle Dirichlet energy of a field, a scalar summed over bundles and channels.

        .. math::
            E(X) = \langle X, D L_B X \rangle
                 = \tfrac12 \sum_{u, v} w_{uv} \| x_u - O_u^\top O_v x_v \|^2 \ge 0

        It decreases along the heat flow of the random-walk Laplacian. For ``normalization="sym"``,
        whose flow is another one, it is :math:`\langle X, L_B X \rangle`: the same sum, of
        :math:`D^{-1/2} X`.
        """
        check_laplacian(lap)
        field = self.sync(x).reshape(self.num_nodes, -1)
        lap = lap.matching(field)
        if lap.normalization == "sym":
            field = field / lap.degree.sqrt().unsqueeze(1)
        # The sum over edges: as a quadratic form, a small energy would drown in rounding.
        u, v = lap.edge_index
        return 0.5 * (lap.edge_weight.unsqueeze(1) * (field[u] - field[v]).square()).sum()

    def _fields(self, x: Tensor) -> Tensor:
        """``x`` as ``(n, b, d, p)``."""
        n, b, d = self.num_nodes, self.num_bundles, self.bundle_dim
        if not isinstance(x, Tensor):
            raise TypeError(f"x is a {type(x).__name__}; pass a tensor")
        if not x.is_floating_point():
            raise TypeError(f"x has dtype {x.dtype}; use a floating-point type, such as x.float()")
        if x.device != self.device:
            raise ValueError(f"x is on {x.device}, the bundle on {self.device}; move one of them")
        if x.dim() == 4 and x.shape[:3] == (n, b, d):
            return x
        if x.dim() == 2 and x.size(0) == n and x.size(1) % (b * d) == 0:
            return x.reshape(n, b, d, -1)
        raise ValueError(
            f"x has shape {tuple(x.shape)}; {n} nodes with num_bundles={b} and bundle_dim={d} need "
            f"({n}, p*{b * d}) or ({n}, {b}, {d}, p)"
        )
