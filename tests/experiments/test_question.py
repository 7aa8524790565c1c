"""What a search asks, and by which runs its answer is judged."""

import pytest

from bunn.experiments.presets import find_preset
from bunn.experiments.question import Question, experiment_of


@pytest.mark.parametrize(
    ("dataset", "experiment"),
    [
        ("roman-empire", "heterophilous"),
        ("chameleon-filtered", "heterophilous"),
        ("peptides-func", "lrgb"),
        ("cora", "train"),
        ("barbell", "train"),
    ],
)
def test_what_results_belong_to(dataset, experiment):
    assert experiment_of(dataset) == experiment


@pytest.mark.parametrize(
    ("dataset", "num_splits", "runs"),
    [
        ("minesweeper", 10, [(split, 3) for split in range(10)]),
        ("peptides-func", 1, [(0, seed) for seed in range(4)]),
        ("barbell", None, [(1, 3), (2, 3)]),
    ],
)
def test_what_is_chosen_is_judged_by_all_splits_or_all_seeds(dataset, num_splits, runs):
    _, config = find_preset(dataset, "bunn")
    question = Question(config=config, splits=(1, 2), seeds=(3, 5), study="any")
    assert question.pairs == [(1, 3), (1, 5), (2, 3), (2, 5)]
    assert question.final_runs(num_splits) == runs
