"""The full models of the heterophilous benchmark on a GPU: a training step.

As the authors ran them: 512 wide, t = 1, 256 planes, an update of two layers on features and heat
together; on minesweeper 8 layers, each with a phi of 8 SAGE layers; on tolokers 6 with 7. A step is
forward, backward and optimiser, in ``tf32`` or with ``bf16`` autocast, eager, or captured as a CUDA
graph, which ``bunn train`` does unasked.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812

from benchmarks.device import capture, medians, save_measured
from benchmarks.gpu_layers import PRECISIONS, autocast
from benchmarks.graphs import heterophilous_graphs
from bunn import BuNN, Laplacian

CHANNELS, BUNDLES, DROPOUT = 512, 256, 0.2
#: Input features, layers, and layers of phi.
MODELS = {"minesweeper": (7, 8, 8), "tolokers": (10, 6, 7)}


def measure(name: str, lap: Laplacian, precision: str) -> dict[str, Any]:
    in_channels, layers, phi_layers = MODELS[name]
    torch.manual_seed(0)
    model = BuNN(
        in_channels,
        CHANNELS,
        layers,
        1,
        num_bundles=BUNDLES,
        phi="sage",
        phi_layers=phi_layers,
        phi_channels=CHANNELS,
        dropout=DROPOUT,
        maps="rotation",
        update="mlp-concat",
        normalization="sym",
    ).cuda()
    x = torch.randn(lap.num_nodes, in_channels, device="cuda")
    y = torch.randint(2, (lap.num_nodes, 1), device="cuda").float()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-5, fused=True, capturable=True)

    def step() -> None:
        optimizer.zero_grad()
        with autocast(precision, "cuda"):
            output = model(x, lap)
        F.binary_cross_entropy_with_logits(output.float(), y).backward()
        optimizer.step()

    for _ in range(3):
        step()
    torch.cuda.reset_peak_memory_stats()
    steps = {"eager": step, "captured": capture(step)}
    return {
        "milliseconds": medians(steps, repeats=9, budget_ms=50.0),
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def main() -> None:
    torch.set_float32_matmul_precision("high")
    rows: list[dict[str, Any]] = []
    for name, (edge_index, num_nodes) in heterophilous_graphs().items():
        if name not in MODELS:
            continue
        lap = Laplacian(edge_index, num_nodes=num_nodes, normalization="sym").to("cuda")
        for precision in PRECISIONS:
            rows.append({"graph": name, "precision": precision, **measure(name, lap, precision)})
            print(name, precision, rows[-1]["milliseconds"])
    save_measured("gpu_models", rows, __doc__, channels=CHANNELS)


if __name__ == "__main__":
    main()
