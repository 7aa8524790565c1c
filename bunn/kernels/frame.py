"""Where a polynomial of the operator is evaluated: by rows, or by blocks of rows.

By rows it is the symmetric operator that is multiplied. By blocks it is the random walk,
:math:`p(S) = D^{1/2} p(P) D^{-1/2}`, whose products need no factors of the neighbours; only the
features and the result have to be brought there and back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from bunn.kernels import serve_blocks
from bunn.kernels.arguments import Rows
from bunn.kernels.blocks import walk_in_blocks, without_root
from bunn.kernels.walk import walk


class Frame(NamedTuple):
    """Features, and a step on them.

    Args:
        x: ``(n, width)`` contiguous features.
        before: ``(n, 1)`` factors of the rows of ``x``.
        after: ``(n, 1)`` factors of the rows of the result.
        storage: The type in which features are kept between steps.
        wide: The type of sums.
        step: :func:`bunn.kernels.walk.walk`, or the same by blocks, on the graph.
    """

    x: Tensor
    before: Tensor | None
    after: Tensor | None
    storage: torch.dtype
    wide: torch.dtype
    step: Callable[..., None]

    @classmethod
    def of(
        cls,
        x: Tensor,
        rows: Rows,
        before: Tensor | None,
        after: Tensor | None,
        storage: torch.dtype,
    ) -> Frame:
        """The one that suits features and graph."""
        wide = rows.value.dtype
        blocks = serve_blocks(x, rows, before) if storage == x.dtype else None
        if blocks is None:
            return cls(x, before, after, storage, wide, partial(walk, rows=rows))
        root = blocks.scales[0].unsqueeze(1)
        step = partial(walk_in_blocks, blocks=blocks, left=blocks.scales[2])
        after = root if after is None else root * after
        return cls(without_root(x, blocks, before), None, after, storage, wide, step)
