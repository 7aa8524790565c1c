"""What one experiment is: typed, checked, printed and saved with every run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from bunn.data import DATASETS
from bunn.files import plain
from bunn.training.models import MODELS
from bunn.training.options import (
    ConfigError,
    check_fields,
    field_types,
    nearest,
    parse_value,
    read_options,
)

Precision = Literal["32", "64", "tf32", "bf16-mixed", "16-mixed"]


@dataclass(frozen=True)
class Encoding:
    """How graphs and features are put to a model.

    Positional encodings reach it as ``pe``, or stand beside the features. The degree is one more
    feature, and features may be encoded by their quantiles.

    Args:
        lap_pe: The number of Laplacian eigenvectors. (default: ``0``)
        rwse: The number of steps of the random-walk encoding. (default: ``0``)
        flip_signs: Whether eigenvectors get random signs at every training step. (default:
            :obj:`True`)
        pe_as: ``"pe"``, what the phi of a BuNN reads in every layer; ``"features"``, further
            columns of ``x``, the eigenvectors times the root of the number of nodes; or
            ``"encoder"``, what is encoded beside the features, by networks that are learned:
            eigenpairs by :class:`bunn.nn.EigenvectorEncoder`, random walks by
            :class:`bunn.nn.RandomWalkEncoder`. (default: ``"pe"``)
        lap_channels: Of the hidden ones those that eigenpairs are encoded in, by an encoder.
            (default: ``16``)
        rwse_channels: The same of random walks. (default: ``28``)
        degree: Whether the logarithm of the degree stands beside the features. (default:
            :obj:`False`)
        quantiles: Into as many bins each feature is encoded, by
            :class:`bunn.data.transforms.QuantileEncoding`; their edges are taken from all nodes of
            training graphs. (default: ``0``, features are as they are)
    """

    lap_pe: int = 0
    rwse: int = 0
    flip_signs: bool = True
    pe_as: Literal["pe", "features", "encoder"] = "pe"
    lap_channels: int = 16
    rwse_channels: int = 28
    degree: bool = False
    quantiles: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        _at_least(self, 0, "lap_pe", "rwse", "quantiles")
        _at_least(self, 1, "lap_channels", "rwse_channels")
        if self.pe_as == "features" and self.lap_pe and self.flip_signs:
            raise ConfigError(
                "encoding.pe_as=features, but encoding.flip_signs=true, which is for pe alone; use "
                "encoding.flip_signs=false: the signs of one graph are settled"
            )

    @property
    def channels(self) -> int:
        """Of ``pe``; an encoder reads eigenvalues, too."""
        if self.pe_as == "features":
            return 0
        return self.lap_pe * (2 if self.pe_as == "encoder" else 1) + self.rwse

    @property
    def changes_features(self) -> bool:
        """Whether ``x`` is not as it was."""
        return self.quantiles > 0 or self.features(1) > 1

    def features(self, in_channels: int) -> int:
        """How many columns ``x`` has, that had ``in_channels``."""
        beside = self.lap_pe + self.rwse if self.pe_as == "features" else 0
        return (in_channels + self.degree + beside) * max(1, self.quantiles)


@dataclass(frozen=True)
class Optimizer:
    """How parameters move.

    Args:
        name: ``"adam"`` or ``"adamw"``. (default: ``"adamw"``)
        lr: The learning rate. (default: ``1e-3``)
        time_lr: That of diffusion times, which never decay. (default: ``lr``)
        weight_decay: (default: ``0.0``)
        clip: The largest norm of a gradient. (default: no limit)
    """

    name: Literal["adam", "adamw"] = "adamw"
    lr: float = 1e-3
    time_lr: float | None = None
    weight_decay: float = 0.0
    clip: float | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        _positive(self, "lr", "time_lr", "clip")
        _at_least(self, 0, "weight_decay")
        _finite(self, "weight_decay")


@dataclass(frozen=True)
class Schedule:
    """How the learning rate changes from epoch to epoch.

    Args:
        name: ``"constant"``; ``"cosine"`` (linear warm-up, then a half cosine to zero); or
            ``"plateau"`` (times ``factor`` after ``patience`` evaluations without a gain).
            (default: ``"constant"``)
        warmup: Epochs of linear warm-up, for ``"constant"`` and ``"cosine"``. (default: ``0``)
        factor: (default: ``0.5``)
        patience: (default: ``10``)
        min_lr: The rate a plateau never falls below. (default: ``1e-6``)
        monitor: What a plateau looks at: the training ``"loss"``, or the metric on ``"train"`` or
            ``"val"``. (default: ``"val"``)
    """

    name: Literal["constant", "cosine", "plateau"] = "constant"
    warmup: int = 0
    factor: float = 0.5
    patience: int = 10
    min_lr: float = 1e-6
    monitor: Literal["loss", "train", "val"] = "val"

    def __post_init__(self) -> None:
        check_fields(self)
        _at_least(self, 0, "warmup", "patience", "min_lr")
        _finite(self, "min_lr")
        if not 0 < self.factor < 1:
            raise ValueError(f"factor={self.factor}; a plateau multiplies by a factor in (0, 1)")
        if self.name == "plateau" and self.warmup:
            raise ValueError(
                f"warmup={self.warmup}; a plateau knows no warm-up; use 0, or the schedule "
                "'constant' or 'cosine'"
            )


@dataclass(frozen=True)
class Training:
    """How long, in which portions, and when to look.

    Args:
        epochs: Passes over the training data; one step each in full batch. (default: ``1000``)
        batch_size: Graphs to a step; :obj:`None` takes all at once. (default: :obj:`None`)
        eval_every: Epochs between evaluations. (default: ``1``)
        patience: Evaluations without a better validation metric before stopping. (default: never
            stop early)
        goal: Stop once the validation metric is at least this good. (default: none)
        precision: ``"32"``, ``"64"``, ``"tf32"`` (float32, whose products a GPU rounds to TF32),
            ``"bf16-mixed"`` or ``"16-mixed"``. (default: ``"32"``)
        together: Whether runs that differ by seed alone share their products: see
            :mod:`bunn.training.drive`. :obj:`None` does so for small batches. (default:
            :obj:`None`)
        average: The decay of a running mean of the weights, which is evaluated and kept in place of
            the last ones: at 0.99 the last hundred steps count. (default: no mean)
        buckets: Batches are cut from so many times their graphs, ordered by size, so that graphs of
            a batch are alike where that saves work: attention between all nodes fills them up to
            the largest. (default: ``1``, graphs are drawn whatever their size)
        balanced: Whether the cross-entropy weighs a class by the share of nodes, of those that
            count in a batch, that are not of it. (default: :obj:`False`)
        label_inputs: The share of the training labels that are inputs at a step, which predicts the
            others: see :mod:`bunn.training.labels`. (default: labels are no inputs)
        checkpoint_seconds: Time between checkpoints. (default: ``30.0``)
    """

    epochs: int = 1000
    batch_size: int | None = None
    eval_every: int = 1
    patience: int | None = None
    goal: float | None = None
    precision: Precision = "32"
    together: bool | None = None
    average: float | None = None
    buckets: int = 1
    balanced: bool = False
    label_inputs: float | None = None
    checkpoint_seconds: float = 30.0

    def __post_init__(self) -> None:
        check_fields(self)
        _at_least(self, 1, "epochs", "batch_size", "eval_every", "patience", "buckets")
        _at_least(self, 0, "checkpoint_seconds")
        if self.average is not None and not 0 < self.average < 1:
            raise ValueError(f"average={self.average}; a decay is between 0 and 1, such as 0.99")
        if self.label_inputs is not None and not 0 < self.label_inputs < 1:
            raise ValueError(
                f"label_inputs={self.label_inputs}; a step shows some labels and asks for the "
                "others; use a share between 0 and 1, such as 0.5, or none"
            )
        if self.goal is not None and math.isnan(self.goal):
            raise ValueError("goal=nan; no metric reaches it; use a number, or none")


@dataclass(frozen=True)
class Config:
    """One experiment: a dataset, a model, and how the one learns from the other.

    Args:
        dataset: A name in :data:`bunn.data.DATASETS`.
        architecture: A name in :data:`bunn.training.MODELS`.
        data: The options of that dataset, or a mapping with some of them. (default: its defaults)
        model: The options of that model, or a mapping with some of them. (default: its defaults)

    The other sections take a mapping, too.
    """

    dataset: str
    architecture: str = "bunn"
    data: Any = None
    model: Any = None
    encoding: Encoding = field(default_factory=Encoding)
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    training: Training = field(default_factory=Training)

    def __post_init__(self) -> None:
        for what, name, known in (
            ("dataset", self.dataset, DATASETS),
            ("architecture", self.architecture, MODELS),
        ):
            if not isinstance(name, str) or name not in known:
                raise ConfigError(f"{what}={name!r} is not known; {nearest(str(name), known)}")
        for section, kind in _sections(self.dataset, self.architecture).items():
            value = getattr(self, section)
            if value is None or isinstance(value, Mapping):
                object.__setattr__(self, section, read_options(kind, value or {}, section))
            elif not isinstance(value, kind):
                raise ConfigError(
                    f"{section} is a {type(value).__name__}; with dataset={self.dataset!r} and "
                    f"architecture={self.architecture!r} pass a {kind.__name__}"
                )
        if self.schedule.warmup > self.training.epochs:
            raise ConfigError(
                f"schedule.warmup={self.schedule.warmup}; it is longer than "
                f"training.epochs={self.training.epochs}; lower it, or train for longer"
            )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, which :meth:`from_dict` reads."""
        values: dict[str, Any] = plain(asdict(self))
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Config:
        """The configuration that :meth:`as_dict` wrote, or part of it: the rest is default."""
        known = [entry.name for entry in fields(cls)]
        for name in values:
            if name not in known:
                raise ConfigError(f"{name} is no section; {nearest(name, known)}")
        if "dataset" not in values:
            raise ConfigError("dataset is missing; name one: bunn datasets lists them")
        config = cls(values["dataset"], values.get("architecture", "bunn"))
        kinds = _sections(config.dataset, config.architecture)
        read: dict[str, Any] = {
            name: read_options(kinds[name], section, name)
            for name, section in values.items()
            if name in kinds and section is not None
        }
        return replace(config, **read)

    @classmethod
    def completed(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """What :meth:`as_dict` wrote once, with the defaults of options that came later; what
        cannot be read is left as it is."""
        try:
            return cls.from_dict(values).as_dict()
        except (ValueError, TypeError):
            return dict(values)

    def override(self, settings: Iterable[str]) -> Config:
        """The configuration with ``"model.num_layers=4"`` and the like applied."""
        values = self.as_dict()
        for setting in settings:
            path, equals, text = setting.partition("=")
            section, dot, name = path.strip().partition(".")
            if not (equals and dot and name):
                raise ConfigError(
                    f"{setting!r} is no setting; write SECTION.OPTION=VALUE, such as "
                    "model.num_layers=4"
                )
            if section not in values or not isinstance(values[section], dict):
                known = [key for key, value in values.items() if isinstance(value, dict)]
                raise ConfigError(f"{section} is no section; {nearest(section, known)}")
            if name not in values[section]:
                raise ConfigError(f"{path} is no option; {self._meant(section, name)}")
            values[section][name] = parse_value(text)
        return Config.from_dict(values)

    def _meant(self, section: str, name: str) -> str:
        """A hint at the option that was meant: of another section or model, or of a like name."""
        kinds = _sections(self.dataset, self.architecture)
        if found := [other for other, kind in kinds.items() if name in field_types(kind)]:
            return f"did you mean {' or '.join(f'{other}.{name}' for other in found)}?"
        models = [model for model, kind in MODELS.items() if name in field_types(kind.options)]
        if section == "model" and models:
            return f"it is one of {', '.join(models)}, not of {self.architecture}"
        return nearest(name, field_types(kinds[section]))


def _sections(dataset: str, architecture: str) -> dict[str, type]:
    """The types of the options: two of them depend on a name."""
    return {
        "data": DATASETS[dataset].options,
        "model": MODELS[architecture].options,
        "encoding": Encoding,
        "optimizer": Optimizer,
        "schedule": Schedule,
        "training": Training,
    }


def _at_least(options: object, bound: float, *names: str) -> None:
    for name in names:
        value = getattr(options, name)
        if value is not None and not value >= bound:
            raise ValueError(f"{name}={value}; it must be >= {bound}")


def _finite(options: object, *names: str) -> None:
    for name in names:
        value = getattr(options, name)
        if not math.isfinite(value):
            raise ValueError(f"{name}={value}; it must be finite")


def _positive(options: object, *names: str) -> None:
    for name in names:
        value = getattr(options, name)
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name}={value}; it must be a positive number")
