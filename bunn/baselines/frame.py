r"""The frame that all baselines share: encoder, blocks, pooling, head.

It is the frame of :class:`bunn.BuNN`, so that a comparison compares layers. A model is what stands
in its blocks: a :class:`GraphModule`, alone or in a :class:`Block`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch_geometric.nn import Linear
from torch_geometric.nn.inits import reset
from torch_geometric.nn.resolver import activation_resolver

from bunn.baselines.checks import (
    check_edge_features,
    check_edge_weight,
    check_edges,
    check_encoded,
    check_features,
    check_pooling,
    check_sizes,
)
from bunn.baselines.memory import EdgeMemory, Edges
from bunn.baselines.networks import build_dropout
from bunn.baselines.options import FrameOptions
from bunn.nn.block import BuNNBlock
from bunn.nn.head import build_head
from bunn.nn.model import reads_encodings
from bunn.nn.pooling import Pooling, pool
from bunn.sizes import check_batch

Options = TypeVar("Options", bound=FrameOptions)


class GraphModule(nn.Module, ABC):
    """A map of node features ``(n, c) -> (n, c)`` along the edges of a graph.

    One whose options say ``reads_edges`` is handed the features of the edges, ``(e, c)`` in the
    order of ``edge_index``, after all else, and returns both, those of nodes and those of edges.

    Attributes:
        weighted: Whether it knows what to do with edge weights.
        activated: Whether its non-linearity is inside, so that a block adds none.
    """

    weighted = False
    activated = False

    def prepare(
        self,
        edge_index: Tensor,
        edge_weight: Tensor | None,
        num_nodes: int,
        dtype: torch.dtype,
        batch: Tensor | None = None,
    ) -> Edges:
        """The edges as :meth:`forward` reads them, computed once for all blocks.

        Args:
            edge_index: ``(2, e)`` edges.
            edge_weight: ``(e,)`` weights, or :obj:`None`.
            num_nodes: The number of nodes ``n``.
            dtype: The precision of the parameters.
            batch: ``(n,)`` the graph of every node, :obj:`None` if all are in one.

        Returns:
            Edges in any form that a layer likes, and weights, or :obj:`None`.
        """
        return edge_index, edge_weight

    def end_edges(self) -> None:
        """Leaves out what only the features of edges after this module depend on.

        Nobody reads those of the last block: such parameters would never see a gradient.
        """

    def reset_parameters(self) -> None:
        for child in self.children():
            reset(child)

    @abstractmethod
    def forward(
        self,
        x: Tensor,
        edge_index: Any,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
    ) -> Any:
        """``(n, c) -> (n, c)``, with edges from :meth:`prepare` and the graph ``(n,)`` of nodes."""


class ConvLayer(GraphModule):
    """A layer of PyG, ``conv``, on edges as it reads them; weights only if it is ``weighted``."""

    conv: nn.Module

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
    ) -> Tensor:
        edges = (edge_index, edge_weight) if self.weighted else (edge_index,)
        out: Tensor = self.conv(x, *edges)
        return out


class Block(GraphModule):
    """Normalisation, layer, non-linearity and residual connection, as in ``bunn.nn.BuNNBlock``.

    Pre-norm, ``x + dropout(act(layer(norm(x))))``; post-norm, ``x + act(norm(dropout(layer(x))))``;
    or, with ``norm_residual``, ``norm(x + dropout(act(layer(x))))``.

    Args:
        layer: The layer, with as many output as input channels.
        options: The frame's.
    """

    def __init__(self, layer: GraphModule, options: FrameOptions) -> None:
        super().__init__()
        self.layer, self.weighted = layer, layer.weighted
        self.norm = BuNNBlock.build_norm(options.norm, options.hidden_channels)
        self.act = nn.Identity() if layer.activated else activation_resolver(options.act)
        self.dropout = build_dropout(options.dropout)
        self.norm_first, self.residual = options.norm_first, options.residual
        self.norm_residual = options.norm_residual

    def prepare(
        self,
        edge_index: Tensor,
        edge_weight: Tensor | None,
        num_nodes: int,
        dtype: torch.dtype,
        batch: Tensor | None = None,
    ) -> Edges:
        return self.layer.prepare(edge_index, edge_weight, num_nodes, dtype, batch)

    def end_edges(self) -> None:
        self.layer.end_edges()

    def forward(
        self,
        x: Tensor,
        edge_index: Any,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
        edge_attr: Tensor | None = None,
    ) -> Any:
        z = self.norm(x) if self.norm_first else x
        if edge_attr is None:
            return self._leave(x, self.layer(z, edge_index, edge_weight, batch))
        h, edge_attr = self.layer(z, edge_index, edge_weight, batch, edge_attr)
        return self._leave(x, h), edge_attr

    def _leave(self, x: Tensor, h: Tensor) -> Tensor:
        if self.norm_first or self.norm_residual:
            h = self.dropout(self.act(h))
        else:
            h = self.act(self.norm(self.dropout(h)))
        out: Tensor = x + h if self.residual else h
        return self.norm(out) if self.norm_residual else out


class GraphModel(nn.Module):
    r"""A stack of blocks, for node- and graph-level tasks.

    .. math::
        x \leftarrow \mathrm{encode}(x, \mathrm{pe}); \qquad
        x \leftarrow x + \sigma(\mathrm{layer}(\mathrm{norm}(x))) \;\;\text{(num\_layers times)};
        \qquad y = \mathrm{head}(\mathrm{pool}(\mathrm{norm}(x)))

    Args:
        options: Width, depth and the rest of :class:`FrameOptions`, and those of the block.
        in_channels: Size of each input feature.
        out_channels: Size of the output.
        block: From the options to one block.
        pooling: ``"mean"``, ``"sum"`` or ``"max"`` over each graph, :obj:`None` for node outputs.
            (default: :obj:`None`)
        pe_channels: Size of the positional encodings. They are concatenated to ``x`` or, where
            there is an encoder, mapped linearly and added to what it returns. (default: ``0``)
        encoder: A module from ``x`` to ``(n, hidden_channels)``. One that has ``pe_channels`` is
            called with ``x`` and the encodings, which are not read elsewhere then. (default:
            linear, dropout, activation, or with ``linear_encoder`` the first of these)
        edge_channels: Size of the features of an edge; a model whose blocks do not read them does
            without. (default: ``0``)
        edge_encoder: A module from ``edge_attr`` to ``(e, hidden_channels)``. (default: linear)

    Shapes:
        - **input:** node features ``(n, in_channels)``, edges ``(2, e)``, weights ``(e,)``
          *(optional)*, encodings ``(n, pe_channels)``, the graph of every node ``(n,)``
          *(optional)*, edge features ``(e, edge_channels)`` *(optional)*
        - **output:** ``(n, out_channels)``, or ``(num_graphs, out_channels)`` with ``pooling``
    """

    def __init__(
        self,
        options: Options,
        in_channels: int,
        out_channels: int,
        block: Callable[[Options], GraphModule],
        *,
        pooling: Pooling | None = None,
        pe_channels: int = 0,
        encoder: nn.Module | None = None,
        edge_channels: int = 0,
        edge_encoder: nn.Module | None = None,
    ) -> None:
        super().__init__()
        check_pooling(pooling)
        check_sizes(in_channels, out_channels, pe_channels, edge_channels, encoder)
        self.options, self.pooling, self.pe_channels = options, pooling, pe_channels
        self._memory = EdgeMemory()
        self.in_channels, self.out_channels = in_channels, out_channels
        hidden = options.hidden_channels
        self.pe_encoder: nn.Module | None = None
        self._linear_encoder = encoder is None
        if encoder is None:
            parts: list[nn.Module] = [Linear(in_channels + pe_channels, hidden)]
            if not options.linear_encoder:
                parts += [build_dropout(options.dropout), activation_resolver(options.act)]
            encoder = nn.Sequential(*parts)
        elif pe_channels and not reads_encodings(encoder):
            self.pe_encoder = Linear(pe_channels, hidden, bias=False)
        self.encoder = encoder
        self.edge_channels = edge_channels if options.reads_edges else 0
        self.edge_encoder: nn.Module | None = None
        if self.edge_channels:
            default = edge_encoder is None
            self.edge_encoder = Linear(edge_channels, hidden) if default else edge_encoder
        self.blocks = nn.ModuleList(block(options) for _ in range(options.num_blocks))
        cast(GraphModule, self.blocks[-1]).end_edges()
        self.norm = BuNNBlock.build_norm(options.norm if options.norm_first else None, hidden)
        act = options.head_act or options.act
        self.head = build_head(hidden, out_channels, options.head_layers, act, options.head_dropout)

    def reset_parameters(self) -> None:
        for child in self.children():
            reset(child)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        pe: Tensor | None = None,
        batch: Tensor | None = None,
        batch_size: int | None = None,
        edge_attr: Tensor | None = None,
    ) -> Tensor:
        """Runs the model.

        Args:
            x: ``(n, in_channels)`` node features.
            edge_index: ``(2, e)`` edges.
            edge_weight: ``(e,)`` edge weights. (default: all one)
            pe: ``(n, pe_channels)`` positional encodings. (default: :obj:`None`)
            batch: ``(n,)`` the graph of every node. (default: all in one)
            batch_size: The number of graphs. (default: one more than the last in ``batch``)
            edge_attr: ``(e, edge_channels)`` edge features. (default: :obj:`None`)
        """
        check_features(x, pe, self.in_channels if self._linear_encoder else None, self.pe_channels)
        check_edges(x, edge_index)
        check_edge_weight(edge_index, edge_weight, self.blocks[0])
        reads_edges, of_numbers = self.options.reads_edges, isinstance(self.edge_encoder, Linear)
        check_edge_features(edge_index, edge_attr, self.edge_channels, reads_edges, of_numbers)
        check_batch(batch, x.size(0), batch_size)
        edges, edge_weight = self._prepared(edge_index, edge_weight, x.size(0), batch)
        x = self._encode(x, pe)
        if reads_edges:
            of_edges = self._encode_edges(x, edge_index, edge_attr)
            for block in self.blocks:
                x, of_edges = block(x, edges, edge_weight, batch, of_edges)
        else:
            for block in self.blocks:
                x = block(x, edges, edge_weight, batch)
        x = self.norm(x)
        if self.pooling is not None:
            x = pool(x, self.pooling, batch, batch_size)
        out: Tensor = self.head(x)
        return out

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _prepared(
        self, edge_index: Tensor, edge_weight: Tensor | None, num_nodes: int, batch: Tensor | None
    ) -> Edges:
        """The edges as the blocks read them; those of an unweighted graph are remembered.

        Compiled code would prepare them in every step, and wait to hear how many there are.
        """
        first, dtype = cast(GraphModule, self.blocks[0]), next(self.head.parameters()).dtype

        def prepare() -> Edges:
            # Plain 64-bit indices: torch_geometric.EdgeIndex would carry its bookkeeping along.
            plain = edge_index.as_subclass(Tensor).long()
            weight = None if edge_weight is None else edge_weight.to(dtype)
            return first.prepare(plain, weight, num_nodes, dtype, batch)

        if edge_weight is not None:
            return prepare()
        return self._memory.get((edge_index, batch), (num_nodes, dtype), prepare)

    def _encode(self, x: Tensor, pe: Tensor | None) -> Tensor:
        if pe is not None and self._linear_encoder:
            x = torch.cat((x, pe.to(x.dtype)), dim=-1)
        n = x.size(0)
        x = self.encoder(x, pe) if reads_encodings(self.encoder) else self.encoder(x)
        check_encoded("encoder", x, (n, self.options.hidden_channels))
        if pe is not None and self.pe_encoder is not None:
            x = x + self.pe_encoder(pe)
        return x

    def _encode_edges(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:
        """``(e, hidden_channels)``; zero for edges without features."""
        shape = (edge_index.size(1), self.options.hidden_channels)
        if self.edge_encoder is None:
            return x.new_zeros(shape)
        encoded: Tensor = self.edge_encoder(edge_attr)
        check_encoded("edge_encoder", encoded, shape)
        return encoded
