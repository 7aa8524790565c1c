"""Kernels are left out where somebody asks for that, or where there is no Triton."""

import os
import subprocess
import sys

import pytest

from bunn.kernels import switched_off

#: It is settled when the package is loaded, in a process of its own.
WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
import torch
from bunn import Laplacian, diffuse, kernels
lap = Laplacian(torch.tensor([[0, 1], [1, 0]]))
print(kernels.wanted(), float(diffuse(torch.tensor([[1.0], [0.0]]), lap, 100.0)[1]))
"""


@pytest.mark.parametrize(
    ("setting", "off"),
    [("0", True), ("OFF", True), ("false", True), ("no", True), ("1", False), ("", False)],
)
def test_what_switches_kernels_off(setting, off):
    assert switched_off(setting) == off


def test_without_triton():
    command = [sys.executable, "-c", WITHOUT_TRITON]
    environment = {**os.environ, "BUNN_KERNELS": "1"}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    wanted, half = found.stdout.split()
    assert wanted == "False"
    assert float(half) == pytest.approx(0.5, abs=1e-5)
