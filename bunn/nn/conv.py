"""The BuNN layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch_geometric.nn.inits import reset

from bunn.bundle import FlatBundle, num_map_params
from bunn.diffusion import METHODS, Options, solve
from bunn.diffusion.spectral import takes_all
from bunn.graph.edges import Adjacency
from bunn.laplacian import Laplacian, Normalization, check_normalization
from bunn.nn.chains import feed_forward
from bunn.nn.phi import MLPPhi, PhiNetwork, check_phi
from bunn.nn.precision import as_factor
from bunn.nn.time import DiffusionTime
from bunn.nn.update import Update, read_update
from bunn.sharing import laplacian_of
from bunn.sizes import check_dtype, check_size

Bias = Literal["global", "local"] | None


class BuNNConv(nn.Module):
    r"""The message-diffusion layer of `"Bundle Neural Networks for message diffusion on graphs"
    <https://arxiv.org/abs/2405.15540>`_ (Bamberger et al., ICLR 2025).

    .. math::
        O_v &= \phi(\mathcal{G}, P, X, v) && \text{(1)}\\
        h_v &= O_v^\top W O_v x_v + b && \text{(2)}\\
        Z &= \mathcal{H}_{\mathcal{B}}(t) H = O^\top e^{-tL} O H && \text{(3)}

    Features are ``b`` bundles of ``p`` vector fields of dimension ``d``, laid out ``(n, b, d, p)``;
    :math:`W` mixes all of them. The non-linearity of Equation 4 is left to the caller, as in PyG.
    Where the channels are no multiple of ``b * d``, fields are padded with zeros on the way in and
    cut on the way out.

    Args:
        in_channels: Size of each input feature, ``-1`` to infer it from the first input.
        out_channels: Size of each output feature.
        num_bundles: The number of bundles ``b``. (default: ``1``)
        bundle_dim: The dimension ``d`` of a stalk. (default: ``2``)
        time: The diffusion time, ``>= 0`` or ``inf``, or one per bundle. (default: ``1.0``)
        learn_time: Whether to learn one time per bundle, starting at ``time``. (default:
            :obj:`False`)
        maps: How parameters become orthogonal maps: see :class:`bunn.FlatBundle`. (default:
            ``"o2"``)
        phi: A module called as ``phi(cat([x, pe]), edge_index)`` that returns ``b *
            bunn.num_map_params(maps, d)`` values per node. (default: a two-layer perceptron)
        pe_channels: Size of the positional encodings that phi reads. (default: ``0``)
        weight: Whether to learn :math:`W`; without it, in and out channels agree. (default:
            :obj:`True`)
        bias: ``"global"`` adds :math:`b` in the global frame (Algorithm 1), ``"local"`` in the
            node's frame (Equation 2), :obj:`None` nowhere. (default: ``"global"``)
        update: Where :math:`W` stands and what it is: ``"before"`` the heat, ``"after"`` it,
            ``"mlp"`` or ``"mlp-concat"`` (a two-layer network after it), or a
            :class:`bunn.nn.Update`. (default: ``"before"``)
        normalization: The Laplacian, ``"rw"`` or ``"sym"``. (default: ``"rw"``)
        method: How heat is computed: see :func:`bunn.diffuse`. (default: ``"auto"``)
        tol: Tolerance of the heat. (default: ``1e-5``)
        degree: Degree of a polynomial method. (default: derived from ``tol``)
        num_eigs: Number of eigenpairs of the spectral method. (default: as many as ``tol`` asks
            for)

    Shapes:
        - **input:** node features ``(n, in_channels)``; edges ``(2, e)``, sparse, or a
          :class:`bunn.Laplacian`; edge weights ``(e,)`` *(optional)*; positional encodings ``(n,
          pe_channels)`` *(optional)*
        - **output:** node features ``(n, out_channels)``
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        num_bundles: int = 1,
        bundle_dim: int = 2,
        time: float | Sequence[float] = 1.0,
        learn_time: bool = False,
        maps: str = "o2",
        phi: nn.Module | None = None,
        pe_channels: int = 0,
        weight: bool = True,
        bias: Bias = "global",
        update: str | Update = "before",
        normalization: Normalization = "rw",
        method: str = "auto",
        tol: float = 1e-5,
        degree: int | None = None,
        num_eigs: int | None = None,
    ) -> None:
        super().__init__()
        check_size("in_channels", in_channels, inferred=True)
        check_size("out_channels", out_channels)
        check_size("num_bundles", num_bundles)
        check_size("pe_channels", pe_channels, least=0)
        if bias not in ("global", "local", None):
            raise ValueError(f"bias={bias!r}; use 'global', 'local' or None")
        if not weight and in_channels not in (-1, out_channels):
            raise ValueError(
                f"weight=False keeps the channels, but in_channels={in_channels} and "
                f"out_channels={out_channels}; make them equal"
            )
        self.update = read_update(update)
        if not weight and (self.update.num_layers > 1 or self.update.concat is not None):
            raise ValueError(
                f"weight=False leaves no network for update={update!r}; use update='before'"
            )
        self.in_channels, self.out_channels = in_channels, out_channels
        self.num_bundles, self.bundle_dim = num_bundles, bundle_dim
        self.maps, self.pe_channels = maps, pe_channels
        self.normalization: Normalization = normalization
        self.method = method
        self.options = Options(tol, degree, num_eigs)
        self.options.check(method, METHODS)
        check_normalization(normalization)

        self.num_params = num_bundles * num_map_params(maps, bundle_dim)
        if phi is not None:
            check_phi(phi)
        else:
            phi = MLPPhi(-1 if in_channels == -1 else in_channels + pe_channels, self.num_params)
        self.phi = phi
        self.time = DiffusionTime(time, num_bundles, learn_time, tol)
        width = self._padded(out_channels)
        self.network: nn.Module | None = None
        if weight:
            reads = -1 if in_channels == -1 else self._padded(in_channels)
            reads = 2 * reads if self.update.concat is not None and reads > 0 else reads
            self.network = self.update.network(reads, width, bias == "global")
        self.bias_frame: Bias = bias
        self.bias: nn.Parameter | None = None
        if bias == "local" or (bias == "global" and not weight):
            self.bias = nn.Parameter(torch.zeros(width))

    def reset_parameters(self) -> None:
        reset(self.phi)
        reset(self.network)
        reset(self.time)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(
        self,
        x: Tensor,
        edge_index: Adjacency | Laplacian,
        edge_weight: Tensor | None = None,
        pe: Tensor | None = None,
        *,
        phi_x: Tensor | None = None,
    ) -> Tensor:
        """Runs the layer.

        Args:
            x: ``(n, in_channels)`` node features.
            edge_index: ``(2, e)`` edges, a sparse adjacency matrix, or a :class:`bunn.Laplacian`.
            edge_weight: ``(e,)`` edge weights. (default: all one)
            pe: ``(n, pe_channels)`` positional encodings. (default: :obj:`None`)
            phi_x: ``(n, ...)`` what phi reads in place of ``x``. (default: ``x``)
        """
        self._check(x, pe)
        lap = laplacian_of(edge_index, edge_weight, x.size(0), self.normalization).matching(x)
        bundle = self.bundle(x if phi_x is None else phi_x, lap, pe=pe)
        if self.in_channels == -1:  # now that nothing is wrong with the first input
            self.in_channels = x.size(1)

        missing = self._padded(x.size(1)) - x.size(1)
        lifted = as_factor(pad(x, (0, missing)) if missing else x)
        own = bundle.sync(lifted)
        h = own
        if self.update.position == "before":
            h = self._mix(h, bundle)
        h = self._heat(h, lap)
        if self.update.position == "after":
            if self.update.concat is not None:
                h = torch.cat((own if self.update.concat == "global" else lifted, h), dim=-1)
            h = self._mix(h, None)
        out = bundle.desync(h)
        if self.bias_frame == "local" and self.update.position == "after" and self.bias is not None:
            out = out + self.bias
        return out if out.size(1) == self.out_channels else out[:, : self.out_channels]

    def bundle(
        self,
        x: Tensor,
        edge_index: Adjacency | Laplacian,
        edge_weight: Tensor | None = None,
        pe: Tensor | None = None,
    ) -> FlatBundle:
        """The bundle that phi computes from ``cat([x, pe])`` (Equation 1).

        The networks of :mod:`bunn.nn` are handed the Laplacian, weights included; any other phi the
        coalesced edges ``(2, e)``.
        """
        lap = laplacian_of(edge_index, edge_weight, x.size(0), self.normalization)
        reads = x if pe is None else torch.cat((x, pe.to(x.dtype)), dim=-1)
        params = self.phi(reads, lap if isinstance(self.phi, PhiNetwork) else lap.edge_index)
        if params.shape != (x.size(0), self.num_params):
            raise ValueError(
                f"phi returned shape {tuple(params.shape)}; maps={self.maps!r} with num_bundles="
                f"{self.num_bundles} and bundle_dim={self.bundle_dim} needs "
                f"({x.size(0)}, {self.num_params})"
            )
        return FlatBundle(
            params.reshape(x.size(0), self.num_bundles, -1), self.maps, self.bundle_dim
        )

    def _mix(self, h: Tensor, local: FlatBundle | None) -> Tensor:
        """``W h`` and the bias; a bias of the local frames is brought over by ``local``."""
        h = h if self.network is None else feed_forward(self.network, h)
        if self.bias is None:
            return h
        if self.bias_frame == "global":
            return h + self.bias
        return h if local is None else h + local.sync(self.bias.expand_as(h).contiguous())

    def _heat(self, h: Tensor, lap: Laplacian) -> Tensor:
        field = h.reshape(h.size(0), self.num_bundles, self.bundle_dim, -1)
        bounded = self.method != "spectral" or not takes_all(lap, self.options)
        time = self.time.per_column(field.shape[1:], bounded)
        return solve(field.flatten(1), lap, time, self.method, self.options)

    def _padded(self, channels: int) -> int:
        """The next multiple of ``b * d``."""
        unit = self.num_bundles * self.bundle_dim
        return -(-channels // unit) * unit

    def _check(self, x: Tensor, pe: Tensor | None) -> None:
        if not isinstance(x, Tensor):
            raise TypeError(f"x is a {type(x).__name__}; pass a (num_nodes, in_channels) tensor")
        reads: int | str = self.in_channels
        if self.in_channels == -1:  # any number, but that one who has no weights keeps
            reads = "in_channels" if self.network is not None else self.out_channels
        if x.dim() != 2 or (isinstance(reads, int) and x.size(1) != reads):
            raise ValueError(f"x has shape {tuple(x.shape)}; the layer reads (num_nodes, {reads})")
        if self.network is not None:
            check_dtype(x, self.network.parameters())
        if self.pe_channels == 0 and pe is None:
            return
        if pe is None:
            raise ValueError(
                f"pe is missing, but the layer was built with pe_channels={self.pe_channels}; "
                "pass pe=... or build it with pe_channels=0"
            )
        if self.pe_channels == 0:
            raise ValueError(
                f"pe is given, but the layer was built without; build it with "
                f"pe_channels={pe.size(-1)}"
            )
        if pe.dim() != 2 or pe.shape != (x.size(0), self.pe_channels):
            raise ValueError(
                f"pe has shape {tuple(pe.shape)}; pe_channels={self.pe_channels} and "
                f"{x.size(0)} nodes need ({x.size(0)}, {self.pe_channels})"
            )

    def __repr__(self) -> str:
        return (
            f"{self.__class__.__name__}({self.in_channels}, {self.out_channels}, "
            f"num_bundles={self.num_bundles}, bundle_dim={self.bundle_dim}, "
            f"maps={self.maps!r}, time=({self.time.extra_repr()}))"
        )
