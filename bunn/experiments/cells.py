"""One cell of a table: our number, the published one, and how they stand to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bunn.experiments.published import ELSEWHERE, LAYOUTS, Layout, Published
from bunn.experiments.results import METRICS, Result

NOT_RUN = "not run here"

Verdict = Literal["better", "within", "worse"]


@dataclass(frozen=True)
class Cell:
    """One model on one data set.

    Args:
        result: What was measured here, if anything.
        published: What others have printed, if anything.
        layout: How its experiment is printed.
        best: Whether no result of its column is better.
    """

    result: Result | None
    published: Published | None
    layout: Layout
    best: bool = False

    @property
    def elsewhere(self) -> bool:
        """Whether it stands in the row of the highest numbers known elsewhere."""
        return self.published is not None and self.published.model == ELSEWHERE

    @property
    def ours(self) -> str:
        """``"0.002 ± 0.001"``; without a spread for a single run; empty if not run."""
        if self.result is None:
            return ""
        spread = self.result.test_std if len(self.result.test) > 1 else None
        text = self._numbers(self.result.metric, self.result.test_mean, spread, self.layout.digits)
        return text if self.result.part == self.layout.part else f"{text} ({self.result.part})"

    @property
    def paper(self) -> str:
        """``"0.01 ± 0.07"``, a star after it for a footnote; empty if nothing is published."""
        if self.published is None:
            return ""
        if self.published.mean is None:
            return self.published.note
        if self.elsewhere:
            return (
                f"{round(self.published.mean * self.layout.scale, 2):g} ({self.published.source})"
            )
        numbers = (self.published.metric, self.published.mean, self.published.std)
        return self._numbers(*numbers, digits=2) + ("*" if self.published.note else "")

    @property
    def text(self) -> str:
        """Both: ``"0.002 ± 0.001 (paper 0.01 ± 0.07)"``."""
        return self.compose(self.ours)

    def compose(self, ours: str) -> str:
        """Both, with ``ours`` in place of our numbers."""
        if self.elsewhere:
            return self.paper
        if not self.paper:
            return ours or "–"
        return f"{ours or NOT_RUN} (paper {self.paper})"

    @property
    def verdict(self) -> Verdict | None:
        """How the result stands to the published number, see :func:`compare`."""
        if self.result is None or self.published is None:
            return None
        return compare(self.result, self.published)

    @property
    def rank(self) -> float | None:
        """The mean as it is printed, lower for the better; ``None`` if not run."""
        if self.result is None:
            return None
        value = self.result.test_mean * self.layout.scale
        if self.result.metric != "seconds":
            value = float(_decimal(value, self.layout.digits))
        return value if METRICS[self.result.metric].lower_is_better else -value

    def _numbers(self, metric: str, mean: float, std: float | None, digits: int) -> str:
        if metric == "seconds":
            return _duration(mean)
        scale = self.layout.scale
        spread = "" if std is None else f" ± {_decimal(std * scale, digits)}"
        return _decimal(mean * scale, digits) + spread


def compare(result: Result, reference: Published) -> Verdict | None:
    """How a result stands to a published number.

    ``"within"`` if the two means are no further apart than their standard deviations together
    (and than half of the last digit printed), else ``"better"`` or ``"worse"`` by the metric's
    direction; ``None`` if no number was published.
    """
    if reference.mean is None:
        return None
    rounding = 0.005 / LAYOUTS[reference.experiment].scale
    gap = result.test_mean - reference.mean
    if abs(gap) <= result.test_std + (reference.std or 0.0) + rounding * (1 + 1e-9):
        return "within"
    return "better" if (gap < 0) == METRICS[result.metric].lower_is_better else "worse"


def _decimal(value: float, digits: int) -> str:
    """Fixed decimals, but never a zero for what is none."""
    text = f"{value:.{digits}f}"
    return f"{value:.1g}" if value != 0 and float(text) == 0 else text


def _duration(seconds: float) -> str:
    """``"5.6 s"``, or ``"4:21"`` in minutes from one on."""
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
