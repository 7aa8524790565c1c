"""The one form of a graph that every solver uses."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from bunn.graph.components import Blocks, component_labels, usual_degrees
from bunn.graph.edges import Adjacency, add_loops, check_no_gradient, read_edges
from bunn.graph.operator import SymmetricOperator, before_compiling, for_keeps, random_walk
from bunn.graph.patchwork import Patchwork
from bunn.graph.spectrum import BlockSpectrum, Eigenpairs
from bunn.kernels import cut_long_rows
from bunn.kernels.arguments import Blocks as RowBlocks
from bunn.kernels.grouping import group_rows

if TYPE_CHECKING:
    from bunn.batches.selection import ComponentsOf

Normalization = Literal["rw", "sym"]

NORMALIZATIONS: tuple[Normalization, ...] = ("rw", "sym")


class Laplacian:
    r"""The normalised Laplacian of an undirected graph, built once and shared by all layers.

    .. math::
        L_{\mathrm{rw}} = I - D^{-1} A, \qquad L_{\mathrm{sym}} = I - D^{-1/2} A D^{-1/2},
        \qquad d_v = \sum_u A_{vu}

    Both are stored as the symmetric operator :math:`S = D^{-1/2} A D^{-1/2}` in CSR form, since
    :math:`I - L_{\mathrm{rw}} = D^{-1/2} S D^{1/2}`. An isolated node has a zero row in :math:`L`
    (as if :math:`S_{vv} = d_v = 1`): heat stays where it is. Repeated edges are merged, their
    weights added; self-loops are kept. Edges without their reverse are an error.

    A batch of graphs is the block-diagonal graph that :class:`torch_geometric.data.Batch` is.

    Attributes:
        null_vector: ``(n,)`` float64 ``sqrt(d / volume)``, of norm one on every component: the null
            space of ``I - S``.
        longest_row: The largest number of entries in a row of ``S``.

    Args:
        edge_index: ``(2, e)`` integer tensor, or a square sparse COO/CSR/CSC tensor, or a
            ``SparseTensor``, whose values are the weights.
        edge_weight: ``(e,)`` finite, non-negative and symmetric weights. (default: all one)
        num_nodes: The number of nodes ``n``. (default: one more than the largest index)
        normalization: ``"rw"``, the paper's, or ``"sym"``. (default: ``"rw"``)

    Shapes:
        - ``lap @ x``: ``(n, ...) -> (n, ...)``, which is :math:`L x`.
    """

    def __init__(
        self,
        edge_index: Adjacency,
        edge_weight: Tensor | None = None,
        num_nodes: int | None = None,
        *,
        normalization: Normalization = "rw",
    ) -> None:
        check_normalization(normalization)
        if isinstance(edge_weight, Tensor):
            check_no_gradient(edge_weight)
        self.normalization: Normalization = normalization
        self._build(edge_index, edge_weight, num_nodes)

    @for_keeps()
    def _build(
        self, edge_index: Adjacency, edge_weight: Tensor | None, num_nodes: int | None
    ) -> None:
        edges = read_edges(edge_index, edge_weight, num_nodes)
        n, row, col, weight = edges.num_nodes, edges.row, edges.col, edges.weight
        degree = torch.bincount(row, minlength=n).double()
        if weight is not None:
            degree = torch.zeros_like(degree).index_add_(0, row, weight)
        self._isolated = degree == 0
        if bool(self._isolated.any()):
            row, col, weight = add_loops(self._isolated, row, col, weight)
            degree = torch.where(self._isolated, 1.0, degree)

        index = torch.int32 if max(row.numel(), n) < 2**31 else torch.int64
        crow = torch.zeros(n + 1, dtype=torch.int64, device=row.device)
        torch.cumsum(torch.bincount(row, minlength=n), 0, out=crow[1:])
        self.num_nodes = n
        self.longest_row = int(crow.diff().max()) if n else 0
        self._crow, self._col = crow.to(index), col.to(index)
        self._weight = weight
        self._degree = degree
        self.components, self.num_components = component_labels(self._crow, self._col)
        self._set_dtype(_compute_dtype(edges.dtype or torch.get_default_dtype()))

    def _set_dtype(self, dtype: torch.dtype) -> None:
        """Rounds the exact operator to ``dtype``; what had been derived from it is dropped."""
        # Only ratios within a component matter: normalised, no weight is too small or too large.
        volumes = self._volumes()
        self.null_vector = (self._degree / volumes[self.components]).sqrt()
        self._rounded_degree = self._degree.to(dtype)
        usual = usual_degrees(self.components, self._degree, volumes)
        root = (self._degree / usual[self.components]).sqrt().to(dtype).unsqueeze(1)
        segments = cut_long_rows(self._crow) if self._crow.is_cuda else None
        blocks = group_rows(self._crow, self._col, self._weight, self._degree, root.squeeze(1))
        if blocks is not None:
            root = blocks.scales[0].unsqueeze(1)  # how kernels know it again
        self._set_operator(self.coordinates()[2].to(dtype), root, segments, blocks)
        self._forget()

    def _set_operator(
        self, value: Tensor, root: Tensor, segments: Tensor | None, blocks: RowBlocks | None = None
    ) -> None:
        """The operator and its relatives, from the entries of ``S`` and the root of the degrees."""
        inverse = root.reciprocal()
        walk = SymmetricOperator(
            self._crow, self._col, value, root, inverse, segments, *(blocks or ())
        )
        sym = self.normalization == "sym"
        self.operator = walk._replace(before=None, after=None) if sym else walk
        mean = inverse * (~self._isolated).to(root.dtype).unsqueeze(1)
        self._aggregation = {
            "mean": walk._replace(after=mean),
            "sum": walk._replace(after=mean * self._rounded_degree.unsqueeze(1)),
        }

    def _forget(self) -> None:
        """Nothing is known yet of what is computed when it is asked for."""
        self._siblings: dict[torch.dtype, Laplacian] = {}
        self._edge_index: Tensor | None = None
        self._blocks: Blocks | None = None
        #: Those that have been computed.
        self.eigenpairs = Eigenpairs()
        #: Heat kernels by their form, least recently used first: bunn.diffusion.dense.
        self.kernels: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
        #: What is known of close nodes: bunn.diffusion.patchwise.
        self.patchwork = Patchwork()
        #: For a tolerance, times before and after which heat is even: bunn.diffusion.auto.
        self.relaxation: dict[float, tuple[float, float]] = {}
        #: Where it is in the Laplacian of many graphs that it is a part of: bunn.batches.selection.
        self.origin: ComponentsOf | None = None

    @property
    def edge_index(self) -> Tensor:
        """The coalesced edges ``(2, e)``, both directions of each, sorted by row."""
        if self._edge_index is None:
            self._edge_index = before_compiling(_without_added_loops, self)
        return self._edge_index

    @property
    def edge_weight(self) -> Tensor:
        """The weights ``(e,)`` of :attr:`edge_index`."""
        if self._weight is None:
            return self._degree.new_ones(self.edge_index.size(1), dtype=self.dtype)
        return self._weight[~self._isolated[self._rows()]].to(self.dtype)

    @property
    def degree(self) -> Tensor:
        """The weighted degrees ``(n,)``, one for an isolated node."""
        return self._rounded_degree

    def _volumes(self) -> Tensor:
        """The sum of the degrees over each component, ``(num_components,)`` float64."""
        return self._degree.new_zeros(self.num_components).index_add_(
            0, self.components, self._degree
        )

    @property
    def device(self) -> torch.device:
        return self._crow.device

    @property
    def dtype(self) -> torch.dtype:
        """The precision heat is computed in: float32 or float64."""
        return self.operator.value.dtype

    @property
    def num_entries(self) -> int:
        """The number of stored entries of ``S``: the edges in both directions."""
        return self._col.numel()

    @property
    def blocks(self) -> Blocks:
        """The nodes grouped by component, components of equal size together."""
        if self._blocks is None:
            self._blocks = before_compiling(Blocks.of, self.components, self.num_components)
        return self._blocks

    def coordinates(self) -> tuple[Tensor, Tensor, Tensor]:
        """``S`` as row indices, column indices and float64 values, each ``(nnz,)``."""
        row, col = self._rows(), self._col.long()
        root = self._degree.sqrt()
        value = (root[row] * root[col]).reciprocal_()
        return row, col, value if self._weight is None else value.mul_(self._weight)

    def _rows(self) -> Tensor:
        counts = (self._crow[1:] - self._crow[:-1]).long()
        nodes = torch.arange(self.num_nodes, device=self.device)
        return torch.repeat_interleave(nodes, counts, output_size=self.num_entries)

    def to(self, *args: Any, **kwargs: Any) -> Laplacian:
        """Moves or converts, with the arguments of :meth:`torch.Tensor.to`.

        A change of precision rounds anew from the exact operator: ``lap.to(torch.float64)`` is
        exact, whatever ``lap`` was. Half precisions give float32, in which half-precision
        features are diffused.
        """
        like = torch.empty(0, dtype=self.dtype, device=self.device).to(*args, **kwargs)
        if not like.is_floating_point():
            raise TypeError(f"a Laplacian has no dtype {like.dtype}; use float32 or float64")
        dtype = _compute_dtype(like.dtype)
        if like.device == self.device and dtype == self.dtype:
            return self
        moved: Laplacian = before_compiling(self._moved, like.device, dtype)
        return moved

    def _moved(self, device: torch.device, dtype: torch.dtype) -> Laplacian:
        moved = copy.copy(self)
        for name in ("_crow", "_col", "_weight", "_degree", "_isolated", "components"):
            tensor = getattr(self, name)
            setattr(moved, name, None if tensor is None else tensor.to(device))
        moved._set_dtype(dtype)
        # Facts about the exact operator:
        moved.eigenpairs = Eigenpairs(self.eigenpairs.gap, self.eigenpairs.interval)
        moved.relaxation = self.relaxation
        return moved

    def check_rows(self, x: Tensor) -> None:
        """Whether ``x: (n, ...)`` has one row per node."""
        if x.dim() == 0 or x.size(0) != self.num_nodes:
            raise ValueError(
                f"x has shape {tuple(x.shape)}, but the graph has {self.num_nodes} nodes; x needs "
                "one row per node (pass num_nodes if the last nodes have no edges)"
            )

    def matching(self, x: Tensor) -> Laplacian:
        """This Laplacian in the precision that ``x: (n, ...)`` is diffused in.

        Raises:
            TypeError: If ``x`` is no floating-point tensor.
            ValueError: If ``x`` has another number of rows or is on another device.
        """
        if not isinstance(x, Tensor) or x.layout != torch.strided:
            kind = x.layout if isinstance(x, Tensor) else f"a {type(x).__name__}"
            raise TypeError(f"x is {kind}; pass a dense tensor of shape (num_nodes, ...)")
        if not x.is_floating_point():
            raise TypeError(f"x has dtype {x.dtype}; use a floating-point type, such as x.float()")
        self.check_rows(x)
        if x.device != self.device:
            raise ValueError(
                f"x is on {x.device} and the Laplacian on {self.device}; use lap.to(x.device)"
            )
        dtype = _compute_dtype(x.dtype)
        if dtype == self.dtype:
            return self
        if dtype not in self._siblings:
            part = self.origin
            same = self.to(dtype) if part is None else part.whole.to(dtype).part(part.chosen)
            self._siblings[dtype] = same
        return self._siblings[dtype]

    def __matmul__(self, x: Tensor) -> Tensor:
        lap = self.matching(x)
        flat = x.reshape(self.num_nodes, math.prod(x.shape[1:]))
        return (flat - random_walk(flat, lap.operator)).view(x.shape)

    def aggregate(self, x: Tensor, reduce: Literal["mean", "sum"] = "mean") -> Tensor:
        """The weighted mean or sum of the neighbours' features, zero for an isolated node.

        Args:
            x: ``(n, c)`` node features.
            reduce: ``"mean"``, which is ``D^-1 A x``, or ``"sum"``, which is ``A x``.
        """
        return random_walk(x, self.matching(x).aggregation(reduce))

    def aggregation(self, reduce: Literal["mean", "sum"]) -> SymmetricOperator:
        """The operator behind :meth:`aggregate`."""
        if reduce not in self._aggregation:
            raise ValueError(f"reduce={reduce!r}; use 'mean' or 'sum'")
        return self._aggregation[reduce]

    def dense(self) -> Tensor:
        """``L`` as a dense ``(n, n)`` matrix."""
        row, col, value = self.coordinates()
        if self.normalization == "rw":
            root = self._degree.sqrt()
            value = value * root[col] / root[row]
        matrix = torch.eye(self.num_nodes, dtype=torch.float64, device=self.device)
        return matrix.index_put_((row, col), -value, accumulate=True).to(self.dtype)

    def spectrum(self, num_eigs: int | None = None) -> tuple[Tensor, Tensor]:
        """The lowest eigenpairs of ``I - S``, ascending, cached.

        The null space is exact: one vector per component, proportional to ``sqrt(d)`` on it. For
        ``"rw"``, ``D^-1/2 phi`` are the right and ``D^1/2 phi`` the left eigenvectors of ``L``.

        Args:
            num_eigs: How many; at most ``n`` are returned. (default: all ``n``)

        Returns:
            Eigenvalues ``(k,)`` and eigenvectors ``(n, k)``.
        """
        if num_eigs is not None and (not isinstance(num_eigs, int) or num_eigs < 1):
            raise ValueError(f"num_eigs={num_eigs}; ask for at least one eigenpair, an integer")
        count = self.num_nodes if num_eigs is None else min(num_eigs, self.num_nodes)
        return self.eigenpairs.lowest(self, count)

    @property
    def known_num_eigs(self) -> int:
        """How many eigenpairs :meth:`spectrum` returns without computing any."""
        return self.eigenpairs.num_lowest

    def eigenvalue(self, index: int) -> float:
        """One eigenvalue, without asking the device for it each time."""
        return self.eigenpairs.value(self, index)

    def block_spectrum(self) -> BlockSpectrum:
        """All eigenpairs of ``I - S``, component by component, cached."""
        return self.eigenpairs.by_blocks(self)

    @property
    def known_block_spectrum(self) -> BlockSpectrum | None:
        """:meth:`block_spectrum` if it has been computed."""
        return self.eigenpairs.blocks

    @for_keeps()
    def adopt_spectrum(self, spectrum: BlockSpectrum | tuple[Tensor, Tensor]) -> None:
        """Takes eigenpairs that were computed earlier instead of computing them, unchecked.

        Args:
            spectrum: What :meth:`block_spectrum` or, for some ``num_eigs``, :meth:`spectrum` of the
                same graph returned, in this precision and on this device.
        """
        self.eigenpairs.adopt(spectrum)

    def spectral_gap(self) -> float:
        """The smallest non-zero eigenvalue (infinity if all are zero), cached."""
        return self.eigenpairs.smallest_nonzero(self)

    @property
    def known_spectral_gap(self) -> float | None:
        """:meth:`spectral_gap` if it has been computed."""
        return self.eigenpairs.gap

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        eigenpairs = Eigenpairs(self.eigenpairs.gap, self.eigenpairs.interval)
        state.update(_siblings={}, kernels=OrderedDict(), eigenpairs=eigenpairs)
        state.update(patchwork=Patchwork(), origin=None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.operator.scales is not None:  # the root is known by where it lies
            root = self.operator.scales[0].unsqueeze(1)
            if self.operator.before is not None:
                self.operator = self.operator._replace(before=root)
            self._aggregation = {
                name: walk._replace(before=root) for name, walk in self._aggregation.items()
            }

    def __copy__(self) -> Laplacian:
        clone = object.__new__(type(self))
        clone.__dict__.update(self.__dict__)
        return clone

    def __repr__(self) -> str:
        edges = self.num_entries - int(self._isolated.sum())
        return (
            f"Laplacian(num_nodes={self.num_nodes}, num_edges={edges}, "
            f"normalization={self.normalization!r}, dtype={self.dtype}, device='{self.device}')"
        )


def _without_added_loops(lap: Laplacian) -> Tensor:
    row, col = lap._rows(), lap._col.long()
    real = ~lap._isolated[row]
    return torch.stack((row[real], col[real]))


def _compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The precision sums are formed in: float64 for float64, float32 for everything below."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def check_normalization(normalization: str) -> None:
    """Raises an error if there is no such Laplacian."""
    if normalization not in NORMALIZATIONS:
        raise ValueError(f"normalization={normalization!r} is unknown; use one of {NORMALIZATIONS}")


def check_laplacian(lap: object) -> None:
    """Raises an error if ``lap`` is a graph in another form."""
    if not isinstance(lap, Laplacian):
        raise TypeError(
            f"lap is a {type(lap).__name__}; build it once with bunn.Laplacian(edge_index)"
        )
