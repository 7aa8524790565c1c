"""What a claim is: a statement of the paper, a function that measures it, and what it found.

A claim's function yields its evidence: a :class:`Check` for something measured, an
:class:`Erratum` for a statement that does not hold as printed, a :class:`Table` for numbers worth
seeing. The :func:`claim` decorator makes it a :class:`Claim`; calling that gives a :class:`Report`.
"""

from __future__ import annotations

import inspect
import math
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from bunn.theory.graphs import Graph

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Verdict = Literal["holds", "corrected", "fails"]


class SettingsError(ValueError):
    """What a claim was asked to run on is nothing it speaks of."""


def check_graphs(graphs: object, name: str) -> None:
    """Raises an error unless ``graphs`` are connected :class:`Graph` objects of two nodes or more.

    Args:
        graphs: What was given.
        name: The keyword it was given as.
    """
    if not isinstance(graphs, Sequence) or isinstance(graphs, Graph) or not graphs:
        raise SettingsError(f"{name} is a {type(graphs).__name__}; pass a list of graphs")
    for graph in graphs:
        if not isinstance(graph, Graph):
            raise SettingsError(
                f"{name} holds a {type(graph).__name__}; pass bunn.theory.graphs.Graph(name, "
                "edge_index, num_nodes)"
            )
        if graph.num_nodes < 2 or not graph.connected:
            raise SettingsError(
                f"{name} holds {graph.name!r}, which is not connected or a single node; the claims "
                "are about connected graphs"
            )


@dataclass(frozen=True)
class Check:
    """A number that was measured, and what it has to be.

    The first check of a claim is the one that its line in a report shows.

    Args:
        measured: What was measured.
        value: The number.
        bound: What it must not exceed, or must not fall below.
        relation: ``"<="`` or ``">="``. (default: ``"<="``)
    """

    measured: str
    value: float
    bound: float
    relation: Literal["<=", ">="] = "<="

    @property
    def passed(self) -> bool:
        """Whether the number is within its bound; NaN never is."""
        return self.value <= self.bound if self.relation == "<=" else self.value >= self.bound

    def __str__(self) -> str:
        return f"{self.measured}: {self.value:.3g}, must be {self.relation} {self.bound:.3g}"


Measured = float | Tensor | Sequence[float]


def at_most(measured: str, values: Measured, bound: float) -> Check:
    """A residual: the largest of the values, ``<= bound``."""
    return Check(measured, _values(values).max().item(), bound)


def at_least(measured: str, values: Measured, bound: float) -> Check:
    """What must not vanish: the smallest of the values, ``>= bound``."""
    return Check(measured, _values(values).min().item(), bound, ">=")


def some_at_least(measured: str, values: Measured, bound: float) -> Check:
    """A counterexample, of which one suffices: the largest of the values, ``>= bound``."""
    return Check(measured, _values(values).max().item(), bound, ">=")


def _values(values: Measured) -> Tensor:
    """As a tensor, in which NaN is both largest and smallest; NaN if nothing was measured."""
    tensor = torch.as_tensor(values, dtype=torch.float64).detach().reshape(-1)
    return tensor if tensor.numel() else torch.tensor([math.nan])


@dataclass(frozen=True)
class Erratum:
    """A statement that does not hold as printed, and the one that does.

    Args:
        name: The heading in ``docs/errata.md``.
        printed: The statement as printed.
        counterexample: Where it fails, with the numbers.
        corrected: The statement that holds.
        refutation: The check that passes because the printed statement is off.
        verification: The checks of the corrected statement.
    """

    name: str
    printed: str
    counterexample: str
    corrected: str
    refutation: Check
    verification: tuple[Check, ...]


