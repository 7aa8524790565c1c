"""The BuNN model: encoder, blocks, pooling, head."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor, nn
from torch_geometric.nn import Linear
from torch_geometric.nn.inits import reset
from torch_geometric.nn.resolver import activation_resolver

from bunn.bundle import num_map_params
from bunn.graph.edges import Adjacency
from bunn.laplacian import Laplacian, Normalization
from bunn.nn.block import BuNNBlock, Norm
from bunn.nn.conv import Bias, BuNNConv
from bunn.nn.dropout import Dropout, hiding
from bunn.nn.head import build_head
from bunn.nn.phi import PhiFactory, normed_phi, phi_factory
from bunn.nn.pooling import POOLINGS, Pooling, pool
from bunn.nn.update import Update, read_update
from bunn.sharing import laplacian_of
from bunn.sizes import check_batch, check_dtype, check_share, check_size


class BuNN(nn.Module):
    r"""A stack of BuNN layers, for node- and graph-level tasks.

    .. math::
        x \leftarrow \mathrm{encode}(x); \qquad
        x \leftarrow x + \sigma(\mathrm{BuNNConv}(\mathrm{norm}(x))) \;\;\text{(num\_layers times)};
        \qquad y = \mathrm{head}(\mathrm{pool}(\mathrm{norm}(x)))

    The Laplacian is built once per graph and shared by all layers.

    Args:
        in_channels: Size of each input feature, ``-1`` to infer it.
        hidden_channels: Width of the stream, a multiple of ``num_bundles * bundle_dim``.
        num_layers: The number of blocks.
        out_channels: Size of the output. (default: the hidden features are returned)
        dropout: (default: ``0.0``)
        input_dropout: Of input features, before the encoder that is built here. (default: ``0.0``)
        node_dropout: Share of nodes all of whose input features are zero in a training step,
            likewise. (default: ``0.0``)
        act: The non-linearity of Equation 4, as PyG's resolver takes it. (default: ``"gelu"``)
        norm: ``"layer"``, ``"batch"`` or :obj:`None`. (default: ``"layer"``)
        norm_first: Whether a block normalises before the layer, or after it. (default: :obj:`True`)
        residual: Whether blocks add to the stream or replace it. (default: :obj:`True`)
        pooling: ``"mean"``, ``"sum"`` or ``"max"`` over each graph, :obj:`None` for node outputs.
            (default: :obj:`None`)
        head_layers: Depth of the head. (default: ``1``)
        head_dropout: Of what each layer of the head reads. (default: ``0.0``)
        encoder: A module from ``x`` to ``(n, hidden_channels)``. One that has ``pe_channels``, such
            as :class:`bunn.nn.PositionalEncoder`, is called with ``x`` and ``pe``, and phi does
            without ``pe`` then. (default: linear, dropout, activation)
        phi: ``"mlp"``, ``"sum"``, ``"sum-residual"`` or ``"sage"``; or a module, copied for every
            layer; or a function from input and output size to a module. (default: ``"mlp"``)
        phi_layers: Hidden layers of phi. (default: ``1``)
        phi_channels: Width of phi. (default: the network's own)
        shared_phi: Whether all layers use one phi. (default: :obj:`False`)
        phi_before_norm: Whether phi reads the stream before its normalisation. (default:
            :obj:`True`)
        phi_norm: How the map parameters that phi computes are normalised: ``"batch"``, ``"layer"``
            or :obj:`None`. (default: :obj:`None`)
        act_residual: Whether the non-linearity of a block comes after its residual connection.
            (default: :obj:`False`)

    All further keywords are those of :class:`bunn.BuNNConv`.

    Shapes:
        - **input:** as for :class:`bunn.BuNNConv`, and the graph of every node ``(n,)``
          *(optional)*
        - **output:** ``(n, out_channels)``, or ``(num_graphs, out_channels)`` with ``pooling``
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        num_layers: int,
        out_channels: int | None = None,
        *,
        dropout: float = 0.0,
        input_dropout: float = 0.0,
        node_dropout: float = 0.0,
        act: str = "gelu",
        norm: Norm = "layer",
        norm_first: bool = True,
        residual: bool = True,
        pooling: Pooling | None = None,
        head_layers: int = 1,
        head_dropout: float = 0.0,
        encoder: nn.Module | None = None,
        phi: str | nn.Module | PhiFactory | None = None,
        phi_layers: int = 1,
        phi_channels: int | None = None,
        shared_phi: bool = False,
        phi_before_norm: bool = True,
        phi_norm: Norm = None,
        act_residual: bool = False,
        num_bundles: int = 1,
        bundle_dim: int = 2,
        time: float | Sequence[float] = 1.0,
        learn_time: bool = False,
        maps: str = "o2",
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
        for name, size in {
            "hidden_channels": hidden_channels,
            "num_layers": num_layers,
            "out_channels": hidden_channels if out_channels is None else out_channels,
            "head_layers": head_layers,
            "num_bundles": num_bundles,
        }.items():
            check_size(name, size)
        check_size("pe_channels", pe_channels, least=0)
        for name, share in {
            "dropout": dropout,
            "input_dropout": input_dropout,
            "node_dropout": node_dropout,
            "head_dropout": head_dropout,
        }.items():
            check_share(name, share, all_of_it=name != "node_dropout")
        check_act(act)
        if phi_norm not in ("layer", "batch", None):
            raise ValueError(f"phi_norm={phi_norm!r}; use 'layer', 'batch' or None")
        num_params = num_bundles * num_map_params(maps, bundle_dim)
        unit = num_bundles * bundle_dim
        if hidden_channels % unit:
            fitting = max(1, round(hidden_channels / unit)) * unit
            raise ValueError(
                f"hidden_channels={hidden_channels} is no multiple of num_bundles * bundle_dim = "
                f"{num_bundles} * {bundle_dim} = {unit}; use {fitting}, for example"
            )
        if pooling is not None and pooling not in POOLINGS:
            raise ValueError(f"pooling={pooling!r}; use one of {list(POOLINGS)} or None")
        self.in_channels, self.hidden_channels = in_channels, hidden_channels
        self.num_layers = num_layers
        self.out_channels = hidden_channels if out_channels is None else out_channels
        self.pooling, self.normalization = pooling, normalization
        self._linear_encoder = encoder is None
        if encoder is None:
            first = Linear(in_channels, hidden_channels)
            encoder = nn.Sequential(
                *hiding(input_dropout, node_dropout),
                *(first, Dropout(dropout), activation_resolver(act)),
            )
        elif input_dropout or node_dropout:
            name, value = ("input", input_dropout) if input_dropout else ("node", node_dropout)
            raise ValueError(
                f"{name}_dropout={value}, but an encoder was passed; drop features in it"
            )
        self.encoder = encoder
        of_phi = 0 if reads_encodings(encoder) else pe_channels
        network = read_update(update)
        if isinstance(update, str):
            network = replace(network, act=act, dropout=dropout)
        if phi is None or isinstance(phi, str):
            phi = phi_factory(phi or "mlp", phi_layers, phi_channels, dropout, act)
            phi = normed_phi(phi, partial(BuNNBlock.build_norm, phi_norm)) if phi_norm else phi
        else:
            _check_own_phi(phi, phi_norm)
        sizes = (hidden_channels + of_phi, num_params)
        self.blocks = nn.ModuleList(
            BuNNBlock(
                BuNNConv(
                    hidden_channels,
                    hidden_channels,
                    num_bundles=num_bundles,
                    bundle_dim=bundle_dim,
                    time=time,
                    learn_time=learn_time,
                    maps=maps,
                    phi=layer_phi,
                    pe_channels=of_phi,
                    weight=weight,
                    bias=bias,
                    update=network,
                    normalization=normalization,
                    method=method,
                    tol=tol,
                    degree=degree,
                    num_eigs=num_eigs,
                ),
                act=act,
                norm=norm,
                norm_first=norm_first,
                residual=residual,
                dropout=dropout,
                phi_before_norm=phi_before_norm,
                act_residual=act_residual,
            )
            for layer_phi in _phi_per_layer(phi, num_layers, sizes, shared_phi)
        )
        self.norm = BuNNBlock.build_norm(norm if norm_first else None, hidden_channels)
        self.head: nn.Module = nn.Identity()
        if out_channels is not None:
            self.head = build_head(hidden_channels, out_channels, head_layers, act, head_dropout)

    def reset_parameters(self) -> None:
        for child in self.children():
            reset(child)

    def forward(
        self,
        x: Tensor,
        edge_index: Adjacency | Laplacian,
        edge_weight: Tensor | None = None,
        pe: Tensor | None = None,
        batch: Tensor | None = None,
        batch_size: int | None = None,
    ) -> Tensor:
        """Runs the model.

        Args:
            x: ``(n, in_channels)`` node features.
            edge_index: ``(2, e)`` edges, a sparse adjacency matrix, or a :class:`bunn.Laplacian`.
            edge_weight: ``(e,)`` edge weights. (default: all one)
            pe: ``(n, pe_channels)`` positional encodings. (default: :obj:`None`)
            batch: ``(n,)`` the graph of every node, for pooling. (default: all in one)
            batch_size: The number of graphs. (default: one more than the last in ``batch``)
        """
        if not isinstance(x, Tensor):
            raise TypeError(f"x is a {type(x).__name__}; pass a (num_nodes, in_channels) tensor")
        lap = laplacian_of(edge_index, edge_weight, x.size(0), self.normalization)
        if lap.device != x.device:
            raise ValueError(f"x is on {x.device} and edge_index on {lap.device}; move one of them")
        lap.check_rows(x)
        check_batch(batch, x.size(0), batch_size)
        self._check_features(x)
        if reads_encodings(self.encoder):
            x, pe = self.encoder(x, pe), None
        else:
            x = self.encoder(x)
        if x.dim() != 2 or x.size(1) != self.hidden_channels:
            raise ValueError(
                f"the encoder returned shape {tuple(x.shape)}; the blocks read (num_nodes, "
                f"{self.hidden_channels})"
            )
        for block in self.blocks:
            x = block(x, lap, pe)
        x = self.norm(x)
        if self.pooling is not None:
            x = pool(x, self.pooling, batch, batch_size)
        out: Tensor = self.head(x)
        return out

    def _check_features(self, x: Tensor) -> None:
        """What the default encoder reads; an encoder of the user's own may read anything."""
        if not self._linear_encoder:
            return
        lazy = self.in_channels == -1
        if x.dim() != 2 or not (lazy or x.size(1) == self.in_channels):
            reads = "in_channels" if lazy else self.in_channels
            raise ValueError(f"x has shape {tuple(x.shape)}; the model reads (num_nodes, {reads})")
        if not x.is_floating_point():
            raise TypeError(f"x has dtype {x.dtype}; use a floating-point type, such as x.float()")
        check_dtype(x, self.encoder.parameters())
        if lazy:
            self.in_channels = x.size(1)

    def __repr__(self) -> str:
        return (
            f"{self.__class__.__name__}({self.in_channels}, {self.hidden_channels}, "
            f"num_layers={self.num_layers}, out_channels={self.out_channels}, "
            f"conv={self.blocks[0].conv!r})"
        )


def check_act(act: str) -> None:
    """Whether PyG knows a non-linearity of this name."""
    try:
        activation_resolver(act)
    except ValueError as error:
        raise ValueError(
            f"act={act!r} is unknown; use a name that PyG's activation_resolver takes, such as "
            "'gelu', 'relu' or 'elu'"
        ) from error


def reads_encodings(encoder: nn.Module) -> bool:
    """Whether an encoder is called with positional encodings, too: one that has ``pe_channels``."""
    return getattr(encoder, "pe_channels", 0) > 0


def _check_own_phi(phi: object, phi_norm: Norm) -> None:
    if not callable(phi):
        raise TypeError(f"phi={phi!r}; pass a name, a module, or a function (in, out) -> module")
    if phi_norm is not None:
        raise ValueError(f"phi_norm={phi_norm!r}, but phi was passed; normalise inside of it")


def _phi_per_layer(
    factory: PhiFactory | nn.Module, num_layers: int, sizes: tuple[int, int], shared: bool
) -> list[nn.Module]:
    """One phi for every layer: the same one if shared, else built or copied anew."""
    if isinstance(factory, nn.Module):
        module = factory
        return [module if shared else copy.deepcopy(module) for _ in range(num_layers)]
    if shared:
        return [factory(*sizes)] * num_layers
    return [factory(*sizes) for _ in range(num_layers)]
