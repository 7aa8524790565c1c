"""Layers that mix the patches of a graph, by attention or by a network along their sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch_geometric.nn import Linear

from bunn.baselines.networks import build_dropout, build_network
from bunn.baselines.options import (
    FrameOptions,
    check_choice,
    check_count,
    check_divides,
    check_probability,
)


@dataclass(frozen=True)
class MixerOptions(FrameOptions):
    """Options of :class:`MixerLayer`.

    Args:
        patches: How many patches ``P`` a graph has, or as many as it has nodes if that is less.
        mixer: What mixes their tokens: ``"attention"`` in Graph ViT, ``"mlp"`` in Graph MLP-Mixer.
        mixer_dropout: Dropout of that, and of the network that follows.
        heads: Attention heads, each of ``hidden_channels / heads`` channels.
    """

    patches: int = 32
    mixer: Literal["attention", "mlp"] = "attention"
    mixer_dropout: float = 0.0
    heads: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self, "patches")
        check_choice(self, "mixer", MIXERS)
        check_probability(self, "mixer_dropout")
        check_divides(self, "heads")


class PatchAttention(nn.Module):
    r"""Attention of patches to each other, weighted by their overlap: "Hadamard" attention.

    .. math::
        y_p = W_o \Big\Vert_{\text{heads}} \sum_q A_{pq} \operatorname{softmax}_q
              \Big(\tfrac{1}{\sqrt{k}} \langle q_p, k_q \rangle\Big) v_q + b_o,
        \qquad (q, k, v) = W x + b

    where :math:`A_{pq}` is the number of nodes that patches :math:`p` and :math:`q` share.
    """

    def __init__(self, options: MixerOptions) -> None:
        super().__init__()
        width, self.heads = options.hidden_channels, options.heads
        self.lin_in = Linear(width, 3 * width)
        self.lin_out = Linear(width, width)
        self.dropout = build_dropout(options.mixer_dropout)

    def forward(self, tokens: Tensor, overlap: Tensor, filled: Tensor) -> Tensor:
        """``(graphs, P, c)`` tokens, their overlap ``(graphs, P, P)``, and which there are."""
        packed = self.lin_in(tokens).unflatten(-1, (3, self.heads, -1))
        query, key, value = packed.permute(2, 0, 3, 1, 4)
        scores = query @ key.mT * query.size(-1) ** -0.5
        lowest = torch.finfo(scores.dtype).min
        weights = scores.masked_fill(~filled[:, None, None, :], lowest).softmax(-1)
        heard = (weights * overlap.unsqueeze(1)).to(value.dtype) @ value
        out: Tensor = self.dropout(self.lin_out(heard.transpose(1, 2).flatten(2)))
        return out


class TokenMixing(nn.Module):
    r"""A network along the sequence of patches, the same for every channel.

    .. math::
        y_{:c} = W_2\, \operatorname{gelu}(W_1 x_{:c} + b_1) + b_2

    from :math:`P` patches through four times the width to :math:`P`, with zeros for the patches
    that a graph has not. It knows patches by their place in the sequence.
    """

    def __init__(self, options: MixerOptions) -> None:
        super().__init__()
        inside = 4 * options.hidden_channels
        self.network = _network(options.patches, inside, options.mixer_dropout)

    def forward(self, tokens: Tensor, overlap: Tensor, filled: Tensor) -> Tensor:
        """``(graphs, P, c)`` tokens, their overlap, which is not read, and which there are."""
        out: Tensor = self.network((tokens * filled.unsqueeze(-1)).mT).mT
        return out


#: What mixes tokens, and the width of the network that follows, relative to theirs.
MIXERS: dict[str, tuple[type[PatchAttention | TokenMixing], float]] = {
    "attention": (PatchAttention, 2.0),
    "mlp": (TokenMixing, 0.5),
}


class MixerLayer(nn.Module):
    r"""Mixes tokens, and then the channels of each.

    .. math::
        y = x + \operatorname{mix}(\operatorname{norm}(x)), \qquad
        x' = y + W_2\, \operatorname{gelu}(W_1 \operatorname{norm}(y) + b_1) + b_2
    """

    def __init__(self, options: MixerOptions) -> None:
        super().__init__()
        width, (mix, ratio) = options.hidden_channels, MIXERS[options.mixer]
        self.norm_tokens, self.norm_channels = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = mix(options)
        self.channels = _network(width, max(1, int(ratio * width)), options.mixer_dropout)

    def forward(self, tokens: Tensor, overlap: Tensor, filled: Tensor) -> Tensor:
        """``(graphs, P, c) -> (graphs, P, c)``, with the overlap of patches ``(graphs, P, P)`` and
        which of them there are, ``(graphs, P)``."""
        tokens = tokens + self.tokens(self.norm_tokens(tokens), overlap, filled)
        out: Tensor = tokens + self.channels(self.norm_channels(tokens))
        return out


def _network(width: int, inside: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(*build_network(width, inside, "gelu", dropout), build_dropout(dropout))
