r"""Chains of element-wise operations of a residual block, each one pass over the features.

.. math::
    \mathrm{act}(\mathrm{dropout}(x + b)), \qquad
    s = x + \mathrm{dropout}(h + b), \quad \mathrm{LayerNorm}(s),

and their gradients. Features are read and written in their own types, numbers in between are
float32. What is dropped is drawn from a seed on the device, and drawn again in the backward pass
instead of being stored; a CUDA graph that draws its seeds drops others in every replay.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bunn.kernels import Dropout
from bunn.kernels.launching import launch, parts, power_of_two
from bunn.kernels.passes import activate, activate_back, add_and_norm, add_and_norm_back, add_up

#: Entries of a tile and of one to a warp, and programs of a backward pass.
TILE, TO_A_WARP, PROGRAMS = 1024, 512, 528
#: Turns of a backward pass whose features are on their way at the same time, where they fit.
STAGES = 3
#: Rows and columns that are added up at a time.
SUM_AT_ONCE, SUM_WIDTH, SUM_WARPS = 64, 16, 4


class Normed(NamedTuple):
    """The sum of a stream and a branch, that normalised, and means and scales of its rows."""

    stream: Tensor
    normed: Tensor
    mean: Tensor
    scale: Tensor


def activate_rows(x: Tensor, bias: Tensor | None, dropout: Dropout, act: str) -> Tensor:
    """``act(dropout(x + bias))`` for contiguous ``x: (n, c)``."""
    out = torch.empty_like(x)
    rows, width = _tile(x.size(1))
    if x.numel() > 0:
        launch(
            activate,
            (parts(x.size(0), rows),),
            (x, bias, out, dropout.seeds, dropout.place, dropout.rate, *x.shape),
            _warps(width),
            **{"BIAS": bias is not None, "DROP": dropout.rate > 0, "ACT": act},
            **{"ROWS": rows, "WIDTH": width},
        )
    return out


def activate_rows_back(
    grad: Tensor, x: Tensor, bias: Tensor | None, dropout: Dropout, act: str
) -> tuple[Tensor, Tensor | None]:
    """The gradients of :func:`activate_rows` by ``x`` and ``bias``."""
    grad_x = torch.empty_like(x)
    rows, width = _tile(x.size(1))
    programs, turns = _turns(x.size(0), rows)
    sums = None if bias is None else x.new_empty(programs, x.size(1), dtype=torch.float32)
    if x.size(1) > 0:  # without rows, the sums are zero
        launch(
            activate_back,
            (programs,),
            (
                *(grad, x, bias, grad_x, sums, dropout.seeds, dropout.place, dropout.rate),
                *(*x.shape, turns),
            ),
            _warps(width),
            **{"BIAS": bias is not None, "DROP": dropout.rate > 0, "ACT": act},
            **{"ROWS": rows, "WIDTH": width, "STAGES": _stages(width)},
        )
    return grad_x, None if sums is None else _add_up(sums[None])[0]


def add_and_norm_rows(
    x: Tensor,
    branch: Tensor | None,
    bias: Tensor | None,
    weight: Tensor,
    shift: Tensor,
    eps: float,
    dropout: Dropout,
    normed: Tensor,
) -> Normed:
    """``s = x + dropout(branch + bias)``, without a branch ``x``, and its LayerNorm in ``normed``,
    whose rows may lie apart."""
    stream = x if branch is None else torch.empty_like(x)
    mean, scale = x.new_empty(2, x.size(0), dtype=torch.float32).unbind(0)
    rows, width = _tile(x.size(1))
    if x.numel() > 0:
        launch(
            add_and_norm,
            (parts(x.size(0), rows),),
            (
                *(x, branch, bias, weight, shift, stream, normed, mean, scale, dropout.seeds),
                *(dropout.place, dropout.rate, eps, *x.shape, normed.stride(0)),
            ),
            _warps(width),
            **{"BRANCH": branch is not None, "DROP": dropout.rate > 0},
            **{"ROWS": rows, "WIDTH": width},
        )
    return Normed(stream, normed, mean, scale)


def add_and_norm_rows_back(
    grad_stream: Tensor | None,
    grad_normed: Tensor,
    more: Tensor | None,
    stream: Tensor,
    mean: Tensor,
    scale: Tensor,
    weight: Tensor,
    dropout: Dropout,
    branch: torch.dtype | None,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """The gradients of :func:`add_and_norm_rows`.

    Args:
        grad_stream: That of ``s``, if there is one.
        grad_normed: That of its LayerNorm, whose rows may lie apart.
        more: What is to be added to it.
        stream: What the forward pass returned, like what follows.
        mean: Of its rows.
        scale: Of its rows.
        weight: Of the LayerNorm.
        dropout: As in the forward pass.
        branch: The type of the branch, if there is one.

    Returns:
        The gradients by ``x`` and by the branch, and ``(3, c)`` those of the weight, the shift and
        the bias, if there is one.
    """
    grad_x = torch.empty_like(stream)
    grad_branch = None if branch is None else torch.empty_like(stream, dtype=branch)
    rows, width = _tile(stream.size(1))
    programs, turns = _turns(stream.size(0), rows)
    count = 2 if branch is None else 3
    sums = stream.new_empty(count, programs, stream.size(1), dtype=torch.float32)
    if stream.size(1) > 0:
        launch(
            add_and_norm_back,
            (programs,),
            (
                *(grad_stream, grad_normed, more, stream, weight, mean, scale, grad_x),
                *(grad_branch, sums, dropout.seeds, dropout.place, dropout.rate, *stream.shape),
                *(grad_normed.stride(0), turns, programs),
            ),
            _warps(width),
            **{"STREAM": grad_stream is not None, "MORE": more is not None},
            **{"BRANCH": branch is not None, "DROP": dropout.rate > 0},
            **{"ROWS": rows, "WIDTH": width, "STAGES": _stages(width)},
        )
    return grad_x, grad_branch, _add_up(sums)


def _add_up(sums: Tensor) -> Tensor:
    """``sums.sum(1)``, which takes torch several times as long."""
    count, num_parts, width = sums.shape
    out = sums.new_empty(count, width)
    if out.numel() > 0:
        grid = (parts(width, SUM_WIDTH), count)
        tile = {"AT_ONCE": SUM_AT_ONCE, "WIDTH": SUM_WIDTH}
        launch(add_up, grid, (sums, out, num_parts, width), SUM_WARPS, **tile)
    return out


def _tile(width: int) -> tuple[int, int]:
    """Rows of a program at a time, and their width filled up."""
    full = max(4, power_of_two(width))
    return max(1, min(16, TILE // full)), full


def _warps(width: int) -> int:
    return max(TILE, width) // TO_A_WARP


def _stages(width: int) -> int:
    return STAGES if width <= TILE else 1


def _turns(num_rows: int, rows: int) -> tuple[int, int]:
    """Programs of a backward pass, and how often each takes rows."""
    tiles = max(1, parts(num_rows, rows))
    turns = parts(tiles, PROGRAMS)
    return parts(tiles, turns), turns
