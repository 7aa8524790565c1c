"""``bunn tune``: a search for the configuration that validates best."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from bunn.cli.datasets import DataRoot
from bunn.cli.train import DeviceName, ModelName, command_line, parse_range

if TYPE_CHECKING:
    from bunn.experiments.attempts import Attempts
    from bunn.experiments.evaluation import Chosen
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
    tries: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            metavar="'SECTION.OPTION=VALUE ...'",
            help="Not a search, but a configuration of your own, by what it changes; repeatable.",
        ),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help="How many this call adds.", min=0, show_default="50")
    ] = None,
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
        str | None,
        typer.Option(
            help="Its name there.", show_default="DATASET-MODEL, or DATASET-MODEL-by-hand"
        ),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Start no trial after that.", min=0, show_default="no end")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(help="Processes at once.", min=1, show_default="one per core; one on a GPU"),
    ] = None,
    device: Annotated[DeviceName, typer.Option(help="Where to train.")] = DeviceName.AUTO,
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
    """Search for the configuration that validates best; test metrics are for --evaluate alone."""
    from bunn.cli.errors import (  # noqa: PLC0415
        ensure_writable,
        explained,
        tolerate_any_terminal,
        writing,
    )

    only_of_searches = {
        "--search": searches,
        "--trials": trials,
        "--storage": storage,
        "--minutes": minutes,
        "--sampler-seed": sampler_seed,
    }
    given = [option for option, value in only_of_searches.items() if value not in (None, [])]
    if tries and given:
        raise typer.BadParameter(f"--try and {given[0]} exclude each other; leave one out")
    if not tries:
        _require_optuna()
    from bunn.data import load_dataset  # noqa: PLC0415
    from bunn.experiments import evaluation  # noqa: PLC0415
    from bunn.experiments.attempts import Attempts  # noqa: PLC0415
    from bunn.experiments.jobs import default_workers  # noqa: PLC0415
    from bunn.experiments.presets import find_preset  # noqa: PLC0415
    from bunn.experiments.spaces import default_spaces, parse_spaces  # noqa: PLC0415
    from bunn.experiments.studies import Search  # noqa: PLC0415
    from bunn.training import LiveDisplay  # noqa: PLC0415

    tolerate_any_terminal()
    console, printed = Console(stderr=True), Console(width=None if sys.stdout.isatty() else 120)
    with explained():
        fixed = fixed or []
        name, config = find_preset(dataset, model, preset, fixed)
        count = load_dataset(dataset, data_root, config.data).num_splits
        shared: dict[str, Any] = {
            "config": config,
            "splits": tuple(
                parse_range(splits or f"0-{min(count or 3, 3) - 1}", "--splits", count)
            ),
            "seeds": tuple(parse_range(seeds, "--seeds")),
            "device": device,
            "data_root": data_root,
        }
        workers = jobs or default_workers(device)
        question: Attempts | Search
        if tries:
            named = study or f"{dataset}-{model}-by-hand"
            question = Attempts(
                **shared,
                study=named,
                changes=tuple(tuple(shlex.split(text)) for text in tries),
                runs=runs / "tune" / named,
            )
            ensure_writable(question.file(results).parent, "--results")
            chosen = _try(question, workers, results, console, printed)
        else:
            left = [setting.partition("=")[0].strip() for setting in fixed]
            question = Search(
                **shared,
                study=study or f"{dataset}-{model}",
                space=(
                    parse_spaces(config, searches, left)
                    if searches
                    else default_spaces(config, left)
                ),
                storage=storage or str(runs / "tune" / f"{dataset}-{model}.log"),
                sampler_seed=sampler_seed,
            )
            ensure_writable(question.file(results).parent, "--results")
            added = 50 if trials is None else trials
            chosen = _search(question, added, minutes, workers, results, console, printed)
        again = ["bunn", "train", dataset, "--model", model, "--preset", name, *as_options(fixed)]
        if question.pairs != [(0, 0)]:
            again += ["--splits", ",".join(map(str, question.splits))]
            again += ["--seeds", ",".join(map(str, question.seeds))]
        print_best(chosen, again, printed)
        if evaluate:
            with LiveDisplay(console) as live:
                result = evaluation.evaluate(
                    question,
                    chosen,
                    question.final_runs(count),
                    command=command_line(),
                    runs=runs,
                    results=results,
                    watcher=live,
                )
            with writing(results, "--results"):
                path = result.write(results)
            spread = f"{result.test_mean:.4f} ± {result.test_std:.4f}"
            say(printed, f"test {result.metric} {spread} over {len(result.test)} runs: {path}")


def _search(
    search: Search,
    trials: int,
    minutes: float | None,
    jobs: int,
    results: Path,
    console: Console,
    printed: Console,
) -> Chosen | None:
    """Adds trials to a study, writes down all that it has, and prints the best."""
    from bunn.cli.errors import writing  # noqa: PLC0415
    from bunn.experiments import tuning  # noqa: PLC0415
    from bunn.experiments.studies import best_trials, open_study  # noqa: PLC0415
    from bunn.training.watch import SearchDisplay  # noqa: PLC0415

    tuning.check_file(search, open_study(search), results)
    with SearchDisplay(console, trials) as display:
        tuning.add_trials(search, trials, jobs=jobs, watcher=display, minutes=minutes)
    study = open_study(search)
    with writing(results, "--results"):
        path = tuning.write_trials(search, study, results, command_line())
    best = [
        (trial.number, trial.value or 0.0, trial.params, trial.user_attrs.get("seconds", math.nan))
        for trial in best_trials(study)
    ]
    print_trials(search.metric, best, printed)
    found = tuning.counts(study)
    states = ["complete", "pruned", "failed"]
    states += [state for state in ("impossible", "under way") if found[state]]
    words = [f"{found[state]} {state}" for state in states]
    say(printed, f"{counted(found.total(), 'trial')}: {', '.join(words)}")
    for reason in tuning.reasons(study)[:SHOWN]:
        say(printed, f"no value: {reason}")
    say(printed, f"trials: {path}")
    return tuning.chosen(search, study)


def _try(
    attempts: Attempts, jobs: int, results: Path, console: Console, printed: Console
) -> Chosen | None:
    """Trains configurations that are given, writes down what came of them, and prints the best."""
    from bunn.experiments import attempts as trying  # noqa: PLC0415
    from bunn.training import LiveDisplay  # noqa: PLC0415

    with LiveDisplay(console) as display:
        known, busy = trying.run_attempts(
            attempts, jobs=jobs, watcher=display, results=results, command=command_line()
        )
    ranked = trying.ranked(attempts, known)
    pairs = attempts.pairs
    best = [
        (known.index(each), each.value(pairs), each.params, each.seconds(pairs)) for each in ranked
    ]
    print_trials(attempts.metric, best, printed)
    for each in known:
        if each.reason is not None:
            say(printed, f"trial {known.index(each)} could not be trained: {each.reason}")
    tried = counted(len(known), "configuration")
    say(printed, f"{tried}, {len(ranked)} of them with all runs that were asked for")
    if busy:
        say(printed, f"{counted(busy, 'run')} under way in another process: call again later")
    say(printed, f"trials: {attempts.file(results)}")
    return trying.chosen(attempts, known)


def _require_optuna() -> None:
    try:
        import optuna  # noqa: F401, PLC0415
    except ModuleNotFoundError as error:
        print("bunn: bunn tune needs optuna; pip install 'bunn[tune]'", file=sys.stderr)
        raise typer.Exit(1) from error


def print_trials(
    metric: str, best: Sequence[tuple[int, float, Mapping[str, Any], float]], console: Console
) -> None:
    """The best trials: their numbers, values, what was chosen, and the seconds they took."""
    from bunn.experiments.spaces import settings  # noqa: PLC0415

    table = Table("trial", f"validation {metric}", "chosen", "seconds")
    for number, value, params, seconds in best[:SHOWN]:
        chosen = {name: _short(entry) for name, entry in params.items()}
        words = "  ".join(settings(chosen)) or "(as it is)"
        table.add_row(str(number), f"{value:.4f}", words, f"{seconds:.1f}")
    console.print(table, markup=False, highlight=False)


def print_best(chosen: Chosen | None, command: list[str], console: Console) -> None:
    """What to type to train the best configuration."""
    from bunn.experiments.spaces import settings  # noqa: PLC0415

    if chosen is not None:
        say(console, f"best: {shlex.join([*command, *as_options(settings(chosen.params))])}")


def as_options(settings: list[str]) -> list[str]:
    """``--set`` before each of them."""
    return [word for setting in settings for word in ("--set", setting)]


def counted(count: int, noun: str) -> str:
    """``"1 trial"``, ``"2 trials"``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def say(console: Console, text: str) -> None:
    """A line as it is."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _short(value: object) -> object:
    return f"{value:.4g}" if isinstance(value, float) else value
