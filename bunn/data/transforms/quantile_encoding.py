"""Features as positions among their quantiles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform


class QuantileEncoding(BaseTransform):  # type: ignore[misc]
    r"""The piecewise linear encoding of numerical features (Gorishniy et al., NeurIPS 2022).

    .. math::
        x_{vc} \;\mapsto\; \left( \operatorname{clip} \left(
        \frac{x_{vc} - b_{c, i-1}}{b_{c, i} - b_{c, i-1}}, 0, 1 \right) \right)_{i = 1, \dots, q}

    with the edges :math:`b_{c, i}`, the :math:`i/q` quantiles of feature :math:`c`. A value fills
    its bins one after the other, each with as many values as any other, so that a linear layer on
    them is a function of the feature that bends at every edge. Means over neighbours then tell how
    the feature is distributed among them, and not its mean alone.

    A bin between equal edges has no width and is zero: a feature with two values keeps one column
    that is not.

    Args:
        edges: ``(c, q + 1)``, ascending in every row; :meth:`fit` takes them from graphs.
    """

    def __init__(self, edges: Tensor) -> None:
        if not isinstance(edges, Tensor):
            raise TypeError(
                f"edges={edges!r}; pass a (c, q + 1) tensor, or use QuantileEncoding.fit(graphs, q)"
            )
        if edges.dim() != 2 or edges.size(1) < 2 or not bool((edges.diff(dim=1) >= 0).all()):
            raise ValueError(
                f"edges has shape {tuple(edges.shape)}, or rows that do not ascend; pass (c, q + "
                "1), the edges of q >= 1 bins for each of c features, or use QuantileEncoding.fit"
            )
        self.edges = edges

    @classmethod
    def fit(cls, graphs: Iterable[Data], bins: int) -> QuantileEncoding:
        """The encoding with as many values of ``x`` in any of ``bins``, over all nodes.

        Args:
            graphs: With floating-point features ``x: (n, c)``.
            bins: Their number ``q``.
        """
        if bins < 1:
            raise ValueError(f"bins={bins}; use one or more")
        x = torch.cat([_features(data) for data in graphs]).double().cpu()
        if not bool(x.isfinite().all()):
            column = int((~x.isfinite()).any(dim=0).nonzero()[0])
            raise ValueError(f"x has values in column {column} that are not finite; replace them")
        edges = np.quantile(x.numpy(), np.linspace(0, 1, bins + 1), axis=0, method="lower")
        return cls(torch.from_numpy(edges.T.copy()))

    def forward(self, data: Any) -> Any:
        x = _features(data)
        count, bins = self.edges.size(0), self.edges.size(1) - 1
        if x.size(1) != count:
            raise ValueError(f"x has {x.size(1)} columns; these are the edges of {count} features")
        edges = self.edges.to(x.device, x.dtype)
        width = edges.diff(dim=1)
        inside = (x.unsqueeze(2) - edges[:, :-1]) / width.masked_fill(width == 0, torch.inf)
        data.x = inside.clamp(0, 1).view(x.size(0), count * bins)
        return data

    def __repr__(self) -> str:
        count, bins = self.edges.size(0), self.edges.size(1) - 1
        return f"{type(self).__name__}(features={count}, bins={bins})"


def _features(data: Any) -> Tensor:
    x = data.x if isinstance(data, Data) else None
    if not isinstance(x, Tensor) or x.dim() != 2 or not x.is_floating_point():
        seen = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"data.x is {seen}; pass graphs with floating-point features (n, c)")
    return x
