"""``bunn train``: one experiment with live progress."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bunn.cli.datasets import DataRoot

if TYPE_CHECKING:
    from bunn.experiments.results import Result
    from bunn.training import Config


class DeviceName(StrEnum):
    """Where a training runs."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


ModelName = Annotated[
    str,
    typer.Option(
        help="bunn, mlp, resnet, gcn, sage, gat, gat-sep, gin, ggnn, gps, gt, gt-sep, nsd, gine, "
        "gatedgcn, drew, exphormer, san or graph-vit."
    ),
]

#: More numbers than this in a range are a slip of the finger.
MOST = 10_000


def train(
    dataset: Annotated[str, typer.Argument(help="A name that bunn datasets lists.")],
    model: ModelName = "bunn",
    preset: Annotated[str | None, typer.Option(help="A named configuration to start from.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="SECTION.OPTION=VALUE", help="Such as model.num_layers=4; repeatable."
        ),
    ] = None,
    splits: Annotated[
        str | None, typer.Option(help="Such as 0, 0-4, 1,3 or all.", show_default="0")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Such as 0, 0-3 or 1,3; for every split.", show_default="0")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="The run folder.", show_default="runs/DATASET-MODEL-PRESET"),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on in the run folder.")] = False,
    device: Annotated[DeviceName, typer.Option(help="Where to train.")] = DeviceName.AUTO,
    threads: Annotated[
        int | None, typer.Option(help="Threads of a CPU.", min=1, show_default="all cores")
    ] = None,
    compile: Annotated[
        bool, typer.Option("--compile", help="Through torch.compile: a slow start, faster steps.")
    ] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write events for TensorBoard.")
    ] = False,
    data_root: DataRoot = None,
) -> None:
    """Train a model on a dataset, for several splits and seeds if asked."""
    import torch  # noqa: PLC0415

    from bunn.cli.errors import explained, tolerate_any_terminal, writing  # noqa: PLC0415
    from bunn.data import load_dataset  # noqa: PLC0415
    from bunn.experiments.measure import measure  # noqa: PLC0415
    from bunn.experiments.presets import find_preset  # noqa: PLC0415
    from bunn.files import as_json, write_atomically  # noqa: PLC0415
    from bunn.training import LiveDisplay  # noqa: PLC0415
    from bunn.training.record import RunFolder, runs_of  # noqa: PLC0415

    tolerate_any_terminal()
    console = Console(stderr=True)
    with explained("--resume goes on in a folder, --output names another"):
        name, config = find_preset(dataset, model, preset, settings or ())
        folder = output or Path("runs") / f"{dataset}-{model}-{name}"
        if resume:
            if not (folder / "config.json").is_file():
                console.print(f"{folder} holds no run to go on with: starting one", markup=False)
            config = resumed_config(folder, config, settings or ())
        if threads is not None:
            torch.set_num_threads(threads)
        count = load_dataset(dataset, data_root, config.data).num_splits
        pairs = [
            (split, seed)
            for split in parse_range(splits or "0", "--splits", count)
            for seed in parse_range(seeds or "0", "--seeds")
        ]
        if resume and splits is None and seeds is None:
            pairs = runs_of(folder) or pairs
        RunFolder(folder, runs=pairs).check(config, resume)
        print_config(config, console)
        with LiveDisplay(console) as display:
            result = measure(
                config,
                pairs,
                experiment="train",
                preset=name,
                command=command_line(),
                folder=folder,
                watcher=display,
                resume=resume,
                device=device,
                data_root=data_root,
                tensorboard=tensorboard,
                compile=compile,
            )
        with writing(folder / "result.json", "--output"):
            write_atomically(folder / "result.json", as_json(result.as_dict()) + "\n")
        print_result(result, Console(), folder)


def resumed_config(folder: Path, config: Config, settings: Sequence[str]) -> Config:
    """The configuration that a run folder was started with, and what is set now.

    It is ``config`` if the folder holds none for this dataset and model: then training says so.
    """
    from bunn.training import Config  # noqa: PLC0415

    try:
        before = Config.from_dict(json.loads((folder / "config.json").read_text()))
    except (OSError, ValueError, AttributeError):
        return config
    if (before.dataset, before.architecture) != (config.dataset, config.architecture):
        return config
    return before.override(settings)


def parse_range(text: str, option: str, count: int | None = None) -> list[int]:
    """``"0-2,5"`` as ``[0, 1, 2, 5]``; ``"all"`` as all ``count`` there are."""
    if text == "all":
        if count is None:
            raise typer.BadParameter(f"{option} all: there is no end to them; say how many: 0-9")
        return list(range(count))
    values: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise typer.BadParameter(f"{option} {text}: write numbers such as 0, 0-4 or 1,3")
        numbers = range(int(first), int(last if dash else first) + 1)
        if len(values) + len(numbers) > MOST:
            raise typer.BadParameter(f"{option} {text}: these are more than {MOST:,} numbers")
        values += numbers
        if not numbers:
            raise typer.BadParameter(
                f"{option} {text}: write the smaller one first: {last}-{first}"
            )
    if len(set(values)) != len(values):
        raise typer.BadParameter(f"{option} {text}: write every number once")
    if count is not None and max(values) >= count:
        there = f"there are {count}, 0 to {count - 1}" if count > 1 else "there is one, 0"
        raise typer.BadParameter(f"{option} {text}: {there}")
    return values


def command_line() -> str:
    """What was typed."""
    return shlex.join(["bunn", *sys.argv[1:]])


def print_config(config: Config, console: Console) -> None:
    """The effective configuration, a section to a line."""
    table = Table.grid(padding=(0, 2))
    for section, values in config.as_dict().items():
        options = values
        if isinstance(values, dict):
            options = "  ".join(f"{key}={value}" for key, value in values.items()) or "-"
        table.add_row(f"[bold]{section}[/bold]", escape(str(options)))
    console.print(table, highlight=False)


def print_result(result: Result, console: Console, folder: Path) -> None:
    """What came out, a run to a line, and where it is."""
    table = Table("run", result.metric, "validation", "best epoch")
    for index, (split, seed) in enumerate(zip(result.splits, result.seeds, strict=True)):
        table.add_row(
            f"split {split}, seed {seed}",
            f"{result.test[index]:.4f}",
            f"{result.val[index]:.4f}",
            str(result.extra["best_epoch"][index]),
        )
    console.print(table)
    count = len(result.test)
    spread = f" ± {result.test_std:.4f} over {count} runs" if count > 1 else ""
    console.print(
        f"{result.part} {result.metric} {result.test_mean:.4f}{spread}; everything is in {folder}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
