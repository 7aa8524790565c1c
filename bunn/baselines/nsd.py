"""NSD: diffusion on a sheaf that is learned along with everything else."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor, nn
from torch_geometric.nn import Linear
from torch_geometric.nn.resolver import activation_resolver

from bunn.baselines.attention import AttentionEdges
from bunn.baselines.baseline import Baseline
from bunn.baselines.frame import Block, GraphModule
from bunn.baselines.options import FrameOptions, check_choice, check_count, check_divides
from bunn.baselines.sheaf import MapKind, Sheaf, SheafLaplacian, paired_edges
from bunn.bundle import FlatBundle, num_map_params
from bunn.graph.operator import exact_arithmetic
from bunn.nn.block import Norm


@dataclass(frozen=True)
class NSDOptions(FrameOptions):
    """Options of :class:`NSDLayer`.

    Args:
        act: The non-linearity of the diffusion.
        norm: The paper's model has none.
        stalk_dim: The dimension ``d`` of a stalk, of which ``hidden_channels`` is a multiple.
        maps: The restriction maps: ``"orthogonal"``, ``"diagonal"`` or ``"general"``.
        orthogonal: How orthogonal ones are parametrised, a name in :data:`bunn.bundle.MAPS`.
        map_channels: Width of a hidden layer in the network that computes the maps, :obj:`None`
            for a linear one.
        steps: Diffusion steps in one layer, with weights of their own and one sheaf: one layer of
            ``k`` steps computes the sheaf once, ``k`` layers of one step anew for every step.
        damping: Added to the block degrees: 1, as the authors' code does, or as little as one
            likes; 0, the equation as printed, only for orthogonal maps, whose degrees are never
            singular.
    """

    act: str = "elu"
    norm: Norm = None
    stalk_dim: int = 2
    maps: MapKind = "orthogonal"
    orthogonal: str = "householder"
    map_channels: int | None = None
    steps: int = 1
    damping: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_divides(self, "stalk_dim")
        check_choice(self, "maps", ("orthogonal", "diagonal", "general"))
        check_count(self, "steps")
        if self.map_channels is not None:
            check_count(self, "map_channels")
        try:
            num_map_params(self.orthogonal, self.stalk_dim)
        except ValueError as error:
            raise ValueError(f"orthogonal={self.orthogonal!r} does not fit: {error}") from error
        smallest = "0" if self.maps == "orthogonal" else f"above 0 for maps={self.maps!r}"
        damping = float(self.damping) if isinstance(self.damping, Real) else math.nan
        if not (0 <= damping < math.inf) or (damping == 0 and self.maps != "orthogonal"):
            raise ValueError(f"damping={self.damping!r}; it must be a number, {smallest} or more")


class SheafStep(nn.Module):
    r"""One step of sheaf diffusion, less the field itself:
    :math:`\tanh(\epsilon) X - \sigma(\Delta_F (I \otimes W_1) X W_2)`.

    Args:
        stalk_dim: The dimension ``d`` of a stalk.
        channels: The channels ``f`` per stalk.
        act: The non-linearity.
    """

    def __init__(self, stalk_dim: int, channels: int, act: str) -> None:
        super().__init__()
        self.stalk_weight = nn.Parameter(torch.empty(stalk_dim, stalk_dim))
        self.channel_weight = nn.Parameter(torch.empty(channels, channels))
        self.eps = nn.Parameter(torch.empty(stalk_dim, 1))
        self.act = activation_resolver(act)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """To plain diffusion, up to a rotation of the channels."""
        nn.init.eye_(self.stalk_weight)
        nn.init.orthogonal_(self.channel_weight)
        nn.init.zeros_(self.eps)

    def forward(self, x: Tensor, laplacian: SheafLaplacian) -> Tensor:
        """``(n, d, f) -> (n, d, f)``."""
        n, d, f = x.shape  # two products of matrices: n small ones take longer to start than to do
        stalks = (self.stalk_weight @ x.transpose(0, 1).reshape(d, n * f)).view(d, n, f)
        mixed = (stalks.transpose(0, 1).reshape(n * d, f) @ self.channel_weight).view_as(x)
        if mixed.dtype in (torch.float16, torch.bfloat16):
            mixed = mixed.float()
        with exact_arithmetic(mixed):
            flow = laplacian.apply(mixed)
        out: Tensor = self.eps.tanh() * x - self.act(flow).to(x.dtype)
        return out


class NSDLayer(GraphModule):
    r"""Neural sheaf diffusion, from Bodnar, Di Giovanni, Chamberlain, Liò and Bronstein, "Neural
    Sheaf Diffusion: A Topological Perspective on Heterophily and Oversmoothing in GNNs", 2022,
    https://arxiv.org/abs/2202.04579.

    .. math::
        X \leftarrow (1 + \tanh \epsilon) X - \sigma\big(\Delta_F (I_n \otimes W_1) X W_2\big),
        \qquad F_{v \trianglelefteq e} = \Phi(x_v, x_u) \;\text{for}\; e = \{u, v\}

    with the normalised Laplacian :math:`\Delta_F = D^{-1/2} L_F D^{-1/2}` of the sheaf (see
    :mod:`bunn.baselines.sheaf`). Features are ``(n, d, f)`` fields with ``d * f =
    hidden_channels``; :math:`W_1` is ``(d, d)``, :math:`W_2` ``(f, f)``, :math:`\epsilon` ``(d,)``.
    :math:`\Phi` is linear, followed by tanh for diagonal and general maps, by the parametrisation
    for orthogonal ones. An edge weight multiplies the square of the edge's difference.

    Nothing about a graph is kept: it may be another one, or a batch, at every call. The layer
    returns the change of :math:`X` alone, so that a block with ``residual=True`` and ``norm=None``
    is the equation.
    """

    weighted = True
    activated = True

    def __init__(self, options: NSDOptions) -> None:
        super().__init__()
        width, d = options.hidden_channels, options.stalk_dim
        self.stalk_dim, self.maps = d, options.maps
        self.orthogonal, self.damping = options.orthogonal, float(options.damping)
        counts = {"diagonal": d, "general": d * d, "orthogonal": num_map_params(self.orthogonal, d)}
        hidden = options.map_channels or counts[self.maps]
        self.lin_own = Linear(width, hidden)
        self.lin_other = Linear(width, hidden, bias=False)
        self.network: nn.Module = nn.Identity()
        if options.map_channels is not None:
            self.network = nn.Sequential(
                activation_resolver(options.act), Linear(hidden, counts[self.maps])
            )
        self.steps = nn.ModuleList(
            SheafStep(d, width // d, options.act) for _ in range(options.steps)
        )

    def prepare(
        self,
        edge_index: Tensor,
        edge_weight: Tensor | None,
        num_nodes: int,
        dtype: torch.dtype,
        batch: Tensor | None = None,
    ) -> tuple[AttentionEdges, Tensor | None]:
        if edge_weight is not None and edge_weight.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                "edge_weight requires a gradient, but an NSDLayer is differentiated with respect "
                "to x and its maps, not to the graph; pass edge_weight.detach()"
            )
        return paired_edges(edge_index, edge_weight, num_nodes)

    def sheaf(self, x: Tensor, edges: AttentionEdges, edge_weight: Tensor | None = None) -> Sheaf:
        """The normalised sheaf of ``x: (n, c)`` on edges from :meth:`prepare`."""
        own = self.lin_own(x)
        params = self.network(edges.sums(own, self.lin_other(x)).to(own.dtype))
        if params.dtype in (torch.float16, torch.bfloat16):
            params = params.float()
        if edge_weight is not None:
            edge_weight = edge_weight.to(params.dtype)
        n, d = x.size(0), self.stalk_dim
        with exact_arithmetic(params):
            if self.maps == "orthogonal":
                bundle = FlatBundle(params.unsqueeze(1), self.orthogonal, d)
                sheaf = Sheaf(bundle.matrices().squeeze(1), edges, n)
                return sheaf.scaled(edge_weight, self.damping)
            maps = params.tanh()
            if edge_weight is not None:
                maps = maps * edge_weight.sqrt().unsqueeze(-1)
            if self.maps == "general":
                maps = maps.unflatten(-1, (d, d))
            return Sheaf(maps, edges, n).normalized(self.damping)

    def forward(
        self,
        x: Tensor,
        edge_index: AttentionEdges,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
    ) -> Tensor:
        sheaf = self.sheaf(x, edge_index, edge_weight)
        with exact_arithmetic(sheaf.maps):
            laplacian = sheaf.laplacian()
        field = x.unflatten(1, (self.stalk_dim, -1))
        change = torch.zeros_like(field)
        for step in self.steps:
            change = change + step(field + change, laplacian)
        return change.flatten(1)


NSD = Baseline(
    "nsd",
    NSDOptions,
    "Bodnar, Di Giovanni, Chamberlain, Liò, Bronstein 2022, https://arxiv.org/abs/2202.04579",
    lambda options: Block(NSDLayer(options), options),
)
