"""Steps and evaluations on a GPU: recorded once, then replayed.

Where call after call differs in nothing but numbers (one graph,
batches on the same edges, or drafts of batches in one room), a whole step, forward, backward and
optimiser, becomes one CUDA graph.
"""

from __future__ import annotations

import math
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bunn.batches.rooms import Room
from bunn.keeping import kept
from bunn.nn import DiffusionTime
from bunn.replay import capturing
from bunn.training.batch import Batch, Draft
from bunn.training.run import Run

#: A call to be recorded: from a batch for each run to a tensor for each.
Call = Callable[[Sequence[Batch | Draft]], list[Tensor]]

#: Calls before a recording, which fill caches and create optimiser states; the last is watched.
WARMUP = 2
#: Recordings of a group of runs: a full and a last batch, in training and in each part.
RECORDINGS = 8
#: Kinds of batches that are counted, while all may be new.
COUNTED = 64
#: How far the logarithm of a time may come, by the sum of learning rates, before it is looked at.
DRIFT = 0.1
#: The factor that leaves it: Adam may take steps of three times the rate.
ROOM = math.exp(3 * DRIFT)


def can_be_recorded(run: Run) -> bool:
    """Whether steps can be recorded: on a GPU, unless float16 may pass over one."""
    return run.device.type == "cuda" and run.config.training.precision != "16-mixed"


def learned_times(model: nn.Module) -> list[DiffusionTime]:
    return [part for part in model.modules() if isinstance(part, DiffusionTime) and part.learn]


class Recorder:
    """Calls functions of batches, and replays them where it can.

    The number of products that a learned time needs is decided on the host, from a bound that is
    twice the largest: recordings are made anew when a time outgrows it.

    Args:
        optimizers: Whose steps the functions take; their learning rates may change between calls.
        models: Whose times are learned. (default: none)
    """

    def __init__(
        self, optimizers: Sequence[torch.optim.Optimizer], models: Sequence[nn.Module] = ()
    ) -> None:
        self._optimizers = list(optimizers)
        self._times = [time for model in models for time in learned_times(model)]
        self._bounds: list[tuple[float, float]] = []
        self._drifted = 0.0
        self._counts: OrderedDict[Hashable, tuple[int, weakref.ref[Tensor | Room]]] = OrderedDict()
        self._recordings: dict[Hashable, Recording] = {}
        self._pool: Any = None
        self._refused: set[str] = set()
        self._failed = False

    def __call__(self, name: str, call: Call, batches: Sequence[Batch | Draft]) -> list[Tensor]:
        """``call(batches)``.

        Args:
            name: Of the function: calls of the same name do the same.
            call: The function.
            batches: Its arguments.
        """
        if self._times:
            self._mind_times()
        key = (name, *_kinds(batches))
        if key in self._recordings:
            return self._recordings[key].replay(batches)
        if self.refuses(name) or len(self._recordings) == RECORDINGS:
            return call(batches)
        count = self._count(key, batches[0].anchor)
        if count < WARMUP:
            return call(batches)
        self._look_at_times()  # now, so that the call itself need not
        if count == WARMUP:
            with _watched() as waits:
                replies = call(batches)
            if waits:
                self._refused.add(name)
                if any(isinstance(batch, Draft) for batch in batches):
                    _warn(f"{waits[0]} waits for the device")
            return replies
        return self._record(key, call, batches)

    def refuses(self, name: str) -> bool:
        """Whether calls of this name cannot be recorded."""
        return self._failed or name in self._refused

    @property
    def num_recordings(self) -> int:
        """How many kinds of calls are replayed."""
        return len(self._recordings)

    def _count(self, key: Hashable, anchor: Tensor | Room) -> int:
        """How often there was a call of this kind, for as long as its edges live, or its room."""
        count, before = self._counts.pop(key, (0, weakref.ref(anchor)))
        if before() is not anchor:  # others in the place of those that were there
            count = 0
        self._counts[key] = (count + 1, weakref.ref(anchor))
        while len(self._counts) > COUNTED:
            self._counts.popitem(last=False)
        return count + 1

    def _mind_times(self) -> None:
        """Looks at learned times now and then; what was recorded for other bounds is dropped."""
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        self._drifted += max(float(group["lr"]) for group in groups)
        if self._drifted >= DRIFT:
            self._look_at_times()
        bounds = [time.bounds for time in self._times if time.bounded]
        if bounds != self._bounds:
            self._bounds = bounds
            self._forget()

    def _look_at_times(self) -> None:
        self._drifted = 0.0
        for time in self._times:
            if time.bounded:  # others are asked for nothing
                time.refresh(ROOM)

    def _forget(self) -> None:
        self._recordings.clear()
        self._counts.clear()
        self._pool = None

    def _record(self, key: Hashable, call: Call, batches: Sequence[Batch | Draft]) -> list[Tensor]:
        try:
            recording = Recording(call, batches, self._optimizers, self._pool)
        except RuntimeError as error:  # nothing has run yet
            self._failed = True
            self._forget()
            reason = str(error).partition("\n")[0]
            _warn(f"no CUDA graph could be captured ({reason})")
            return call(batches)
        self._recordings[key] = recording
        self._pool = recording.pool
        return recording.replay(batches)


