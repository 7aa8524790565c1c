r"""Chains of element-wise operations of a residual block, each one pass over the features.

.. math::
    \mathrm{act}(\mathrm{dropout}(x + b)), \qquad
    s = x + \mathrm{dropout}(h + b), \quad \mathrm{LayerNorm}(s),

and their gradients. Features are read and written in their own types, numbers in between are
float32. What is dropped is drawn from a seed on the device, and drawn again in the backward pass
instead of being stored; a CUDA graph that draws its seeds drops others in every replay.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from bunn.kernels.arguments import Dropout
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


def activate_rows(
    x: Tensor, bias: Tensor | None, dropout: Dropout, act: str, out: Tensor | None = None
) -> Tensor:
    """``act(dropout(x + bias))`` for contiguous ``x: (n, c)``, in ``out`` if that is given."""
    out = torch.empty_like(x) if out is None else out
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
    grad: Tensor,
    x: Tensor,
    bias: Tensor | None,
    dropout: Dropout,
    act: str,
    grad_x: Tensor,
    sums: Tensor | None,
) -> None:
    """The gradients of :func:`activate_rows`.

    Args:
        grad: That of the result.
        x: As there, like what follows.
        bias: As there.
        dropout: As there.
        act: As there.
        grad_x: Where that by ``x`` goes.
        sums: Where that by the bias goes, if there is one: :func:`partial_sums` of one.
    """
    rows, width = _tile(x.size(1))
    programs, turns = _turns(x.size(0), rows)
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


def add_and_norm_rows(
    x: Tensor,
    branch: Tensor | None,
    bias: Tensor | None,
    weight: Tensor,
    shift: Tensor,
    eps: float,
    dropout: Dropout,
    normed: Tensor,
    stream: Tensor | None = None,
) -> Normed:
    """``s = x + dropout(branch + bias)``, without a branch ``x``, in ``stream`` if that is given,
    which may be ``x``; and its LayerNorm in ``normed``, whose rows may lie apart."""
    if branch is None:
        stream = x
    elif stream is None:
        stream = torch.empty_like(x)
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
    grad_branch: Tensor | None,
    sums: Tensor,
) -> Tensor:
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
        grad_branch: Where that by the branch goes, if there is one.
        sums: Where those by the weight, the shift and, with a branch, the bias go:
            :func:`partial_sums` of three.

    Returns:
        The gradient by ``x``.
    """
    grad_x = torch.empty_like(stream)
    rows, width = _tile(stream.size(1))
    programs, turns = _turns(stream.size(0), rows)
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
            **{"BRANCH": grad_branch is not None, "DROP": dropout.rate > 0},
            **{"ROWS": rows, "WIDTH": width, "STAGES": _stages(width)},
        )
    return grad_x


def partial_sums(x: Tensor, *count: int) -> Tensor:
    """``(*count, parts, c)`` where backward passes over ``x: (n, c)`` leave sums of its rows."""
    programs, _ = _turns(x.size(0), _tile(x.size(1))[0])
    return x.new_empty(*count, programs, x.size(1), dtype=torch.float32)


def add_up_parts(sums: Tensor) -> Tensor:
    """``sums.sum(-2)``, which takes torch several times as long."""
    *count, num_parts, width = sums.shape
    out = sums.new_empty(*count, width)
    if out.numel() > 0:
        grid = (parts(width, SUM_WIDTH), math.prod(count))
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
