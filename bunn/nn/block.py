"""The residual block around a BuNN layer."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torch_geometric.nn.resolver import activation_resolver

from bunn.laplacian import Laplacian
from bunn.nn.chains import drop, pre_norm
from bunn.nn.conv import BuNNConv
from bunn.nn.dropout import Dropout
from bunn.nn.norm import BatchNorm
from bunn.nn.precision import factor_dtype

Norm = Literal["layer", "batch"] | None


class BuNNBlock(nn.Module):
    r"""Normalisation, layer, non-linearity and residual connection.

    Pre-norm, ``x + dropout(act(conv(norm(x))))``, or post-norm, ``x +
    act(norm(dropout(conv(x))))``; or, with ``act_residual``, ``act(x + ...)`` in either. A layer
    whose update is a two-layer network has its non-linearity inside, and its dropout if it has one,
    and gets no second ones.

    Args:
        conv: The layer, with as many output as input channels.
        act: The non-linearity of Equation 4. (default: ``"gelu"``)
        norm: ``"layer"``, ``"batch"`` or :obj:`None`. (default: ``"layer"``)
        norm_first: Pre-norm or post-norm. (default: :obj:`True`)
        residual: Whether to add the input. (default: :obj:`True`)
        dropout: (default: ``0.0``)
        phi_before_norm: Whether phi reads the input before a pre-norm. (default: :obj:`True`)
        act_residual: Whether the non-linearity comes after the residual connection. (default:
            :obj:`False`)
    """

    def __init__(
        self,
        conv: BuNNConv,
        *,
        act: str = "gelu",
        norm: Norm = "layer",
        norm_first: bool = True,
        residual: bool = True,
        dropout: float = 0.0,
        phi_before_norm: bool = True,
        act_residual: bool = False,
    ) -> None:
        super().__init__()
        self.conv = conv
        self.norm = self.build_norm(norm, conv.out_channels)
        linear = conv.update.num_layers == 1 or conv.network is None
        self.act = activation_resolver(act) if linear else nn.Identity()
        self.dropout = Dropout(dropout if linear or conv.update.dropout == 0 else 0.0)
        self.norm_first, self.residual = norm_first, residual
        self.phi_before_norm, self.act_residual = phi_before_norm, act_residual

    @staticmethod
    def build_norm(norm: Norm, channels: int) -> nn.Module:
        """The normalisation called ``norm``."""
        if norm == "layer":
            return nn.LayerNorm(channels)
        if norm == "batch":
            return BatchNorm(channels)
        if norm is None:
            return nn.Identity()
        raise ValueError(f"norm={norm!r}; use 'layer', 'batch' or None")

    def forward(self, x: Tensor, lap: Laplacian, pe: Tensor | None = None) -> Tensor:
        """``(n, c) -> (n, c)``."""
        if self.norm_first:
            dtype = factor_dtype(x) if self.phi_before_norm else x.dtype
            x, z = pre_norm(x, self.norm, dtype)
            h = self.conv(z, lap, pe=pe, phi_x=x if self.phi_before_norm else None)
            h = drop(h if self.act_residual else self.act(h), self.dropout)
        else:
            h = self.norm(self.dropout(self.conv(x, lap, pe=pe)))
            h = h if self.act_residual else self.act(h)
        out: Tensor = x + h if self.residual else h
        return self.act(out) if self.act_residual else out
