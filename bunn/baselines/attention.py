"""Attention along edges: scores of edges, their softmax at every target, weighted sums.

Sums with matrices for coefficients, as of a sheaf, are made of these.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.utils import add_self_loops, remove_self_loops, softmax

from bunn import kernels
from bunn.baselines import head_products
from bunn.baselines.averages import sum_dtype
from bunn.baselines.propagation import gather, neighbor_sum, scatter_sum
from bunn.kernels.arguments import Listing


class AttentionEdges(NamedTuple):
    """The edges of a graph, and which of them every node has.

    Args:
        edge_index: ``(2, e)`` edges.
        arriving: Those at every target.
        leaving: Those at every source.
    """

    edge_index: Tensor
    arriving: Listing
    leaving: Listing

    @classmethod
    def of(cls, edge_index: Tensor, num_nodes: int, self_loops: bool) -> AttentionEdges:
        """Those of a graph, sorted by target, with one loop at every node if ``self_loops``."""
        if self_loops:
            edge_index, _ = remove_self_loops(edge_index)
            edge_index, _ = add_self_loops(edge_index, num_nodes=num_nodes)
        edge_index = edge_index[:, edge_index[1].sort(stable=True).indices]
        source, target = edge_index
        arriving = Listing(_pointer(target, num_nodes), source)
        return cls(edge_index, arriving, _listed(source, target, num_nodes))

    @classmethod
    def in_order(cls, edge_index: Tensor, num_nodes: int) -> AttentionEdges:
        """Those of a graph as they are, for all but :meth:`softmax`."""
        source, target = edge_index
        listings = _listed(target, source, num_nodes), _listed(source, target, num_nodes)
        return cls(edge_index, *listings)

    def products(self, query: Tensor, key: Tensor) -> Tensor:
        r""":math:`\langle q_v, k_u \rangle` for every edge :math:`u \to v` and every head:
        ``(n, h, k)`` twice to ``(e, h)``, in the precision of sums."""
        if served(query, key):
            found: Tensor = _Products.apply(query, key, self)  # type: ignore[no-untyped-call]
            return found
        source, target = self.edge_index
        pairs = gather(query, target) * gather(key, source)
        return pairs.sum(-1, dtype=sum_dtype(pairs.dtype))

    def sums(self, at_target: Tensor, at_source: Tensor) -> Tensor:
        """The same for the sum of two numbers: ``(n, h)`` twice to ``(e, h)``."""
        if not kernels.serve_attention(at_target, at_source):
            source, target = self.edge_index
            wide = gather(at_target, target).to(sum_dtype(at_target.dtype))
            return wide + gather(at_source, source)
        one = torch.ones_like(at_target)
        return self.products(  # t * 1 + 1 * s
            torch.stack((at_target, one), -1), torch.stack((one, at_source), -1)
        )

    def softmax(self, scores: Tensor) -> Tensor:
        """``(e, h)`` scores to coefficients that add up to one at every target."""
        if kernels.serve_attention(scores):
            found: Tensor = _Softmax.apply(scores, self)  # type: ignore[no-untyped-call]
            return found
        num_nodes = self.arriving.pointer.numel() - 1
        out: Tensor = softmax(scores, self.edge_index[1], num_nodes=num_nodes)
        return out

    def weighted_sum(self, values: Tensor, weight: Tensor, *, back: bool = False) -> Tensor:
        r""":math:`\sum_{u \to v} \alpha_{uv} x_u`, in the type of the features.

        Args:
            values: ``(n, h, k)`` features.
            weight: ``(e, h)`` coefficients.
            back: Whether to sum against the edges, over the targets of every source.
        """
        if served(values, weight):
            found: Tensor = _Sums.apply(values, weight, self, back)  # type: ignore[no-untyped-call]
            return found
        edge_index = self.edge_index.flip(0) if back else self.edge_index
        return neighbor_sum(values, edge_index, weight).to(values.dtype)


def _listed(at: Tensor, other: Tensor, num_nodes: int) -> Listing:
    """The edges by the nodes ``(e,)`` at one of their ends, with those at the other."""
    order = at.sort(stable=True).indices
    return Listing(_pointer(at, num_nodes), other[order], order)


def _pointer(nodes: Tensor, num_nodes: int) -> Tensor:
    pointer = nodes.new_zeros(num_nodes + 1)
    torch.cumsum(torch.bincount(nodes, minlength=num_nodes), 0, out=pointer[1:])
    return pointer


def served(*tensors: Tensor) -> bool:
    """Whether kernels or sparse matrices multiply and add along edges."""
    return kernels.serve_attention(*tensors) or head_products.serve(*tensors)


def _kernels() -> Any:
    """The kernels, which are there where Triton is."""
    from bunn.kernels import attention  # noqa: PLC0415

    return attention


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, edges: AttentionEdges) -> Tensor:
        ctx.edges = edges
        ctx.save_for_backward(query, key)
        found: Tensor
        if kernels.serve_attention(query, key):
            found = _kernels().multiply(query, key, edges.edge_index)
        else:
            found = head_products.multiply(query, key, edges.edge_index, edges.arriving)
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key = ctx.saved_tensors
        by_query = ctx.edges.weighted_sum(key, grad)
        return by_query, ctx.edges.weighted_sum(query, grad, back=True), None


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, weight: Tensor, edges: AttentionEdges, back: bool
    ) -> Tensor:
        ctx.edges, ctx.back = edges, back
        ctx.save_for_backward(values, weight)
        serve = kernels.serve_attention(values, weight)
        add = _kernels().add if serve else head_products.add
        found: Tensor = add(values, weight, edges.leaving if back else edges.arriving)
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        values, weight = ctx.saved_tensors
        ends = (values, grad) if ctx.back else (grad, values)
        by_values = ctx.edges.weighted_sum(grad, weight, back=not ctx.back)
        return by_values, ctx.edges.products(*ends), None, None


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, edges: AttentionEdges) -> Tensor:
        ctx.edges = edges
        alpha: Tensor = _kernels().softmax(scores, edges.arriving)
        ctx.save_for_backward(alpha)
        return alpha

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (alpha,) = ctx.saved_tensors
        if torch.is_grad_enabled() or not kernels.serve_attention(grad):
            product, (_, target) = alpha * grad, ctx.edges.edge_index
            num_nodes = ctx.edges.arriving.pointer.numel() - 1
            return product - alpha * gather(scatter_sum(product, target, num_nodes), target), None
        return _kernels().softmax_back(alpha, grad, ctx.edges.arriving), None
