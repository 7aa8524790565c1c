"""Norms of the blocks of a model's Jacobian, a few backward passes at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bunn.graph.edges import Adjacency
from bunn.laplacian import Laplacian
from bunn.theory.diagnostics.inputs import Nodes, evaluating, node_indices

#: Bounds on one batch of backward passes: how many, and how many numbers they return together. On a
#: CPU, a batch that outgrows the caches takes longer than its passes one by one.
_PASSES, _ENTRIES, _CPU_ENTRIES = 64, 2**22, 2**17


def sensitivity(
    model: Callable[..., Tensor],
    x: Tensor,
    edge_index: Adjacency | Laplacian,
    targets: Nodes = None,
    sources: Nodes = None,
    *,
    ord: str | float = "fro",
    **inputs: Any,
) -> Tensor:
    r"""How much the output at each target moves with the input at each source.

    .. math::
        s_{ij} = \left\| \frac{\partial\, \mathrm{model}(x)_{t_i}}{\partial x_{s_j}} \right\|

    The norm of a Jacobian block of shape ``(c_out, c_in)``, the quantity that bounds on
    over-squashing are about. The whole Jacobian is never formed: it takes ``len(targets) * c_out``
    backward passes, a few at a time, and the memory of one target's rows.

    Args:
        model: Called as ``model(x, edge_index, **inputs)``, in evaluation mode; a module, or any
            function of torch operations (whose modules keep the mode they are in).
        x: ``(n, ...)`` node features, in a floating-point type.
        edge_index: The graph, in any form that ``model`` reads.
        targets: Rows of the output, nodes or (where the model pools) graphs: an index, several, or
            a boolean mask. (default: all)
        sources: Nodes, likewise. (default: all)
        ord: The norm, as :func:`torch.linalg.matrix_norm` takes it: ``"fro"``, ``2`` (spectral),
            ``"nuc"``, ``1``, ... (default: ``"fro"``)
        inputs: Further inputs of the model, such as ``edge_weight`` or ``batch``.

    Shapes:
        - **output:** ``(len(targets), len(sources))``, zero where the one does not depend on the
          other
    """
    check_features(x)
    source = node_indices(sources, x.size(0), "sources", "x", x.device)
    with evaluating(model):
        output, leaf = differentiable(model, x, edge_index, inputs)
        target = node_indices(targets, output.size(0), "targets", "the model's output", x.device)
        return block_norms(Pullback(output, leaf), target, source, ord)


class Pullback:
    """Rows of the Jacobian of ``output`` by ``x``, several at once where autograd can do that."""

    def __init__(self, output: Tensor, x: Tensor) -> None:
        self.output, self.x = output, x
        self.width = math.prod(output.shape[1:])
        largest = max(output.numel(), x.numel(), 1)
        entries = _CPU_ENTRIES if x.device.type == "cpu" else _ENTRIES
        self.passes = max(1, min(_PASSES, entries // largest))
        self.batched = self.passes > 1

    def rows(self, index: Tensor) -> Tensor:
        """``(k, n, c_in)``: the derivatives of ``output.flatten()[index]``."""
        cotangent = self.output.new_zeros(index.numel(), self.output.numel())
        cotangent.scatter_(1, index.unsqueeze(1), 1.0)
        cotangent = cotangent.view(-1, *self.output.shape)
        if self.batched:
            try:
                return self._gradient(cotangent, batched=True)
            except Exception:  # whatever vmap cannot do; a true error comes again below
                self.batched = False
        return torch.cat([self._gradient(one, batched=False) for one in cotangent])

    def _gradient(self, cotangent: Tensor, batched: bool) -> Tensor:
        gradient = None
        if self.output.requires_grad:
            (gradient,) = torch.autograd.grad(
                self.output,
                self.x,
                cotangent,
                retain_graph=True,
                allow_unused=True,
                is_grads_batched=batched,
            )
        shape = (len(cotangent) if batched else 1, self.x.size(0), math.prod(self.x.shape[1:]))
        return self.x.new_zeros(shape) if gradient is None else gradient.reshape(shape)


def block_norms(pullback: Pullback, targets: Tensor, sources: Tensor, ord: str | float) -> Tensor:
    """The norms ``(len(targets), len(sources))`` of the blocks of a Jacobian."""
    width, passes = pullback.width, pullback.passes
    # Half precisions have no singular values.
    dtype = torch.float64 if pullback.x.dtype == torch.float64 else torch.float32
    norms = torch.zeros(targets.numel(), sources.numel(), dtype=dtype, device=targets.device)
    if norms.numel() == 0 or width == 0:
        return norms
    channel = torch.arange(width, device=targets.device)
    at_once = max(1, passes // width)
    for start in range(0, targets.numel(), at_once):
        part = targets[start : start + at_once]
        index = (part.unsqueeze(1) * width + channel).flatten()
        rows = torch.cat([pullback.rows(few)[:, sources].to(dtype) for few in index.split(passes)])
        blocks = rows.unflatten(0, (part.numel(), width)).transpose(1, 2)
        norms[start : start + at_once] = torch.linalg.matrix_norm(blocks, ord)
    return norms


def differentiable(
    model: Callable[..., Any], x: Tensor, edge_index: Any, inputs: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """The output of the model, with its graph, and the leaf that stands for ``x`` in it."""
    with torch.inference_mode(False), torch.enable_grad():
        leaf = x.detach().clone().requires_grad_()
        output = model(leaf, edge_index, **inputs)
    if not isinstance(output, Tensor):
        raise TypeError(
            f"the model returned a {type(output).__name__}; wrap it in a function that returns the "
            "one tensor to be differentiated"
        )
    if not output.is_floating_point():
        raise TypeError(
            f"the model returned {output.dtype}; return what can be differentiated, such as scores "
            "in place of classes"
        )
    if output.dim() == 0:
        raise ValueError(
            "the model returned a single number; return one row per node or graph, such as "
            "output.unsqueeze(0)"
        )
    return output, leaf


def check_features(x: object) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"x is a {type(x).__name__}; pass a tensor of shape (num_nodes, ...)")
    if not x.is_floating_point():
        raise TypeError(
            f"x has dtype {x.dtype} and cannot be differentiated by; use a floating-point type, "
            "such as x.float()"
        )
    if x.dim() == 0:
        raise ValueError("x is a single number; pass one row per node")
