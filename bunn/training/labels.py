r"""Training labels as inputs: what is known of a node's neighbours is more than their features.

Where training and other nodes lie in one graph, the labels of the former are there when the latter
are predicted. A model may read them. It must not read the one that it is to predict, so every
training step draws some of the labels, shows them, and asks for the others:

.. math::
    x_v' = \begin{cases} x_v \,\|\, e_{y_v} & v \text{ is shown} \\
                         x_v \,\|\, 0 & \text{otherwise.} \end{cases}

An evaluation shows all training labels and no other. A metric on training nodes, which then read
their own label, would say nothing: there is none.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bunn.data import GraphDataset
from bunn.training.batch import Batch
from bunn.training.feed import Feed
from bunn.training.options import ConfigError


def label_channels(dataset: GraphDataset) -> int:
    """Columns that labels take beside features: one for each class."""
    return 2 if dataset.task.kind == "binary" else dataset.out_channels


class ShownLabels:
    """Puts labels beside features.

    Args:
        share: Of the training labels, shown at a step.
        dataset: Whose nodes have the labels: classes, of which there are two or more.
        feed: Its batches: graphs with nodes of all parts.
    """

    def __init__(self, share: float, dataset: GraphDataset, feed: Feed) -> None:
        task, name, given = dataset.task, dataset.name, f"training.label_inputs={share}"
        if task.level != "node" or task.kind not in ("binary", "multiclass"):
            raise ConfigError(
                f"{given}, but {name} asks for a {task.kind} target of every {task.level}; only "
                "classes of nodes can be inputs; use none"
            )
        if dataset.encoder is not None:
            raise ConfigError(
                f"{given}, but features of {name} go through an encoder of their own, which has no "
                "place for labels; use none"
            )
        rows = next(feed.evaluation("train")).rows
        apart = "train" in rows and rows["train"] is not rows.get("val")
        if not feed.transductive or not apart:
            raise ConfigError(
                f"{given}, but in {name} there are no training nodes beside others in one graph, "
                "so that their labels say nothing of those; use none"
            )
        self.share, self.channels = share, label_channels(dataset)
        self._whole: tuple[Batch, Batch] | None = None

    def some(self, batch: Batch) -> Batch:
        """A share of the training labels shown, the others in question; other ones at each call."""
        rows = batch.rows["train"]
        order = rows[torch.rand(rows.numel(), device=rows.device).argsort()]
        count = min(rows.numel() - 1, max(1, round(self.share * rows.numel())))
        asked = {**batch.rows, "train": order[count:]}
        return self._show(batch, order[:count])._replace(rows=asked)

    def all(self, batch: Batch) -> Batch:
        """All training labels shown, as for prediction."""
        if self._whole is None or self._whole[0] is not batch:
            self._whole = batch, self._show(batch, batch.rows["train"])
        return self._whole[1]

    def _show(self, batch: Batch, rows: Tensor) -> Batch:
        x = batch.inputs.x
        labels = x.new_zeros(x.size(0), self.channels)
        classes = torch.arange(self.channels, device=x.device)
        labels[rows] = (batch.y[rows].view(-1, 1) == classes).to(x.dtype)  # NaN is no class
        return batch._replace(inputs=batch.inputs._replace(x=torch.cat((x, labels), dim=-1)))
