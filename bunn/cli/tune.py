"""``bunn tune``: a search for the configuration that validates best."""

from __future__ import annotations

import math
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from bunn.cli.datasets import DataRoot
from bunn.cli.train import DeviceName, ModelName, command_line, parse_range

if TYPE_CHECKING:
    from optuna import Study

    from bunn.experiments.studies import Search

#: Trials that are printed.
SHOWN = 5


def tune(
    dataset: Annotated[str, typer.Argument(help="A name that bunn datasets lists.")],
    model: ModelName = "bunn",
    preset: Annotated[str | None, typer.Option(help="A named configuration to start from.")] = None,
    fixed: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="SECTION.OPTION=VALUE", help="What is not searched; repeatable."
        ),
    ] = None,
    searches: Annotated[
        list[str] | None,
        typer.Option(
            "--search",
            metavar="SECTION.OPTION=SPACE",
            help="Such as model.num_layers=1..8, model.maps=o2,rotation, 'optimizer.lr=1e-5..1e-2 "
            "log' or 'model.hidden_channels=64..512 step 64'; repeatable.",
            show_default="learning rate, decay, width, depth, dropout",
        ),
    ] = None,
    trials: Annotated[int, typer.Option(help="How many this call adds.", min=0)] = 50,
    splits: Annotated[
        str | None, typer.Option(help="Such as 0, 0-4, 1,3 or all.", show_default="0-2, if so many")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Such as 0, 0-3 or 1,3; for every split.")] = "0",
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="PATH_OR_URL",
            help="A file or database; all who name it share the study.",
            show_default="RUNS/tune/DATASET-MODEL.log",
        ),
    ] = None,
    study: Annotated[
        str | None, typer.Option(help="Its name there.", show_default="DATASET-MODEL")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Start no trial after that.", min=0, show_default="no end")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(help="Processes at once.", min=1, show_default="one per core; one on a GPU"),
    ] = None,
    device: Annotated[DeviceName, typer.Option(help="Where.")] = DeviceName.AUTO,
    data_root: DataRoot = None,
    sampler_seed: Annotated[
        int | None,
        typer.Option(help="With one job, the same trials again.", min=0, show_default="random"),
    ] = None,
    evaluate: Annotated[
        bool,
        typer.Option("--evaluate", help="Then train the best on all splits, and test it, once."),
    ] = False,
    runs: Annotated[
        Path, typer.Option(help="Where studies and the runs of --evaluate are kept.")
    ] = Path("runs"),
    results: Annotated[Path, typer.Option(help="Where result files go.")] = Path("results"),
) -> None:
    """Search for the configuration that validates best; no test metric is looked at."""
    from bunn.cli.errors import (  # noqa: PLC0415
        ensure_writable,
        explained,
        tolerate_any_terminal,
        writing,
    )

    _require_optuna()
    from bunn.data import load_dataset  # noqa: PLC0415
    from bunn.experiments import tuning  # noqa: PLC0415
    from bunn.experiments.jobs import default_workers  # noqa: PLC0415
    from bunn.experiments.presets import find_preset  # noqa: PLC0415
    from bunn.experiments.spaces import default_spaces, parse_spaces  # noqa: PLC0415
    from bunn.experiments.studies import Search, open_study  # noqa: PLC0415
    from bunn.training import LiveDisplay  # noqa: PLC0415
    from bunn.training.watch import SearchDisplay  # noqa: PLC0415

    tolerate_any_terminal()
    console = Console(stderr=True)
    with explained():
        fixed = fixed or []
        name, config = find_preset(dataset, model, preset, fixed)
        count = load_dataset(dataset, data_root, config.data).num_splits
        chosen = parse_range(splits or f"0-{min(count or 3, 3) - 1}", "--splits", count)
        left = [setting.partition("=")[0].strip() for setting in fixed]
        search = Search(
            config,
            parse_spaces(config, searches, left) if searches else default_spaces(config, left),
            tuple(chosen),
            tuple(parse_range(seeds, "--seeds")),
            storage or str(runs / "tune" / f"{dataset}-{model}.log"),
            study or f"{dataset}-{model}",
            device,
            data_root,
            sampler_seed,
        )
        ensure_writable(results / tuning.experiment_of(dataset) / "tuning", "--results")
        with SearchDisplay(console, trials) as display:
            tuning.add_trials(
                search,
                trials,
                jobs=jobs or default_workers(device),
                watcher=display,
                minutes=minutes,
            )
        found = open_study(search)
        with writing(results, "--results"):
            path = tuning.write_trials(search, found, results, command_line())
        printed = Console(width=None if sys.stdout.isatty() else 120)
        print_trials(search, found, printed)
        say(printed, f"trials: {path}")
        again = ["bunn", "train", dataset, "--model", model, "--preset", name]
        print_best(found, [*again, *as_options(fixed)], printed)
        if evaluate:
            every = chosen if count is None else range(count)
            with LiveDisplay(console) as live:
                result = tuning.evaluate(
                    search,
                    found,
                    every,
                    command=command_line(),
                    runs=runs,
                    results=results,
                    watcher=live,
                )
            with writing(results, "--results"):
                path = result.write(results)
            spread = f"{result.test_mean:.4f} ± {result.test_std:.4f}"
            say(printed, f"test {result.metric} {spread} over {len(result.test)} runs: {path}")


def _require_optuna() -> None:
    try:
        import optuna  # noqa: F401, PLC0415
    except ModuleNotFoundError as error:
        print("bunn: bunn tune needs optuna; pip install 'bunn[tune]'", file=sys.stderr)
        raise typer.Exit(1) from error


def print_trials(search: Search, study: Study, console: Console) -> None:
    """The best trials, and how many there are of every kind."""
    from bunn.experiments.studies import best_trials, settings  # noqa: PLC0415
    from bunn.experiments.tuning import counts  # noqa: PLC0415

    table = Table("trial", f"validation {search.metric}", "chosen", "seconds")
    for trial in best_trials(study)[:SHOWN]:
        seconds = trial.user_attrs.get("seconds", math.nan)
        chosen = {name: _short(value) for name, value in trial.params.items()}
        row = (str(trial.number), f"{trial.value:.4f}", "  ".join(settings(chosen)))
        table.add_row(*row, f"{seconds:.1f}")
    console.print(table, markup=False, highlight=False)
    found = counts(study)
    words = [f"{found[state]} {state}" for state in ("complete", "pruned", "failed")]
    if found["under way"]:
        words.append(f"{found['under way']} under way")
    say(console, f"{found.total()} trials: {', '.join(words)}")


def print_best(study: Study, command: list[str], console: Console) -> None:
    """What to type to train the best configuration."""
    from bunn.experiments.studies import best_trials, settings  # noqa: PLC0415

    if best := best_trials(study):
        say(console, f"best: {shlex.join([*command, *as_options(settings(best[0].params))])}")


def as_options(settings: list[str]) -> list[str]:
    """``--set`` before each of them."""
    return [word for setting in settings for word in ("--set", setting)]


def say(console: Console, text: str) -> None:
    """A line as it is."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _short(value: object) -> object:
    return f"{value:.4g}" if isinstance(value, float) else value
