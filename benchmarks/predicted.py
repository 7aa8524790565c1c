"""Training steps on paper: the operations that they take, the bytes they move, and what follows.

Counted is what a step cannot do without, operation by operation: each reads its inputs and writes
its results once, forward and backward, but for the neighbours of sparse products, whose rows come
out of the cache. Rates are those of :mod:`benchmarks.floors`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from benchmarks import gpu_layers, gpu_models, gpu_scale
from benchmarks.floors import CACHE, COPY, PRODUCTS, TENSOR, by_blocks
from benchmarks.gpu_diffusion import DENSE_ENTRIES, compulsory_bytes, factors_of
from benchmarks.results import load

#: Fields that the parts of a model read and write in a step. Linear: x, y; by y twice, x, by x. An
#: activation with bias and dropout: two and three. A normalisation with a residual connection: four
#: and six. A map of planes: two and three.
LINEAR, ACTIVATION, NORM, MAP = 6, 5, 10, 5
#: Bytes of a parameter that Adam reads and writes, with its gradient and two moments.
ADAM = 28


#: How many times as long an operation takes as in 16 bits, by the bytes of features.
SLOWER = {2: 1, 4: 2}
#: Those bytes.
SIZES = {"bf16": 2, "tf32": 4}


class Count(NamedTuple):
    """What a step takes.

    Args:
        operations: Of dense products.
        moved: Bytes read from memory, or written.
        gathered: Bytes of neighbours' rows.
        slower: How many times as long an operation takes as in 16 bits.
    """

    operations: float
    moved: float
    gathered: float
    slower: int

    @property
    def milliseconds(self) -> float:
        dense = self.slower * self.operations / TENSOR
        return 1e3 * (dense + self.moved / COPY + self.gathered / CACHE)


def heat(
    nodes: int, entries: int, channels: int, time: float, size: int, reached: float | None
) -> Count:
    """Heat, forward: sparse, one dense product, or by blocks, whichever is fastest."""
    dtype = torch.float32 if size == 4 else torch.bfloat16
    factors, field = factors_of(time, dtype), nodes * channels * size
    degree = sum(len(factor.steps) for factor in factors)
    moved = compulsory_bytes(nodes, entries, channels, factors, dtype)
    ways = [Count(0.0, moved, degree * entries * channels * size, 1)]
    if nodes**2 <= DENSE_ENTRIES:
        operations = 2.0 * PRODUCTS[dtype] * nodes**2 * channels
        ways.append(Count(operations, size * nodes**2 + 2 * field, 0.0, 1))
    if reached is not None:
        ways.append(Count(*by_blocks(nodes, reached, channels, dtype), 1))
    return min(ways, key=lambda count: count.milliseconds)


def step(
    nodes: int,
    entries: int,
    channels: int,
    layers: int,
    parameters: int,
    size: int,
    blocks: int,
    reached: float | None = None,
) -> Count:
    """A step of a BuNN: ``blocks`` residual blocks of GraphSAGE in the phi of each layer.

    Without any, phi is a small perceptron and the update one linear map; with them, the update is a
    network of two layers on features and heat.
    """
    field, warm = nodes * channels * size, heat(nodes, entries, channels, 1.0, size, reached)
    slower = SLOWER[size]
    fields = 2 * MAP + LINEAR + ACTIVATION
    if blocks:
        # Linear in, norm, update on twice as many columns; and in a block two linear maps, the
        # first likewise, an activation, a normalisation and the mean.
        fields += 2 * LINEAR + LINEAR // 2 + ACTIVATION + NORM
        fields += blocks * (2 * LINEAR + LINEAR // 2 + ACTIVATION + NORM + 2)
    heats = 2 * layers
    return Count(
        6.0 * nodes * parameters + heats * warm.operations / slower,
        layers * fields * field + heats * warm.moved + ADAM * parameters,
        heats * warm.gathered + 2 * layers * blocks * entries * channels * size,
        slower,
    )


def rows() -> list[tuple[str, str, Count, float]]:
    """Cases with the type of their features, what they take, and the milliseconds measured."""
    found: list[tuple[str, str, Count, float]] = []
    layers = load("gpu_layers")["rows"]
    weights = _weights(gpu_layers.build(gpu_layers.Form("BuNN")))
    for row in layers:
        if "BuNN, captured" not in row["milliseconds"]:
            continue
        stack = (gpu_layers.CHANNELS, gpu_layers.LAYERS, weights, SIZES[row["precision"]], 0)
        reached = _reach(row["graph"], row["precision"])
        count = step(row["nodes"], row["entries"], *stack, reached)
        name = f"five layers, {row['graph']}"
        found.append((name, row["precision"], count, row["milliseconds"]["BuNN, captured"]))
    graphs = {row["graph"]: (row["nodes"], row["entries"]) for row in layers}
    for row in load("gpu_models")["rows"]:
        _, depth, blocks = gpu_models.MODELS[row["graph"]]
        model = (gpu_models.CHANNELS, depth, row["parameters"], SIZES[row["precision"]], blocks)
        count = step(*graphs[row["graph"]], *model, _reach(row["graph"], row["precision"]))
        name = f"full model, {row['graph']}"
        found.append((name, row["precision"], count, row["milliseconds"]["captured"]))
    for row in load("gpu_scale")["rows"]:
        if row.get("nodes", 0) >= 10**7 and "error" not in row:
            few = (gpu_scale.CHANNELS, gpu_scale.LAYERS, 0, 4, 0)
            name = f"{row['graph']} of {row['nodes'] / 1e6:.0f} million"
            found.append(
                (name, "tf32", step(row["nodes"], row["entries"], *few), row["milliseconds"])
            )
    return found


def _reach(graph: str, precision: str) -> float | None:
    """How many nodes a block reaches at t = 1."""
    dtype = "bfloat16" if precision == "bf16" else "float32"
    of = {(row["graph"], row["dtype"], row["time"]): row for row in load("floors")["rows"]}
    found: float | None = of[(graph, dtype, 1.0)].get("reach")
    return found


def _weights(model: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters() if weight.dim() == 2)
