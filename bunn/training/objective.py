"""Loss and metric of a task."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torchmetrics import Metric
from torchmetrics.classification import (
    BinaryAccuracy,
    BinaryAUROC,
    BinaryAveragePrecision,
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassF1Score,
    MultilabelAccuracy,
    MultilabelAUROC,
    MultilabelAveragePrecision,
    MultilabelF1Score,
)
from torchmetrics.regression import MeanAbsoluteError, MeanSquaredError
from torchmetrics.utilities import dim_zero_cat

from bunn.data import Task


class LabelAveragePrecision(MultilabelAveragePrecision):
    """The mean over labels of the average precision, as the Long Range Graph Benchmark has it: over
    those that are there, and are not there, in some examples. A label that nobody has says nothing.
    """

    def compute(self) -> Tensor:  # type: ignore[override]
        # All labels at once, without waiting for the device; one by one each is twenty operations.
        score, order = dim_zero_cat(self.preds).T.contiguous().sort(descending=True)
        label = dim_zero_cat(self.target).T.gather(1, order)
        hit, miss = label == 1, label == 0
        # The precision at a score is that of all examples that have it or more.
        last = torch.searchsorted(-score, -score, right=True) - 1
        hits, seen = (counted.cumsum(1).gather(1, last) for counted in (hit, hit | miss))
        values = torch.where(hit, hits / seen, 0.0).sum(1) / hit.sum(1)
        counts = hit.any(1) & miss.any(1)
        return torch.where(counts, values, 0.0).sum() / counts.sum()


#: Metrics that are better when smaller; all others are better when larger.
ERRORS = frozenset({"mae", "mse"})

#: The label of what was not measured, which is NaN in the data: it counts for nothing.
UNKNOWN = -1

#: Metric by name and kind of task: the class, the keyword that takes the number of outputs, others.
METRICS: dict[tuple[str, str], tuple[type[Metric], str | None, dict[str, Any]]] = {
    ("accuracy", "multiclass"): (MulticlassAccuracy, "num_classes", {"average": "micro"}),
    ("accuracy", "binary"): (BinaryAccuracy, None, {}),
    ("accuracy", "multilabel"): (MultilabelAccuracy, "num_labels", {}),
    ("roc-auc", "binary"): (BinaryAUROC, None, {}),
    ("roc-auc", "multiclass"): (MulticlassAUROC, "num_classes", {}),
    ("roc-auc", "multilabel"): (MultilabelAUROC, "num_labels", {}),
    ("average-precision", "binary"): (BinaryAveragePrecision, None, {}),
    ("average-precision", "multilabel"): (LabelAveragePrecision, "num_labels", {}),
    ("macro-f1", "multiclass"): (MulticlassF1Score, "num_classes", {"average": "macro"}),
    ("macro-f1", "binary"): (MulticlassF1Score, None, {"num_classes": 2, "average": "macro"}),
    ("macro-f1", "multilabel"): (MultilabelF1Score, "num_labels", {"average": "macro"}),
    ("mae", "regression"): (MeanAbsoluteError, None, {}),
    ("mse", "regression"): (MeanSquaredError, None, {}),
}


class Objective:
    """What a task minimises and what it reports.

    Cross-entropy for classes, logistic loss for binary and multi-label targets; for regression the
    squared error, or the absolute one where that is the metric. Binary and multi-label targets may
    be NaN, for what was not measured: they count neither in the loss nor in the metric.

    Args:
        task: The task.
        num_outputs: Outputs per node or graph.
        balanced: Whether the cross-entropy of classes weighs each by the share of targets that are
            not of it. (default: :obj:`False`)
    """

    def __init__(self, task: Task, num_outputs: int, balanced: bool = False) -> None:
        if balanced and task.kind != "multiclass":
            raise ValueError(f"balanced=True weighs classes, but the task is {task.kind}")
        if (task.metric, task.kind) not in METRICS:
            fitting = [metric for metric, kind in METRICS if kind == task.kind]
            raise ValueError(
                f"metric={task.metric!r} does not suit a {task.kind} task; use one of {fitting}"
            )
        self.task, self.num_outputs, self.balanced = task, num_outputs, balanced

    @property
    def smaller_is_better(self) -> bool:
        return self.task.metric in ERRORS

    @property
    def worst(self) -> float:
        return math.inf if self.smaller_is_better else -math.inf

    def better(self, value: float, than: float) -> bool:
        """Whether ``value`` is strictly better; a NaN never is, and anything is better than it."""
        if math.isnan(than):
            return not math.isnan(value)
        return value < than if self.smaller_is_better else value > than

    def reaches(self, value: float, goal: float) -> bool:
        return value <= goal if self.smaller_is_better else value >= goal

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The mean loss.

        Args:
            output: ``(m, num_outputs)``.
            target: ``(m,)`` classes or binary labels, ``(m, num_outputs)`` labels or values.
        """
        output = output if output.dtype == torch.float64 else output.float()
        if self.task.kind == "multiclass":
            weight = self._class_weights(target).to(output.dtype) if self.balanced else None
            return F.cross_entropy(output, target, weight)
        target = target.view(output.shape).to(output.dtype)
        if self.task.kind in ("binary", "multilabel"):
            known = ~target.isnan()
            losses = F.binary_cross_entropy_with_logits(
                output, target.nan_to_num(), reduction="none"
            )
            return (losses * known).sum() / known.sum().clamp(min=1)
        if self.task.metric == "mae":
            return F.l1_loss(output, target)
        return F.mse_loss(output, target)

    def _class_weights(self, target: Tensor) -> Tensor:
        """``(num_outputs,)``, without asking the device how many there are of each."""
        ones = torch.ones_like(target, dtype=torch.float32)
        count = ones.new_zeros(self.num_outputs).index_add(0, target, ones)
        return (1 - count / target.numel()) * (count > 0)

    def metric(self, device: torch.device | str = "cpu") -> Metric:
        """A fresh metric, to be updated with :meth:`prepared` outputs."""
        kind, sized, keywords = METRICS[self.task.metric, self.task.kind]
        if sized is not None:
            keywords = {**keywords, sized: self.num_outputs}
        if self.task.kind != "regression":
            keywords = {**keywords, "validate_args": False}  # which would wait for the device
        if self.task.kind in ("binary", "multilabel"):
            keywords = {**keywords, "ignore_index": UNKNOWN}
        return kind(**keywords).to(device)

    def prepared(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs and targets as the metric reads them: classes, probabilities or values."""
        output = output.detach()
        output = output if output.dtype == torch.float64 else output.float()
        if self.task.kind == "multiclass":
            ranked = self.task.metric == "roc-auc"
            return (output.softmax(-1) if ranked else output.argmax(-1)), target
        target = target.view(output.shape)
        if self.task.kind == "regression":
            return output.contiguous(), target.to(output.dtype).contiguous()
        labels = target.nan_to_num(UNKNOWN).long()
        if self.task.metric == "macro-f1" and self.task.kind == "binary":
            return (output > 0).long().flatten(), labels.flatten()
        # In the order of the outputs: sigmoids beyond 37 would all be one, and ranks be lost.
        wide = output.double()
        chance = (1 + wide / (1 + wide.abs())) / 2
        if self.task.kind == "multilabel":
            return chance, labels
        return chance.flatten(), labels.flatten()
