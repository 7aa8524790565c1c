"""The model of an experiment, for the data of it."""

from __future__ import annotations

from torch import nn
from torch_geometric.nn import Linear

from bunn.data import GraphDataset
from bunn.nn import EigenvectorEncoder, PositionalEncoder, RandomWalkEncoder
from bunn.nn.dropout import hiding
from bunn.training.config import Config
from bunn.training.labels import label_channels
from bunn.training.models import MODELS
from bunn.training.options import ConfigError


def build_model(config: Config, dataset: GraphDataset) -> nn.Module:
    """The model of an experiment, for the sizes of its dataset."""
    channels = config.encoding.features(dataset.in_channels)
    if config.training.label_inputs is not None:
        channels += label_channels(dataset)
    if dataset.encoder is not None and config.encoding.changes_features:
        raise ConfigError(
            f"encoding has degree, quantiles or pe_as=features, but features of {dataset.name} "
            "go through an encoder of their own, which has no place for them; leave them out"
        )
    return MODELS[config.architecture].build(
        config.model,
        channels,
        dataset.out_channels,
        pooling=getattr(config.model, "pooling", "mean") if dataset.task.level == "graph" else None,
        pe_channels=config.encoding.channels,
        encoder=_node_encoder(config, dataset, channels),
        edge_channels=dataset.edge_channels,
        edge_encoder=dataset.edge_encoder and dataset.edge_encoder(config.model.hidden_channels),
    )


def _node_encoder(config: Config, dataset: GraphDataset, channels: int) -> nn.Module | None:
    """The encoder of features and, where it reads them, of positional encodings; :obj:`None` for
    the model's own."""
    encoding, width = config.encoding, config.model.hidden_channels
    if encoding.pe_as != "encoder" or not encoding.channels:
        return None if dataset.encoder is None else _of_features(config, dataset, channels, width)
    positions: list[nn.Module] = []
    if encoding.lap_pe:
        positions.append(EigenvectorEncoder(encoding.lap_pe, encoding.lap_channels))
        width -= encoding.lap_channels
    if encoding.rwse:
        positions.append(RandomWalkEncoder(encoding.rwse, encoding.rwse_channels))
        width -= encoding.rwse_channels
    if width < 1:
        raise ConfigError(
            f"model.hidden_channels={config.model.hidden_channels} leaves nothing for features: "
            "encoding.lap_channels and encoding.rwse_channels take all of it; lower them"
        )
    return PositionalEncoder(_of_features(config, dataset, channels, width), positions)


def _of_features(config: Config, dataset: GraphDataset, channels: int, width: int) -> nn.Module:
    """The encoder of features alone. Features that are dropped, or those of nodes that are hidden,
    are numbers: those it reads, or of a dataset with an encoder of its own, those it returns."""
    options = config.model
    hides = hiding(getattr(options, "input_dropout", 0.0), getattr(options, "node_dropout", 0.0))
    if dataset.encoder is not None:
        parts = [dataset.encoder(width), *hides]
    else:
        parts = [*hides, Linear(channels, width)]
    return nn.Sequential(*parts) if hides else parts[0]
