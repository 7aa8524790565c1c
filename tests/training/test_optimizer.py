"""Parameter groups and schedules, by their formulas."""

import math

import pytest
import torch
from torch import nn

from bunn import BuNN
from bunn.training import Optimizer, Schedule
from bunn.training.optimizer import build_optimizer, build_schedule, is_time


@pytest.fixture
def model():
    return BuNN(3, 8, 2, 2, num_bundles=2, learn_time=True)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_times_are_a_group_of_their_own(name, model):
    options = Optimizer(name, lr=1e-3, time_lr=1e-2, weight_decay=0.1)
    weights, times = build_optimizer(options, model).param_groups
    assert (weights["name"], weights["lr"], weights["weight_decay"]) == ("weights", 1e-3, 0.1)
    assert (times["name"], times["lr"], times["weight_decay"]) == ("times", 1e-2, 0.0)
    named = dict(model.named_parameters())
    learned = {id(block.conv.time.log_time) for block in model.blocks}
    assert {id(parameter) for parameter in times["params"]} == learned
    assert len(weights["params"]) == len(named) - len(learned)
    assert {name for name in named if is_time(name)} == {
        "blocks.0.conv.time.log_time",
        "blocks.1.conv.time.log_time",
    }


def test_without_learned_times_there_is_one_group():
    groups = build_optimizer(Optimizer(), BuNN(3, 8, 1, 2)).param_groups
    assert [group["name"] for group in groups] == ["weights"]


@pytest.mark.parametrize("time_lr", [None, 0.03])
def test_one_step_of_adamw_by_its_formula(time_lr, model):
    """The first step has size ``lr`` against the sign of the gradient; weights decay, times do not.

    theta <- theta (1 - lr decay) - lr g / (|g| + eps).
    """
    options = Optimizer("adamw", lr=0.01, time_lr=time_lr, weight_decay=0.5)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    build_optimizer(options, model).step()
    for name, parameter in model.named_parameters():
        lr = (time_lr or 0.01) if is_time(name) else 0.01
        kept = 1.0 if is_time(name) else 1 - 0.01 * 0.5
        torch.testing.assert_close(parameter.detach(), kept * before[name] - lr)


def rates(schedule: Schedule, epochs: int, lr: float = 0.5) -> list[float]:
    """The learning rate of every epoch."""
    optimizer = build_optimizer(Optimizer("adam", lr=lr), nn.Linear(1, 1))
    stepped = build_schedule(schedule, optimizer, epochs, smaller_is_better=True)
    seen = []
    for _ in range(epochs):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        stepped.step()
    return seen


@pytest.mark.parametrize("warmup", [0, 1, 4, 12])
def test_warm_up_then_cosine(warmup):
    expected = [
        0.5 * (epoch + 1) / (warmup + 1)
        if epoch < warmup
        else 0.25 * (1 + math.cos(math.pi * (epoch - warmup) / (12 - warmup)))
        for epoch in range(12)
    ]
    seen = rates(Schedule("cosine", warmup=warmup), 12)
    assert seen == pytest.approx(expected)
    assert min(seen) > 0
    if warmup < 12:
        assert seen[warmup] == 0.5  # the whole rate, once


def test_warm_up_then_constant():
    assert rates(Schedule(warmup=3), 6) == pytest.approx([0.125, 0.25, 0.375, 0.5, 0.5, 0.5])
    assert rates(Schedule(), 3) == [0.5] * 3


def test_schedules_keep_the_ratio_of_the_groups(model):
    optimizer = build_optimizer(Optimizer(lr=0.1, time_lr=0.4), model)
    schedule = build_schedule(Schedule("cosine", warmup=2), optimizer, 6, smaller_is_better=True)
    for _ in range(6):
        weights, times = (group["lr"] for group in optimizer.param_groups)
        assert times == pytest.approx(4 * weights)
        optimizer.step()
        schedule.step()


@pytest.mark.parametrize(
    ("monitor", "smaller_is_better", "falls"),
    [("val", True, True), ("val", False, False), ("train", False, False), ("loss", False, True)],
)
def test_a_plateau_lowers_the_rate_only_where_there_is_no_gain(monitor, smaller_is_better, falls):
    """What is monitored should fall, or rise: a loss falls, whatever the metric does."""
    optimizer = build_optimizer(Optimizer("adam", lr=1.0), nn.Linear(1, 1))
    options = Schedule("plateau", factor=0.1, patience=2, min_lr=0.005, monitor=monitor)
    schedule = build_schedule(options, optimizer, 100, smaller_is_better)

    def rate_after(*values: float) -> float:
        for value in values:
            schedule.step(10.0 - value if falls else value)
        return optimizer.param_groups[0]["lr"]

    assert rate_after(1.0, 2.0, 3.0, 4.0, 5.0, 6.0) == 1.0
    assert rate_after(6.0, 5.0) == 1.0  # as patient as it was told
    assert rate_after(4.0) == pytest.approx(0.1)
    assert rate_after(7.0, 6.0, 6.0) == pytest.approx(0.1)
    assert rate_after(8.0, 8.0, 8.0) == pytest.approx(0.1)  # a gain starts the count anew
    assert rate_after(8.0) == pytest.approx(0.01)
    assert rate_after(*[8.0] * 9) == pytest.approx(0.005)  # never below min_lr
