"""The tests that need a GPU: ``pytest -m gpu``, in several processes, and how many passed.

Those of the kernels run through Triton's interpreter elsewhere, and on the card here.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

from benchmarks.device import save_measured

ROOT = Path(__file__).parent.parent
#: What runs side by side: what takes longest file by file, the rest in one.
WITHOUT = ("test_compiled.py", "test_switch.py")  # which have no tests for a GPU
FILES = sorted((ROOT / "tests" / "kernels").glob("test_*.py"))
ALONE = (
    *(str(file.relative_to(ROOT)) for file in FILES if file.name not in WITHOUT),
    *("tests/nn", "tests/test_cuda.py", "tests/training"),
)
REST = ("tests", *(f"--ignore={name}" for name in ("tests/kernels", *ALONE[-3:])))
SHARES = (*((name,) for name in ALONE), REST)


def counts(report: Path) -> dict[str, Any]:
    """What a process counted; nothing if it died before it wrote that down."""
    try:
        suite = next(ElementTree.parse(report).iter("testsuite")).attrib
    except (FileNotFoundError, ElementTree.ParseError, StopIteration):
        return {}
    numbers = {name: int(suite[name]) for name in ("tests", "failures", "errors", "skipped")}
    return {"seconds": float(suite["time"]), **numbers}


def main() -> None:
    with TemporaryDirectory() as folder:
        reports = [Path(folder, f"{index}.xml") for index in range(len(SHARES))]
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
        running = [
            subprocess.Popen([*command, *share, f"--junitxml={report}"], cwd=ROOT)
            for share, report in zip(SHARES, reports, strict=True)
        ]
        codes = [process.wait() for process in running]
        rows = [
            {"of": " ".join(share), "exit_code": code, **counts(report)}
            for share, code, report in zip(SHARES, codes, reports, strict=True)
        ]
    for row in rows:
        print(row)
    save_measured("gpu_tests", rows, __doc__)


if __name__ == "__main__":
    main()
