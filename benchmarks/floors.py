"""Two numbers for every case, on paper: the operations that heat takes, and the bytes it must move.

Four times follow for ``diffuse`` with 512 channels, 64 on large graphs, none of which a kernel can
beat by much:

- ``memory``: every array once per product that has to touch it, at the rate of a copy; it binds
  where the features are larger than the cache;
- ``cache``: one row of features per edge and product, and the arrays above, at the rate at which
  rows come out of the cache;
- ``dense``: one product with the heat kernel on the tensor cores; three for features of float32,
  which are split into two numbers of 16 bits;
- ``blocks``: the same by blocks of 64 nodes that are close together, with those within their reach:
  operations; or bytes, where these take longer, of rows that are gathered once for a block, of the
  kernel, of the result, and of splitting the features of float32. Up to so many nodes as heat is
  taken in this way.

The rates are those of an NVIDIA H200, as measured while planning.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch

from benchmarks.gpu_diffusion import (
    CHANNELS,
    DENSE_ENTRIES,
    DTYPES,
    LARGE,
    LARGE_CHANNELS,
    TIMES,
    compulsory_bytes,
    factors_of,
    graphs,
)
from benchmarks.results import save
from bunn import Laplacian
from bunn.diffusion.dense import PATCHED_NODES
from bunn.diffusion.patchwise import ROWS, reach

#: Bytes per second of a copy and of rows out of the cache; operations per second in 16 bits.
COPY, CACHE, TENSOR = 4.2e12, 5.0e12, 5.6e14
#: Products of 16 bits for one of a type.
PRODUCTS = {torch.float32: 3, torch.bfloat16: 1}


class Passes(NamedTuple):
    """What heat takes by blocks of nodes.

    Args:
        operations: Of products of 16 bits.
        moved: Bytes of features that are read and split, of the kernel, and of the result.
        gathered: Bytes of rows that blocks reach.
    """

    operations: float
    moved: float
    gathered: float

    @property
    def milliseconds(self) -> float:
        bytes_take = self.moved / COPY + self.gathered / CACHE
        return 1e3 * max(self.operations / TENSOR, bytes_take)


def by_blocks(nodes: int, reached: float, width: int, dtype: torch.dtype) -> Passes:
    """Heat where a block reaches so many nodes."""
    field = nodes * width * dtype.itemsize
    # Of float32 the largest are looked for first; then all is read, and written in two halves.
    fields = 1 + (3 if dtype == torch.float32 else 0)
    moved = fields * field + nodes * reached * dtype.itemsize
    operations = 2.0 * nodes * reached * width * PRODUCTS[dtype]
    return Passes(operations, moved, field * reached / ROWS)


def floor(lap: Laplacian, width: int, time: float, dtype: torch.dtype) -> dict[str, Any]:
    """Operations, bytes, and the times that follow from them in milliseconds."""
    n, entries = lap.num_nodes, lap.num_entries
    factors = factors_of(time, dtype)
    degree = sum(len(factor.steps) for factor in factors)
    compulsory = compulsory_bytes(n, entries, width, factors, dtype)
    gathered = degree * entries * width * dtype.itemsize
    dense = 1e3 * 2 * n * n * width * PRODUCTS[dtype] / TENSOR
    reached = reach(lap, degree) if n <= PATCHED_NODES else None
    blocks = None if reached is None else by_blocks(n, reached, width, dtype).milliseconds
    return {
        "degree": degree,
        "reach": reached,
        "operations": degree * width * (2 * entries + 2 * n),
        "compulsory_bytes": compulsory,
        "gathered_bytes": gathered,
        "milliseconds": {
            "memory": 1e3 * compulsory / COPY,
            "cache": 1e3 * (gathered + compulsory) / CACHE,
            "dense": dense if n * n <= DENSE_ENTRIES else None,
            "blocks": blocks,
        },
    }


def main() -> None:
    rows = []
    for name, (edge_index, num_nodes) in graphs().items():
        lap = Laplacian(edge_index, num_nodes=num_nodes)
        width = LARGE_CHANNELS if name in LARGE else CHANNELS
        for dtype, time in itertools.product(DTYPES, TIMES):
            case = {"graph": name, "nodes": num_nodes, "entries": lap.num_entries, "time": time}
            rows.append(
                {
                    **case,
                    "dtype": str(dtype).removeprefix("torch."),
                    **floor(lap, width, time, dtype),
                }
            )
    rates = {"copy": COPY, "cache": CACHE, "tensor": TENSOR}
    save("floors", rows, what=(__doc__ or "").strip(), channels=CHANNELS, rates=rates)


if __name__ == "__main__":
    main()
