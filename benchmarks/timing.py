"""Timing rivals side by side: interleaved, so that a noisy machine is noisy to all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def seconds(step: Callable[[], object]) -> float:
    """One run of ``step``."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def interleaved(
    steps: Mapping[str, Callable[[], object]], repeats: int, warmup: int = 2, patience: float = 60.0
) -> dict[str, list[float]]:
    """Every step in turn, ``repeats`` times over; samples in seconds.

    A step that has spent ``patience`` seconds in all is not run again: a rival a thousand times
    slower needs no median.
    """
    samples: dict[str, list[float]] = {name: [] for name in steps}
    spent = dict.fromkeys(steps, 0.0)
    for turn in range(warmup + repeats):
        for name, step in steps.items():
            if spent[name] > patience and samples[name]:
                continue
            taken = seconds(step)
            spent[name] += taken
            if turn >= warmup or spent[name] > patience:
                samples[name].append(taken)
    return samples


def medians(samples: Mapping[str, list[float]]) -> dict[str, float]:
    """The median of every list of samples."""
    return {name: statistics.median(values) for name, values in samples.items()}
