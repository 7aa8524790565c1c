"""The Long Range Graph Benchmark: every model of the paper's table, after Tönshoff et al. (2023).

About 500,000 parameters, mean pooling, AdamW with a linear warm-up and a half cosine, gradients
clipped at one, four seeds; a number is of the epoch that is best on validation data.

Presets of a BuNN:

- ``paper``: what the text and its table of best values say: a time of 1, an update before the heat,
  rotations and reflections, and the settings of the GCN of Tönshoff et al., which it inherits. The
  residual connection does not skip the non-linearity.
- ``released``: what the released configurations ran: heat from all eigenvectors at a time to each
  bundle that is learned and starts at ``10^(k - b/2)``, a linear map after the heat, normalised map
  parameters, symmetric Laplacian, BatchNorm, a residual connection that skips the non-linearity.
  Their map, called Householder there, is the Cayley transform of the plane up to signs that cancel.

Baselines have ``paper``: GCN, GINE, GatedGCN and GPS as Tönshoff et al. tuned them
(their ``configs/LRGB-tuned``); DRew, SAN and Graph ViT as their authors ran them, where that is
published, and Exphormer after GPS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from bunn.baselines import BASELINES
from bunn.data import DATASETS, GraphDataset, Split
from bunn.data.lrgb import CLASSES
from bunn.data.peptides import described
from bunn.experiments.jobs import Job
from bunn.experiments.request import Request
from bunn.experiments.requested import datasets_asked, measured, presets_asked
from bunn.training import Config, ConfigError, Encoding, Optimizer, Schedule, Training
from bunn.training.building import build_model
from bunn.training.models import BuNNOptions
from bunn.training.watch import Watcher

EXPERIMENT = "lrgb"
FUNC, STRUCT, VOC = THREE = ("peptides-func", "peptides-struct", "pascalvoc-sp")
MODELS = ("gcn", "gine", "gatedgcn", "drew", "san", "gps", "graph-vit", "exphormer", "bunn")
SEEDS = 4
#: Parameters that a model may have: about 500,000, a tenth more at most.
BUDGET = 550_000

EncodingName = Literal["rwse", "lap"] | None
#: Positional encodings as Tönshoff et al. have them; but eigenvectors are those of the normalised
#: Laplacian of every component, without the constant one.
ENCODINGS: dict[EncodingName, Encoding] = {
    "rwse": Encoding(rwse=20, pe_as="encoder", rwse_channels=28),
    "lap": Encoding(lap_pe=10, pe_as="encoder", lap_channels=16),
    None: Encoding(),
}
#: What they train with on each: graphs to a batch, epochs, epochs of warm-up, dropout.
PROTOCOL = {FUNC: (200, 250, 5, 0.1), STRUCT: (200, 250, 5, 0.1), VOC: (50, 200, 10, 0.0)}
#: A plateau as the authors of DRew, SAN and Graph ViT have it.
PLATEAU = Schedule("plateau", factor=0.5, patience=20, min_lr=1e-5)


@dataclass(frozen=True)
class Settings:
    """Those of a baseline.

    Args:
        layers: Their number.
        width: Of the stream.
        encoding: The positional encoding.
        head: Layers of the head.
        dropout: :obj:`None` for that of the protocol.
        options: What else the model has.
    """

    layers: int
    width: int
    encoding: EncodingName
    head: int = 3
    dropout: float | None = None
    options: tuple[tuple[str, Any], ...] = ()


#: Of GCN and GINE: no normalisation, and the residual connection skips the non-linearity.
_BARE = (("norm", None),)
_GINE = (*_BARE, ("outer_act", False))
_BATCH = (("norm", "batch"), ("norm_first", False))
_GPS = (*_BATCH, ("heads", 4), ("attention_dropout", 0.5), ("local", "gatedgcn"))
#: ``configs/LRGB-tuned`` of Tönshoff et al.
TUNED_BY_THEM = {
    (FUNC, "gcn"): Settings(6, 235, "rwse", options=_BARE),
    (FUNC, "gine"): Settings(8, 160, "rwse", options=_GINE),
    (FUNC, "gatedgcn"): Settings(10, 95, "rwse", options=(*_BATCH, ("act", "relu"))),
    (FUNC, "gps"): Settings(6, 76, "lap", 2, options=_GPS),
    (STRUCT, "gcn"): Settings(6, 235, "lap", options=_BARE),
    (STRUCT, "gine"): Settings(10, 145, "lap", options=_GINE),
    (STRUCT, "gatedgcn"): Settings(8, 100, "lap", options=(*_BATCH, ("act", "relu"))),
    (STRUCT, "gps"): Settings(8, 64, "lap", 2, options=_GPS),
    (VOC, "gcn"): Settings(10, 200, "rwse", options=_BARE),
    (VOC, "gine"): Settings(10, 145, None, 2, 0.2, _GINE),
    (VOC, "gatedgcn"): Settings(10, 95, None, 2, 0.2, (*_BATCH, ("act", "relu"))),
    (VOC, "gps"): Settings(8, 68, "lap", 2, 0.1, _GPS),
}
#: What the authors of the other models ran on peptides, within the budget; Exphormer's settings are
#: not published, and are those of GPS.
THEIR_OWN = {
    "drew": Settings(23, 42, "lap", 1, 0.0, (*_BATCH, ("act", "relu"))),
    "san": Settings(4, 104, "rwse", 1, 0.0, (("norm", "batch"), ("heads", 4), ("gamma", 1e-6))),
    "graph-vit": Settings(1, 104, "rwse", 2, 0.0, (("norm", "batch"), ("residual", False))),
    "exphormer": Settings(6, 76, "lap", 2, None, (*_BATCH, ("heads", 4), ("local", "gatedgcn"))),
}


@dataclass(frozen=True)
class Best:
    """A column of the paper's table of best values for BuNN, or a released configuration.

    Args:
        layers: Of BuNN.
        width: Of the stream, within the budget.
        bundles: Their number ``b``.
        phi: The network that computes maps.
        encoding: The positional encoding.
        rate: The learning rate.
        epochs: Of a run.
    """

    layers: int
    width: int
    bundles: int
    phi: Literal["sum", "sum-residual", "mlp"]
    encoding: EncodingName
    rate: float
    epochs: int


#: Table "Grid of hyper-parameters", and what is inherited from the GCN of Tönshoff et al.
PAPER = {
    FUNC: Best(6, 224, 16, "sum", "rwse", 1e-3, 250),
    STRUCT: Best(4, 256, 16, "mlp", "lap", 1e-3, 250),
    VOC: Best(20, 128, 16, "mlp", "lap", 1e-3, 200),
}
#: The released configurations.
RELEASED = {
    FUNC: Best(4, 256, 8, "sum-residual", "rwse", 5e-3, 250),
    STRUCT: Best(3, 224, 16, "mlp", "lap", 1.2e-2, 500),
    VOC: Best(20, 128, 16, "mlp", "lap", 1e-3, 300),
}
DECAY = 0.2
#: Presets of ours, as changes of ``released``: none has been chosen yet.
SEARCHED: dict[str, dict[str, tuple[str, ...]]] = {}


def preset(dataset: str, model: str, name: str = "paper") -> Config:
    """The configuration of one cell of the table.

    Args:
        dataset: One of :data:`THREE`.
        model: One of :data:`MODELS`.
        name: One of :func:`names`.
    """
    if model != "bunn":
        return _baseline(dataset, model)
    if name == "paper":
        return _paper(dataset, PAPER[dataset])
    config = _released(dataset, RELEASED[dataset])
    return config if name == "released" else config.override(SEARCHED[name][dataset])


def names(dataset: str, model: str) -> tuple[str, ...]:
    """The presets that there are."""
    if model != "bunn":
        return ("paper",)
    return ("paper", "released", *(name for name, found in SEARCHED.items() if dataset in found))


def _paper(dataset: str, best: Best) -> Config:
    options = _options(dataset, best, maps="o2", normalization="rw", act_residual=True)
    return _config(dataset, "bunn", options, best.encoding, best.rate, best.epochs, DECAY)


def _released(dataset: str, best: Best) -> Config:
    options = _options(
        dataset,
        best,
        maps="cayley",
        normalization="sym",
        update="after",
        phi_norm="batch",
        phi_channels=32,
        time=tuple(10.0 ** (k - best.bundles // 2) for k in range(best.bundles)),
        learn_time=True,
        method="spectral",
    )
    return _config(dataset, "bunn", options, best.encoding, best.rate, best.epochs, DECAY)


def _options(dataset: str, best: Best, **keywords: Any) -> BuNNOptions:
    return BuNNOptions(
        hidden_channels=best.width,
        num_layers=best.layers,
        num_bundles=best.bundles,
        phi=best.phi,
        dropout=PROTOCOL[dataset][3],
        head_dropout=PROTOCOL[dataset][3],
        norm="batch",
        norm_first=False,
        head_layers=3,
        linear_encoder=True,
        **{"phi_channels": 2 * best.bundles, **keywords},
    )


def _baseline(dataset: str, model: str) -> Config:
    settings = TUNED_BY_THEM.get((dataset, model)) or THEIR_OWN[model]
    dropout = PROTOCOL[dataset][3] if settings.dropout is None else settings.dropout
    keywords = {"act": "gelu", "dropout": dropout, "head_layers": settings.head}
    keywords["linear_encoder"] = True
    # As their heads are: that of nodes drops nothing, and has its own non-linearity.
    head = ("gelu", dropout) if dataset != VOC else ("relu", 0.0)
    keywords["head_act"], keywords["head_dropout"] = head
    options = BASELINES[model].options(
        hidden_channels=settings.width,
        num_layers=settings.layers,
        **keywords | dict(settings.options),
    )
    config = _config(dataset, model, options, settings.encoding, 3e-4 if model == "san" else 1e-3)
    if dataset == VOC and model in ("gcn", "gine", "gatedgcn"):  # where they do not clip
        return replace(config, optimizer=replace(config.optimizer, clip=None))
    if model in ("gcn", "gine", "gatedgcn", "gps", "exphormer") or dataset == VOC:
        return config
    epochs = {"drew": 300, "san": 500, "graph-vit": 200}[model]
    training = replace(config.training, epochs=epochs, batch_size=128)
    return replace(config, schedule=PLATEAU, training=training)


def _config(
    dataset: str,
    model: str,
    options: Any,
    encoding: EncodingName,
    rate: float,
    epochs: int | None = None,
    decay: float = 0.0,
) -> Config:
    batch_size, usual, warmup, _ = PROTOCOL[dataset]
    return Config(
        dataset,
        model,
        model=options,
        encoding=ENCODINGS[encoding],
        optimizer=Optimizer("adamw", lr=rate, weight_decay=decay, clip=1.0),
        schedule=Schedule("cosine", warmup=warmup),
        training=Training(
            epochs=epochs or usual,
            batch_size=batch_size,
            balanced=dataset == VOC,
            precision="tf32",
        ),
    )


def _not_read(index: int) -> Split:
    raise LookupError("sizes alone are known, for models that are counted and not trained")


#: What models are built for, without reading the data.
SIZES = {
    FUNC: described(FUNC, _not_read),
    STRUCT: described(STRUCT, _not_read),
    VOC: GraphDataset(VOC, DATASETS[VOC].task, 14, CLASSES, 1, _not_read, edge_channels=2),
}


def num_parameters(config: Config) -> int:
    """Those of the model of a configuration, which is not built."""
    with torch.device("meta"):
        model = build_model(config, SIZES[config.dataset])
    return sum(parameter.numel() for parameter in model.parameters())


def check_budget(config: Config) -> None:
    """Raises an error if a model has more parameters than the others of the table."""
    if (count := num_parameters(config)) > BUDGET:
        raise ConfigError(
            f"{config.architecture} on {config.dataset} has {count:,} parameters; models of this "
            f"table have about 500,000, {BUDGET:,} at most; lower model.hidden_channels"
        )


def jobs(request: Request) -> list[Job]:
    """One job for every cell of the table that can be filled here."""
    cells = [
        (dataset, model, name)
        for dataset in datasets_of(request)
        for model in request.models or MODELS
        for name in presets_asked(request, dataset, model, names(dataset, model))
    ]
    for key in cells:
        check_budget(preset(*key))
    seeds = request.seeds_or(SEEDS)
    return [
        Job(
            f"{dataset} {model}" + (f", {name}" if name != "paper" else ""),
            cell,
            (dataset, model, name, seeds, request),
            runs=len(seeds),
        )
        for dataset, model, name in cells
    ]


def datasets_of(request: Request) -> tuple[str, ...]:
    """Those asked for, or those that are here."""
    return datasets_asked(request, THREE, THREE)


def cell(
    watcher: Watcher, dataset: str, model: str, name: str, seeds: Sequence[int], request: Request
) -> Path:
    """Measures one cell of the table and writes its result file, after every seed."""
    runs = [(0, seed) for seed in seeds]
    for result in measured(watcher, preset(dataset, model, name), runs, EXPERIMENT, name, request):
        path = result.write(request.results)
    return path
