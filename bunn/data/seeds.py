"""Random streams that do not overlap."""

from __future__ import annotations

import hashlib

import torch


def generator(*key: int | str) -> torch.Generator:
    """A stream of its own for every key, such as ``("barbell", split, "train")``.

    Neighbouring seeds of a generator need not give independent streams; the seed is therefore a
    hash of the key.
    """
    words = [part if isinstance(part, str) else int(part) for part in key]
    digest = hashlib.sha256(repr(words).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
