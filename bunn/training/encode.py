"""Encodings of the graphs of a split: positions, degrees, and features by their quantiles."""

from __future__ import annotations

import torch
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform, Compose

from bunn.data import GraphCollection, GraphList, Split
from bunn.data.pack import Pack, PackedGraphs
from bunn.data.transforms import (
    DegreeEncoding,
    DiskCache,
    LaplacianEncoding,
    QuantileEncoding,
    RandomWalkEncoding,
)
from bunn.training.config import Encoding


def encode(split: Split, encoding: Encoding, cache: DiskCache | None = None) -> Split:
    """The split with ``lap_pe`` and ``rwse`` attached to its graphs or their features, and features
    encoded."""
    transforms: list[BaseTransform] = []
    if encoding.lap_pe:
        transforms.append(LaplacianEncoding(encoding.lap_pe, cache=cache))
    if encoding.rwse:
        transforms.append(RandomWalkEncoding(encoding.rwse, cache=cache))
    if encoding.pe_as == "features":
        transforms.append(_Beside())
    if encoding.degree:
        transforms.append(DegreeEncoding(attr=None))
    if transforms:
        split = _each(split, Compose(transforms))
    if encoding.quantiles:
        split = _each(split, QuantileEncoding.fit(split.train, encoding.quantiles))
    return split


class _Beside(BaseTransform):  # type: ignore[misc]
    """Positional encodings as columns of ``x``; eigenvectors with entries of about one."""

    def forward(self, data: Data) -> Data:
        columns = [data.x]
        if "lap_pe" in data:
            size = data.lap_pe.new_full((1, 1), data.num_nodes)
            if "batch" in data:
                size = torch.bincount(data.batch)[data.batch].unsqueeze(1)
            columns.append(data.lap_pe * size.sqrt())
            del data.lap_pe, data.lap_eigenvalues
        if "rwse" in data:
            columns.append(data.rwse)
            del data.rwse
        data.x = torch.cat(columns, dim=1)
        return data


def _each(split: Split, transform: BaseTransform) -> Split:
    done: dict[int, GraphCollection] = {}
    packs: dict[int, Pack] = {}
    for graphs in (split.train, split.val, split.test):
        if id(graphs) in done:
            continue
        if isinstance(graphs, PackedGraphs):  # all graphs of a pack at once
            key = id(graphs.pack)
            packs[key] = packs.get(key) or graphs.pack.transformed(transform)
            done[id(graphs)] = graphs.on(packs[key])
        else:
            done[id(graphs)] = GraphList([transform(data) for data in graphs])
    return Split(*(done[id(graphs)] for graphs in (split.train, split.val, split.test)))
