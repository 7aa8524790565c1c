"""``bunn verify``: the paper's claims, checked."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from bunn import __version__
from bunn.names import did_you_mean

if TYPE_CHECKING:
    from bunn.theory import Claim, Report


def verify(
    claim: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Run one claim, with its details and plot; may be repeated."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the results as JSON, for machines.")
    ] = False,
    seed: Annotated[
        int, typer.Option(help="Of the random features, maps and weights.", min=0, max=2**63 - 1)
    ] = 0,
    plot: Annotated[
        Path | None,
        typer.Option(help="Where to write the plot.", show_default="bunn-NAME.png"),
    ] = None,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Write no plot.")] = False,
) -> None:
    """Check the paper's claims numerically, one by one.

    Exits with 1 if a claim fails.
    """
    import torch  # noqa: PLC0415

    from bunn.theory import CLAIMS  # noqa: PLC0415
    from bunn.theory.report import print_details, print_summary, run_claims  # noqa: PLC0415

    chosen = _claims(claim or [])
    if plot is not None and no_plot:
        raise typer.BadParameter("--plot and --no-plot exclude each other")
    if plot is not None and plot.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise typer.BadParameter(f"--plot {plot} has no known format; use .png, .svg or .pdf")
    if plot is not None and (len(chosen) != 1 or chosen[0].plot is None):
        drawn = ", ".join(name for name, entry in CLAIMS.items() if entry.plot is not None)
        raise typer.BadParameter(f"--plot needs one --claim that has a plot: {drawn}")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # where the terminal knows no Greek
    torch.set_num_threads(1)  # matrices this small are slower on several
    reports = run_claims(chosen, seed, Console(stderr=True))
    if as_json:
        json.dump(_as_data(reports, seed), sys.stdout, indent=2)
        print()
    console = Console(quiet=as_json, width=None if sys.stdout.isatty() else 200)
    if not claim:
        print_summary(reports, console)
    for entry, report in zip(chosen, reports, strict=True):
        if claim:
            print_details(report, console)
        if claim and not no_plot and not (as_json and plot is None):
            _write_plot(entry, report, plot, console)
    if any(report.verdict == "fails" for report in reports):
        raise typer.Exit(1)


def _claims(names: list[str]) -> list[Claim]:
    """The claims called ``names``, all if there are none."""
    from bunn.theory import CLAIMS  # noqa: PLC0415

    for name in names:
        if name not in CLAIMS:
            hint = did_you_mean(name, CLAIMS, "; ") or "."
            known = ", ".join(CLAIMS)
            raise typer.BadParameter(f"there is no claim {name!r}{hint} There are: {known}")
    return [CLAIMS[name] for name in names or CLAIMS]


def _as_data(reports: list[Report], seed: int) -> dict[str, object]:
    import torch  # noqa: PLC0415

    return {
        "command": "bunn verify",
        "version": __version__,
        "torch": torch.__version__,
        "seed": seed,
        "passed": all(report.verdict != "fails" for report in reports),
        "seconds": round(sum(report.seconds for report in reports), 3),
        "claims": [report.as_dict() for report in reports],
    }


def _write_plot(claim: Claim, report: Report, path: Path | None, console: Console) -> None:
    """Draws a claim's tables; a plot nobody asked for may be missing, with a word on why."""
    if claim.plot is None or not report.tables:
        return
    from bunn.theory.drawing import save  # noqa: PLC0415

    target = path or Path(f"bunn-{claim.name}.png")
    try:
        figure = claim.plot(report.tables)
        save(figure, target)
    except (ModuleNotFoundError, OSError) as error:
        print(f"no plot was written to {target}: {error}", file=sys.stderr)
        if path is not None:
            raise typer.Exit(2) from error
        return
    console.print(f"plot: {target}", markup=False)
