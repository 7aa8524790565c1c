"""Docs that run: every Python block of every page, and the pages that are generated."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bunn
from bunn.data import DATASETS
from bunn.experiments.embedding import is_current
from bunn.theory import CLAIMS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("page", [p for p in PAGES if python_blocks(p)], ids=lambda p: p.name)
def test_code_of_a_page_runs(page):
    """The blocks of one page, in order, as one program; datasets that it registers are its own."""
    known = dict(DATASETS)
    try:
        exec(compile("\n".join(python_blocks(page)), str(page), "exec"), {})
    finally:
        DATASETS.clear()
        DATASETS.update(known)


def test_readme_example_is_fifteen_lines():
    (example,) = python_blocks(ROOT / "README.md")
    assert len(example.strip().splitlines()) <= 15


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", prose):
        if "://" not in target.replace("\n", ""):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_tables_are_those_of_the_result_files(page):
    assert is_current(page, ROOT / "results")


def test_benchmark_page_is_current():
    from benchmarks.report import PAGE, page  # noqa: PLC0415

    assert PAGE.read_text() == page()


def test_pages_on_speed_are_current():
    from benchmarks.performance import DOCS, pages  # noqa: PLC0415

    for name, text in pages().items():
        assert (DOCS / name).read_text() == text, name


def test_theory_page_is_current():
    from docs.build import PAGE, VERDICTS, page  # noqa: PLC0415

    data = json.loads(VERDICTS.read_text())
    assert PAGE.read_text() == page(PAGE.read_text(), data)
    assert [claim["name"] for claim in data["claims"]] == list(CLAIMS)
    assert data["passed"] is True
    for name in CLAIMS:
        assert f"`{name}`" in PAGE.read_text().split("<!-- end: verdicts -->")[1], name


def test_errata_page_is_what_verify_prints():
    """Every erratum has its heading, and under it the name of its claim."""
    from docs.build import VERDICTS  # noqa: PLC0415

    text = (ROOT / "docs" / "errata.md").read_text()
    listed = re.findall(r"^### (.*)\n\nClaim `(.*?)`", text, flags=re.MULTILINE)
    measured = [
        (erratum["name"], claim["name"])
        for claim in json.loads(VERDICTS.read_text())["claims"]
        for erratum in claim["errata"]
    ]
    assert sorted(listed) == sorted(measured)


def test_verdicts_are_those_of_a_run():
    """The claims that take no time are run again: same measurements, same verdicts, same errata."""
    from docs.build import VERDICTS  # noqa: PLC0415

    kept = {claim["name"]: claim for claim in json.loads(VERDICTS.read_text())["claims"]}
    for name in ("energy", "limit", "gcn", "sheaf", "spectral", "householder"):
        now = CLAIMS[name]().as_dict()
        assert now["verdict"] == kept[name]["verdict"]
        for key in ("checks", "errata"):
            then = [entry.get("measured", entry.get("name")) for entry in kept[name][key]]
            assert [entry.get("measured", entry.get("name")) for entry in now[key]] == then


def test_citation_names_this_version():
    assert f"version: {bunn.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_import_is_light():
    """The layer alone works where nothing but the four dependencies is installed."""
    extras = (
        "typer",
        "rich",
        "matplotlib",
        "lightning",
        "torchmetrics",
        "networkx",
        "torch_sparse",
    )
    code = f"import sys; sys.modules.update(dict.fromkeys({extras})); from bunn import *"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, cwd=ROOT)


def test_the_command_line_does_not_wait_for_torch():
    hidden = "import sys; sys.modules.update(torch=None, torch_geometric=None)"
    code = f"{hidden}; from bunn.cli import app; app(['train', '--help'])"
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert "--preset" in run.stdout


def test_public_names_are_found_where_they_are():
    code = "import bunn; from bunn import *; print(bunn.nn.BuNN is BuNN is bunn.BuNN, *dir(bunn))"
    command = [sys.executable, "-W", "ignore", "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    same, *names = run.stdout.split()
    assert same == "True"
    assert {*bunn.__all__, "nn", "diffusion", "__version__"} <= set(names)
    with pytest.raises(AttributeError, match="module 'bunn' has no attribute 'Bunn'"):
        _ = bunn.Bunn
