"""The plots of a report, as SVG that takes its colours from the page it stands in."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bunn.experiments.published import MODEL_TITLES, PUBLISHED
from bunn.experiments.results import METRICS, Result
from bunn.experiments.tables import Column
from bunn.theory.drawing import COLOURS, name_axes, new_figure, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TREE = re.compile(r"tree-neighborsmatch-r(\d+)")
#: Stands for the page's own text colour until the figure is SVG; no data has it.
_INK = "#010203"
#: Lines past the number of colours are told apart by dashes, of these lengths in points.
_DASHES = ("", "4 2", "1 1.5")
_MARKERS = ("o", "s", "^", "D", "v", "P")
#: Inches: on a phone the plot has about its own size, so its letters can be read.
_SIZE = (4.4, 2.9)


class Stroke(NamedTuple):
    """How the lines of one model are drawn: a colour, dashes (``""``: none), a marker, a width."""

    colour: str
    dashes: str
    marker: str
    width: float


def strokes_for(models: Iterable[str]) -> dict[str, Stroke]:
    """A stroke for each model: BuNN the first colour and the boldest, the others in order."""
    others = [model for model in dict.fromkeys(models) if model != "bunn"]
    strokes = {"bunn": Stroke(COLOURS[0], "", _MARKERS[0], 2.4)}
    rest = len(COLOURS) - 1
    for index, model in enumerate(others):
        place = 1 + index % rest
        dashes = _DASHES[min(index // rest, len(_DASHES) - 1)]
        strokes[model] = Stroke(COLOURS[place], dashes, _MARKERS[place], 1.5)
    return strokes


def curve_figure(results: Sequence[Result], key: str, strokes: dict[str, Stroke]) -> Figure | None:
    """``curves[key]`` against the epoch, a line per result; ``None`` if no result has any.

    Where a model has several presets, those after the first have short dashes.

    Args:
        results: Of one data set.
        key: ``"train_loss"`` or ``"val"``.
        strokes: Of every model among them.
    """
    drawn = [result for result in results if len(result.curves.get(key, [])) > 1]
    if not drawn:
        return None
    figure, (ax,) = new_figure(*_SIZE)
    first = {result.model: result for result in reversed(drawn)}
    for result in sorted(drawn, key=lambda result: result.model == "bunn"):
        colour, dashes, _, width = strokes[result.model]
        style = _pattern(dashes if result is first[result.model] else "2 1")
        epochs, values = result.curves["epoch"], result.curves[key]
        ax.plot(epochs, values, color=colour, linestyle=style, linewidth=width)
    values = [value for result in drawn for value in result.curves[key]]
    if min(values) > 0 and max(values) > 20 * min(values):
        ax.set_yscale("log")
    metric = METRICS[drawn[0].metric].title
    name = "training loss" if key == "train_loss" else f"validation {metric}"
    title = Column(drawn[0].dataset, drawn[0].metric).title
    name_axes(ax, f"{title}: {name}", "epoch", "")
    _inherit_ink(figure)
    return figure


def depth_figure(
    results: Sequence[Result], strokes: dict[str, Stroke], *, named: bool = False
) -> Figure:
    """Tree-NeighborsMatch: accuracy against depth, ours solid, the published curves dashed.

    Args:
        results: Of all depths and models.
        strokes: Of every model, published or measured.
        named: Whether the models are named in the figure itself. (default: :obj:`False`)
    """
    figure, (ax,) = new_figure(6.4, 3.6)
    here = {result.model for result in results}
    printed: dict[str, dict[int, float]] = {}
    for entry in PUBLISHED:
        tree = _TREE.fullmatch(entry.dataset)
        if tree and entry.mean is not None:
            printed.setdefault(entry.model, {})[int(tree[1])] = entry.mean
    for model, points in printed.items():
        ax.plot(
            *_line(points),
            color=strokes[model].colour,
            linestyle=(0, (3, 2)),
            linewidth=1.3,
            alpha=0.8,
            label=None if model in here else f"{MODEL_TITLES.get(model, model)}, published",
        )
    measured: dict[tuple[str, str], dict[int, float]] = {}
    for result in results:
        tree = _TREE.fullmatch(result.dataset)
        if tree:
            points = measured.setdefault((result.model, result.preset), {})
            points[int(tree[1])] = result.test_mean
    for (model, preset), points in sorted(measured.items(), key=lambda line: line[0][0] == "bunn"):
        colour, _, marker, width = strokes[model]
        title = MODEL_TITLES.get(model, model) + ("" if preset == "paper" else f" ({preset})")
        face = colour if preset == "paper" else "white"
        ax.plot(
            *_line(points),
            color=colour,
            linewidth=width,
            marker=marker,
            markersize=5,
            markerfacecolor=face,
            label=title,
        )
    ax.set_ylim(0, 1.04)
    ax.locator_params(axis="x", integer=True)
    name_axes(ax, "accuracy: solid measured here, dashed published", "depth r", "")
    if named:
        ax.legend(loc="lower left", frameon=False, fontsize=8.5)
    _inherit_ink(figure)
    return figure


def _line(points: dict[int, float]) -> tuple[list[int], list[float]]:
    """A line through neighbouring points, open where one was not measured."""
    depths = list(range(min(points), max(points) + 1))
    return depths, [points.get(depth, math.nan) for depth in depths]


def svg(figure: Figure, name: str, label: str) -> str:
    """A figure as an ``<svg>`` to stand in a page.

    Letters and axes have the colour of the text around them, lines the custom properties
    ``--c0``, ``--c1``, … of the page.

    Args:
        figure: What to draw; its background becomes transparent.
        name: Prefix of every id in it, so that several can share a page.
        label: What a reader hears who does not see it.
    """
    figure.patch.set_visible(False)
    for ax in figure.axes:
        ax.patch.set_visible(False)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figure.svg"
        save(figure, path)
        text = path.read_text(encoding="utf-8")
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>\s*|<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="|href="#|url\(#', lambda found: f"{found[0]}{escape(name)}-", text)
    text = text.replace(_INK, "currentColor")
    for index, colour in enumerate(COLOURS):
        text = text.replace(colour.lower(), f"var(--c{index})")
    head, rest = text.split(">", 1)
    head = re.sub(r' (width|height|version)="[^"]*"', "", head)
    return f'{head} role="img" aria-label="{escape(label)}">{rest}'


def legend(models: Iterable[str], strokes: dict[str, Stroke]) -> str:
    """The models' names with a piece of their line, as HTML."""
    parts = []
    for model in models:
        stroke = strokes[model]
        line = (
            '<svg class="swatch" viewBox="0 0 24 8" aria-hidden="true">'
            '<line x1="1" y1="4" x2="23" y2="4" '
            f'stroke="var(--c{COLOURS.index(stroke.colour)})" '
            f'stroke-width="{stroke.width * 1.3:.2f}" '
            f'stroke-dasharray="{stroke.dashes or "none"}"/></svg>'
        )
        parts.append(f"<li>{line}{escape(MODEL_TITLES.get(model, model))}</li>")
    return f'<ul class="legend">{"".join(parts)}</ul>'


def _pattern(dashes: str) -> str | tuple[float, tuple[float, ...]]:
    """SVG's dashes in matplotlib's words."""
    return (0, tuple(float(length) for length in dashes.split())) if dashes else "-"


def _inherit_ink(figure: Figure) -> None:
    """Letters, axes and a faint grid in the colour of the page's text."""
    from matplotlib.text import Text  # noqa: PLC0415

    for ax in figure.axes:
        ax.tick_params(which="both", colors=_INK)
        ax.grid(axis="y", color=_INK, alpha=0.12, linewidth=0.7)
        for spine in ax.spines.values():
            spine.set_edgecolor(_INK)
            spine.set_alpha(0.45)
    for words in figure.findobj(Text):
        if isinstance(words, Text):
            words.set_color(_INK)
