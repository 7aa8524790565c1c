"""How many neighbours a node has, as a feature."""

from __future__ import annotations

from typing import Any

import torch
from torch_geometric.transforms import BaseTransform

from bunn.data.transforms.graph import Graph


class DegreeEncoding(BaseTransform):  # type: ignore[misc]
    r"""The logarithm of one more than the degree.

    .. math::
        \mathrm{degree}_v = \log(1 + d_v), \qquad d_v = \sum_u a_{uv}

    Means over neighbours, as of a GraphSAGE or of heat with ``normalization="rw"``, do not tell
    how many there were. This is what is lost, on a scale on which hubs do not drown the others.
    An isolated node has zero.

    Args:
        attr: Where the encoding ``(n, 1)`` is stored; :obj:`None` for a last column of ``x``.
            (default: ``"degree"``)
    """

    def __init__(self, *, attr: str | None = "degree") -> None:
        self.attr = attr

    def forward(self, data: Any) -> Any:
        graph = Graph.of(data)
        lap = graph.laplacian()
        degree = lap.aggregate(torch.ones(lap.num_nodes, 1, dtype=lap.dtype), "sum")
        encoding = graph.attach(degree.log1p())
        if self.attr is None:
            data.x = encoding if data.x is None else torch.cat((data.x, encoding), dim=1)
        else:
            data[self.attr] = encoding
        return data

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
