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
VERDICTS = ROOT / "results" / "theory" / "verify.json"
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


def main() -> None:
    measure()
    PAGE.write_text(page(PAGE.read_text(), json.loads(VERDICTS.read_text())))
    draw()


if __name__ == "__main__":
    main()
