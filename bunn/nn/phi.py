"""The networks phi that compute a bundle: from node features to map parameters (Equation 1).

Any module called as ``phi(x, edge_index)`` will do; these are the paper's. They also take a
:class:`bunn.Laplacian` for ``edge_index``, and aggregate through its sparse operator.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch_geometric.nn import Linear
from torch_geometric.nn.inits import reset
from torch_geometric.nn.resolver import activation_resolver

from bunn import kernels
from bunn.diffusion.auto import choose_mean
from bunn.graph.edges import Adjacency
from bunn.laplacian import Laplacian
from bunn.nn.chains import Stage, feed_forward, is_plain_norm, may_be_fused, stages_of
from bunn.nn.dropout import Dropout
from bunn.nn.precision import as_factor, factor_dtype
from bunn.nn.residual import residual_blocks
from bunn.sharing import laplacian_of

PhiFactory = Callable[[int, int], nn.Module]


class PhiNetwork(nn.Module):
    """Base of the networks that are handed the layer's Laplacian instead of its edges."""

    def reset_parameters(self) -> None:
        for child in self.children():
            reset(child)


class MLPPhi(PhiNetwork):
    """A perceptron of two layers or more, blind to the graph.

    Args:
        in_channels: Size of the input, ``-1`` to infer it.
        out_channels: Map parameters per node, ``num_bundles * num_map_params``.
        hidden_channels: (default: ``out_channels``, at least 32)
        act: The activation, as PyG's resolver takes it. (default: ``"gelu"``)
        num_layers: The number of hidden layers. (default: ``1``)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden_channels: int | None = None,
        act: str = "gelu",
        num_layers: int = 1,
    ) -> None:
        super().__init__()
        if num_layers < 1:
            raise ValueError(f"num_layers={num_layers}; it must be >= 1")
        hidden_channels = hidden_channels or max(32, out_channels)
        self.lin_in = Linear(in_channels, hidden_channels)
        self.act = activation_resolver(act)
        self.hidden = nn.ModuleList(
            Linear(hidden_channels, hidden_channels) for _ in range(num_layers - 1)
        )
        self.lin_out = Linear(hidden_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Adjacency | Laplacian | None = None) -> Tensor:
        x = self.act(self.lin_in(x))
        for layer in self.hidden:
            x = self.act(layer(x))
        params: Tensor = self.lin_out(x)
        return params


class SumGNNPhi(PhiNetwork):
    r"""The paper's SumGNN: layers :math:`\sigma(W_s x_v + W_n \sum_{u \sim v} x_u)`, then a linear
    map.

    Args:
        in_channels: Size of the input, ``-1`` to infer it.
        out_channels: Map parameters per node.
        hidden_channels: (default: twice ``out_channels``)
        num_layers: (default: ``1``)
        act: The activation. (default: ``"gelu"``)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden_channels: int | None = None,
        num_layers: int = 1,
        act: str = "gelu",
    ) -> None:
        super().__init__()
        self.hidden_channels = hidden = hidden_channels or 2 * out_channels
        sizes = [in_channels] + [hidden] * (num_layers - 1)
        self.lin_self = nn.ModuleList(Linear(size, hidden) for size in sizes)
        self.lin_neighbors = nn.ModuleList(Linear(size, hidden, bias=False) for size in sizes)
        self.act = activation_resolver(act)
        self.lin_out = Linear(hidden, out_channels)

    def forward(self, x: Tensor, edge_index: Adjacency | Laplacian) -> Tensor:
        lap, x = _any_laplacian(edge_index, x), as_factor(x)
        for own, neighbors in zip(self.lin_self, self.lin_neighbors, strict=True):
            # The sum is linear: it is cheapest on whichever side of the weights is narrower.
            if x.size(1) <= self.hidden_channels:
                message = neighbors(lap.aggregate(x, "sum"))
            else:
                message = lap.aggregate(neighbors(x), "sum")
            x = self.act(own(x) + message)
        params: Tensor = self.lin_out(x)
        return params


