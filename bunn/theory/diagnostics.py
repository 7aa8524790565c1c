"""Diagnostics for models of one's own: over-squashing, over-smoothing, range, and where heat goes.

:func:`sensitivity`, :func:`smoothing_profile` and :func:`receptive_field` read any model that is
called as ``model(x, edge_index, **inputs)``, in evaluation mode, and leave it as it was. Plots of
what they return are in :mod:`bunn.theory.plots`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse
import torch
from scipy.sparse import csgraph
from torch import Tensor, nn
from torch_geometric.nn.models.basic_gnn import BasicGNN

from bunn.diffusion import diffuse
from bunn.edges import Adjacency
from bunn.laplacian import Laplacian, check_laplacian
from bunn.nn import BuNN
from bunn.sharing import laplacian_of

__all__ = [
    "ReceptiveField",
    "SmoothingProfile",
    "heat_rows",
    "hop_distances",
    "receptive_field",
    "sensitivity",
    "smoothing_profile",
]

Nodes: TypeAlias = int | Sequence[int] | Tensor | None

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
    _check_features(x)
    source = _indices(sources, x.size(0), "sources", "x", x.device)
    with _evaluating(model):
        output, leaf = _differentiable(model, x, edge_index, inputs)
        target = _indices(targets, output.size(0), "targets", "the model's output", x.device)
        return _block_norms(_Pullback(output, leaf), target, source, ord)


@dataclass(frozen=True, eq=False)
class SmoothingProfile:
    """How alike the node features are after each of the ``k - 1`` layers of a model.

    Args:
        names: ``"input"``, then the layers' names in the model, in the order of their calls.
        energy: ``(k,)`` the Dirichlet energy.
        rayleigh: ``(k,)`` the energy over the squared norm, from 0 (equal on every component) to 2.
        cosine: ``(k,)`` the mean cosine similarity of two nodes.
    """

    names: tuple[str, ...]
    energy: Tensor
    rayleigh: Tensor
    cosine: Tensor


def smoothing_profile(
    model: nn.Module,
    x: Tensor,
    edge_index: Adjacency | Laplacian,
    *,
    layers: Iterable[nn.Module] | None = None,
    batch: Tensor | None = None,
    **inputs: Any,
) -> SmoothingProfile:
    r"""Measures over-smoothing: how alike the node features become from layer to layer.

    .. math::
        E(X) = \langle X, D L X \rangle = \tfrac12 \sum_{u, v} w_{uv} \|x_u - x_v\|^2, \qquad
        R(X) = \frac{E(X)}{\langle X, D X \rangle} \in [0, 2], \qquad
        C(X) = \operatorname{mean}_{u < v} \frac{\langle x_u, x_v \rangle}{\|x_u\| \|x_v\|}

    :math:`E` and :math:`R` are those of the plain graph (the trivial bundle, with :math:`L =
    L_{\mathrm{rw}}` whatever the model uses), its weights those of ``edge_index`` or of the input
    ``edge_weight``. :math:`R` does not change with the scale of the features; it is zero exactly if
    they are constant on every connected component, and NaN if they are all zero. The mean in
    :math:`C` is over all pairs of distinct nodes of the same graph; nodes whose features are all
    zero have no direction and are left out, and fewer than two others give NaN. All is computed in
    float64, in linear time.

    Args:
        model: The model, run once in evaluation mode, without gradients.
        x: ``(n, ...)`` node features.
        edge_index: The graph: undirected, in any form that both ``model`` and
            :class:`bunn.Laplacian` read, or a :class:`bunn.Laplacian`.
        layers: The submodules whose outputs ``(n, ...)`` are measured, at each of their calls.
            (default: the blocks of a :class:`bunn.BuNN`; the convolutions of a PyG ``BasicGNN``,
            whose activations come after them)
        batch: ``(n,)`` the graph of every node; handed on to a model that takes ``batch``.
            (default: all in one)
        inputs: Further inputs of the model.
    """
    if not isinstance(x, Tensor) or x.dim() == 0:
        raise TypeError(f"x is {x!r}; pass a tensor of shape (num_nodes, ...)")
    hooked = _layers_of(model, layers)
    names = {module: name for name, module in model.named_modules()}
    if batch is not None:
        _check_batch(batch, x)
        if _takes(model, "batch"):
            inputs = {**inputs, "batch": batch}
    recorded: list[str] = []
    measured: list[tuple[float, float, float]] = []
    calls = dict.fromkeys(hooked, 0)

    with torch.no_grad(), _evaluating(model):
        lap = _graph_of(edge_index, x, inputs)

        def record(name: str, features: Any) -> None:
            if not isinstance(features, Tensor) or features.shape[:1] != x.shape[:1]:
                seen = tuple(features.shape) if isinstance(features, Tensor) else type(features)
                raise ValueError(
                    f"{name} returned {seen}; a layer in layers returns one row for each of the "
                    f"{x.size(0)} nodes"
                )
            recorded.append(name)
            measured.append(_smoothness(features.reshape(x.size(0), -1).double(), lap, batch))

        def after(module: nn.Module, _: Any, output: Any) -> None:
            calls[module] += 1
            name = names.get(module) or type(module).__name__
            record(name if calls[module] == 1 else f"{name}, call {calls[module]}", output)

        record("input", x)
        handles = []
        try:
            handles += [module.register_forward_hook(after) for module in hooked]
            model(x, edge_index, **inputs)
        finally:
            for handle in handles:
                handle.remove()
    for position, module in enumerate(hooked):
        if not calls[module]:
            raise ValueError(
                f"layers[{position}], a {type(module).__name__}, was not called by the model; pass "
                "submodules that it runs"
            )
    energy, rayleigh, cosine = torch.tensor(measured, dtype=torch.float64).unbind(1)
    return SmoothingProfile(tuple(recorded), energy, rayleigh, cosine)


@dataclass(frozen=True, eq=False)
class ReceptiveField:
    """Where in the graph the output at a node comes from, by hop distance.

    Shares are of the whole sensitivity: ``influence.sum() + unreachable`` is one. They are NaN if
    no target depends on any node.

    Args:
        hops: ``(r + 1,)`` the distances ``0, ..., r``, up to the largest from any target.
        influence: ``(r + 1,)`` the share of all nodes at that distance together.
        per_node: ``(r + 1,)`` the mean sensitivity to one node at that distance, no share.
        range: The mean distance in hops, weighted by ``influence``.
        unreachable: The share of nodes in other components, at no distance; zero if messages only
            pass along edges.
    """

    hops: Tensor
    influence: Tensor
    per_node: Tensor
    range: float
    unreachable: float


def receptive_field(
    model: Callable[..., Tensor],
    x: Tensor,
    edge_index: Adjacency | Laplacian,
    targets: Nodes = None,
    *,
    ord: str | float = "fro",
    **inputs: Any,
) -> ReceptiveField:
    r"""The effective receptive field of a model: how far away its output looks.

    With the :func:`sensitivity` :math:`s_{tu}` and the hop distance :math:`\delta(t, u)`

    .. math::
        \mathrm{influence}_h = \frac{\sum_t \sum_{u : \delta(t, u) = h} s_{tu}}
                                    {\sum_t \sum_u s_{tu}}, \qquad
        \mathrm{per\_node}_h = \operatorname{mean}_{t, u : \delta(t, u) = h} s_{tu}, \qquad
        \mathrm{range} = \frac{\sum_h h\, \mathrm{influence}_h}{\sum_h \mathrm{influence}_h}

    Args:
        model: A model with one output per node, as for :func:`sensitivity`.
        x: ``(n, ...)`` node features, in a floating-point type.
        edge_index: The graph, as for :func:`smoothing_profile`; hops are counted on its edges,
            those of weight zero left out.
        targets: The nodes whose outputs are differentiated. (default: all)
        ord: The norm of a Jacobian block, as for :func:`sensitivity`. (default: ``"fro"``)
        inputs: Further inputs of the model.
    """
    _check_features(x)
    n = x.size(0)
    target = _indices(targets, n, "targets", "x", x.device)
    if target.numel() == 0:
        raise ValueError("targets is empty; name at least one node, or None for all")
    with torch.no_grad():
        adjacency = _adjacency(_graph_of(edge_index, x, inputs))
    # The last entry counts the nodes at no distance; no distance is n or more.
    total = np.zeros(n + 1)
    pairs = np.zeros(n + 1)
    with _evaluating(model):
        output, leaf = _differentiable(model, x, edge_index, inputs)
        if output.size(0) != n:
            raise ValueError(
                f"the model returned {output.size(0)} rows for {n} nodes; a receptive field needs "
                "one per node: leave out the pooling, or use sensitivity for graphs"
            )
        pullback, source = _Pullback(output, leaf), torch.arange(n, device=x.device)
        for part in target.split(_PASSES):
            norms = _block_norms(pullback, part, source, ord).cpu().double().numpy()
            distance = _distances(adjacency, part)
            hop = np.where(np.isinf(distance), n, distance).astype(np.int64)
            total += np.bincount(hop.ravel(), norms.ravel(), n + 1)
            pairs += np.bincount(hop.ravel(), minlength=n + 1)
    last = int(np.flatnonzero(pairs[:n])[-1])
    hops = torch.arange(last + 1)
    sums = torch.from_numpy(total)
    share = sums / sums.sum()
    influence = share[: last + 1]
    return ReceptiveField(
        hops=hops,
        influence=influence,
        per_node=sums[: last + 1] / torch.from_numpy(pairs[: last + 1]),
        range=float((hops * influence).sum() / influence.sum()),
        unreachable=float(share[n]),
    )


def heat_rows(lap: Laplacian, nodes: Nodes, time: float) -> Tensor:
    r"""Rows of the heat kernel :math:`\mathcal{H}(t) = e^{-tL}`, as signals on the nodes.

    Row ``v`` holds the weights with which ``v`` averages the features of all nodes; for ``"rw"``
    it is where a random walk from ``v`` is after time ``t``. The rows are those of
    ``bunn.heat_kernel(lap, time)``, without the ``(n, n)`` kernel: they are heat that has flowed
    from ``v``, with :math:`\mathcal{H}(t)_{vu} = \mathcal{H}(t)_{uv} d_u / d_v` for ``"rw"``.

    Args:
        lap: The graph.
        nodes: The nodes ``v``: an index, several, a boolean mask, or :obj:`None` for all.
        time: The diffusion time, ``>= 0`` or ``inf``.

    Shapes:
        - **output:** ``(len(nodes), n)``
    """
    check_laplacian(lap)
    index = _indices(nodes, lap.num_nodes, "nodes", "the graph", lap.device)
    units = torch.zeros(lap.num_nodes, index.numel(), dtype=lap.dtype, device=lap.device)
    units[index, torch.arange(index.numel(), device=lap.device)] = 1.0
    method = "limit" if time == math.inf else "chebyshev"
    rows = diffuse(units, lap, time, method=method, tol=torch.finfo(lap.dtype).eps).T
    if lap.normalization == "sym":
        return rows.contiguous()
    root = (
        lap.null_vector
    )  # sqrt(d) up to a factor per component, which neither under- nor overflows
    return (rows * (root / root[index].unsqueeze(1)).square()).to(lap.dtype)


def hop_distances(lap: Laplacian, nodes: Nodes = None) -> Tensor:
    """The number of edges on a shortest path, ``inf`` between components.

    Args:
        lap: The graph; weights play no role.
        nodes: The nodes to start from, as for :func:`heat_rows`. (default: all)

    Shapes:
        - **output:** ``(len(nodes), n)``, in float64
    """
    check_laplacian(lap)
    index = _indices(nodes, lap.num_nodes, "nodes", "the graph", lap.device)
    if index.numel() == 0:
        return torch.zeros(0, lap.num_nodes, dtype=torch.float64, device=lap.device)
    return torch.from_numpy(_distances(_adjacency(lap), index)).to(lap.device)


class _Pullback:
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


def _block_norms(pullback: _Pullback, targets: Tensor, sources: Tensor, ord: str | float) -> Tensor:
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


def _differentiable(
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


@contextmanager
def _evaluating(model: Callable[..., Any]) -> Iterator[None]:
    """Evaluation mode; afterwards every module has its own training flag back."""
    if not isinstance(model, nn.Module):
        yield
        return
    flags = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, training in flags:
            module.training = training


def _layers_of(model: nn.Module, layers: Iterable[nn.Module] | None) -> list[nn.Module]:
    """The modules whose outputs are measured, each once."""
    if layers is None:
        if isinstance(model, BuNN):
            return list(model.blocks)
        if isinstance(model, BasicGNN):
            return list(model.convs)
        raise ValueError(
            f"layers is None, but the layers of a {type(model).__name__} are not known; pass them, "
            "such as layers=[model.conv1, model.conv2]"
        )
    found = list(layers) if isinstance(layers, Iterable) else [layers]
    for module in found:
        if not isinstance(module, nn.Module):
            raise TypeError(
                f"layers holds a {type(module).__name__}; pass submodules of the model, such as "
                "layers=[model.conv1, model.conv2]"
            )
    if not found:
        raise ValueError("layers is empty; pass at least one submodule, or None to find them")
    return list(dict.fromkeys(found))


def _smoothness(
    features: Tensor, lap: Laplacian, batch: Tensor | None
) -> tuple[float, float, float]:
    """Energy, Rayleigh quotient and mean cosine of ``features: (n, c)`` in float64."""
    lap = lap.matching(features)
    u, v = lap.edge_index
    energy = 0.5 * (lap.edge_weight * (features[u] - features[v]).square().sum(1)).sum()
    norm = (lap.degree * features.square().sum(1)).sum()
    return float(energy), float(energy / norm), _mean_cosine(features, batch)


def _mean_cosine(features: Tensor, batch: Tensor | None) -> float:
    """The mean over pairs of one graph: a squared sum of unit vectors holds all their products."""
    largest = features.abs().amax(1, keepdim=True) if features.size(1) else features.sum(1, True)
    nonzero = largest.squeeze(1) != 0
    unit = features[nonzero] / largest[nonzero]  # first, so that no square under- or overflows
    unit = unit / unit.norm(dim=1, keepdim=True)
    if batch is None:
        batch = torch.zeros(features.size(0), dtype=torch.long, device=features.device)
    _, graph, size = torch.unique(batch[nonzero], return_inverse=True, return_counts=True)
    sums = unit.new_zeros(size.numel(), unit.size(1)).index_add_(0, graph, unit)
    pairs = int((size * (size - 1)).sum())
    products = float(sums.square().sum() - unit.square().sum())
    return min(1.0, max(-1.0, products / pairs)) if pairs else math.nan


def _graph_of(edge_index: Adjacency | Laplacian, x: Tensor, inputs: dict[str, Any]) -> Laplacian:
    """The graph the model is shown, with the weights it is shown."""
    if isinstance(edge_index, Laplacian):
        return edge_index
    return laplacian_of(edge_index, inputs.get("edge_weight"), x.size(0), "rw")


def _adjacency(lap: Laplacian) -> scipy.sparse.csr_matrix:
    row, col = lap.edge_index.cpu().numpy()
    return scipy.sparse.csr_matrix(
        (np.ones(row.size), (row, col)), shape=(lap.num_nodes, lap.num_nodes)
    )


def _distances(adjacency: scipy.sparse.csr_matrix, nodes: Tensor) -> np.ndarray[Any, Any]:
    distance: np.ndarray[Any, Any] = csgraph.dijkstra(
        adjacency, indices=nodes.cpu().numpy(), unweighted=True
    )
    return distance


def _indices(nodes: Nodes, count: int, name: str, owner: str, device: torch.device) -> Tensor:
    """``nodes`` as a one-dimensional tensor of indices below ``count``."""
    if nodes is None:
        return torch.arange(count, device=device)
    index = torch.as_tensor(nodes, device=device)
    if index.dtype == torch.bool:
        if index.shape != (count,):
            raise ValueError(
                f"{name} is a mask of shape {tuple(index.shape)}, but {owner} has {count} rows; "
                f"make it ({count},)"
            )
        return index.nonzero().squeeze(1)
    if index.numel() == 0:
        return index.new_zeros(0, dtype=torch.long)
    if index.is_floating_point() or index.is_complex():
        raise TypeError(f"{name} has dtype {index.dtype}; use integers or a boolean mask")
    if index.dim() > 1:
        raise ValueError(f"{name} has shape {tuple(index.shape)}; pass one index or a list of them")
    index = index.reshape(-1).long()
    wrong = (index < 0) | (index >= count)
    if bool(wrong.any()):
        raise ValueError(
            f"{name} names {int(index[wrong][0])}, but {owner} has {count} rows; use 0 to "
            f"{count - 1}"
        )
    return index


def _check_features(x: object) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"x is a {type(x).__name__}; pass a tensor of shape (num_nodes, ...)")
    if not x.is_floating_point():
        raise TypeError(
            f"x has dtype {x.dtype} and cannot be differentiated by; use a floating-point type, "
            "such as x.float()"
        )
    if x.dim() == 0:
        raise ValueError("x is a single number; pass one row per node")


def _check_batch(batch: Tensor, x: Tensor) -> None:
    if batch.shape != x.shape[:1]:
        raise ValueError(
            f"batch has shape {tuple(batch.shape)}; it holds one graph index for each of the "
            f"{x.size(0)} nodes"
        )


def _takes(model: nn.Module, name: str) -> bool:
    """Whether the model can be handed an input called ``name``."""
    parameters = inspect.signature(model.forward).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
