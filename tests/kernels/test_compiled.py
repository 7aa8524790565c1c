"""The kernels as a compiler for GPUs sees them; no GPU is needed."""

import json
import os
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_rows_are_read_sixteen_bytes_at_a_time_and_nothing_is_exchanged():
    environment = {name: v for name, v in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.kernels.compiled"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    kernels = [json.loads(line) for line in found.stdout.splitlines()]
    assert len(kernels) == 27
    for kernel in kernels:
        assert kernel["ptx"].count("ld.global.v4") >= 8, kernel["name"]
        for memory in (".local", ".shared"):
            assert memory not in kernel["ptx"], kernel["name"]
