"""The result files of this repository: what they hold was measured as they say."""

from pathlib import Path

import pytest

from bunn.experiments import heterophilous, neighborsmatch, synthetic
from bunn.experiments.cells import compare
from bunn.experiments.published import PUBLISHED
from bunn.experiments.results import Result, read_results
from bunn.training import Config

RESULTS = read_results(Path(__file__).parents[2] / "results")
TREE = "tree-neighborsmatch-r"


def expected(result: Result) -> Config:
    if result.experiment == "synthetic":
        return synthetic.preset(result.dataset, result.model, result.epochs)
    if result.experiment == "heterophilous":
        return heterophilous.preset(result.dataset, result.model, result.preset)
    depth = int(result.dataset.removeprefix(TREE))
    return neighborsmatch.preset(depth, result.model, result.preset, result.epochs)


@pytest.mark.parametrize(
    "result", [result for result in RESULTS if result.options], ids=lambda result: str(result.file)
)
def test_the_preset_is_still_what_was_measured(result):
    assert Config.from_dict(result.options) == expected(result)


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: str(result.file))
def test_what_differs_from_the_paper_is_explained(result):
    for entry in PUBLISHED:
        same = (entry.experiment, entry.dataset, entry.model, entry.metric)
        if same == (result.experiment, result.dataset, result.model, result.metric):
            assert compare(result, entry) in ("within", None) or result.notes


def test_commits_are_known():
    for result in RESULTS:
        for commit in result.git_commit.split(", "):  # of a run each, where there were several
            assert len(commit) == 40, f"{result.file}: {commit}"
