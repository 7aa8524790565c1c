"""What all plots of the package share: a figure, its colours, a graph drawn in the plane."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Colours that stay apart for colour-blind readers (Okabe and Ito), and in print.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
)
COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY)
#: Lines and words that are not data.
GREY = "#666666"

Corner = Literal["upper right", "upper left", "lower left", "lower right"]

_STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": "#222222",
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "svg.hashsalt": "bunn",
    "svg.fonttype": "path",
}


def new_figure(
    width: float = 6.0, height: float = 3.6, rows: int = 1, columns: int = 1
) -> tuple[Figure, list[Axes]]:
    """A figure of ``rows * columns`` panels in the house style, sizes in inches.

    Nothing global is touched: no backend is chosen and no window opens.

    Raises:
        ModuleNotFoundError: If matplotlib is not installed, with the command that installs it.
    """
    try:
        import matplotlib  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "plots need matplotlib; install it with: pip install 'bunn[train]'"
        ) from error
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        panels = np.atleast_1d(figure.subplots(rows, columns)).ravel().tolist()
    return figure, panels


def save(figure: Figure, path: str | Path) -> None:
    """Writes a figure; the same figure gives the same bytes."""
    import matplotlib  # noqa: PLC0415

    metadata = {"Date": None} if Path(path).suffix == ".svg" else None
    with matplotlib.rc_context(_STYLE):
        figure.savefig(path, dpi=160, metadata=metadata)


def name_axes(ax: Axes, title: str, x: str, y: str, legend: Corner | None = None) -> None:
    """Title, axis labels, and a legend in a corner."""
    ax.set_title(title, fontsize=10, loc="left")
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    if legend is not None:
        ax.legend(loc=legend, frameon=False, fontsize=8.5)


def draw_edges(ax: Axes, edge_index: Tensor, position: Tensor, **line: Any) -> None:
    """The edges of a graph as line segments between positions ``(n, 2)``; axes without frame."""
    from matplotlib.collections import LineCollection  # noqa: PLC0415

    pairs = edge_index.cpu().sort(dim=0).values
    u, v = torch.unique(pairs[:, pairs[0] < pairs[1]], dim=1)
    points = position.detach().cpu().double()
    segments = list(np.stack((points[u].numpy(), points[v].numpy()), axis=1))
    options = {"colors": "#BBBBBB", "linewidths": 1.2, "zorder": 1, **line}
    ax.add_collection(LineCollection(segments, **options))
    ax.set_aspect("equal")
    ax.set_axis_off()
    ax.autoscale_view()
