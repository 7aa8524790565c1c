"""What a request asks of an experiment whose cells are datasets, models and presets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from bunn.data import DATASETS, data_root
from bunn.experiments.measure import apart, combined, measure_split_by_split
from bunn.experiments.request import Request
from bunn.experiments.results import Result
from bunn.training import Config, ConfigError
from bunn.training.options import nearest
from bunn.training.record import differences
from bunn.training.watch import Progressed, Watcher


def datasets_asked(request: Request, known: Sequence[str], usual: Sequence[str]) -> tuple[str, ...]:
    """Those asked for, all of which are ``known``; or those of the ``usual`` that are here."""
    for dataset in request.datasets or ():
        if dataset not in known:
            hint = nearest(dataset, known)
            raise ConfigError(f"--datasets: there is no {dataset!r} here; {hint}")
    if request.datasets:
        return request.datasets
    root = data_root(request.data_root)
    present = tuple(name for name in usual if DATASETS[name].is_present(root))
    if not present:
        DATASETS[usual[0]].require(root)
    return present


def presets_asked(
    request: Request, dataset: str, model: str, there: Sequence[str]
) -> Sequence[str]:
    """Those asked for of the presets that a model has on a dataset, or all of them."""
    if request.presets is None:
        return there
    found = [name for name in there if name in request.presets]
    if found or model != "bunn":  # others stand beside it as they are
        return found or there[:1]
    asked = ",".join(request.presets)
    raise ConfigError(
        f"--preset {asked}: there is none for bunn on {dataset}; {nearest(asked, there)}"
    )


def measured(
    watcher: Watcher,
    config: Config,
    runs: Sequence[tuple[int, int]],
    experiment: str,
    name: str,
    request: Request,
    called: str | None = None,
    recorded: str | None = None,
) -> Iterator[Result]:
    """Trains as was asked for, a run at a time, and says after each what there is.

    The model is ``called`` so in the table, or by its own name; and so is the folder in which it is
    ``recorded``, unless another has the same runs.

    With other epochs a preset is another one, and is called so. Runs of the same configuration that
    the result file has already, from another machine say, stay in it until they are done again;
    where only what is missing was asked for, they are not.
    """
    if request.epochs not in (None, config.training.epochs):
        warmup = min(config.schedule.warmup, request.epochs)
        config = replace(
            config,
            schedule=replace(config.schedule, warmup=warmup),
            training=replace(config.training, epochs=request.epochs),
        )
        name = f"{name}-{request.epochs}-epochs"
    called = called or config.architecture
    stem = f"{config.dataset}-{called}-{name}"
    folder = request.runs / f"{config.dataset}-{recorded or called}-{name}"
    there = {f"split{split}-seed{seed}" for split, seed in runs}
    there |= {place.parent.name for place in folder.glob("*/result.json")}
    file = request.results / experiment / f"{stem}.json"
    before = _measured_before(file, config, there)
    if request.missing:
        _check_same(file, config)
        for split, seed in before:
            if (split, seed) in runs:
                epochs = config.training.epochs
                watcher(Progressed(f"split{split}-seed{seed}", epochs, epochs, finished=True))
        runs = [run for run in runs if run not in before]
        if not runs:
            yield Result.read(file)
            return
    for result in measure_split_by_split(
        config,
        runs,
        experiment=experiment,
        preset=name,
        command=request.command,
        folder=folder,
        watcher=watcher,
        device=request.device,
        data_root=request.data_root,
        compile=request.compile,
    ):
        done = set(zip(result.splits, result.seeds, strict=True))
        kept = [run for pair, run in before.items() if pair not in done]
        yield replace(combined([*apart(result), *kept]) if kept else result, model=called)


def _check_same(file: Path, config: Config) -> None:
    """What is missing to a result of another configuration is everything, and would replace it."""
    if file.is_file():
        before = Config.completed(Result.read(file).options)
        if changed := sorted(differences(before, config.as_dict())):
            raise ConfigError(
                f"--missing: {file} is of another configuration: {'; '.join(changed)}; "
                "move it, or choose another place with --results"
            )


def _measured_before(path: Path, config: Config, there: set[str]) -> dict[tuple[int, int], Result]:
    """The runs of a result of the same configuration, one by one; of times, all are ``there``."""
    if not path.is_file():
        return {}
    before = Result.read(path)
    if Config.completed(before.options) != config.as_dict():
        return {}
    pairs = list(zip(before.splits, before.seeds, strict=True))
    if before.metric == DATASETS[config.dataset].task.metric:
        return dict(zip(pairs, apart(before), strict=True))
    if lost := [name for name in (f"split{s}-seed{t}" for s, t in pairs) if name not in there]:
        raise ConfigError(
            f"{path} has {', '.join(lost)}, which was timed before; times of different machines "
            "are not mixed: ask for all of them, or choose another place with --results"
        )
    return {}
