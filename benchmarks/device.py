"""Timing on a CUDA device: steps captured in graphs, replayed in turn, timed with events."""

from __future__ import annotations

import multiprocessing
import os
import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.results import save
from bunn.experiments.environment import environment

Job = TypeVar("Job")

#: Processes that compile side by side.
COMPILERS = 12


def side_by_side(work: Callable[[Job], None], jobs: Iterable[Job]) -> None:
    """``work`` on every job, in processes of their own: what they compile stays on the disk."""
    processes = min(COMPILERS, os.cpu_count() or 1)
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.map(work, jobs, chunksize=1)


def milliseconds(step: Callable[[], object], calls: int) -> float:
    """The mean over ``calls`` that are launched one after the other."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        step()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / calls


def medians(
    steps: Mapping[str, Callable[[], object]], repeats: int = 15, budget_ms: float = 20.0
) -> dict[str, float]:
    """Milliseconds of every step, the median of samples that are taken in turn.

    Args:
        steps: What is measured, by name.
        repeats: How many samples.
        budget_ms: About how long a sample takes, in which a step is repeated.
    """
    calls = {}
    for name, step in steps.items():
        milliseconds(step, 2)
        calls[name] = max(1, round(budget_ms / max(1e-3, milliseconds(step, 2))))
    samples: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            samples[name].append(milliseconds(step, calls[name]))
    return {name: statistics.median(values) for name, values in samples.items()}


#: Kinds of kernels, by words in their names; the first that fits.
KINDS = {
    "sparse products": ("walk_rows", "add_segments", "walk_blocks", "add_pieces"),
    "heat by blocks": ("multiply_patches", "add_patches", "split_halves", "find_largest"),
    "chains": ("activate", "add_and_norm", "add_up"),
    "maps": ("turn_pairs",),
    "dense products": ("gemm", "nvjet", "cutlass", "splitk"),
    "optimiser": ("multi_tensor_apply",),
}


def by_kind(step: Callable[[], object], calls: int = 3) -> dict[str, float]:
    """Milliseconds of a step by the kinds of its kernels; what is of no kind is the ``"rest"``."""
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(calls):
            step()
        torch.cuda.synchronize()
    taken = dict.fromkeys((*KINDS, "rest"), 0.0)
    for event in trace.key_averages():
        name = event.key.lower()
        fitting = (kind for kind, words in KINDS.items() if any(word in name for word in words))
        taken[next(fitting, "rest")] += event.self_device_time_total / calls / 1e3
    return taken


def copy_bandwidth(gigabytes: float = 2.0) -> float:
    """Bytes read and written per second by a large copy on the device."""
    source = torch.rand(int(gigabytes * 2**28), device="cuda")
    target = torch.empty_like(source)
    taken = medians({"copy": lambda: target.copy_(source)})["copy"]
    return 2 * source.numel() * 4 / (taken * 1e-3)


def save_measured(name: str, rows: list[dict[str, Any]], what: str | None, **extra: Any) -> None:
    """Writes ``results/<name>.json``, with what was measured and on which device."""
    save(name, rows, what=(what or "").strip(), gpu=about(), **extra)


def about() -> dict[str, Any]:
    """What a result file says of the machine."""
    properties = torch.cuda.get_device_properties(0)
    return {
        **environment("cuda"),
        "multiprocessors": properties.multi_processor_count,
        "cache_bytes": properties.L2_cache_size,
        "cuda": torch.version.cuda,
    }
