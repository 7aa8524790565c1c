"""A task that over-smooths: what a GCN cannot tell apart, and a BuNN can.

The nodes of a complete graph belong to two clusters; every node has to name the mean feature of the
*other* cluster (the paper's synthetic experiment "clique"). One round of averaging over a complete
graph gives all nodes the same features, so whatever a GCN then predicts is the same everywhere. A
BuNN averages in frames of its own choosing, and keeps the clusters apart.

Run with ``make demo``.
"""

from __future__ import annotations

import argparse
import math

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCN

import bunn

#: Nodes per cluster.
SIZE = 10


def clique_graph(generator: torch.Generator) -> Data:
    """Features are uniform around -sqrt(3 n) and sqrt(3 n), of variance n, n nodes to a cluster."""
    half_width = math.sqrt(3 * SIZE)
    side = torch.tensor([-1.0, 1.0]).repeat_interleave(SIZE)
    noise = torch.rand(2 * SIZE, generator=generator) * 2 - 1
    x = half_width * (side + noise)
    means = x.view(2, SIZE).mean(1)
    y = means.flip(0).repeat_interleave(SIZE)
    edge_index = (1 - torch.eye(2 * SIZE)).nonzero().T.contiguous()
    return Data(x=x.unsqueeze(1), edge_index=edge_index, y=y)


def mean_squared_error(model: nn.Module, graphs: list[Data]) -> float:
    with torch.no_grad():
        errors = [
            (model(batch.x, batch.edge_index).squeeze(1) - batch.y).square()
            for batch in DataLoader(graphs, batch_size=len(graphs))
        ]
    return float(torch.cat(errors).mean())


def train(model: nn.Module, graphs: list[Data], epochs: int, advance: Progress, name: str) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    loader = DataLoader(graphs, batch_size=10, shuffle=True)
    task = advance.add_task(name, total=epochs, loss=float("nan"))
    for _ in range(epochs):
        total = 0.0
        for batch in loader:
            optimizer.zero_grad()
            out: Tensor = model(batch.x, batch.edge_index).squeeze(1)
            loss = (out - batch.y).square().mean()
            loss.backward()
            optimizer.step()
            total += loss.item()
        schedule.step()
        advance.update(task, advance=1, loss=total / len(loader))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    generator = torch.Generator().manual_seed(options.seed)
    train_graphs = [clique_graph(generator) for _ in range(100)]
    test_graphs = [clique_graph(generator) for _ in range(100)]

    models: dict[str, nn.Module] = {
        "GCN": GCN(1, 64, num_layers=2, out_channels=1, act="gelu"),
        "BuNN": bunn.BuNN(1, 64, num_layers=1, out_channels=1, num_bundles=8, time=10.0, norm=None),
    }
    console = Console()
    columns = (
        TextColumn("{task.description:5}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeRemainingColumn(),
    )
    table = Table("model", "test error", title="Mean of the other cluster, on a complete graph")
    with Progress(*columns, console=console) as progress:
        for name, model in models.items():
            train(model, train_graphs, options.epochs, progress, name)
    targets = torch.cat([graph.y for graph in test_graphs])
    table.add_row("predict zero", f"{float(targets.square().mean()):.3f}")
    for name, model in models.items():
        table.add_row(name, f"{mean_squared_error(model, test_graphs):.3f}")
    console.print(table)


if __name__ == "__main__":
    main()
