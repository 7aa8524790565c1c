"""Functions as CUDA graphs: recorded once, then replayed.

A step of a graph network is hundreds of kernels of microseconds each, and to launch them one by one
takes longer than to run them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from bunn.keeping import kept, lasting
from bunn.sharing import forget_graphs

Value = TypeVar("Value")

#: How torch's warning begins where nothing was captured.
EMPTY = "The CUDA Graph is empty"


def captured(step: Callable[[], Value], warmup: int = 3) -> Callable[[], Value]:
    """A training step, or any other function, as one CUDA graph: a call of what is returned replays
    it, which costs the host next to nothing. Where there is no GPU, the function itself.

    The function is called ``warmup`` times first, for good: an optimiser takes these steps. What it
    reads stays where it is: new features, targets and learning rates are written into the tensors
    that it read. Gradients are set to zero within it, not elsewhere. It must not wait for the
    device, as ``loss.item()`` does; Adam takes ``capturable=True``. Losses of steps that were taken
    before are to be gone, or detached: their graphs would draw the stream of these steps into the
    capture. Learned times are looked at by :func:`bunn.nn.refresh_times`; a step has to be captured
    anew when their bounds have moved.

    Args:
        step: A function without arguments.
        warmup: Calls before the capture. (default: ``3``)

    Returns:
        A function that returns what ``step`` did: the same tensors every time, written anew
        and detached.
    """
    if not torch.cuda.is_available():
        return step
    here, aside = torch.cuda.current_stream(), torch.cuda.Stream()
    with lasting():
        aside.wait_stream(here)
        try:
            with torch.cuda.stream(aside):
                for _ in range(warmup):  # compiles, and builds what depends on the graph alone
                    step()
        finally:
            here.wait_stream(aside)
        # The warm-up gave cuBLAS a workspace for this stream, in memory that is not the graph's and
        # may be freed before it: the capture has to find none, and to make its own.
        torch._C._cuda_clearCublasWorkspaces()
        with kept() as held, _nothing_is_empty(), capturing(stream=aside) as graph:
            result: Value = tree_map_only(Tensor, Tensor.detach, step())

    def replay(_owner: object = (step, held)) -> Value:
        graph.replay()
        return result

    return replay


@contextmanager
def capturing(pool: Any = None, stream: Any = None) -> Iterator[torch.cuda.CUDAGraph]:
    """The graph of what is called within, which is not run.

    Where that fails, all is as it was before: the stream, which torch does not restore; the
    generator of random numbers, which torch leaves as it was in the middle, before 2.13, and which
    refuses to draw others; and graphs that were built meanwhile, which have never been computed.

    Args:
        pool: Memory that it may share with other graphs. (default: its own)
        stream: Where it is captured. (default: one of torch's)
    """
    graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            yield graph
    except BaseException:
        torch.cuda.set_stream(before)
        forget_graphs()
        if torch.cuda.is_initialized():
            generator = torch.cuda.default_generators[torch.cuda.current_device()]
            generator.graphsafe_set_state(generator.clone_state())
        raise


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
