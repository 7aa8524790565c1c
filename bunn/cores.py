"""Work on many small matrices, dealt out to all cores of the host."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice

import torch
from torch import Tensor

#: From so many matrices on that is worth its while.
MANY = 256


def by_cores(
    work: Callable[..., tuple[Tensor, ...]], stacks: Sequence[tuple[Tensor, ...]]
) -> list[tuple[Tensor, ...]]:
    """``[work(*stack) for stack in stacks]``, of which every core takes some.

    Linear algebra takes small matrices one after the other, and has no use for more than a core.

    Args:
        work: From stacks ``(m, ...)`` to such, matrix by matrix.
        stacks: Of matrices of one size each, with what belongs to them.
    """
    cores = os.cpu_count() or 1
    cut = [list(zip(*(part.chunk(cores) for part in stack), strict=True)) for stack in stacks]

    def on_one_core(portion: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        torch.set_num_threads(1)  # of this thread
        return work(*portion)

    with ThreadPoolExecutor(cores) as threads:
        done = threads.map(on_one_core, chain.from_iterable(cut))
        return [
            tuple(map(torch.cat, zip(*islice(done, len(portions)), strict=True)))
            for portions in cut
        ]
