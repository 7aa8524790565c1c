"""Brings the pages up to date from running code: the verdicts of ``bunn verify``, every figure.

Run with ``make docs``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "docs" / "figures"
RESULTS = ROOT / "results"
VERDICTS = RESULTS / "theory" / "verify.json"
PAGE = ROOT / "docs" / "theory.md"
RELATIONS = {"<=": "≤", ">=": "≥"}


def measure() -> None:
    """Runs ``bunn verify --json`` and keeps what it says."""
    command = [sys.executable, "-m", "bunn", "verify", "--json"]
    result = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    VERDICTS.parent.mkdir(parents=True, exist_ok=True)
    VERDICTS.write_text(result.stdout)


def verdict_table(data: dict[str, Any]) -> str:
    """The lines of ``bunn verify`` as a table, with the residual of each claim."""
    lines = ["| claim | where | measured | residual | verdict |", "|---|---|---|---|---|"]
    for claim in data["claims"]:
        cells = (
            f"`{claim['name']}`",
            claim["where"],
            claim["measured"].replace("|", "\\|"),
            f"{claim['residual']:.2g} {RELATIONS[claim['relation']]} {claim['bound']:.2g}",
            claim["verdict"],
        )
        lines.append(f"| {' | '.join(cells)} |")
    errata = sum(len(claim["errata"]) for claim in data["claims"])
    lines += [
        "",
        f"{len(data['claims'])} claims and {errata} [errata](errata.md), by `bunn verify` "
        f"{data['version']} with torch {data['torch']} in {data['seconds']:.0f} s; all "
        "measurements are in `results/theory/verify.json`. `make docs` writes this table anew.",
    ]
    return "\n".join(lines)


def page(text: str, data: dict[str, Any]) -> str:
    """``theory.md`` with its table from ``data``."""
    begin, end = "<!-- begin: verdicts -->", "<!-- end: verdicts -->"
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n{verdict_table(data)}\n{end}{after}"


def draw() -> None:
    """Every figure: those of the claims, the paper's two, and those of the diagnostics page."""
    import torch  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    from bunn.theory import CLAIMS  # noqa: PLC0415
    from bunn.theory.drawing import save  # noqa: PLC0415
    from bunn.theory.figures import laplacians_figure, message_diffusion_figure  # noqa: PLC0415

    torch.set_num_threads(1)
    FIGURES.mkdir(exist_ok=True)
    for name, claim in CLAIMS.items():
        if claim.plot is not None:
            save(claim.plot(claim().tables), FIGURES / f"{name}.svg")
    save(laplacians_figure(), FIGURES / "laplacians.svg")
    save(message_diffusion_figure(), FIGURES / "message-diffusion.svg")
    blocks = re.findall(r"```python\n(.*?)```", (PAGE.parent / "diagnostics.md").read_text(), re.S)
    scope: dict[str, Any] = {}
    exec("\n".join(blocks), scope)
    for name, value in scope.items():
        if name.endswith("_figure") and isinstance(value, Figure):
            stem = name.removesuffix("_figure").replace("_", "-")
            save(value, FIGURES / f"diagnostics-{stem}.svg")


def draw_results() -> None:
    """The figures of the experiments, from their result files."""
    from bunn.experiments.pictures import bundle_figure  # noqa: PLC0415
    from bunn.experiments.plots import depth_figure, strokes_for  # noqa: PLC0415
    from bunn.experiments.published import PUBLISHED  # noqa: PLC0415
    from bunn.experiments.results import read_results  # noqa: PLC0415
    from bunn.theory.drawing import save  # noqa: PLC0415

    results = read_results(RESULTS)
    bundles = [result for result in results if "bundle" in result.extra]
    if bundles:
        save(bundle_figure(bundles), FIGURES / "synthetic.svg")
    trees = [result for result in results if result.experiment == "neighborsmatch"]
    if trees:
        printed = [entry.model for entry in PUBLISHED if entry.experiment == "neighborsmatch"]
        strokes = strokes_for([*printed, *(result.model for result in trees)])
        save(depth_figure(trees, strokes, named=True), FIGURES / "neighborsmatch.svg")


def refresh_tables() -> None:
    """The tables of all pages, from the result files, and the pages on speed."""
    from benchmarks import performance, report  # noqa: PLC0415
    from bunn.experiments.embedding import refresh  # noqa: PLC0415

    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        refresh(path, RESULTS)
    performance.main()
    report.main()


def main() -> None:
    measure()
    PAGE.write_text(page(PAGE.read_text(), json.loads(VERDICTS.read_text())))
    draw()
    draw_results()
    refresh_tables()


if __name__ == "__main__":
    main()
