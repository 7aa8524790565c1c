"""The models that can be trained by name: BuNN, and the baselines of the paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, Protocol

import torch
from torch import nn
from torch_geometric.nn import Linear

from bunn.baselines import BASELINES
from bunn.nn import BuNN
from bunn.nn.dropout import hiding
from bunn.nn.pooling import Pooling


@dataclass(frozen=True)
class BuNNOptions:
    """The keywords of :class:`bunn.BuNN` that are plain values, which it checks.

    Args:
        linear_encoder: Whether features enter through a linear map alone, or through a
            non-linearity too. (default: :obj:`False`)
        pooling: What becomes of nodes where outputs are those of graphs. (default: ``"mean"``)
    """

    hidden_channels: int = 128
    num_layers: int = 2
    dropout: float = 0.0
    input_dropout: float = 0.0
    node_dropout: float = 0.0
    act: str = "gelu"
    norm: Literal["layer", "batch"] | None = "layer"
    norm_first: bool = True
    residual: bool = True
    head_layers: int = 1
    head_dropout: float = 0.0
    linear_encoder: bool = False
    pooling: Pooling = "mean"
    phi: Literal["mlp", "sum", "sum-residual", "sage"] = "mlp"
    phi_layers: int = 1
    phi_channels: int | None = None
    shared_phi: bool = False
    phi_before_norm: bool = True
    phi_norm: Literal["layer", "batch"] | None = None
    act_residual: bool = False
    num_bundles: int = 1
    bundle_dim: int = 2
    time: float | tuple[float, ...] = 1.0
    learn_time: bool = False
    maps: str = "o2"
    weight: bool = True
    bias: Literal["global", "local"] | None = "global"
    update: str = "before"
    normalization: Literal["rw", "sym"] = "rw"
    method: str = "auto"
    tol: float = 1e-5
    degree: int | None = None
    num_eigs: int | None = None

    @property
    def reads_edges(self) -> bool:
        """Whether the features of edges are read; a bundle knows none."""
        return False

    @property
    def may_be_filled(self) -> bool:
        """Whether batches may be filled up with isolated nodes: heat stays there, and there are
        kernels for such batches if it comes from a polynomial or from all eigenvectors."""
        one = self.method == "taylor" and not isinstance(self.time, tuple)
        known = self.method in ("auto", "chebyshev", "spectral") or one
        return known and self.num_eigs is None

    def __post_init__(self) -> None:
        with torch.device("meta"):  # no memory, no random numbers: an error now, not after loading
            _build_bunn(self, in_channels=1, out_channels=1)


class Build(Protocol):
    def __call__(
        self,
        options: Any,
        in_channels: int,
        out_channels: int,
        *,
        pooling: Pooling | None = None,
        pe_channels: int = 0,
        encoder: nn.Module | None = None,
        edge_channels: int = 0,
        edge_encoder: nn.Module | None = None,
    ) -> nn.Module: ...


@dataclass(frozen=True)
class Model:
    """A model that can be trained by name.

    Args:
        name: Lower case, with hyphens.
        options: A frozen dataclass.
        reference: The paper.
        build: From options, input and output size to the module.
    """

    name: str
    options: type
    reference: str
    build: Build | Callable[..., nn.Module]


def _build_bunn(
    options: BuNNOptions,
    in_channels: int,
    out_channels: int,
    *,
    pooling: Pooling | None = None,
    pe_channels: int = 0,
    encoder: nn.Module | None = None,
    edge_channels: int = 0,
    edge_encoder: nn.Module | None = None,
) -> nn.Module:
    keywords = {field.name: getattr(options, field.name) for field in fields(options)}
    linear, _ = keywords.pop("linear_encoder"), keywords.pop("pooling")
    if linear or encoder is not None:  # an encoder that is given drops what there is to drop
        hides = hiding(keywords.pop("input_dropout"), keywords.pop("node_dropout"))
        if encoder is None:
            lin = Linear(in_channels, options.hidden_channels)
            encoder = nn.Sequential(*hides, lin) if hides else lin
    return BuNN(
        in_channels,
        out_channels=out_channels,
        pooling=pooling,
        pe_channels=pe_channels,
        encoder=encoder,
        **keywords,
    )


MODELS: dict[str, Model] = {
    "bunn": Model(
        "bunn", BuNNOptions, "Bamberger et al., ICLR 2025, arXiv:2405.15540", _build_bunn
    ),
    **{
        name: Model(name, baseline.options, baseline.reference, baseline.build)
        for name, baseline in BASELINES.items()
    },
}
