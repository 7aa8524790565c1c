"""``bunn bench``: the benchmarks, as ratios."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bunn.names import did_you_mean

if TYPE_CHECKING:
    from types import ModuleType

#: The clone of the repository that this package is run from, if it is.
CLONE = Path(__file__).parents[2]


def bench(
    name: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Of a benchmark, or gpu for all that need a GPU."),
    ] = None,
    list_all: Annotated[bool, typer.Option("--list", help="List them, and run none.")] = False,
) -> None:
    """Measure how fast this is, against what else there is.

    Results go to benchmarks/results/NAME.json, and the pages in docs/ are written anew.
    """
    runner = _runner()
    names = runner.expand(name or [])
    for given in names:
        if given not in runner.BENCHMARKS:
            hint = did_you_mean(given, runner.BENCHMARKS, "; ") or "."
            known = ", ".join((*runner.BENCHMARKS, *runner.GROUPS))
            raise typer.BadParameter(f"there is no benchmark {given!r}{hint} There are: {known}")
    if list_all or not names:
        for known, benchmark in runner.BENCHMARKS.items():
            print(f"{known:15} {benchmark.about}")
        return
    raise typer.Exit(runner.main(names))


def _runner() -> ModuleType:
    """``benchmarks``, which is not part of the package but lies beside it in a clone."""
    if not (CLONE / "benchmarks" / "__main__.py").is_file():
        print(
            "bunn: benchmarks are run from a clone of the repository; clone it, and install it "
            "with pip install -e '.[train]'",
            file=sys.stderr,
        )
        raise typer.Exit(1)
    sys.path.insert(0, str(CLONE))
    import benchmarks.__main__ as runner  # noqa: PLC0415

    return runner
