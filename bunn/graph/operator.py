"""The one sparse product: ``S x`` between two diagonals, differentiable and opaque to compilers.

Everything iterative in this package is made of products with the symmetric normalised adjacency
``S = D^-1/2 A D^-1/2``. Being symmetric, it serves forward and backward alike: the adjoint of
``D^-1/2 p(S) D^1/2`` is ``D^1/2 p(S) D^-1/2``, so nothing is ever transposed.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from bunn import kernels
from bunn.calling import apply, unwatched
from bunn.kernels.arguments import Blocks, Rows

P = ParamSpec("P")
R = TypeVar("R")


class SymmetricOperator(NamedTuple):
    """``S`` in CSR form, and the diagonals that turn it into another operator.

    The random walk ``D^-1 A`` has ``D^1/2`` before and ``D^-1/2`` after ``S``, the adjacency matrix
    ``D^1/2`` on either side.

    Args:
        crow: ``(n + 1,)`` row pointers, int32 where they fit.
        col: ``(nnz,)`` column indices, of the same type.
        value: ``(nnz,)`` entries of ``S``, float32 or float64.
        before: ``(n, 1)`` what the rows of the features are multiplied with first, or :obj:`None`.
        after: ``(n, 1)`` what those of the result are multiplied with, or :obj:`None`.
        segments: ``(s, 4)`` int32 on a GPU, from :func:`bunn.kernels.cut_long_rows`.
        chunks: Of :class:`bunn.kernels.arguments.Blocks`, on a GPU, where rows share neighbours.
        pieces: Of the same.
        scales: Of the same.
    """

    crow: Tensor
    col: Tensor
    value: Tensor
    before: Tensor | None
    after: Tensor | None
    segments: Tensor | None = None
    chunks: Tensor | None = None
    pieces: Tensor | None = None
    scales: Tensor | None = None

    @property
    def rows(self) -> Rows:
        """``S`` as kernels read it."""
        blocks = None
        if self.chunks is not None and self.pieces is not None and self.scales is not None:
            blocks = Blocks(self.chunks, self.pieces, self.scales)
        return Rows(self.crow, self.col, self.value, self.segments, blocks)

    def adjoint(self) -> SymmetricOperator:
        """The same the other way round."""
        crow, col, value, before, after, *rest = self
        return SymmetricOperator(crow, col, value, after, before, *rest)


def exact_arithmetic(x: Tensor) -> torch.autocast:
    """A context in which products with ``x`` are formed in its own precision, autocast or not."""
    return torch.autocast(x.device.type, enabled=False)


@contextmanager
def for_keeps() -> Iterator[None]:
    """A context for what the graph alone determines, which is kept and serves every later call.

    It is left by inference mode, autograd and the transforms of ``torch.func``: a graph first seen
    inside one of them is the same outside.
    """
    with temporarily_clear_interpreter_stack(), torch.inference_mode(False), torch.no_grad():
        yield


@torch.compiler.disable(  # type: ignore[untyped-decorator]
    reason="what depends on the graph alone comes before compiling: make the call once without"
)
@for_keeps()
def before_compiling(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """``function(*args, **kwargs)``, for keeps; a compiler does not look into it."""
    return function(*args, **kwargs)


def csr_matrix(crow: Tensor, col: Tensor, value: Tensor) -> Tensor:
    """``S`` as a torch sparse CSR matrix over the given buffers (nothing is copied)."""
    _hear_torch_out()
    n = crow.numel() - 1
    return torch.sparse_csr_tensor(crow, col, value, (n, n), check_invariants=False)


@functools.cache
def _hear_torch_out() -> None:
    """Torch announces once per process what state its sparse tensors are in."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = torch.ones(1)
        torch.sparse_csr_tensor([0, 1], [0], one, (1, 1), check_invariants=False)


def to_operator_frame(x: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """``scale * x`` as a fresh contiguous matrix in the operator's precision."""
    if scale is None:
        return x.to(dtype, copy=True, memory_format=torch.contiguous_format)
    if x.dtype == dtype:
        return torch.mul(x, scale)
    return x.to(dtype).mul_(scale)


def from_operator_frame(y: Tensor, scale: Tensor | None, out: Tensor) -> None:
    """Writes ``scale * y`` to ``out``, rounding once if ``out`` is of lower precision."""
    if scale is None:
        out.copy_(y)
    elif y.dtype == out.dtype:
        torch.mul(y, scale, out=out)
    else:
        out.copy_(y.mul_(scale))


def _walk(
    x: Tensor,
    crow: Tensor,
    col: Tensor,
    value: Tensor,
    before: Tensor | None,
    after: Tensor | None,
    segments: Tensor | None,
    chunks: Tensor | None,
    pieces: Tensor | None,
    scales: Tensor | None,
) -> Tensor:
    operator = SymmetricOperator(crow, col, value, before, after, segments, chunks, pieces, scales)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if kernels.serve(x, value):
        kernels.product(x.contiguous(), out, operator.rows, before, after)
        return out
    z = to_operator_frame(x, before, value.dtype)
    from_operator_frame(csr_matrix(crow, col, value) @ z, after, out)
    return out


#: The same to compilers, for which it is one operation; to call it takes a while.
_random_walk = torch.library.custom_op("bunn::random_walk", _walk, mutates_args=())


@_random_walk.register_fake
def _(x: Tensor, *operator: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@_random_walk.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], x: Tensor, *operator: Any) -> tuple[Tensor, int]:
    if any(dim is not None for dim in in_dims[1:]):
        raise ValueError("vmap over graphs is not supported; batch them block-diagonally")
    assert in_dims[0] is not None
    folded = fold_columns(x, in_dims[0])
    return unfold_columns(_random_walk(folded, *operator), info.batch_size)


def fold_columns(x: Tensor, dim: int) -> Tensor:
    """``(batch, n, c)``, the batch at ``dim``, as ``(n, batch * c)``: columns are independent."""
    return x.movedim(dim, 1).flatten(1)


def unfold_columns(y: Tensor, batch_size: int) -> tuple[Tensor, int]:
    """The inverse of :func:`fold_columns`, with the batch at dimension 1."""
    return y.unflatten(1, (batch_size, -1)), 1


class _RandomWalk(torch.autograd.Function):
    """``x -> after * S (before * x)``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor,
        crow: Tensor,
        col: Tensor,
        value: Tensor,
        before: Tensor | None,
        after: Tensor | None,
        segments: Tensor | None,
        chunks: Tensor | None,
        pieces: Tensor | None,
        scales: Tensor | None,
    ) -> Tensor:
        walk = _walk if unwatched(x) else _random_walk
        y: Tensor = walk(x, crow, col, value, before, after, segments, chunks, pieces, scales)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        operator = SymmetricOperator(*ctx.saved_tensors)
        return random_walk(grad, operator.adjoint()), *(None for _ in operator)


class _RandomWalkWithTangents(_RandomWalk):
    """The same with forward-mode derivatives, which ``torch.compile`` refuses to see."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _RandomWalk.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        return random_walk(tangent, SymmetricOperator(*ctx.saved_tensors))


def random_walk(x: Tensor, operator: SymmetricOperator) -> Tensor:
    """``after * S (before * x)`` for ``x: (n, c)``, rounded once.

    That is ``(I - L) x``, the neighbours' mean for the random-walk Laplacian.
    """
    function = _RandomWalk if torch.compiler.is_compiling() else _RandomWalkWithTangents
    with exact_arithmetic(x):
        y: Tensor = apply(function, x, *operator)
    return y
