"""GGNN: messages read by a gated recurrent unit."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import linear
from torch_geometric.nn import GatedGraphConv

from bunn.baselines.baseline import Baseline
from bunn.baselines.frame import Block, GraphModule
from bunn.baselines.options import FrameOptions, check_count, check_flag
from bunn.baselines.propagation import propagate_sum


@dataclass(frozen=True)
class GGNNOptions(FrameOptions):
    """Options of :class:`GGNNLayer`.

    Args:
        steps: Recurrent steps per layer. One layer of ``k`` steps is the paper's model, ``k``
            layers of one step have weights of their own.
        tied: Whether all steps of a layer send messages through the same weights. The recurrent
            unit is always the same.
    """

    steps: int = 1
    tied: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self, "steps")
        check_flag(self, "tied")


class GatedUnit(nn.GRUCell):
    r"""The gated recurrent unit from its formula: torch's fused kernel cannot be stacked by
    ``vmap``.

    .. math::
        r = \sigma(W_r m + U_r h), \quad z = \sigma(W_z m + U_z h), \quad
        \tilde h = \tanh(W m + r \odot U h), \quad h' = (1 - z) \odot \tilde h + z \odot h

    each product with its bias.
    """

    def forward(self, message: Tensor, state: Tensor | None = None) -> Tensor:
        """``(n, c)`` messages and states to states."""
        assert state is not None
        reset_in, update_in, new_in = linear(message, self.weight_ih, self.bias_ih).chunk(3, -1)
        reset_own, update_own, new_own = linear(state, self.weight_hh, self.bias_hh).chunk(3, -1)
        update = (update_in + update_own).sigmoid()
        proposal = (new_in + (reset_in + reset_own).sigmoid() * new_own).tanh()
        return proposal + update * (state - proposal)


class _GatedGraphConv(GatedGraphConv):  # type: ignore[misc]
    """PyG's layer, with a unit that can be stacked."""

    propagate = propagate_sum

    def __init__(self, out_channels: int, num_layers: int) -> None:
        super().__init__(out_channels, num_layers)
        self.rnn = GatedUnit(out_channels, out_channels)


class GGNNLayer(GraphModule):
    r"""The gated graph network of Li, Tarlow, Brockschmidt and Zemel, "Gated Graph Sequence Neural
    Networks", 2016, https://arxiv.org/abs/1511.05493.

    .. math::
        x_v \leftarrow \operatorname{GRU}\Big(\sum_{u \to v} w_{uv} W x_u,\; x_v\Big)
        \;\;\text{(steps times)}

    The unit has its non-linearities inside; the block adds none.
    """

    weighted = True
    activated = True

    def __init__(self, options: GGNNOptions) -> None:
        super().__init__()
        self.rounds = options.steps if options.tied else 1
        self.conv = _GatedGraphConv(options.hidden_channels, options.steps // self.rounds)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
    ) -> Tensor:
        for _ in range(self.rounds):
            x = self.conv(x, edge_index, edge_weight)
        return x


GGNN = Baseline(
    "ggnn",
    GGNNOptions,
    "Li, Tarlow, Brockschmidt, Zemel 2016, https://arxiv.org/abs/1511.05493",
    lambda options: Block(GGNNLayer(options), options),
)
