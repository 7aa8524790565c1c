"""Two numbers for every case, on paper: the operations that heat takes, and the bytes it must move.

Three times follow for ``diffuse`` with 512 channels, 64 on large graphs, none of which a kernel can
beat by much:

- ``memory``: every array once per product that has to touch it, at the rate of a copy; it binds
  where the features are larger than the cache;
- ``cache``: one row of features per edge and product, and the arrays above, at the rate at which
  rows come out of the cache;
- ``dense``: one product with the heat kernel on the tensor cores; for features of float32 in
  float64.

The rates are those of an NVIDIA H200, as measured while planning; that in float64 is the maker's.
"""

from __future__ import annotations

import itertools
from typing import Any

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

#: Bytes per second of a copy and of rows out of the cache; operations per second in 16 bits, and in
#: float64.
COPY, CACHE, TENSOR, WIDE = 4.2e12, 5.0e12, 5.6e14, 6.7e13


def floor(lap: Laplacian, width: int, time: float, dtype: torch.dtype) -> dict[str, Any]:
    """Operations, bytes, and the times that follow from them in milliseconds."""
    n, entries = lap.num_nodes, lap.num_entries
    factors = factors_of(time, dtype)
    degree = sum(len(factor.steps) for factor in factors)
    compulsory = compulsory_bytes(n, entries, width, factors, dtype)
    gathered = degree * entries * width * dtype.itemsize
    dense = 1e3 * 2 * n * n * width / (WIDE if dtype == torch.float32 else TENSOR)
    return {
        "degree": degree,
        "operations": degree * width * (2 * entries + 2 * n),
        "compulsory_bytes": compulsory,
        "gathered_bytes": gathered,
        "milliseconds": {
            "memory": 1e3 * compulsory / COPY,
            "cache": 1e3 * (gathered + compulsory) / CACHE,
            "dense": dense if n * n <= DENSE_ENTRIES else None,
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
    rates = {"copy": COPY, "cache": CACHE, "tensor": TENSOR, "wide": WIDE}
    save("floors", rows, what=(__doc__ or "").strip(), channels=CHANNELS, rates=rates)


if __name__ == "__main__":
    main()
