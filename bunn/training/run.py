"""One training: a model, its optimiser and its batches, an epoch at a time.

An epoch is written as a coroutine that *asks* for steps and for outputs of the model, and a step as
one that asks for an output and for the gradients of a loss. How they are had is left to
:mod:`bunn.training.drive`: by calling the model, for several runs at once by one stacked call, or
on a GPU by replaying a recorded one.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Generator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from bunn.data import GraphDataset
from bunn.data.transforms import DiskCache
from bunn.files import plain
from bunn.training.average import Average
from bunn.training.batch import Batch, Draft, may_have_rooms
from bunn.training.building import build_model
from bunn.training.checkpoint import Tensors, pack_optimizer, unpack_optimizer
from bunn.training.config import Config
from bunn.training.device import Device
from bunn.training.divergence import NonFiniteLossError, suspects
from bunn.training.feed import Feed
from bunn.training.labels import ShownLabels
from bunn.training.objective import Objective
from bunn.training.optimizer import build_optimizer, build_schedule
from bunn.training.options import ConfigError

PARTS = ("train", "val", "test")
#: Losses that may wait to be looked at.
UNSEEN = 256


class Step(NamedTuple):
    """Asks for :meth:`Run.take_step`, and for the loss that it returns."""

    batch: Batch | Draft


class Output(NamedTuple):
    """Asks for the model's output, in training with what its gradients need."""

    batch: Batch
    training: bool


class Gradients(NamedTuple):
    """Asks for the gradients of a loss."""

    loss: Tensor


Request = Step | Output | Gradients


@dataclass(frozen=True)
class Evaluation:
    """What is known after an evaluation; one line of ``metrics.jsonl``.

    Args:
        epoch: Epochs done.
        step: Optimiser steps done.
        lr: The learning rate of the epoch.
        loss: The mean training loss of the epoch.
        metrics: The metric on each part that was evaluated.
    """

    epoch: int
    step: int
    lr: float
    loss: float
    metrics: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        """Plain values; a metric that is no number becomes a word, which JSON can hold."""
        values: dict[str, Any] = plain(
            {"epoch": self.epoch, "step": self.step, "lr": self.lr, "loss": self.loss}
            | self.metrics
        )
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Evaluation:
        """The evaluation that :meth:`as_dict` wrote."""
        metrics = {part: float(values[part]) for part in PARTS if part in values}
        lr, loss = float(values["lr"]), float(values["loss"])
        return cls(values["epoch"], values["step"], lr, loss, metrics)


