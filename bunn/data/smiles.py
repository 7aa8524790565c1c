"""SMILES to graphs by the featurisation of ``ogb``, in as many processes as there are cores.

This file is also what the processes run: it reads a list of SMILES as JSON and writes the graphs as
a NumPy archive. It imports neither torch nor the rest of the package, so that a process starts in a
fraction of a second, whatever program asked for it.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

#: What the featurisation needs, and what installs it.
PACKAGES, INSTALL = ("rdkit", "ogb"), "pip install 'bunn[chem]'"
#: SMILES that a process is handed.
PORTION = 256

#: All graphs, one after the other: ``num_nodes`` and ``num_bonds`` ``(g,)``, ``atoms``
#: ``(n, 9)``, ``bonds`` ``(m, 2)`` (ends, counted within the graph), ``bond_features`` ``(m, 3)``.
Arrays = dict[str, NDArray[np.integer]]


class MissingPackageError(ValueError):
    """A package is not installed that the featurisation needs; the message says how to get it."""


def featurise(
    smiles: Sequence[str], progress: Callable[[int], object] = lambda done: None
) -> Arrays:
    """The graphs of molecules.

    Args:
        smiles: The molecules.
        progress: Called with the number of molecules that have been done since the last call.

    Raises:
        MissingPackageError: ``rdkit`` or ``ogb`` is not installed.
        ValueError: A SMILES cannot be read; the message has it.
    """
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingPackageError(
            f"reading molecules needs {' and '.join(missing)}, which cannot be imported; {INSTALL}"
        )
    if len(smiles) <= PORTION:
        arrays = read_molecules(smiles)
        progress(len(smiles))
        return arrays
    portions = [smiles[start : start + PORTION] for start in range(0, len(smiles), PORTION)]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        found = []
        for portion, arrays in zip(portions, threads.map(_in_a_process, portions), strict=True):
            found.append(arrays)
            progress(len(portion))
    return {name: np.concatenate([arrays[name] for arrays in found]) for name in found[0]}


def _in_a_process(smiles: Sequence[str]) -> Arrays:
    done = subprocess.run(
        [sys.executable, "-P", __file__],
        input=json.dumps(list(smiles)).encode(),
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise ValueError(lines[-1] if lines else f"the process ended with {done.returncode}")
    with np.load(io.BytesIO(done.stdout), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def read_molecules(smiles: Iterable[str]) -> Arrays:
    """The graphs of molecules, one by one."""
    from ogb.utils import smiles2graph  # noqa: PLC0415  (not everybody has it)
    from rdkit import rdBase  # noqa: PLC0415

    graphs = []
    with rdBase.BlockLogs():  # what it says of a molecule, an error says, too
        for text in smiles:
            try:
                graph = smiles2graph(text)
            except Exception as error:  # of a molecule that is none, ogb reads attributes
                raise ValueError(f"{text!r} is no molecule") from error
            if graph["num_nodes"] == 0:
                raise ValueError(f"{text!r} is a molecule without atoms")
            graphs.append(graph)
    # ogb lists both directions of a bond, one after the other.
    bonds = [graph["edge_index"][:, ::2].T.astype(np.uint32) for graph in graphs]
    features = [graph["edge_feat"][::2].astype(np.uint8) for graph in graphs]
    return {
        "num_nodes": np.array([graph["num_nodes"] for graph in graphs], dtype=np.uint32),
        "num_bonds": np.array([len(pairs) for pairs in bonds], dtype=np.uint32),
        "atoms": np.concatenate([graph["node_feat"].astype(np.uint8) for graph in graphs]),
        "bonds": np.concatenate(bonds),
        "bond_features": np.concatenate(features),
    }


def main() -> None:
    """Standard input to standard output."""
    try:
        arrays = read_molecules(json.load(sys.stdin))
    except ValueError as error:
        sys.exit(str(error))
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    sys.stdout.buffer.write(buffer.getvalue())


if __name__ == "__main__":
    main()
