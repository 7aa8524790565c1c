"""Two figures of the paper, drawn from running code: Laplacians at work, and message diffusion.

A node is drawn as a dial. Its arrow is the feature ``x_v`` as it is stored; its axes are the global
frame as that node sees it, ``O_v^T e_1`` (with a knob) and ``O_v^T e_2``. The angle from the first
axis to the arrow is therefore that of ``O_v x_v``: nodes agree when all dials read alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bunn.theory.drawing import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, draw_edges, new_figure
from bunn.theory.graphs import Graph
from bunn.theory.scenes import (
    KITE,
    SQUARE,
    TIMES,
    TWIST,
    TWISTED_EDGE,
    connection,
    flat_action,
    graph_action,
    message_diffusion_steps,
    square_bundle,
    turn,
    twisted_action,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SQUARE_POSITION = torch.tensor([[-1.6, 0.8], [-1.6, -0.8], [0.1, -0.8], [0.1, 0.8], [1.7, -0.8]])
KITE_POSITION = torch.tensor([[-1.6, 0.8], [-1.6, -0.8], [0.05, 0.0], [1.7, -0.8]])
KITE_COLOURS = (BLUE, ORANGE, GREEN, PURPLE)

#: The radius of a dial, which is also the length of a unit vector.
RADIUS = 0.58
#: Where the global frame is drawn, beside either graph.
GLOBAL_POSITION = torch.tensor([1.7, 0.8])


def laplacians_figure() -> Figure:
    """Figure "Comparison of different Laplacians and their actions on signals"."""
    figure, panels = new_figure(9.0, 7.2, 3, 3)
    columns = (
        ("Graph Laplacian", "L = I - D^{-1}A", "constant: $y_v = y_u$"),
        ("Flat bundle Laplacian", r"L_B = O^T(L\otimes I)\,O", "consensus: $O_v y_v = O_u y_u$"),
        ("Connection Laplacian, not flat", "L_F = I - D^{-1}A_F", "decay to zero: $y_v = 0$"),
    )
    actions = (graph_action(), flat_action(), twisted_action())
    for k, (action, (title, formula, verdict)) in enumerate(zip(actions, columns, strict=True)):
        for ax, field in zip(panels[k::3], action[1:], strict=True):
            _draw_graph(ax, SQUARE, SQUARE_POSITION)
            if k == 0:
                _draw_scalars(ax, field)
            else:
                _draw_square(ax, field, action.signal if ax is panels[3 + k] else None, flat=k == 1)
        _title(panels[k], title, formula)
        energy = rf"{action.energy(action.signal):.1f} \to {abs(action.energy(action.limit)):.1f}"
        facts = rf"$\dim\ker {formula.split()[0]} = {action.nullity}$,  energy ${energy}$"
        _write(panels[6 + k], (0.05, -1.6), f"{verdict}\n{facts}", va="top")
    for ax, twist in zip(panels[1:3], (0.0, TWIST), strict=True):
        degrees = round(turn(connection(twist)))
        _write(ax, (-0.75, 0), rf"$\circlearrowright$ {degrees}°", color=GREY, fontsize=11)
    _write(panels[2], GLOBAL_POSITION.tolist(), "no global\nframe", color=GREY, fontsize=8.5)
    _name_axes(panels[1])
    average, heat = "$D^{-1}A\\,x = x - Lx$", "heat, $t\\to\\infty$\n$y = e^{-tL}x$"
    rows = ("signal\n$x$", f"mean of neighbours\n{average}", heat)
    for ax, text in zip(panels[::3], rows, strict=True):
        _write(ax, (-2.8, 0), text, rotation=90)
    _footnote(
        figure,
        "Axes: the frame of node $v$. Shaded: the arrow's angle in that frame. Pale: $x$.\n"
        "Transport along a grey edge keeps that angle; the orange edge turns the arrow by a"
        f" further {TWIST:.0f}°.  $\\circlearrowright$: once around the cycle.",
    )
    return figure


def message_diffusion_figure() -> Figure:
    """Figure "Example of the message diffusion framework", for a graph of four nodes and edges."""
    figure, axes = new_figure(9.0, 5.3, 2, 3)
    steps = message_diffusion_steps()
    heat = r"Z = O^T e^{-tL}\, O H,\ \ t = "
    panels = (
        ("input", "x_v", steps.features),
        ("(1) orthogonal maps", r"O_v = \phi(\mathcal{G}, X, v)", steps.features),
        ("(2) update", r"h_v = O_v^T\, W\, O_v\, x_v", steps.updated),
        ("(3) diffusion, early", f"{heat}{TIMES[0]:g}", steps.early),
        ("(3) diffusion, late", f"{heat}{TIMES[1]:g}", steps.late),
        ("(4) output", r"\mathrm{ReLU}(z_v)", steps.output),
    )
    for ax, (title, formula, field) in zip(axes, panels, strict=True):
        _draw_graph(ax, KITE, KITE_POSITION)
        _title(ax, title, formula)
        if ax not in (axes[0], axes[5]):
            _draw_dials(ax, KITE_POSITION, field, steps.frame, KITE_COLOURS)
            _draw_global(ax, field, steps.frame, KITE_COLOURS)
        _draw_arrows(ax, KITE_POSITION, field, KITE_COLOURS)
    _draw_arrows(axes[5], KITE_POSITION, steps.late, KITE_COLOURS, pale=True)
    for ax in axes[1:]:
        style = {"arrowstyle": "->", "color": GREY, "linewidth": 1.5}
        ax.annotate("", xy=(-2.3, 0), xytext=(-2.65, 0), arrowprops=style)
    _name_axes(axes[1])
    _footnote(
        figure,
        "Axes: the global frame as node $v$ sees it. Shaded: the arrow's angle in it; nodes agree "
        "when these angles do. Pale: $z_v$.",
    )
    return figure


def _title(ax: Axes, title: str, formula: str) -> None:
    ax.set_title(title, loc="center", x=0.54, fontsize=10.5, fontweight="bold", pad=30)
    _write(ax, (0.05, 1.85), f"${formula}$", va="baseline", fontsize=10.5)


def _footnote(figure: Figure, text: str) -> None:
    figure.set_layout_engine("constrained", rect=(0.0, 0.01, 1.0, 0.98))
    figure.supxlabel(text, fontsize=9, color=GREY, math_fontfamily="cm", linespacing=1.6)


def _write(ax: Axes, at: Sequence[float], text: str, **style: Any) -> None:
    options = {"ha": "center", "va": "center", "fontsize": 9.5, "linespacing": 1.6, **style}
    ax.text(at[0], at[1], text, math_fontfamily="cm", **options)


def _name_axes(ax: Axes) -> None:
    _write(ax, (-1.02, 1.2), "$O_v^T e_1$", fontsize=8.5, color=GREY, ha="left")
    _write(ax, (-1.8, 1.55), "$O_v^T e_2$", fontsize=8.5, color=GREY)


def _draw_graph(ax: Axes, graph: Graph, position: Tensor) -> None:
    draw_edges(ax, graph.edge_index, position)
    ax.set(xlim=(-2.7, 2.4), ylim=(-1.42, 1.5))


def _draw_scalars(ax: Axes, x: Tensor) -> None:
    """Scalars ``(5, 1)`` as shades of the nodes, orange for negative and blue for positive."""
    for centre, value in zip(SQUARE_POSITION, x[:, 0].tolist(), strict=True):
        _draw_dial(ax, centre, fill=_tint(BLUE if value > 0 else RED, 0.7 * abs(value)))
        _write(ax, centre.tolist(), f"${value:.2f}$", zorder=3)


def _draw_square(ax: Axes, field: Tensor, before: Tensor | None, *, flat: bool) -> None:
    """A vector field ``(5, 2)``, over a pale one, on the flat bundle or the twisted connection."""
    frame, colours = square_bundle().matrices()[:, 0], [BLUE] * SQUARE.num_nodes
    _draw_dials(ax, SQUARE_POSITION, field, frame, colours)
    if before is not None:
        _draw_arrows(ax, SQUARE_POSITION, before, colours, pale=True)
    _draw_arrows(ax, SQUARE_POSITION, field, colours)
    if flat:
        _draw_global(ax, field, frame, colours)
    else:
        ax.plot(*SQUARE_POSITION[list(TWISTED_EDGE)].T.tolist(), color=RED, lw=3, zorder=1)


def _draw_global(ax: Axes, field: Tensor, frame: Tensor, colours: Sequence[str]) -> None:
    """All arrows ``field: (n, 2)`` in the global frame, ``O_v x_v``."""
    _draw_dial(ax, GLOBAL_POSITION, torch.eye(2), fill="#F2F2F2")
    synced = (frame @ field.unsqueeze(-1)).squeeze(-1)
    _draw_arrows(ax, GLOBAL_POSITION.expand_as(field), synced, colours)
    _write(ax, (1.7, 0.05), "global frame", color=GREY, fontsize=8.5)


def _draw_dials(
    ax: Axes, position: Tensor, field: Tensor, frame: Tensor, colours: Sequence[str]
) -> None:
    """The nodes with their axes ``frame: (n, 2, 2)``; shaded, the arrow's angle to the first."""
    from matplotlib.patches import Wedge  # noqa: PLC0415

    for centre, vector, axes, colour in zip(position, field, frame, colours, strict=True):
        _draw_dial(ax, centre, axes)
        if float(vector.norm()) > 1e-6:
            start, end = (math.degrees(math.atan2(y, x)) for x, y in (axes[0], vector))
            start, end = (end, start) if (end - start) % 360 > 180 else (start, end)
            x, y = centre.tolist()
            shade = Wedge((x, y), 0.55 * RADIUS, start, end, color=_tint(colour, 0.2), zorder=2)
            ax.add_patch(shade)


