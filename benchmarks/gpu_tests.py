"""The tests that need a GPU: ``pytest -m gpu``, in several processes, and how many passed.

Those of the kernels run through Triton's interpreter elsewhere, and on the card here.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

from benchmarks.device import save_measured

ROOT = Path(__file__).parent.parent
#: What runs side by side, by how long it takes.
SHARES = (
    *(("tests/kernels",), ("tests/nn",), ("tests/test_cuda.py",), ("tests/training",)),
    (
        *("tests", "--ignore=tests/kernels", "--ignore=tests/nn", "--ignore=tests/test_cuda.py"),
        "--ignore=tests/training",
    ),
)


def main() -> None:
    with TemporaryDirectory() as folder:
        reports = [Path(folder, f"{index}.xml") for index in range(len(SHARES))]
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
        running = [
            subprocess.Popen([*command, *share, f"--junitxml={report}"], cwd=ROOT)
            for share, report in zip(SHARES, reports, strict=True)
        ]
        codes = [process.wait() for process in running]
        suites = [suite for file in reports for suite in ElementTree.parse(file).iter("testsuite")]
    rows = [
        {"of": " ".join(share), "exit_code": code, "seconds": float(suite.attrib["time"])}
        | {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
        for share, code, suite in zip(SHARES, codes, suites, strict=True)
    ]
    for row in rows:
        print(row)
    save_measured("gpu_tests", rows, __doc__)


if __name__ == "__main__":
    main()
