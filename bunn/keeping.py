"""Holding on to what caches hand out, and knowing what will be asked for again.

A CUDA graph that is replayed reads memory that was there when it was captured: the edges that a
model prepared, a Laplacian, a heat kernel. The caches that hold them may drop them meanwhile.

Some of what they hold takes longer to build than a few calls without it: a heat kernel pays for a
graph that is trained on, not for one that a sampler draws for one step.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

Value = TypeVar("Value")

#: How torch's warning begins where nothing was captured.
EMPTY = "The CUDA Graph is empty"

_KEEPERS: list[list[object]] = []


@contextmanager
def kept() -> Iterator[list[object]]:
    """A list of all that caches hand out meanwhile; who holds the list holds it alive."""
    keeper: list[object] = []
    _KEEPERS.append(keeper)
    try:
        yield keeper
    finally:
        _KEEPERS.pop()


def handed_out(value: Value) -> Value:
    """What every cache of things on a device returns its entries through."""
    for keeper in _KEEPERS:
        keeper.append(value)
    return value


_LASTING: list[None] = []


@contextmanager
def lasting() -> Iterator[None]:
    """A context in which all that is called will be called many times again."""
    _LASTING.append(None)
    try:
        yield
    finally:
        _LASTING.pop()


def lasts() -> bool:
    """Whether it is known that calls will be repeated."""
    return bool(_LASTING)


def captured(step: Callable[[], Value], warmup: int = 3) -> Callable[[], Value]:
    """A training step, or any other function, as one CUDA graph: a call of what is returned replays
    it, which costs the host next to nothing. Where there is no GPU, the function itself.

    The function is called ``warmup`` times first, for good: an optimiser takes these steps. What it
    reads stays where it is: new features, targets and learning rates are written into the tensors
    that it read. It must not wait for the device, as ``loss.item()`` does. Adam takes
    ``capturable=True``. Learned times are looked at by :func:`bunn.nn.refresh_times`; a step has to
    be captured anew when their bounds have moved.

    Args:
        step: A function without arguments.
        warmup: Calls before the capture. (default: ``3``)

    Returns:
        A function that returns what ``step`` did: the same tensors every time, written anew.
    """
    if not torch.cuda.is_available():
        return step
    here, aside = torch.cuda.current_stream(), torch.cuda.Stream()
    aside.wait_stream(here)
    with lasting(), torch.cuda.stream(aside):
        for _ in range(warmup):  # compiles, and builds what depends on the graph alone
            step()
    here.wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with kept() as held, _nothing_is_empty(), torch.cuda.graph(graph):
        result = step()

    def replay(_owner: object = (step, held)) -> Value:
        graph.replay()
        return result

    return replay


@contextmanager
def _nothing_is_empty() -> Iterator[None]:
    """An error where a capture sees nothing: to replay it would do nothing, without a word."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", EMPTY)
        try:
            yield
        except UserWarning as warning:
            if not str(warning).startswith(EMPTY):
                raise
            raise ValueError(
                "step runs nothing on the current CUDA device, so that there is nothing to "
                "capture; move the model and its inputs there"
            ) from None