class ResidualSumPhi(PhiNetwork):
    r"""The SumGNN of the authors' runs on peptides.

    Linear in, activation; residual layers :math:`x_v + \sigma(W_s x_v + a + W_n \sum_{u \sim v}
    x_u + b)`; linear out. Unlike in :class:`SumGNNPhi`, sums are of features as wide as phi.

    Args:
        in_channels: Size of the input, ``-1`` to infer it.
        out_channels: Map parameters per node.
        hidden_channels: (default: ``out_channels``, at least 32)
        num_layers: Residual layers. (default: ``1``)
        act: The activation. (default: ``"gelu"``)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden_channels: int | None = None,
        num_layers: int = 1,
        act: str = "gelu",
    ) -> None:
        super().__init__()
        if num_layers < 1:
            raise ValueError(f"num_layers={num_layers}; it must be >= 1")
        hidden = hidden_channels or max(32, out_channels)
        self.act = activation_resolver(act)
        self.lin_in = Linear(in_channels, hidden)
        self.lin_self = nn.ModuleList(Linear(hidden, hidden) for _ in range(num_layers))
        self.lin_neighbors = nn.ModuleList(Linear(hidden, hidden) for _ in range(num_layers))
        self.lin_out = Linear(hidden, out_channels)

    def forward(self, x: Tensor, edge_index: Adjacency | Laplacian) -> Tensor:
        lap = _any_laplacian(edge_index, x)
        x = self.act(self.lin_in(as_factor(x)))
        for own, neighbors in zip(self.lin_self, self.lin_neighbors, strict=True):
            x = x + self.act(own(x) + neighbors(lap.aggregate(x, "sum")))
        params: Tensor = self.lin_out(x)
        return params


class SAGEPhi(PhiNetwork):
    """The residual GraphSAGE of the authors' heterophilous runs.

    Linear in, dropout, activation; residual blocks of LayerNorm and a two-layer network on the node
    and the mean of its neighbours; LayerNorm, linear out.

    Args:
        in_channels: Size of the input, ``-1`` to infer it.
        out_channels: Map parameters per node.
        hidden_channels: (default: ``out_channels``, at least 32)
        num_layers: Residual blocks. (default: ``1``)
        dropout: After every linear layer but the last. (default: ``0.0``)
        act: The activation. (default: ``"gelu"``)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden_channels: int | None = None,
        num_layers: int = 1,
        dropout: float = 0.0,
        act: str = "gelu",
    ) -> None:
        super().__init__()
        hidden = hidden_channels or max(32, out_channels)
        self.act = activation_resolver(act)
        self.lin_in = nn.Sequential(
            Linear(in_channels, hidden), Dropout(dropout), activation_resolver(act)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(num_layers))
        self.updates = nn.ModuleList(
            nn.Sequential(
                Linear(2 * hidden, hidden),
                Dropout(dropout),
                activation_resolver(act),
                Linear(hidden, hidden),
                Dropout(dropout),
            )
            for _ in range(num_layers)
        )
        self.lin_out = nn.Sequential(nn.LayerNorm(hidden), Linear(hidden, out_channels))

    def forward(self, x: Tensor, edge_index: Adjacency | Laplacian) -> Tensor:
        lap = _any_laplacian(edge_index, x)
        x = feed_forward(self.lin_in, x)
        fits = kernels.serve_chains(x) and lap.num_entries < kernels.MOST_ENTRIES
        chains = self._chains() if fits else None
        if chains:
            norms = cast(list[nn.LayerNorm], [*self.norms, self.lin_out[0]])
            graph, dtype = lap.matching(x), factor_dtype(x)
            patches = choose_mean(graph, dtype, x.size(1))
            mean = graph.aggregation("mean")
            z = residual_blocks(x, norms, chains, mean, dtype, patches)
            return cast(Tensor, self.lin_out[1](z))
        for norm, update in zip(self.norms, self.updates, strict=True):
            z = as_factor(norm(x))
            x = x + update(torch.cat((z, lap.aggregate(z, "mean")), dim=-1))
        params: Tensor = self.lin_out(x)
        return params

    def _chains(self) -> list[tuple[Stage, Stage]] | None:
        """What the residual blocks do, if kernels know all of it."""
        norms = all(map(is_plain_norm, (*self.norms, self.lin_out[0])))
        stages = [stages_of(update) for update in self.updates]
        if not norms or not may_be_fused(self) or any(len(pair) != 2 for pair in stages):
            return None
        pairs = [(enter, leave) for enter, leave in stages]
        plain = all(leave.act == "none" and leave.linear.bias is not None for _, leave in pairs)
        alike = len({enter.linear.weight.shape for enter, _ in pairs}) == 1
        return pairs if plain and alike else None


class NormedPhi(PhiNetwork):
    """A network whose map parameters are normalised, as in the authors' runs on peptides.

    Args:
        network: The network.
        norm: What its output goes through.
    """

    def __init__(self, network: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.network, self.norm = network, norm

    def forward(self, x: Tensor, edge_index: Adjacency | Laplacian) -> Tensor:
        params: Tensor = self.norm(self.network(x, edge_index))
        return params


def normed_phi(factory: PhiFactory, norm: Callable[[int], nn.Module]) -> PhiFactory:
    """Networks of a kind, with a normalisation for each, which is built from their output size."""
    return lambda reads, writes: NormedPhi(factory(reads, writes), norm(writes))


def check_phi(phi: Any) -> None:
    """Raises an error unless it can be called with features and edges."""
    if isinstance(phi, (str, type)) or not callable(phi):
        raise TypeError(
            f"phi={phi!r}; pass a module called as phi(x, edge_index), such as bunn.nn.SAGEPhi"
        )
    called = phi.forward if isinstance(phi, nn.Module) else phi
    try:
        inspect.signature(called).bind(None, None)
    except TypeError:
        raise TypeError(
            f"phi={phi!r} cannot be called as phi(x, edge_index); write a module that can and "
            "hands x on, or use bunn.nn.MLPPhi, which is blind to the graph"
        ) from None
    except ValueError:  # what is not written in Python need not have a signature
        return


def _any_laplacian(edge_index: Adjacency | Laplacian, x: Tensor) -> Laplacian:
    if not isinstance(edge_index, Laplacian):
        edge_index = laplacian_of(edge_index, None, x.size(0), "rw")
    return edge_index


def phi_factory(
    phi: str, num_layers: int, hidden_channels: int | None, dropout: float, act: str
) -> PhiFactory:
    """The network called ``phi`` as a function of its input and output sizes."""
    if num_layers < 1:
        raise ValueError(f"phi_layers={num_layers}; it must be >= 1")
    factories: dict[str, PhiFactory] = {
        "mlp": lambda i, o: MLPPhi(i, o, hidden_channels, act, num_layers),
        "sum": lambda i, o: SumGNNPhi(i, o, hidden_channels, num_layers, act),
        "sum-residual": lambda i, o: ResidualSumPhi(i, o, hidden_channels, num_layers, act),
        "sage": lambda i, o: SAGEPhi(i, o, hidden_channels, num_layers, dropout, act),
    }
    if phi not in factories:
        raise ValueError(
            f"phi={phi!r} is unknown; use one of {list(factories)}, or a module called as "
            "phi(x, edge_index)"
        )
    return factories[phi]
