"""Plots of the diagnostics, in the house style; a logarithmic scale never hides a zero.

Each returns its figure, new or that of the axes it was handed, for the caller to show or to write
with :func:`bunn.theory.drawing.save`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from torch import Tensor

from bunn.theory.diagnostics import ReceptiveField, SmoothingProfile
from bunn.theory.drawing import BLUE, COLOURS, GREY, RED, draw_edges, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

__all__ = ["plot_node_signal", "plot_receptive_field", "plot_sensitivity", "plot_smoothing"]

#: What stands for an exact zero in a heat map whose colours are logarithmic.
ZERO_COLOUR = "#E4E4E4"
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_SMALL = 8


def plot_sensitivity(
    sensitivity: Tensor, *, distance: Tensor | None = None, ax: Axes | None = None
) -> Figure:
    """A heat map of sensitivities in logarithmic colours; exact zeros are grey.

    With ``distance``, the sensitivities against it in place of the map: a dot for each pair of
    nodes, a line through the medians. Exact zeros are triangles on the lower edge, medians of zero
    end the line; pairs at distance ``inf`` are left out.

    Args:
        sensitivity: ``(T, S)``, as :func:`bunn.theory.sensitivity` returns it.
        distance: ``(T, S)`` distances between targets and sources, such as
            :func:`bunn.theory.hop_distances`. (default: :obj:`None`)
        ax: Where to draw. (default: a new figure)
    """
    value = _array(sensitivity)
    if value.ndim != 2 or not np.isfinite(value).all() or (value < 0).any():
        raise ValueError(
            f"sensitivity has shape {value.shape}; pass a matrix (targets, sources) of finite "
            "numbers >= 0"
        )
    if distance is None:
        return _heat_map(value, ax)
    hop = _array(distance)
    if hop.shape != value.shape:
        raise ValueError(
            f"distance has shape {hop.shape}, sensitivity {value.shape}; they must agree"
        )
    return _against_distance(value, hop, ax)


def _heat_map(value: NDArray[np.float64], ax: Axes | None) -> Figure:
    figure, (ax,) = _panels(None if ax is None else [ax], 4.8, 3.9)
    import matplotlib  # noqa: PLC0415
    from matplotlib.colors import LogNorm  # noqa: PLC0415

    positive = value[value > 0]
    norm = LogNorm(positive.min(), positive.max()) if positive.size else None
    colours = matplotlib.colormaps["viridis"].with_extremes(bad=ZERO_COLOUR)
    image = ax.imshow(
        np.ma.masked_equal(value, 0.0), cmap=colours, norm=norm, interpolation="nearest"
    )
    _label(ax, "source $u$", "target $v$")
    _whole_numbers(ax.xaxis)
    _whole_numbers(ax.yaxis)
    ax.spines[:].set_visible(False)
    if positive.size:
        bar = figure.colorbar(image, ax=ax, fraction=0.046, pad=0.03)
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=_SMALL, which="both", color=GREY)
        bar.set_label(r"$\|\partial y_v / \partial x_u\|$", fontsize=9)
    if positive.size < value.size:
        ax.set_title("grey: exactly zero", loc="right", fontsize=_SMALL, color=GREY)
    return figure


def _against_distance(
    value: NDArray[np.float64], hop: NDArray[np.float64], ax: Axes | None
) -> Figure:
    figure, (ax,) = _panels(None if ax is None else [ax], 5.2, 3.6)
    reached = np.isfinite(hop)
    value, hop = value[reached], hop[reached]
    positive = value > 0
    ax.scatter(hop[positive], value[positive], s=9, color=BLUE, alpha=0.35, linewidths=0)
    _mark_zeros(ax, np.unique(hop[~positive]), BLUE)
    distances = np.unique(hop)
    median = np.array([np.median(value[hop == d]) for d in distances])
    ax.plot(distances, _positive(median), color=RED, linewidth=1.6, marker="o", markersize=4)
    if positive.any():
        ax.set_yscale("log")
        last = int(np.flatnonzero(median > 0)[-1]) if (median > 0).any() else None
        if last is not None:
            ax.annotate(
                "median",
                (distances[last], median[last]),
                xytext=(6, 0),
                textcoords="offset points",
                color=RED,
                fontsize=_SMALL,
                va="center",
            )
    _whole_numbers(ax.xaxis)
    _label(ax, "distance", "sensitivity")
    return figure


def plot_smoothing(
    profiles: Mapping[str, SmoothingProfile] | SmoothingProfile,
    *,
    axes: Sequence[Axes] | None = None,
) -> Figure:
    """Rayleigh quotients on a logarithmic scale, and mean cosines, by layer.

    A quotient that is exactly zero is a hollow triangle on the lower edge; what is NaN is missing.

    Args:
        profiles: What :func:`bunn.theory.smoothing_profile` returned, by the name of the model, or
            for one model.
        axes: The two panels. (default: a new figure)
    """
    if isinstance(profiles, SmoothingProfile):
        profiles = {"model": profiles}
    figure, (left, right) = _panels(axes, 9.4, 3.4, columns=2)
    for number, (name, profile) in enumerate(profiles.items()):
        style = _style(number, name)
        layer = np.arange(len(profile.names))
        rayleigh = _array(profile.rayleigh)
        left.plot(layer, _positive(rayleigh), **style)
        _mark_zeros(left, layer[rayleigh == 0], style["color"])
        right.plot(layer, _array(profile.cosine), **style)
    if any((profile.rayleigh > 0).any() for profile in profiles.values()):
        left.set_yscale("log")
    right.axhline(1.0, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
    for ax, label, title in (
        (left, r"$E(X)\,/\,\langle X, D X \rangle$", "Dirichlet energy over squared norm"),
        (right, "mean over pairs of nodes", "Cosine similarity"),
    ):
        _whole_numbers(ax.xaxis)
        _label(ax, "layer (0: input)", label, title)
    beside: dict[str, Any] = (
        {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if axes is None else {}
    )
    right.legend(frameon=False, fontsize=_SMALL, **beside)
    return figure


def plot_receptive_field(
    fields: Mapping[str, ReceptiveField] | ReceptiveField, *, ax: Axes | None = None
) -> Figure:
    """The share of the sensitivity that comes from each hop distance; the legend has the ranges.

    Args:
        fields: What :func:`bunn.theory.receptive_field` returned, by the name of the model, or for
            one model.
        ax: Where to draw. (default: a new figure)
    """
    if isinstance(fields, ReceptiveField):
        fields = {"model": fields}
    figure, (ax,) = _panels(None if ax is None else [ax], 5.6, 3.5)
    for number, (name, field) in enumerate(fields.items()):
        label = f"{name}: range {field.range:.2g}"
        if field.unreachable > 0:
            label += f", {field.unreachable:.0%} from other components"
        ax.plot(_array(field.hops), _array(field.influence), **_style(number, label))
    ax.set_ylim(bottom=0)
    ax.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
    _whole_numbers(ax.xaxis)
    _label(ax, "hops from the target", "share of the sensitivity", "Effective receptive field")
    ax.legend(frameon=False, fontsize=_SMALL)
    return figure


def plot_node_signal(
    signal: Tensor, edge_index: Tensor, position: Tensor, *, ax: Axes | None = None
) -> Figure:
    """A graph drawn in the plane, its nodes coloured by a signal.

    Colours run from zero for a signal without negative values, and to both sides of zero otherwise.

    Args:
        signal: ``(n,)`` one number per node, such as a row of :func:`bunn.theory.heat_rows`.
        edge_index: ``(2, e)`` edges.
        position: ``(n, 2)`` where the nodes are drawn.
        ax: Where to draw. (default: a new figure)
    """
    value, point = _array(signal), _array(position)
    if value.ndim != 1 or point.shape != (value.size, 2):
        raise ValueError(
            f"signal has shape {value.shape} and position {point.shape}; pass (n,) and (n, 2)"
        )
    figure, (ax,) = _panels(None if ax is None else [ax], 4.2, 3.6)
    draw_edges(ax, edge_index, position)
    largest = float(np.nanmax(np.abs(value), initial=0.0)) or 1.0
    signed = bool((value < 0).any())
    dots = ax.scatter(
        point[:, 0],
        point[:, 1],
        c=value,
        cmap="PuOr_r" if signed else "viridis",
        vmin=-largest if signed else 0.0,
        vmax=largest,
        s=60,
        edgecolors=GREY,
        linewidths=0.6,
        zorder=2,
    )
    ax.margins(0.08)
    bar = figure.colorbar(dots, ax=ax, location="bottom", aspect=40, shrink=0.8, pad=0.04)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=_SMALL, color=GREY)
    return figure


def _panels(
    axes: Sequence[Axes] | None, width: float, height: float, columns: int = 1
) -> tuple[Figure, Sequence[Axes]]:
    """The given axes and their figure, or new ones."""
    if axes is None:
        return new_figure(width, height, columns=columns)
    return cast("Figure", axes[0].figure), axes


def _array(values: Tensor) -> NDArray[np.float64]:
    array: NDArray[np.float64] = values.detach().cpu().double().numpy()
    return array


def _positive(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The values that a logarithm has, NaN in place of the others."""
    return np.where(values > 0, values, np.nan)


def _mark_zeros(ax: Axes, x: NDArray[Any], colour: str) -> None:
    """Hollow triangles on the lower edge, where a logarithmic scale has no zero to show."""
    if x.size == 0:
        return
    ax.plot(
        x,
        np.zeros(x.size),
        linestyle="none",
        marker="v",
        markersize=5,
        markerfacecolor="white",
        markeredgecolor=colour,
        transform=ax.get_xaxis_transform(),
        clip_on=False,
        zorder=3,
    )
    ax.set_title("▽ exactly zero", loc="right", fontsize=_SMALL, color=GREY)


def _style(number: int, label: str) -> dict[str, Any]:
    """Colour and marker of the curve with that number."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "markersize": 4,
        "linewidth": 1.6,
        "label": label,
    }


def _whole_numbers(axis: Axis) -> None:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    axis.set_major_locator(MaxNLocator("auto", integer=True))


def _label(ax: Axes, x: str, y: str, title: str = "") -> None:
    ax.set_xlabel(x, fontsize=9)
    ax.set_ylabel(y, fontsize=9)
    if title:
        ax.set_title(title, loc="left", fontsize=10)
    ax.tick_params(labelsize=_SMALL, color=GREY, which="both")
