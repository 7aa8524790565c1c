"""How many neighbours the rows of a block share: what a kernel that takes blocks would save.

A block of rows needs every node that is a neighbour of any of them once. ``reuse`` is the number
of entries over the number of rows of features that are read then, for nodes in the order of the
file and in others: by degree, by reverse Cuthill-McKee, and by min-hashing, which sorts rows by the
smallest of their neighbours under random permutations, so that rows that share many lie together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import reverse_cuthill_mckee

from benchmarks.graphs import heterophilous_graphs
from benchmarks.results import save
from bunn import Laplacian

BLOCKS = (4, 8, 16, 32, 64)
HASHES = 4


def orders(matrix: csr_array) -> dict[str, Any]:
    """Permutations of the nodes, by name."""
    length, random = np.diff(matrix.indptr), np.random.default_rng(0)
    smallest = [
        np.minimum.reduceat(random.permutation(len(length))[matrix.indices], matrix.indptr[:-1])
        for _ in range(HASHES)
    ]
    return {
        "file": np.arange(len(length)),
        "degree": np.argsort(-length),
        "Cuthill-McKee": reverse_cuthill_mckee(matrix, symmetric_mode=True),
        "min-hash": np.lexsort(smallest),
    }


def reuse(matrix: csr_array, order: Any, block: int) -> float:
    """Entries over distinct columns, block by block."""
    rows = matrix[order]
    owner = np.repeat(np.arange(len(order)) // block, np.diff(rows.indptr))
    return float(rows.nnz / len(np.unique(owner * len(order) + rows.indices)))


def main() -> None:
    found = []
    for name, (edge_index, num_nodes) in heterophilous_graphs().items():
        crow, col, value, *_ = Laplacian(edge_index, num_nodes=num_nodes).operator
        matrix = csr_array((value.numpy(), col.numpy(), crow.numpy()), shape=(num_nodes, num_nodes))
        for order, permutation in orders(matrix).items():
            shares = {str(block): reuse(matrix, permutation, block) for block in BLOCKS}
            found.append({"graph": name, "order": order, "reuse": shares})
            print(found[-1])
    save("reuse", found, what=(__doc__ or "").strip())


if __name__ == "__main__":
    main()
