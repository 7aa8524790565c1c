"""Losses and metrics against their formulas, written out with NumPy."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bunn.data import Task
from bunn.data.dataset import METRICS as NAMES
from bunn.training.objective import ERRORS, METRICS, Objective


def accuracy(values, labels):
    return np.mean((values > 0) == labels)


def roc_auc(scores, labels):
    """The probability that a positive is ranked above a negative, a tie counting half."""
    gaps = scores[labels == 1][:, None] - scores[labels == 0][None, :]
    return np.mean((gaps > 0) + 0.5 * (gaps == 0))


def average_precision(scores, labels):
    """The sum over thresholds of precision times the gain in recall."""
    total, recall = 0.0, 0.0
    for threshold in sorted(set(scores), reverse=True):
        found = scores >= threshold
        gained = np.sum(labels[found]) / np.sum(labels)
        total += (gained - recall) * np.mean(labels[found])
        recall = gained
    return total


def f1(predicted, labels):
    hits = np.sum(predicted & labels)
    return 2 * hits / (np.sum(predicted) + np.sum(labels))


def softmax(scores):
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


BINARY = {
    "accuracy": accuracy,
    "roc-auc": roc_auc,
    "average-precision": average_precision,
    "macro-f1": lambda scores, labels: f1(scores > 0, labels == 1),
}
MULTICLASS = {
    "accuracy": lambda scores, y: np.mean(scores.argmax(1) == y),
    "roc-auc": lambda scores, y: np.mean(
        [roc_auc(softmax(scores)[:, k].round(6), y == k) for k in range(3)]
    ),
    "macro-f1": lambda scores, y: np.mean([f1(scores.argmax(1) == k, y == k) for k in range(3)]),
}
REGRESSION = {
    "mae": lambda values, y: np.mean(np.abs(values - y)),
    "mse": lambda values, y: np.mean((values - y) ** 2),
}


def measured(objective: Objective, outputs: np.ndarray, targets: np.ndarray) -> float:
    """The metric, over two batches."""
    metric = objective.metric()
    for part in np.array_split(np.arange(len(outputs)), 2):
        output, target = torch.from_numpy(outputs[part]), torch.from_numpy(targets[part])
        metric.update(*objective.prepared(output, target))
    return float(metric.compute())


def scores(random: np.random.Generator, *shape: int) -> np.ndarray:
    """Outputs on a coarse grid, so that there are ties; never 0, where a class would be open."""
    return (random.integers(-6, 6, shape) / 4 + 0.125).astype(np.float32)


seeds = st.integers(0, 10**6).map(np.random.default_rng)


def test_every_metric_has_a_formula_here():
    pairs = {(name, "multiclass") for name in MULTICLASS} | {(n, "regression") for n in REGRESSION}
    pairs |= {(name, kind) for name in BINARY for kind in ("binary", "multilabel")}
    assert set(METRICS) == pairs
    assert {name for name, _ in METRICS} == set(NAMES)


@pytest.mark.parametrize("metric", BINARY)
@given(random=seeds, flat=st.booleans())
def test_binary_metrics(metric, random, flat):
    labels = np.array([0, 1, *random.integers(0, 2, 18)])
    output = scores(random, 20, 1)
    objective = Objective(Task("node", "binary", metric), 1)
    target = labels.astype(np.float32).reshape((20,) if flat else (20, 1))
    expected = BINARY[metric](output[:, 0], labels)
    if metric == "macro-f1":  # of both classes
        classes = [f1((output[:, 0] > 0) == k, labels == k) for k in (0, 1)]
        expected = np.mean(classes)
    assert measured(objective, output, target) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("metric", BINARY)
@given(random=seeds, unknown=st.booleans())
def test_multilabel_metrics_are_means_over_labels_and_pass_over_the_unknown(
    metric, random, unknown
):
    labels = random.integers(0, 2, (24, 3)).astype(np.float32)
    labels[:2] = [[0, 0, 0], [1, 1, 1]]
    output = scores(random, 24, 3)
    output[:2] = 0.125
    if unknown:
        labels[2:][random.random((22, 3)) < 0.3] = np.nan
    expected = []
    for column, label in zip(output.T, labels.T, strict=True):
        known = ~np.isnan(label)
        expected.append(BINARY[metric](column[known], label[known].astype(int)))
    objective = Objective(Task("graph", "multilabel", metric), 3)
    assert measured(objective, output, labels) == pytest.approx(np.mean(expected), abs=1e-5)


@pytest.mark.parametrize("metric", BINARY)
def test_unknown_binary_labels_are_passed_over(metric):
    random = np.random.default_rng(0)
    output, labels = scores(random, 20, 1), random.integers(0, 2, 20).astype(np.float32)
    objective = Objective(Task("node", "binary", metric), 1)
    unknown = labels.copy()
    unknown[5:10] = np.nan
    kept = np.r_[0:5, 10:20]
    assert measured(objective, output, unknown) == pytest.approx(
        measured(objective, output[kept], labels[kept]), abs=1e-6
    )


@pytest.mark.parametrize("metric", MULTICLASS)
@given(random=seeds, scale=st.sampled_from([1.0, 0.1]))
def test_multiclass_metrics(metric, random, scale):
    labels = np.array([0, 1, 2, *random.integers(0, 3, 17)])
    output = scale * random.standard_normal((20, 3)).astype(np.float32)
    if scale < 1:  # outputs between 0 and 1 are no probabilities yet
        output = np.abs(output)
    objective = Objective(Task("node", "multiclass", metric), 3)
    expected = MULTICLASS[metric](output, labels)
    assert measured(objective, output, labels) == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("metric", REGRESSION)
@given(random=seeds, outputs=st.integers(1, 3))
def test_regression_metrics_and_their_loss(metric, random, outputs):
    values, targets = random.standard_normal((2, 14, outputs)).astype(np.float32)
    objective = Objective(Task("graph", "regression", metric), outputs)
    expected = REGRESSION[metric](values, targets)
    assert measured(objective, values, targets) == pytest.approx(expected, rel=1e-5)
    loss = objective.loss(torch.from_numpy(values), torch.from_numpy(targets))
    assert float(loss) == pytest.approx(expected, rel=1e-5)


@given(random=seeds)
def test_cross_entropy(random):
    output, labels = random.standard_normal((9, 4)).astype(np.float32), random.integers(0, 4, 9)
    objective = Objective(Task("node", "multiclass", "accuracy"), 4)
    expected = -np.mean(np.log(softmax(output)[np.arange(9), labels]))
    loss = objective.loss(torch.from_numpy(output), torch.from_numpy(labels))
    assert float(loss) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("kind", "width"), [("binary", 1), ("multilabel", 3)])
@given(random=seeds)
def test_logistic_loss_of_the_known_labels(kind, width, random):
    output = random.standard_normal((9, width)).astype(np.float32)
    labels = random.integers(0, 2, (9, width)).astype(np.float32)
    labels[random.random((9, width)) < 0.3] = np.nan
    labels[0] = 1.0
    objective = Objective(Task("node", kind, "roc-auc"), width)
    losses = np.log1p(np.exp(output)) - output * labels
    target = torch.from_numpy(labels if width > 1 else labels[:, 0])
    outputs = torch.from_numpy(output).requires_grad_()
    loss = objective.loss(outputs, target)
    assert loss.item() == pytest.approx(np.nanmean(losses), rel=1e-5)
    loss.backward()
    assert outputs.grad.isfinite().all()
    assert (outputs.grad[torch.from_numpy(labels).isnan()] == 0).all()


def test_a_batch_without_known_labels_teaches_nothing():
    objective = Objective(Task("graph", "multilabel", "average-precision"), 2)
    output = torch.randn(3, 2, requires_grad=True)
    loss = objective.loss(output, torch.full((3, 2), math.nan))
    loss.backward()
    assert loss.item() == 0
    assert (output.grad == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_losses_are_computed_in_full_precision(dtype):
    for kind, metric in (("multiclass", "accuracy"), ("binary", "roc-auc"), ("regression", "mse")):
        objective = Objective(Task("node", kind, metric), 1)
        output = torch.zeros(4, 1, dtype=dtype)
        target = torch.zeros(4, dtype=torch.long if kind == "multiclass" else torch.float32)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        assert objective.loss(output, target).dtype == wide
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # there is one class only
            measure = objective.metric()
            measure.update(*objective.prepared(output, target))
            measure.compute()


def test_what_is_better():
    for metric, kind in METRICS:
        objective = Objective(Task("node", kind, metric), 1)
        good, bad = (0.1, 0.9) if metric in ERRORS else (0.9, 0.1)
        assert objective.better(good, bad)
        assert not objective.better(bad, good)
        assert not objective.better(good, good)
        assert objective.better(bad, objective.worst)
        assert objective.better(bad, math.nan)
        assert not objective.better(math.nan, bad)
        assert not objective.better(math.nan, math.nan)
        assert not objective.better(math.nan, objective.worst)
        assert objective.reaches(good, bad)
        assert objective.reaches(good, good)
        assert not objective.reaches(bad, good)
        assert not objective.reaches(math.nan, bad)


def test_a_metric_of_another_kind_of_task():
    with pytest.raises(ValueError, match=r"metric='mae' does not suit a binary task; use one of"):
        Objective(Task("node", "binary", "mae"), 1)


def test_classes_may_be_weighed_by_what_is_not_of_them():
    objective = Objective(Task("node", "multiclass", "macro-f1"), 4, balanced=True)
    output, target = torch.randn(10, 4), torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1, 3])
    weight = torch.tensor([0.4, 0.7, 0.0, 0.9])  # none is of the third class
    losses = -output.log_softmax(1)[torch.arange(10), target]
    expected = (weight[target] * losses).sum() / weight[target].sum()
    torch.testing.assert_close(objective.loss(output, target), expected)
    with pytest.raises(ValueError, match="balanced=True weighs classes, but the task is binary"):
        Objective(Task("node", "binary", "roc-auc"), 1, balanced=True)


def test_labels_that_nobody_or_everybody_has_do_not_count():
    """As in the evaluator of the Long Range Graph Benchmark."""
    objective = Objective(Task("graph", "multilabel", "average-precision"), 4)
    output = torch.randn(12, 4)
    target = torch.randint(0, 2, (12, 4)).float()
    target[:2], target[:, 1], target[:, 3] = torch.tensor([[0.0], [1.0]]), 0.0, 1.0
    metric = objective.metric()
    for rows in (slice(0, 5), slice(5, 12)):
        metric.update(*objective.prepared(output[rows], target[rows]))
    scores, labels = output.numpy(), target.numpy()
    expected = [average_precision(scores[:, i], labels[:, i]) for i in (0, 2)]
    assert float(metric.compute()) == pytest.approx(np.mean(expected), rel=1e-5)


@given(
    examples=st.integers(1, 30),
    levels=st.integers(1, 6),
    unknown=st.floats(0.0, 0.9),
    seed=st.integers(0, 1000),
)
def test_average_precision_where_scores_are_alike_and_labels_unknown(
    examples, levels, unknown, seed
):
    random = torch.Generator().manual_seed(seed)
    output = torch.randint(levels, (examples, 3), generator=random).float()
    target = torch.randint(2, (examples, 3), generator=random).float()
    target[torch.rand(examples, 3, generator=random) < unknown] = math.nan
    objective = Objective(Task("graph", "multilabel", "average-precision"), 3)
    metric = objective.metric()
    metric.update(*objective.prepared(output, target))
    found = float(metric.compute())
    expected = []
    for scores, labels in zip(output.T.numpy(), target.T.numpy(), strict=True):
        known = ~np.isnan(labels)
        if len(set(labels[known])) == 2:
            expected.append(average_precision(scores[known], labels[known]))
    if expected:
        assert found == pytest.approx(np.mean(expected), rel=1e-5)
    else:
        assert math.isnan(found)


@pytest.mark.parametrize(
    ("kind", "metric"), [("multilabel", "average-precision"), ("binary", "roc-auc")]
)
def test_large_scores_keep_their_ranks(kind, metric):
    """In float32 all sigmoids above 17 would be one, in float64 all above 37."""
    objective = Objective(Task("graph", kind, metric), 1)
    output = torch.linspace(18.0, 500.0, 12).unsqueeze(1)
    target = torch.zeros(12, 1)
    target[6:] = 1
    found = objective.metric()
    found.update(*objective.prepared(output, target))
    assert float(found.compute()) == 1