def _draw_dial(ax: Axes, centre: Tensor, axes: Tensor | None = None, fill: Any = "white") -> None:
    """A circle, and in it the rows of ``axes: (2, 2)``, a knob on the first."""
    from matplotlib.patches import Circle  # noqa: PLC0415

    x, y = centre.tolist()
    ax.add_patch(Circle((x, y), RADIUS, facecolor=fill, edgecolor="#AAAAAA", lw=0.8, zorder=2))
    ends = [] if axes is None else (centre + RADIUS * axes).tolist()
    for (end_x, end_y), colour, knobs in zip(ends, ("#444444", "#999999"), ([1], []), strict=False):
        ax.plot([x, end_x], [y, end_y], "-o", color=colour, lw=1, ms=4, markevery=knobs, zorder=3)


def _draw_arrows(
    ax: Axes, position: Tensor, field: Tensor, colours: Sequence[str], *, pale: bool = False
) -> None:
    """The vectors ``field: (n, 2)``, all to one scale; a vector that is zero is a dot."""
    for at, vector, colour in zip(position.tolist(), field, colours, strict=True):
        ax.plot(*at, "o", color=colour, markersize=4, zorder=4)
        if (length := float(vector.norm())) > 1e-6:
            style = {
                "arrowstyle": "-|>,head_width=0.22,head_length=0.5",
                "color": _tint(colour, 0.35) if pale else colour,
                "linewidth": 1.8,
                # A short arrow has a small head, or the head would hide where it points.
                "mutation_scale": min(12.0, 24 * length),
                "shrinkA": 0,
                "shrinkB": 0,
            }
            x, y = (RADIUS * vector).tolist()
            tip, order = (at[0] + x, at[1] + y), 3 if pale else 4
            ax.annotate("", tip, at, arrowprops=style, annotation_clip=False, zorder=order)


def _tint(colour: str, strength: float) -> tuple[float, ...]:
    """A colour mixed with white, where transparency would show lines that cross."""
    from matplotlib.colors import to_rgb  # noqa: PLC0415

    return tuple(1 - strength * (1 - channel) for channel in to_rgb(colour))
