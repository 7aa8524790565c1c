import copy

import networkx as nx
import pytest
import torch

from benchmarks import errors, gpu_layers, gpu_tests, stacks
from benchmarks.results import load
from bunn import Laplacian, diffuse
from tests.graphs import edges_of


def test_errors_are_of_the_worst_column():
    edge_index, n = edges_of(nx.star_graph(20))
    lap = Laplacian(edge_index, num_nodes=n)
    x = errors.features(lap, 4, torch.float64)
    y = x.clone()
    y[0, 0] += 0.01  # the centre, which has half of the volume
    assert errors.worst_error(x, x, x, lap) == 0
    assert errors.worst_error(y, x, x, lap) == pytest.approx(0.01 / errors.CONSTANT / 2**0.5)
    assert errors.worst_error(diffuse(x, lap, 3.0, tol=1e-6), diffuse(x, lap, 3.0), x, lap) < 1e-5


def test_layers_that_need_most_memory_are_measured_last():
    needy = [
        form.model in ("GAT", "GT") and (form.captured or form.sparse) for form in gpu_layers.FORMS
    ]
    light = [form.model in ("SAGE", "BuNN") for form in gpu_layers.FORMS]
    assert not any(light[needy.index(True) :])


def test_a_form_that_fails_is_noted():
    failed = {}
    with gpu_layers.noting(failed, "GT, compiled"):
        raise ValueError("backend='inductor' raised:\nNo such kernel")
    with gpu_layers.noting(failed, "GT, captured"):
        raise torch.OutOfMemoryError
    assert failed == {"GT, compiled": "No such kernel", "GT, captured": "OutOfMemoryError"}


def test_page_says_which_forms_failed():
    result = load("gpu_layers")
    for row in result["rows"]:
        row.pop("failed", None)
    assert "failed" not in stacks.section(result)
    without = copy.deepcopy(result)
    for row in without["rows"]:
        row["failed"] = dict.fromkeys(row["milliseconds"], "CUDA out of memory. Tried to allocate")
        row["milliseconds"], row["peak_bytes"], row["kinds"] = {}, {}, {}
    assert "BuNN, captured on minesweeper in tf32, minesweeper in bf16" in stacks.section(without)
    assert '("CUDA out of memory")' in stacks.section(without)


@pytest.mark.parametrize("text", [None, "", "<testsuites/>"])
def test_tests_that_died_have_no_counts(text, tmp_path):
    report = tmp_path / "report.xml"
    if text is not None:
        report.write_text(text)
    assert gpu_tests.counts(report) == {}


def test_counts_are_those_of_pytest(tmp_path):
    report = tmp_path / "report.xml"
    numbers = 'tests="7" failures="1" errors="2" skipped="3" time="4.5"'
    report.write_text(f"<testsuites><testsuite {numbers}/></testsuites>")
    counted = {"seconds": 4.5, "tests": 7, "failures": 1, "errors": 2, "skipped": 3}
    assert gpu_tests.counts(report) == counted
