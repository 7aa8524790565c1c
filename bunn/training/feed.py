"""From the graphs of a split to the batches that a model reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch_geometric.data import Data

from bunn.batches.rooms import Filled, Plan, Room, Size, spare_for
from bunn.data import GraphCollection, Split
from bunn.data.pack import PackedGraphs
from bunn.data.seeds import generator
from bunn.data.stack import GraphStack
from bunn.data.transforms import DiskCache, apply_signs, random_signs
from bunn.graph.components import ready_to_send
from bunn.training.batch import Batch, Draft, Inputs
from bunn.training.config import Encoding
from bunn.training.encode import encode

#: Nodes of one evaluation batch, unless a single graph has more.
EVALUATION_NODES = 2**17
#: Batches that are kept instead of being put together again have at most this many nodes in all.
KEPT_NODES = 2**20
#: Masks of which the rows are remembered.
KEPT_MASKS = 64


class Feed:
    """Batches of one split; their order and random signs, the seed and the epoch alone decide.

    Args:
        split: The graphs.
        batch_size: Graphs to a training step, all if :obj:`None`.
        encoding: The positional encodings.
        seed: Of the order of the graphs and the signs of their eigenvectors.
        device: Where batches live.
        dtype: Of floating-point features.
        cache: Where encodings are kept. (default: nowhere)
        edges: Whether the features of edges are read. (default: :obj:`False`)
        buckets: Batches are cut from so many times their graphs, ordered by size. (default: ``1``)
        rooms: Whether training batches may be handed out as drafts, where their graphs are packed
            and have the targets. (default: :obj:`False`)

    Attributes:
        drafts: Whether they are, if they may. (default: :obj:`False`)
    """

    def __init__(
        self,
        split: Split,
        batch_size: int | None,
        encoding: Encoding,
        seed: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        cache: DiskCache | None = None,
        edges: bool = False,
        buckets: int = 1,
        rooms: bool = False,
    ) -> None:
        split = encode(split, encoding, cache)
        sizes: list[Size] = []
        if rooms and buckets == 1:
            split, sizes = _with_spare(split, batch_size)
        split = split.to(device)
        self.parts: dict[str, GraphCollection] = {
            "train": split.train,
            "val": split.val,
            "test": split.test,
        }
        self.batch_size = min(batch_size or len(split.train), len(split.train))
        self.encoding, self.seed, self.dtype, self.edges = encoding, seed, dtype, edges
        self._sizes = _sizes(split.train) if buckets > 1 and self.steps > 1 else None
        self._buckets = buckets
        self._kept: dict[tuple[str, int, int], Batch] = {}
        self._rows: dict[int, tuple[Tensor, Tensor]] = {}
        self.drafts = False
        self._rooms: dict[int, Room] = {}
        if isinstance(split.train, PackedGraphs):
            self._rooms = {size.graphs: Room(split.train.pack.union, size) for size in sizes}

    @property
    def transductive(self) -> bool:
        """Whether all parts are nodes of the same graphs, so that one look sees them all."""
        return self.parts["train"] is self.parts["val"] is self.parts["test"]

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return -(-len(self.parts["train"]) // self.batch_size)

    def in_step_with(self, other: Feed) -> bool:
        """Whether batch after batch of both has the same edges, so that models can share them.

        So it is for members of one :class:`bunn.data.stack.SharedGraph`, and for splits of a graph.
        """
        pairs = [(self.parts[part], other.parts[part]) for part in self.parts]
        if self.batch_size != other.batch_size or any(len(a) != len(b) for a, b in pairs):
            return False
        if self.transductive and other.transductive and len(self.parts["train"]) == 1:
            mine, theirs = self.parts["train"][0], other.parts["train"][0]
            return mine.num_nodes == theirs.num_nodes and all(
                _equal(mine.get(name), theirs.get(name)) for name in ("edge_index", "edge_weight")
            )
        stacks = [part for pair in pairs for part in pair if isinstance(part, GraphStack)]
        shared = len(stacks) == 2 * len(pairs)
        return shared and all(stack.graph is stacks[0].graph for stack in stacks)

    def training(self, epoch: int) -> Iterator[Batch | Draft]:
        """The batches of an epoch."""
        graphs, random = self.parts["train"], generator(self.seed, epoch)
        if self.steps == 1:
            order = torch.arange(len(graphs))
        else:
            order = torch.randperm(len(graphs), generator=random)
            order = self._in_buckets(order, random)
        keep = self.batch_size == 1 or self.steps == 1
        if isinstance(graphs, GraphStack) and not keep:
            order = order.to(graphs.graph.edge_index.device)  # once, not batch by batch
        for indices in order.split(self.batch_size):
            signs = self._signs(indices.numel(), random)
            draft = self._draft(graphs, indices, signs)
            batch = draft or _with_signs(self._batch("train", graphs, indices, keep), signs)
            yield batch

    def _in_buckets(self, order: Tensor, random: torch.Generator) -> Tensor:
        """The same graphs, those of a batch of about the same size where that is asked for."""
        if self._sizes is None:
            return order
        portions = order.split(self._buckets * self.batch_size)
        batches = [
            batch
            for portion in portions
            for batch in portion[self._sizes[portion].argsort(stable=True)].split(self.batch_size)
        ]
        *whole, last = batches  # which may be smaller, and stays where it is
        shuffled = torch.randperm(len(whole), generator=random).tolist()
        return torch.cat([*(whole[i] for i in shuffled), last])

    def evaluation(self, part: str) -> Iterator[Batch]:
        """The graphs of a part, in order."""
        graphs = self.parts[part]
        size = max(1, EVALUATION_NODES // _usual_nodes(graphs))
        for indices in torch.arange(len(graphs)).split(size):
            yield self._batch(part, graphs, indices, keep=True)

    def _batch(self, part: str, graphs: GraphCollection, indices: Tensor, keep: bool) -> Batch:
        if not keep:
            return self._read(graphs.collate(indices))
        where = "train" if self.transductive else part
        key = (where, len(indices), int(indices[0]))
        if key in self._kept:
            return self._kept[key]
        batch = self._read(graphs.collate(indices))
        kept_nodes = sum(kept.inputs.x.size(0) for kept in self._kept.values())
        if kept_nodes + batch.inputs.x.size(0) <= KEPT_NODES:
            self._kept[key] = batch
        return batch

    def _read(self, data: Data) -> Batch:
        size = int(data.batch_size if "batch_size" in data else data.num_graphs)
        names = ["lap_pe", "rwse"]
        if self.encoding.pe_as == "encoder":
            names.insert(1, "lap_eigenvalues")
        pe = [data[name] for name in names if name in data]
        inputs = Inputs(
            self._floating(data.x),
            data.edge_index,
            None if data.edge_weight is None else self._floating(data.edge_weight),
            self._floating(torch.cat(pe, dim=1)) if pe else None,
            data.batch if size > 1 else None,
            size,
            self._floating(data.edge_attr) if self.edges else None,
        )
        masks = {
            part: data[f"{part}_mask"] if f"{part}_mask" in data else data.get("mask")
            for part in self.parts
        }
        rows = {part: self._rows_of(mask) for part, mask in masks.items() if mask is not None}
        return Batch(inputs, self._floating(data.y), rows)

    def _floating(self, value: Tensor) -> Tensor:
        return value.to(self.dtype) if value.is_floating_point() else value

    def _rows_of(self, mask: Tensor) -> Tensor:
        """Where a mask is true; masks that batches share are looked at once."""
        kept = self._rows.get(id(mask))
        if kept is None:
            if len(self._rows) >= KEPT_MASKS:
                self._rows.clear()
            kept = self._rows[id(mask)] = (mask, mask.nonzero().squeeze(1))
        return kept[1]

    def _signs(self, size: int, random: torch.Generator) -> Tensor | None:
        """``(size, lap_pe)`` those of the eigenvectors of every graph, on the host, if any."""
        if not (self.encoding.flip_signs and self.encoding.lap_pe):
            return None
        if self.encoding.pe_as == "features":  # among which nobody knows them
            return None
        return random_signs(size, self.encoding.lap_pe, random, self.dtype)

    def _draft(
        self, graphs: GraphCollection, indices: Tensor, signs: Tensor | None
    ) -> Draft | None:
        """The batch of some graphs as a draft, if there is a room for it."""
        room = self._rooms.get(indices.numel()) if self.drafts else None
        if room is None or not isinstance(graphs, PackedGraphs) or not room.serves:
            return None
        plan = room.plan(graphs.members[indices])
        if plan is None:
            return None
        numbers = list(plan) if signs is None else [*plan, pad(signs, (0, 0, 0, 1))]
        pinned = [ready_to_send(number, room.union.edge_index.device) for number in numbers]
        pack, count = graphs.pack, indices.numel()

        def build(numbers: Sequence[Tensor]) -> Batch:
            chosen = Filled(room, Plan(numbers[0], numbers[1]))
            batch = self._read(pack.gathered(chosen))
            rows = {"train": torch.arange(count, device=chosen.nodes.device)}  # not what fills up
            batch = batch._replace(rows=rows, counts=chosen.counts)
            return _with_signs(batch, numbers[2] if len(numbers) > 2 else None)

        return Draft(pinned, room, build)


def _with_signs(batch: Batch, signs: Tensor | None) -> Batch:
    """The same with eigenvectors of other signs."""
    inputs = batch.inputs
    if signs is None or inputs.pe is None:
        return batch
    width = signs.size(1)
    flipped = apply_signs(inputs.pe[:, :width], signs, inputs.batch)
    pe = torch.cat([flipped, inputs.pe[:, width:]], dim=1)
    return batch._replace(inputs=inputs._replace(pe=pe))


def _with_spare(split: Split, batch_size: int | None) -> tuple[Split, list[Size]]:
    """The split with what batches can be filled up with, and the sizes of their rooms: that of most
    batches and that of the last. None if graphs are not packed, or nodes have the targets."""
    parts = (split.train, split.val, split.test)
    train = split.train
    if not isinstance(train, PackedGraphs) or "y" not in train.pack.graphs:
        return split, []
    if (
        batch_size is None
        or batch_size >= len(train)
        or any(not isinstance(part, PackedGraphs) or part.pack is not train.pack for part in parts)
    ):
        return split, []
    counts = {batch_size, len(train) % batch_size or batch_size}
    sizes = [Size.of(train.pack.union, train.members, count) for count in sorted(counts)]
    pack = train.pack.with_spare(*spare_for(sizes))
    moved = {id(part): part.on(pack) for part in parts if isinstance(part, PackedGraphs)}
    return Split(*(moved[id(part)] for part in parts)), sizes


def _sizes(graphs: GraphCollection) -> Tensor:
    """``(k,)`` the numbers of nodes."""
    if isinstance(graphs, PackedGraphs):
        return graphs.num_nodes()
    return torch.tensor([int(data.num_nodes or 0) for data in graphs])


def _usual_nodes(graphs: GraphCollection) -> int:
    """Those of a graph: of the first, or of all where they are known."""
    if isinstance(graphs, PackedGraphs):
        return max(1, int(graphs.num_nodes().double().mean()))
    return max(1, int(graphs[0].num_nodes or 1))


def _equal(mine: Tensor | None, theirs: Tensor | None) -> bool:
    if mine is None or theirs is None:
        return mine is theirs
    return mine is theirs or torch.equal(mine, theirs)
