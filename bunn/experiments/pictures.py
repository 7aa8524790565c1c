"""A picture of a learned bundle: the map of every node, drawn as the angle it turns by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bunn.data import load_dataset
from bunn.experiments.results import Result
from bunn.theory.drawing import BLUE, GREY, ORANGE, draw_edges, name_axes, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The two clusters.
CLUSTERS = (BLUE, ORANGE)


def bundle_figure(results: Sequence[Result]) -> Figure:
    """The learned bundles of BuNNs on the synthetic tasks, a row of panels for each.

    On the left the graph, with a hand at every node that is turned by the angle of its map, in the
    layer whose maps tell the clusters apart best; on the right the angles of all layers against the
    node's feature.

    Args:
        results: With ``extra["bundle"]``: ``angles`` ``(layers, n)``, ``cluster`` and ``x``
            ``(n,)``.
    """
    figure, panels = new_figure(8.4, 3.4 * len(results), rows=len(results), columns=2)
    for row, result in enumerate(results):
        bundle = result.extra["bundle"]
        angles = torch.tensor(bundle["angles"])
        colours = [CLUSTERS[index] for index in bundle["cluster"]]
        layer = _most_telling(angles, torch.tensor(bundle["cluster"]))
        title = f"{result.dataset}: maps of layer {layer + 1} of {len(angles)}"
        _draw_hands(panels[2 * row], title, result.dataset, angles[layer], colours)
        _draw_angles(panels[2 * row + 1], bundle["x"], angles, colours)
    return figure


def _most_telling(angles: Tensor, cluster: Tensor) -> int:
    """The layer in which the mean hands of the two clusters are furthest apart."""
    hands = torch.stack([angles.cos(), angles.sin()], dim=-1)
    means = [hands[:, cluster == side].mean(1) for side in (0, 1)]
    return int((means[0] - means[1]).norm(dim=-1).argmax())


def _draw_hands(ax: Axes, title: str, dataset: str, angle: Tensor, colours: list[str]) -> None:
    graph = load_dataset(dataset).split(0).test[0]
    position = _layout(dataset, len(colours))
    draw_edges(ax, graph.edge_index, position, colors="#DDDDDD", linewidths=0.6)
    x, y = position.T.tolist()
    ax.scatter(x, y, s=46, c=colours, zorder=2)
    ax.quiver(
        x,
        y,
        angle.cos().tolist(),
        angle.sin().tolist(),
        color=colours,
        angles="xy",
        scale_units="xy",
        scale=2.2,
        width=0.008,
        zorder=3,
    )
    ax.set_xlim(min(x) - 0.6, max(x) + 0.6)
    ax.set_ylim(min(y) - 0.6, max(y) + 0.6)
    ax.set_title(title, fontsize=10, loc="left")


def _draw_angles(ax: Axes, x: list[float], angles: Tensor, colours: list[str]) -> None:
    markers = "osD^vP"
    for layer, angle in enumerate(angles):
        degrees = torch.rad2deg(torch.remainder(angle + math.pi, 2 * math.pi) - math.pi).tolist()
        label = f"layer {layer + 1}" if len(angles) > 1 else None
        marker = markers[layer % len(markers)]
        ax.scatter(x, degrees, s=22, c=colours, marker=marker, alpha=0.85)
        ax.scatter([], [], s=22, c=GREY, marker=marker, label=label)
    ax.set_yticks([-180, -90, 0, 90, 180])
    ax.set_ylim(-195, 195)
    ax.axvline(0, color=GREY, linewidth=0.8, alpha=0.5)
    name_axes(ax, "angle of a node's map, by cluster", "feature of the node", "degrees")
    if len(angles) > 1:
        ax.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _layout(dataset: str, num_nodes: int) -> Tensor:
    """Two circles side by side for a barbell, whose middle nodes touch; one for a clique."""
    n = num_nodes // 2
    if dataset != "barbell":
        turn = torch.arange(num_nodes) * (2 * math.pi / num_nodes) + math.pi / 2
        return torch.stack([turn.cos(), turn.sin()], dim=1)
    turn = torch.arange(n) * (2 * math.pi / n)
    left = torch.stack([turn.cos() - 1.45, turn.sin()], dim=1).roll(-1, dims=0)  # last node: right
    right = torch.stack([1.45 - turn.cos(), turn.sin()], dim=1)  # first node: left
    return torch.cat([left, right])