class Run:
    """The training of one model on one split from one seed.

    Args:
        config: The experiment.
        dataset: Its dataset.
        split: The index of the split.
        seed: Of the initial weights, the order of batches, dropout and signs.
        device: Where it runs, and in which precision.
        reported: The part that the literature reports; ``"train"`` selects the best epoch by
            training, where that is the question. (default: ``"test"``)
        cache: Where encodings are kept. (default: nowhere)
        with_test: Whether metrics of test data are computed. (default: :obj:`True`)
    """

    def __init__(
        self,
        config: Config,
        dataset: GraphDataset,
        split: int,
        seed: int,
        device: Device,
        reported: str = "test",
        cache: DiskCache | None = None,
        with_test: bool = True,
    ) -> None:
        self.config, self.split, self.seed = config, split, seed
        self.device, self.precision = device.device, device.precision
        self.entropy = int(np.random.SeedSequence((seed, split)).generate_state(1)[0])
        balanced = config.training.balanced
        if balanced and dataset.task.kind != "multiclass":
            raise ConfigError(
                f"training.balanced=true weighs classes, but the task of {dataset.name} is "
                f"{dataset.task.kind}; leave it out"
            )
        self.objective = Objective(dataset.task, dataset.out_channels, balanced)
        self.select_by = "train" if reported == "train" else "val"
        self.with_test = with_test
        dtype = torch.float64 if config.training.precision == "64" else torch.float32
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.entropy)
            self.model = build_model(config, dataset).to(self.device, dtype)
        fused = config.training.precision != "16-mixed"
        self.optimizer = build_optimizer(config.optimizer, self.model, fused)
        self.schedule = build_schedule(
            config.schedule,
            self.optimizer,
            config.training.epochs,
            self.objective.smaller_is_better,
        )
        self.feed = Feed(
            dataset.split(split),
            config.training.batch_size,
            config.encoding,
            self.entropy,
            self.device,
            dtype,
            cache,
            edges=config.model.reads_edges and dataset.edge_channels > 0,
            buckets=config.training.buckets,
            rooms=may_have_rooms(config, self.model, self.device),
        )
        share = config.training.label_inputs
        self.labels = None if share is None else ShownLabels(share, dataset, self.feed)
        if self.labels is not None and "train" in self._looked_at:
            raise ConfigError(
                f"training.label_inputs={share}, but the metric on training nodes, which read "
                "their own labels then, decides; use schedule.monitor=val, or no label inputs"
            )
        decay = config.training.average
        self.average = None if decay is None else Average(self.model, decay)
        self._metrics = {part: self.objective.metric(self.device) for part in PARTS}
        self.epoch = self.step = 0
        self.evaluations: list[Evaluation] = []
        self.best: Evaluation | None = None
        self.best_weights: Tensors = {}
        self.waited = 0
        #: Whether every loss is looked at before the step: elsewhere that would stall the device.
        self.looks_at_once = self.device.type == "cpu"
        self._unseen: list[tuple[int, int, Tensor]] = []

    @property
    def name(self) -> str:
        return f"split{self.split}-seed{self.seed}"

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, patience is at its end, or the goal is reached."""
        training = self.config.training
        if self.epoch >= training.epochs:
            return True
        if self.best is None:
            return False
        if training.patience is not None and self.waited >= training.patience:
            return True
        reached = self.best.metrics[self.select_by]
        return training.goal is not None and self.objective.reaches(reached, training.goal)

    @property
    def files(self) -> tuple[str, ...]:
        """What :meth:`pack` puts tensors into."""
        of_average = () if self.average is None else ("average",)
        return ("last", "best", "optimizer", *of_average)

    def next_epoch(self) -> Generator[Step | Output, Tensor, None]:
        """Trains for an epoch and, when it is time, evaluates."""
        self.model.train()
        lr = float(self.optimizer.param_groups[0]["lr"])
        losses = []
        for batch in self.feed.training(self.epoch):
            losses.append((yield Step(batch)))
            self.step += 1
            if not self.looks_at_once:
                self._unseen.append((self.step, self.epoch + 1, losses[-1]))
            if len(self._unseen) >= UNSEEN:
                self.look()
        self.epoch += 1
        done = self.epoch == self.config.training.epochs
        evaluated = done or self.epoch % self.config.training.eval_every == 0
        if evaluated:
            self.look()
            loss_mean = float(torch.stack(losses).double().mean())
            with nullcontext() if self.average is None else self.average.in_place():
                metrics = yield from self._evaluate()
                self._keep(Evaluation(self.epoch, self.step, lr, loss_mean, metrics))
        self._advance_schedule(evaluated)

    def take_step(self, given: Batch | Draft) -> Generator[Output | Gradients, Tensor, Tensor]:
        """One step of the optimiser; on a GPU it waits for nothing, so that it can be recorded."""
        batch = given.read()
        if self.labels is not None:
            batch = self.labels.some(batch)
        output = yield Output(batch, training=True)
        loss = self.objective.loss(*batch.select(output, "train"))
        yield Gradients(loss)
        if self.looks_at_once:
            self._unseen.append((self.step + 1, self.epoch + 1, loss.detach()))
            self.look()
        if self.config.optimizer.clip is not None:
            self.precision.unscale_gradients(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.optimizer.clip)
        self.precision.optimizer_step(self.optimizer)
        if self.average is not None:
            self.average.update()
        return loss.detach()

    def _advance_schedule(self, evaluated: bool) -> None:
        if not isinstance(self.schedule, ReduceLROnPlateau):
            with warnings.catch_warnings():  # in float16 a first step may be passed over
                warnings.filterwarnings("ignore", r".*`lr_scheduler.step\(\)` before", UserWarning)
                self.schedule.step()
        elif evaluated:
            latest = self.evaluations[-1]
            monitor = self.config.schedule.monitor
            self.schedule.step(latest.loss if monitor == "loss" else latest.metrics[monitor])

    def _evaluate(self) -> Generator[Output, Tensor, dict[str, float]]:
        self.model.eval()
        parts = self._evaluated_parts()
        groups = [parts] if self.feed.transductive else [(part,) for part in parts]
        for group in groups:
            for batch in self.feed.evaluation(group[0]):
                seen = batch if self.labels is None else self.labels.all(batch)
                output = yield Output(seen, training=False)
                for part in group:
                    selected = batch.select(output, part)
                    self._metrics[part].update(*self.objective.prepared(*selected))
        values = {part: float(self._metrics[part].compute()) for part in parts}
        for part in parts:
            self._metrics[part].reset()
        return values

    def _evaluated_parts(self) -> tuple[str, ...]:
        """Validation, and test unless it is left alone; training where it is asked for, or comes
        for free."""
        free = self.feed.transductive and self.labels is None
        trained = free or "train" in self._looked_at
        wanted = {"train": trained, "val": True, "test": self.with_test}
        return tuple(part for part in PARTS if wanted[part])

    @property
    def _looked_at(self) -> tuple[str, ...]:
        """The parts whose metrics decide something."""
        schedule = self.config.schedule
        return (self.select_by, schedule.monitor if schedule.name == "plateau" else "val")

    def _keep(self, evaluation: Evaluation) -> None:
        self.evaluations.append(evaluation)
        value = evaluation.metrics[self.select_by]
        best = self.objective.worst if self.best is None else self.best.metrics[self.select_by]
        if self.best is None or self.objective.better(value, best):
            self.best, self.waited = evaluation, 0
            self.best_weights = {
                name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()
            }
        else:
            self.waited += 1

    def look(self) -> None:
        """Stops at a loss that is not finite, with what can be said of it."""
        unseen, self._unseen = self._unseen, []
        if not unseen:
            return
        losses = torch.stack([loss for _, _, loss in unseen]).tolist()  # waits for the device once
        for (step, epoch, _), loss in zip(unseen, losses, strict=True):
            if math.isfinite(loss):
                continue
            blame = suspects(self.model, self.optimizer)
            raise NonFiniteLossError(
                f"the loss of {self.name} is {loss} at step {step} (epoch {epoch}); {blame}. Lower "
                f"optimizer.lr (now {self.optimizer.param_groups[0]['lr']:g}), set "
                "optimizer.clip=1, or use training.precision=32 or 64. A checkpoint, if there is "
                "one, is from before"
            )

    def pack(self) -> tuple[dict[str, Tensors], dict[str, Any]]:
        """All that is needed to go on, as tensors by file and plain values."""
        self.look()  # what is kept is good
        moments, groups = pack_optimizer(self.optimizer)
        schedule = dict(self.schedule.state_dict())
        schedule.pop("lr_lambdas", None)  # functions, which are the same again
        tensors = {
            "last": dict(self.model.state_dict()),
            "best": self.best_weights,
            "optimizer": moments,
        }
        if self.average is not None:
            tensors["average"] = self.average.values
        values = {
            "epoch": self.epoch,
            "step": self.step,
            "waited": self.waited,
            "best": None if self.best is None else self.best.as_dict(),
            "num_evaluations": len(self.evaluations),
            "optimizer": groups,
            "schedule": schedule,
        }
        return tensors, values

    def unpack(
        self, tensors: dict[str, Tensors], values: dict[str, Any], evaluations: list[Evaluation]
    ) -> None:
        """Goes back to where :meth:`pack` was."""
        self.model.load_state_dict(tensors["last"])
        if self.average is not None:
            for name, value in tensors["average"].items():
                self.average.values[name].copy_(value)
        self.best_weights = {name: t.to(self.device) for name, t in tensors["best"].items()}
        unpack_optimizer(self.optimizer, tensors["optimizer"], values["optimizer"])
        state = values["schedule"]
        if not isinstance(self.schedule, ReduceLROnPlateau):
            state = {**state, "lr_lambdas": [None] * len(self.optimizer.param_groups)}
        self.schedule.load_state_dict(state)
        self.epoch, self.step, self.waited = values["epoch"], values["step"], values["waited"]
        self.best = None if values["best"] is None else Evaluation.from_dict(values["best"])
        self.evaluations = evaluations
