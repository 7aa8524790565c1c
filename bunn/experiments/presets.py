"""Configurations by name, for ``bunn train``: those of the paper's experiments, and a default."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from bunn.data import DATASETS
from bunn.experiments import heterophilous, lrgb, neighborsmatch, synthetic
from bunn.training import Config, ConfigError, Optimizer, Training
from bunn.training.options import nearest

Preset = Callable[[], Config]


def presets(dataset: str, model: str, data: Any = None) -> dict[str, Preset]:
    """The presets for a dataset and a model, by name; the first is what is used unasked.

    Args:
        dataset: The name of the dataset.
        model: The name of the model.
        data: The options of the dataset, which a preset may depend on. (default: its defaults)
    """
    found: dict[str, Preset] = {}
    if dataset in synthetic.DATASETS and model in synthetic.MODELS:
        found["paper"] = lambda: synthetic.preset(dataset, model)
        found["quick"] = lambda: synthetic.preset(dataset, model, synthetic.QUICK_EPOCHS)
    if dataset == "tree-neighborsmatch" and model in neighborsmatch.MODELS:
        depth = (data or DATASETS[dataset].options()).depth
        for name, models in neighborsmatch.PRESETS.items():
            if model in models:
                found[name] = partial(neighborsmatch.preset, depth, model, name)
    found["default"] = lambda: _default(dataset, model)
    if dataset in (*heterophilous.FIVE, *heterophilous.SMALL) and model in heterophilous.MODELS:
        for name in heterophilous.names(dataset, model):  # which ask for a GPU, and for being asked
            found[name] = partial(heterophilous.preset, dataset, model, name)
    if dataset in lrgb.THREE and model in lrgb.MODELS:
        for name in lrgb.names(dataset, model):
            found[name] = partial(lrgb.preset, dataset, model, name)
    return found


def find_preset(
    dataset: str, model: str, name: str | None = None, settings: Sequence[str] = ()
) -> tuple[str, Config]:
    """A preset and its name; without a name the first there is.

    Args:
        dataset: The name of the dataset.
        model: The name of the model.
        name: The name of the preset. (default: the first there is)
        settings: What to change in it, as :meth:`bunn.training.Config.override` takes it; a preset
            that depends on the data is the one for the data they ask for.
    """
    of_data = [setting for setting in settings if setting.lstrip().startswith("data.")]
    known = presets(dataset, model, Config(dataset, model).override(of_data).data)
    if name is None:
        name = next(iter(known))
    if name not in known:
        raise ConfigError(
            f"there is no preset {name!r} for {model} on {dataset}; {nearest(name, known)}"
        )
    return name, known[name]().override(settings)


def _default(dataset: str, model: str) -> Config:
    """A reasonable start: full batch for one graph, mini-batches for many."""
    many = Training(epochs=100, batch_size=32)
    one = Training(epochs=1000, patience=200)
    training = one if DATASETS[dataset].transductive else many
    return Config(dataset, model, optimizer=Optimizer("adamw", lr=1e-3), training=training)
