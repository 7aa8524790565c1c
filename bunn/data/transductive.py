"""One graph whose nodes are divided among training, validation and test."""

from __future__ import annotations

from functools import partial

from torch_geometric.data import Data

from bunn.data.dataset import PARTS, GraphDataset, GraphList, Split, Task

MASKS = tuple(f"{part}_mask" for part in PARTS)


def transductive(name: str, task: Task, data: Data) -> GraphDataset:
    """A dataset of one graph.

    Args:
        name: As the registry lists it.
        task: ``"multiclass"`` or ``"binary"``, at node level.
        data: A graph with ``x``, ``edge_index``, ``y`` ``(n,)`` and the three masks, each ``(n,)``
            or, one column per split, ``(n, num_splits)``.
    """
    data = Data(
        x=data.x.float(),
        edge_index=data.edge_index,
        y=data.y.float() if task.kind == "binary" else data.y.long(),
        **{mask: data[mask].bool().view(data.num_nodes, -1) for mask in MASKS},
    )
    classes = 1 if task.kind == "binary" else int(data.y.max()) + 1
    num_splits = data.train_mask.size(1)
    return GraphDataset(name, task, data.x.size(1), classes, num_splits, partial(_split, data))


def _split(data: Data, index: int) -> Split:
    """All splits share the tensors of the graph."""
    masks = {mask: data[mask][:, index].contiguous() for mask in MASKS}
    graphs = GraphList([Data(x=data.x, edge_index=data.edge_index, y=data.y, **masks)])
    return Split(graphs, graphs, graphs)