class Recording:
    """A call on memory of its own, into which batches are copied before each replay.

    What caches handed out meanwhile lives as long as it does.

    Args:
        call: The function.
        batches: Arguments of the kind that it will be replayed for.
        optimizers: Whose learning rates it reads.
        pool: The memory that it may share with other recordings, none of which run meanwhile.
    """

    def __init__(
        self,
        call: Call,
        batches: Sequence[Batch | Draft],
        optimizers: Sequence[torch.optim.Optimizer],
        pool: Any = None,
    ) -> None:
        self._given = list(batches)
        self._own = _with_own_memory(batches)
        self._rates = _Rates(optimizers)
        with self._rates.on_device(), kept() as self._kept:
            self._replay, self._replies, self.pool = record(call, self._own, pool)

    def replay(self, batches: Sequence[Batch | Draft]) -> list[Tensor]:
        """What the function returns for these batches."""
        for own, given, new in zip(self._own, self._given, batches, strict=True):
            for target, old, source in zip(own.numbers, given.numbers, new.numbers, strict=True):
                if source is not old:
                    target.copy_(source, non_blocking=True)
        self._given = list(batches)
        self._rates.refresh()
        self._replay()
        return [reply.clone() for reply in self._replies]


def record(
    call: Call, batches: Sequence[Batch | Draft], pool: Any
) -> tuple[Callable[[], None], list[Tensor], Any]:
    """The call as a CUDA graph: how to replay it, the tensors it writes, and its memory."""
    with capturing(pool) as graph:
        replies = call(batches)
    return graph.replay, replies, graph.pool()


def _warn(reason: str) -> None:
    warnings.warn(f"steps are launched kernel by kernel: {reason}", RuntimeWarning, stacklevel=3)


class _Rates:
    """Learning rates as tensors of the device, where a recording finds those of the day."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        self._tensors = [
            torch.tensor(group["lr"], dtype=torch.float32, device=group["params"][0].device)
            for group in self._groups
        ]
        self._written = [group["lr"] for group in self._groups]

    @contextmanager
    def on_device(self) -> Iterator[None]:
        for group, tensor in zip(self._groups, self._tensors, strict=True):
            group["lr"], group["capturable"] = tensor, True
        try:
            yield
        finally:
            for group, rate in zip(self._groups, self._written, strict=True):
                group["lr"], group["capturable"] = rate, False

    def refresh(self) -> None:
        for index, (group, tensor) in enumerate(zip(self._groups, self._tensors, strict=True)):
            if group["lr"] != self._written[index]:
                self._written[index] = group["lr"]
                tensor.fill_(group["lr"])


def _kinds(batches: Sequence[Batch | Draft]) -> Iterator[Hashable]:
    """Equal for batches of the same kind, with numbers of the same shapes and types."""
    numbers = [number for batch in batches for number in batch.numbers]
    ids = list(map(id, numbers))
    for number in numbers:  # runs may share some: then they have to share them again
        yield ids.index(id(number)), number.shape, number.dtype
    for batch in batches:
        yield batch.kind


def _with_own_memory(batches: Sequence[Batch | Draft]) -> list[Batch | Draft]:
    """The same with numbers of their own on the device."""
    copies = {
        id(number): number.to(batch.device, copy=True)
        for batch in batches
        for number in batch.numbers
    }
    return [batch.with_numbers([copies[id(n)] for n in batch.numbers]) for batch in batches]


@contextmanager
def _watched() -> Iterator[list[str]]:
    """Notes where the host waits for the device, which no recording can; and passes on the rest."""
    waits: list[str] = []
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield waits
        finally:
            torch.cuda.set_sync_debug_mode(before)
    for warning in caught:
        message = str(warning.message)
        if "synchronizing CUDA operation" in message:
            waits.append(f"{warning.filename}:{warning.lineno}")
        elif "Synchronization debug mode" not in message:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
