"""Encoders of integer features, which a linear layer cannot read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from bunn.calling import plain

#: The number of values of each of the nine atom features that ``ogb`` computes: atomic number,
#: chirality, degree, charge, hydrogens, radical electrons, hybridisation, aromatic, in a ring.
ATOM_FEATURES = (119, 5, 12, 12, 10, 6, 6, 2, 2)
#: Those of the three bond features: type, stereo, conjugated.
BOND_FEATURES = (5, 6, 2)


class CategoricalEncoder(nn.Module):
    """The sum of one embedding per column.

    Args:
        sizes: The number of values of each column.
        out_channels: Size of the output.

    Shapes:
        - **input:** ``(n, len(sizes))`` integers, column ``i`` below ``sizes[i]``
        - **output:** ``(n, out_channels)``
    """

    bounds: Tensor

    def __init__(self, sizes: Sequence[int], out_channels: int) -> None:
        super().__init__()
        self.out_channels = out_channels
        self.embeddings = nn.ModuleList(nn.Embedding(size, out_channels) for size in sizes)
        bounds = torch.tensor([0, *sizes]).cumsum(0)
        self.register_buffer("bounds", bounds, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for table in self.embeddings.parameters():  # as those of ogb
            nn.init.xavier_uniform_(table)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 2 or x.size(1) != len(self.embeddings) or x.is_floating_point():
            raise ValueError(
                f"x has shape {tuple(x.shape)} and dtype {x.dtype}; the encoder reads integers "
                f"(num_rows, {len(self.embeddings)}); pass the dataset's own features"
            )
        if x.is_cuda and plain(x):
            return self.at_once(x)
        columns = zip(self.embeddings, x.unbind(1), strict=True)
        total: Tensor = sum(table(column) for table, column in columns)
        return total

    def at_once(self, x: Tensor) -> Tensor:
        """The same in one pass: on a GPU, each embedding would sort its column to go back."""
        index = x + self.bounds[:-1]
        inside = (x >= 0) & (index < self.bounds[1:])
        torch._assert_async(inside.all())
        table = torch.cat([*self.embeddings.parameters()])
        total: Tensor = _SumOfRows.apply(table, index)  # type: ignore[no-untyped-call]
        return total

    def __repr__(self) -> str:
        sizes = [table.num_embeddings for table in self.embeddings]
        return f"{type(self).__name__}(sizes={sizes}, out_channels={self.out_channels})"


class _SumOfRows(torch.autograd.Function):
    """``table[index].sum(1)`` for ``index: (n, k)``, the columns of which name different rows; its
    gradient is a dense product with a matrix of zeros and ones."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.num_rows = table.size(0)
        return embedding(index, table).sum(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        named = grad.new_zeros(index.size(0), ctx.num_rows).scatter_(1, index, 1.0)
        return named.mT @ grad, None


class KeyValueEncoder(CategoricalEncoder):
    """Key embedding plus value embedding, for Tree-NeighborsMatch.

    Having no key or no value is embedded, too, and starts at zero: at a random place, the inner
    nodes, which have neither, would drown the leaves in any mean over the tree.

    Args:
        num_keys: Keys and values are 1 to ``num_keys``; 0 stands for none.
        out_channels: Size of the output.
    """

    def __init__(self, num_keys: int, out_channels: int) -> None:
        super().__init__((num_keys + 1, num_keys + 1), out_channels)
        self._start_at_zero()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self._start_at_zero()

    @torch.no_grad()
    def _start_at_zero(self) -> None:
        for weight in self.embeddings.parameters():
            weight[0].zero_()


class AtomEncoder(CategoricalEncoder):
    """The sum of the embeddings of the nine atom features of ``ogb``.

    Args:
        out_channels: Size of the output.
    """

    def __init__(self, out_channels: int) -> None:
        super().__init__(ATOM_FEATURES, out_channels)


class BondEncoder(CategoricalEncoder):
    """The sum of the embeddings of the three bond features of ``ogb``.

    Args:
        out_channels: Size of the output.
    """

    def __init__(self, out_channels: int) -> None:
        super().__init__(BOND_FEATURES, out_channels)
