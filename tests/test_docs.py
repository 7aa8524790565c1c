"""Docs that run: every Python block of every page, and the pages that are generated."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import bunn

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("page", [p for p in PAGES if python_blocks(p)], ids=lambda p: p.name)
def test_code_of_a_page_runs(page):
    """The blocks of one page, in order, as one program."""
    exec(compile("\n".join(python_blocks(page)), str(page), "exec"), {})


def test_readme_example_is_fifteen_lines():
    (example,) = python_blocks(ROOT / "README.md")
    assert len(example.strip().splitlines()) <= 15


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target.replace("\n", ""):
            assert (page.parent / target).exists(), target


def test_benchmark_page_is_current():
    from benchmarks.report import PAGE, page  # noqa: PLC0415

    assert PAGE.read_text() == page()


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
    code = f"import sys; sys.modules.update(dict.fromkeys({extras})); import bunn"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, cwd=ROOT)
