"""Over-smoothing, layer by layer: how alike the features of the nodes become."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn.models.basic_gnn import BasicGNN

from bunn.graph.edges import Adjacency
from bunn.laplacian import Laplacian
from bunn.nn import BuNN
from bunn.sizes import check_batch
from bunn.theory.diagnostics.inputs import evaluating, graph_of


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
        check_batch(batch, x.size(0))
        if _takes(model, "batch"):
            inputs = {**inputs, "batch": batch}
    recorded: list[str] = []
    measured: list[tuple[float, float, float]] = []
    calls = dict.fromkeys(hooked, 0)

    with torch.no_grad(), evaluating(model):
        lap = graph_of(edge_index, x, inputs)

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
    # In units of the largest feature, so that no square under- or overflows on the way to R.
    scale = features.abs().max() if features.numel() else features.new_zeros(())
    scaled = features / scale
    energy = 0.5 * (lap.edge_weight * (scaled[u] - scaled[v]).square().sum(1)).sum()
    norm = (lap.degree * scaled.square().sum(1)).sum()
    if scale == 0:
        return 0.0, math.nan, _mean_cosine(features, batch)
    return float(energy * scale * scale), float(energy / norm), _mean_cosine(features, batch)


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
    if not pairs or math.isnan(products):
        return math.nan
    return min(1.0, max(-1.0, products / pairs))


def _takes(model: nn.Module, name: str) -> bool:
    """Whether the model can be handed an input called ``name``."""
    parameters = inspect.signature(model.forward).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
