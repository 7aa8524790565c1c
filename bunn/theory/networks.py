"""The small networks that proofs ask for: maps given outright, or looked up by an MLP."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch_geometric.nn import Linear

from bunn.nn import BuNNConv, MLPPhi

#: Beyond this, tanh is 1 to the last digit of float64, with room for rounding below it.
SATURATED = 40.0


class FixedMaps(nn.Module):
    """A phi that ignores its input: the maps are parameters.

    Args:
        params: ``(n, b, k)`` map parameters, as :class:`bunn.FlatBundle` takes them.
    """

    def __init__(self, params: Tensor) -> None:
        super().__init__()
        self.params = nn.Parameter(params.detach().clone())

    def forward(self, x: Tensor, edge_index: object = None) -> Tensor:
        return self.params.flatten(1)


def mixing(layer: BuNNConv) -> Linear:
    """``W`` and ``b`` of a layer: a linear module, whose ``weight`` is the ``W`` of Equation 2."""
    if not isinstance(layer.network, Linear):
        raise TypeError(f"{layer} has no linear W; build it with update='before' and weight=True")
    return layer.network


def lookup_network(encodings: Tensor, values: Tensor, names: Sequence[str] | None = None) -> MLPPhi:
    r"""A two-layer perceptron that returns ``values[i]`` at ``encodings[i]``.

    The encodings are projected on a line on which they are apart, :math:`s_1 < s_2 < \dots`, and

    .. math::
        s \mapsto v_1 + \sum_i \tfrac12 (v_{i+1} - v_i)
        \big(1 + \tanh\big(\alpha_i (s - \tfrac12 (s_i + s_{i+1}))\big)\big)

    steps from value to value half-way between neighbours, so steeply that :math:`\tanh = \pm 1` at
    every encoding: a table of zeros and one other number comes out to the last digit, any other
    as exact as a sum of its entries is. This is what "MLPs are universal" means in the proofs.

    Args:
        encodings: ``(k, f)``; equal rows have equal values.
        values: ``(k, m)``.
        names: What the rows are called in errors. (default: their numbers)

    Raises:
        ValueError: If two encodings are equal, or too close to be told apart, and their values are
            not; or if an encoding is not finite.
    """
    if (
        encodings.dim() != 2
        or values.dim() != 2
        or len(encodings) != len(values)
        or not len(values)
    ):
        raise ValueError(
            f"encodings has shape {tuple(encodings.shape)} and values {tuple(values.shape)}; they "
            "need one row each per node: (k, f) and (k, m)"
        )
    if not bool((encodings.abs() < 1e150).all()):
        raise ValueError("encodings has entries that are not finite, or beyond 1e150; scale them")
    points, owner = torch.unique(encodings.double(), dim=0, return_inverse=True)
    table = values.new_zeros(points.size(0), values.size(1), dtype=torch.float64)
    table[owner] = values.double()
    clash = (table[owner] != values.double()).any(1).nonzero()
    if clash.numel():
        first = int(clash[0])
        differs = (values != values[first]).any(1)
        twin = int(((owner == owner[first]) & differs).nonzero()[0])
        pair = [f"row {row}" if names is None else names[row] for row in (first, twin)]
        raise ValueError(
            f"encodings of {pair[0]} and {pair[1]} are equal, {encodings[first].tolist()}; "
            "positional encodings must be injective over all graphs together"
        )
    direction, gap = _spread(points)
    order = (points @ direction).argsort()
    if gap < 1e-11:
        raise ValueError(
            f"encodings lie within {gap:.0e} of each other, relative to their size: too close for "
            "a network in float64 to tell them apart; positional encodings must be injective over "
            "all graphs together"
        )
    line, steps = (points @ direction)[order], table[order].diff(dim=0) / 2
    slope = SATURATED / (line.diff() / 2)
    network = MLPPhi(points.size(1), values.size(1), max(1, len(slope)), act="tanh").double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        network.lin_out.bias.copy_(table[order[0]] + steps.sum(0))
        if len(slope):
            network.lin_in.weight.copy_(slope[:, None] * direction)
            network.lin_in.bias.copy_(-slope * (line[1:] + line[:-1]) / 2)
            network.lin_out.weight.copy_(steps.T)
    return network


def _spread(points: Tensor) -> tuple[Tensor, float]:
    """The direction ``(f,)``, of many, that keeps the points furthest apart, and how far.

    The distance of the closest two on that line is relative to the largest coordinate.
    """
    generator = torch.Generator().manual_seed(0)
    size = points.size(1)
    tried = torch.randn(256, size, dtype=torch.float64, generator=generator)
    tried = torch.cat((torch.eye(size, dtype=torch.float64), tried))
    tried = tried / tried.norm(dim=1, keepdim=True)
    lines = (points @ tried.T).sort(dim=0).values
    scale = points.norm(dim=1).max().clamp(min=torch.finfo(torch.float64).tiny)
    gaps = torch.ones(len(tried)) if len(points) == 1 else lines.diff(dim=0).min(0).values / scale
    best = int(gaps.argmax())
    return tried[best], float(gaps[best])
