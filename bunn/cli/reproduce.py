"""``bunn reproduce``: a table or figure of the paper, ours beside theirs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from bunn.cli.datasets import DataRoot
from bunn.cli.train import MOST, DeviceName, command_line, parse_range

if TYPE_CHECKING:
    from bunn.experiments.request import Request


class Experiment(StrEnum):
    """What can be reproduced."""

    SYNTHETIC = "synthetic"
    NEIGHBORSMATCH = "neighborsmatch"
    HETEROPHILOUS = "heterophilous"
    RUNTIME = "runtime"
    HETEROPHILOUS_ABLATIONS = "heterophilous-ablations"
    LRGB = "lrgb"
    LRGB_RUNTIME = "lrgb-runtime"
    ABLATIONS = "ablations"


def reproduce(
    name: Annotated[Experiment, typer.Argument(help="The experiment.")],
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Synthetic: few models, fewer epochs, one seed."),
    ] = False,
    models: Annotated[
        str | None, typer.Option(help="Such as bunn,gcn.", show_default="all of the table")
    ] = None,
    datasets: Annotated[
        str | None,
        typer.Option(
            help="Heterophilous, runtime: such as minesweeper,tolokers. Lrgb, ablations: such as "
            "peptides-func.",
            show_default="those that are here",
        ),
    ] = None,
    splits: Annotated[
        str | None,
        typer.Option(help="Heterophilous: such as 0-4; more may follow later.", show_default="all"),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            help="How many, or which, such as 2-3 or 1,3; not for heterophilous.",
            show_default="as in the table",
        ),
    ] = None,
    depths: Annotated[
        str | None, typer.Option(help="Neighborsmatch: such as 2-5.", show_default="2-5")
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(help="Of a run; not for synthetic.", min=1, show_default="as in the preset"),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Neighborsmatch: paper; narrow, for a BuNN with 64 channels; long, for message "
            "passing over 10,000 epochs. Heterophilous, lrgb: some of paper,released,tuned,labels. "
            "Heterophilous-ablations: some of them.",
            show_default="paper, or all that a model has",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(help="Processes at once.", min=1, show_default="one per core; one on a GPU"),
    ] = None,
    device: Annotated[
        DeviceName, typer.Option(help="Where to train; not for synthetic.")
    ] = DeviceName.AUTO,
    compile: Annotated[
        bool, typer.Option("--compile", help="Through torch.compile; not for synthetic.")
    ] = False,
    runs: Annotated[
        Path, typer.Option(help="Where runs are recorded; the same command goes on there.")
    ] = Path("runs"),
    results: Annotated[
        Path | None,
        typer.Option(help="Where result files go.", show_default="results, or RUNS/quick"),
    ] = None,
    missing: Annotated[
        bool,
        typer.Option(
            "--missing",
            help="Only runs that the result file does not have, whichever machine measured them; "
            "heterophilous, lrgb and ablations.",
        ),
    ] = False,
    data_root: DataRoot = None,
) -> None:
    """Measure a table or figure of the paper; interrupted, the same command goes on."""
    from bunn.cli.errors import (  # noqa: PLC0415
        ensure_writable,
        explained,
        tolerate_any_terminal,
        writing,
    )
    from bunn.experiments.jobs import run_jobs  # noqa: PLC0415
    from bunn.experiments.reproduce import (  # noqa: PLC0415
        EXPERIMENTS,
        jobs_of,
        workers_for,
        write_picture,
    )
    from bunn.experiments.request import Request  # noqa: PLC0415
    from bunn.experiments.results import read_results  # noqa: PLC0415
    from bunn.experiments.tables import tables_for  # noqa: PLC0415
    from bunn.training import LiveDisplay  # noqa: PLC0415

    tolerate_any_terminal()
    with explained("the same command goes on, --runs names another folder"):
        request = Request(
            experiment=name,
            quick=quick,
            models=parse_names(models, "--models"),
            datasets=parse_names(datasets, "--datasets"),
            splits=tuple(parse_range(splits, "--splits", 10)) if splits is not None else None,
            seeds=parse_seeds(seeds),
            depths=tuple(parse_range(depths, "--depths")) if depths else None,
            epochs=epochs,
            presets=parse_names(preset, "--preset"),
            device=device,
            compile=compile,
            data_root=data_root,
            missing=missing,
            runs=runs / name,
            results=(results or (runs / "quick" if quick else Path("results")))
            / EXPERIMENTS[name].folder,
            command=command_line(),
        )
        work = jobs_of(request)
        ensure_writable(request.runs, "--runs")
        tables = EXPERIMENTS[name].tables or (name,)
        for table in tables:
            ensure_writable(request.results / table, "--results")
        with LiveDisplay(Console(stderr=True)) as display:
            written_to = run_jobs(work, jobs or workers_for(request), display)
        console = Console(width=None if sys.stdout.isatty() else 120)
        for table in tables:
            for found in tables_for(read_results(request.results), table):
                console.print(found.rich())
        if request.splits or request.seeds:
            print_asked(written_to, request, console)
        written = {"results": request.results / tables[0]}
        with writing(request.results, "--results"):
            picture = write_picture(request)
        if picture is not None:
            written["picture"] = picture
        for what, path in written.items():
            console.print(f"{what}: {path}", markup=False, highlight=False, soft_wrap=True)


def print_asked(
    written_to: Sequence[Path | Sequence[Path]], request: Request, console: Console
) -> None:
    """The runs that were asked for, where the table has others beside them."""
    from bunn.experiments.results import Result  # noqa: PLC0415

    for place in written_to:
        for path in [place] if isinstance(place, Path) else place:
            result = Result.read(path)
            runs = [
                f"split {split}, seed {seed}: {test:.4f}"
                for split, seed, test in zip(result.splits, result.seeds, result.test, strict=True)
                if split in (request.splits or [split]) and seed in (request.seeds or [seed])
            ]
            if others := len(result.test) - len(runs):
                text = f"{path.stem}: {'; '.join(runs)} ({others} more in its file)"
                console.print(text, markup=False, highlight=False, soft_wrap=True)


def parse_seeds(text: str | None) -> tuple[int, ...] | None:
    """``"2"`` as the first two, ``"2-2"`` or ``"0,2"`` as these; :obj:`None` for nothing asked."""
    if text is None:
        return None
    seeds = tuple(parse_range(text, "--seeds"))
    if not text.strip().isdecimal():
        return seeds
    if not 1 <= seeds[0] <= MOST:
        raise typer.BadParameter(
            f"--seeds {text}: so many seeds, 1 to {MOST:,}; for seed 0 alone write 0-0"
        )
    return tuple(range(seeds[0]))


def parse_names(text: str | None, option: str) -> tuple[str, ...] | None:
    """``"bunn, gcn"`` as ``("bunn", "gcn")``, each once; :obj:`None` for nothing asked."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if "" in names:
        raise typer.BadParameter(f"{option} {text!r}: write names with commas between, such as a,b")
    return tuple(dict.fromkeys(names))
