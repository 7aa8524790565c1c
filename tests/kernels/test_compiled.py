"""The kernels as a compiler for GPUs sees them; no GPU is needed."""

import json
import os
import re
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def compiled():
    environment = {name: v for name, v in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.kernels.compiled"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return [json.loads(line) for line in found.stdout.splitlines()]


@pytest.mark.slow
def test_rows_are_read_sixteen_bytes_at_a_time_and_nothing_is_exchanged(compiled):
    names = ("walk_rows", "add_segments")
    kernels = [kernel for kernel in compiled if kernel["name"].startswith(names)]
    assert len(kernels) == 44
    for kernel in kernels:
        least = 6 if "'EACH': 3" in kernel["name"] else 8
        assert kernel["ptx"].count("ld.global.v4") >= least, kernel["name"]
        for memory in (".local", ".shared"):
            assert memory not in kernel["ptx"], kernel["name"]
        assert kernel["stack"] == 0, kernel["name"]


@pytest.mark.slow
def test_blocks_are_multiplied_on_tensor_cores_from_registers(compiled):
    kernels = [kernel for kernel in compiled if "walk_blocks" in kernel["name"]]
    assert len(kernels) == 6
    for kernel in kernels:
        ptx = kernel["ptx"]
        assert ptx.count("wgmma.mma_async") == 2, kernel["name"]
        assert ptx.count("cp.async.cg.shared.global") >= 4, kernel["name"]
        assert re.search(r"wgmma.mma_async\S+ \{[^}]*\}, \{", ptx), kernel["name"]
        assert kernel["stack"] == 0, kernel["name"]


@pytest.mark.slow
def test_ends_of_edges_are_read_sixteen_bytes_at_a_time_and_nothing_is_spilled(compiled):
    names = ("multiply_ends", "add_neighbours")
    kernels = [kernel for kernel in compiled if kernel["name"].startswith(names)]
    assert len(kernels) == 6
    for kernel in kernels:
        assert kernel["ptx"].count("ld.global.v4") >= 4, kernel["name"]
        assert kernel["stack"] == 0, kernel["name"]


@pytest.mark.slow
def test_components_are_multiplied_on_tensor_cores_and_nothing_is_spilled(compiled):
    kernels = [kernel for kernel in compiled if kernel["name"].startswith("multiply_squares")]
    assert len(kernels) == 6
    for kernel in kernels:
        ptx = kernel["ptx"]
        assert "wgmma.mma_async" in ptx, kernel["name"]
        assert ptx.count("cp.async.cg.shared.global") >= 4, kernel["name"]  # 16 bytes at a time
        assert kernel["stack"] == 0, kernel["name"]


@pytest.mark.slow
def test_patches_are_multiplied_on_tensor_cores_and_nothing_is_spilled(compiled):
    kernels = [kernel for kernel in compiled if kernel["name"].startswith("multiply_patches")]
    assert len(kernels) == 8
    for kernel in kernels:
        assert "wgmma.mma_async" in kernel["ptx"], kernel["name"]
        assert kernel["ptx"].count("cp.async.cg.shared.global") >= 12, kernel["name"]
        assert kernel["stack"] == 0, kernel["name"]


#: Kernels by the beginnings of their names, and how often they are compiled.
PASSES = {"find_largest": 1, "split_halves": 1, "add_patches": 4}
PASSES |= {"find_moments": 2, "find_slopes": 2, "normalise": 4}


@pytest.mark.slow
@pytest.mark.parametrize("name", PASSES)
def test_passes_read_sixteen_bytes_at_a_time(name, compiled):
    kernels = [kernel for kernel in compiled if kernel["name"].startswith(name)]
    assert len(kernels) == PASSES[name]
    for kernel in kernels:
        assert "ld.global.v4" in kernel["ptx"], kernel["name"]
        assert kernel["stack"] == 0, kernel["name"]


@pytest.mark.slow
def test_statistics_are_put_together_in_registers(compiled):
    (settled,) = [kernel for kernel in compiled if kernel["name"].startswith("settle")]
    assert settled["stack"] == 0


@pytest.mark.slow
def test_planes_with_one_vector_each_are_read_sixteen_bytes_at_a_time(compiled):
    kernels = [kernel for kernel in compiled if kernel["name"].startswith("turn_pairs")]
    assert len(kernels) == 4
    for kernel in kernels:
        ptx = kernel["ptx"]
        assert ptx.count("ld.global.v4") >= 4, kernel["name"]
        assert ptx.count("st.global.v4") >= 2, kernel["name"]
        assert "ld.global.b16" not in ptx, kernel["name"]
