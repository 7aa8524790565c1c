"""Training steps on Peptides-func on a GPU: :mod:`benchmarks.peptides`, twenty at a time."""

from __future__ import annotations

from benchmarks.peptides import measure


def main() -> None:
    measure("gpu_peptides")


if __name__ == "__main__":
    main()
