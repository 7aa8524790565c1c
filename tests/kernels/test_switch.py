"""Kernels are left out where somebody asks for that, or where there is no Triton."""

import os
import subprocess
import sys

import pytest

NO_TRITON = "import sys; sys.modules['triton'] = None; "


@pytest.mark.parametrize(("setting", "before"), [("OFF", ""), ("1", NO_TRITON)])
def test_kernels_are_left_out(setting, before):
    """In a process of its own: it is settled when the package is loaded."""
    code = (
        f"{before}import torch; from bunn import Laplacian, diffuse, kernels; "
        "lap = Laplacian(torch.tensor([[0, 1], [1, 0]])); "
        "print(kernels.wanted(), float(diffuse(torch.tensor([[1.0], [0.0]]), lap, 100.0)[1]))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "BUNN_KERNELS": setting},
        capture_output=True,
        text=True,
        check=True,
    )
    wanted, half = found.stdout.split()
    assert wanted == "False"
    assert float(half) == pytest.approx(0.5, abs=1e-5)