@dataclass(frozen=True)
class Table:
    """Numbers worth seeing, which nothing is decided by; a claim's plot is drawn from them."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def column(self, name: str) -> list[Any]:
        """The entries below ``name``."""
        index = self.columns.index(name)
        return [row[index] for row in self.rows]


Evidence = Check | Erratum | Table


@dataclass
class Report:
    """What the run of a claim found.

    Args:
        name: The claim.
        where: Its place in the paper.
        statement: What it states, in a few words.
        seconds: How long the run took.
        error: The exception that ended the run, if one did.
        traceback: Where it came from.
    """

    name: str
    where: str
    statement: str
    checks: list[Check] = field(default_factory=list)
    errata: list[Erratum] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    seconds: float = 0.0
    error: str | None = None
    traceback: str | None = None

    def add(self, evidence: Evidence) -> None:
        """Files a piece of evidence."""
        if isinstance(evidence, Check):
            self.checks.append(evidence)
        elif isinstance(evidence, Erratum):
            self.errata.append(evidence)
        else:
            self.tables.append(evidence)

    def all_checks(self) -> list[Check]:
        """The checks of the statement, then those of the errata."""
        nested = ((erratum.refutation, *erratum.verification) for erratum in self.errata)
        return [*self.checks, *(check for checks in nested for check in checks)]

    @property
    def verdict(self) -> Verdict:
        """``"holds"`` as printed, ``"corrected"`` if some of it holds as corrected, or ``"fails"``.

        A claim also fails if a counterexample no longer is one, and if nothing was measured.
        """
        checks = self.all_checks()
        if self.error is not None or not checks or not all(check.passed for check in checks):
            return "fails"
        return "corrected" if self.errata else "holds"

    @property
    def headline(self) -> Check | None:
        """The first check that failed, or the first of all."""
        checks = self.all_checks()
        failed = [check for check in checks if not check.passed]
        return next(iter(failed or checks), None)

    def __str__(self) -> str:
        lines = [f"{self.name} ({self.where}): {self.verdict}"]
        lines += [f"ended by {self.error}"] if self.error else []
        lines += [f"{'✓' if check.passed else '✗'} {check}" for check in self.all_checks()]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for machines; numbers that JSON lacks are strings."""
        headline = self.headline
        return {
            "name": self.name,
            "where": self.where,
            "statement": self.statement,
            "verdict": self.verdict,
            "measured": None if headline is None else headline.measured,
            "residual": None if headline is None else _plain(headline.value),
            "relation": None if headline is None else headline.relation,
            "bound": None if headline is None else _plain(headline.bound),
            "seconds": round(self.seconds, 3),
            "error": self.error,
            "traceback": self.traceback,
            "checks": [_check_data(check) for check in self.checks],
            "errata": [
                {
                    **{k: v for k, v in asdict(e).items() if isinstance(v, str)},
                    "refutation": _check_data(e.refutation),
                    "verification": [_check_data(check) for check in e.verification],
                }
                for e in self.errata
            ],
            "tables": [_plain(asdict(table)) for table in self.tables],
        }


def _check_data(check: Check) -> dict[str, Any]:
    return {**{k: _plain(v) for k, v in asdict(check).items()}, "passed": check.passed}


def _plain(value: Any) -> Any:
    """``value`` with nothing in it that JSON cannot hold."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


Measure = Callable[..., Iterator[Evidence]]
Plot = Callable[[Sequence[Table]], "Figure"]


@dataclass(frozen=True)
class Claim:
    """A statement of the paper that can be run.

    Args:
        name: The paper's label, where it has one.
        where: Its place in the paper.
        statement: What it states, in a few words.
        measure: Yields the evidence; its keywords are graphs, sizes and seeds.
        plot: Draws a picture of the tables. (default: none)
    """

    name: str
    where: str
    statement: str
    measure: Measure
    plot: Plot | None = None

    @property
    def __signature__(self) -> inspect.Signature:
        """That of the measuring function, for ``help`` and editors."""
        return inspect.signature(self.measure).replace(return_annotation=Report)

    def __call__(self, **settings: Any) -> Report:
        """Runs the claim; what goes wrong on the way is part of the report.

        Args:
            settings: Keywords of the measuring function. (default: those of ``bunn verify``)

        Raises:
            TypeError: If it has no such keyword.
            SettingsError: If the claim says nothing about what it is given.
        """
        inspect.signature(self.measure).bind(**settings)  # a mistaken keyword is no failed claim
        for name in ("graphs", "regular"):
            if name in settings:
                check_graphs(settings[name], name)
        report = Report(self.name, self.where, self.statement)
        start = time.perf_counter()
        try:
            with torch.random.fork_rng(devices=[]):  # layers start at random weights
                torch.manual_seed(settings.get("seed", 0))
                for evidence in self.measure(**settings):
                    report.add(evidence)
        except SettingsError:
            raise
        except Exception as error:  # a broken layer must turn its claims red, not end the run
            report.error = f"{type(error).__name__}: {error}"
            report.traceback = traceback.format_exc()
        report.seconds = time.perf_counter() - start
        return report


def claim(
    name: str, where: str, statement: str, plot: Plot | None = None
) -> Callable[[Measure], Claim]:
    """Turns a function that yields evidence into a :class:`Claim`."""

    def decorate(measure: Measure) -> Claim:
        return Claim(name, where, statement, measure, plot)

    return decorate
