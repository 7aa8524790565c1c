"""Captures, where there is no GPU; with one they are in test_cuda.py."""

import warnings
from contextlib import contextmanager

import pytest
import torch
from torch_geometric.utils import grid

from bunn.keeping import lasts
from bunn.replay import EMPTY, captured
from bunn.sharing import laplacian_of


class Card:
    """What torch has of a GPU, as far as captures ask for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at_the_end=lambda: None) -> None:
        self.stream, self.replays, self.cleared = "usual", 0, 0
        self.at_the_end = at_the_end
        replacements = {
            "is_available": lambda: True,
            "current_stream": lambda: Stream(self.stream),
            "Stream": lambda: Stream("aside"),
            "stream": self.on,
            "set_stream": lambda stream: setattr(self, "stream", stream.name),
            "CUDAGraph": lambda: self,
            "graph": self.capture,
        }
        for name, value in replacements.items():
            monkeypatch.setattr(torch.cuda, name, value)
        clear = "_cuda_clearCublasWorkspaces"  # which a build for CPUs does not have
        monkeypatch.setattr(torch._C, clear, self.clear, raising=False)

    def clear(self) -> None:
        assert self.stream == "usual"
        self.cleared += 1

    def replay(self) -> None:
        self.replays += 1

    @contextmanager
    def on(self, stream):
        before, self.stream = self.stream, stream.name
        try:
            yield
        finally:
            self.stream = before

    @contextmanager
    def capture(self, graph, pool, stream):
        before, self.stream = self.stream, stream.name
        try:
            yield
        finally:
            self.at_the_end()  # where torch raises, it does not come to the next line
            self.stream = before


class Stream:
    def __init__(self, name: str) -> None:
        self.name = name

    def wait_stream(self, other) -> None:
        pass


def test_without_a_gpu_a_step_is_itself(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    calls = []
    step = captured(lambda: calls.append(1) or len(calls))
    assert calls == []
    assert [step(), step()] == [1, 2]


def test_a_step_is_called_while_it_lasts_and_then_replayed(monkeypatch):
    card, calls = Card(monkeypatch), []
    step = captured(lambda: calls.append((card.stream, lasts())) or len(calls), warmup=2)
    assert calls == [("aside", True)] * 3
    assert [step(), step()] == [3, 3]
    assert (len(calls), card.replays, card.stream) == (3, 2, "usual")
    assert card.cleared == 1  # between the two: the workspace of the warm-up is not the graph's
    assert not lasts()


def test_nothing_holds_on_to_the_graph_of_the_step(monkeypatch):
    """Whose nodes have its stream, which a capture that follows could not join."""
    Card(monkeypatch)
    weight = torch.ones(3, requires_grad=True)
    loss, parts = captured(lambda: (weight.sum(), {"first": weight[0]}))()
    assert loss.grad_fn is None
    assert parts["first"].grad_fn is None


@pytest.mark.parametrize("where", ["warm-up", "capture", "end"])
def test_after_a_failure_all_is_as_it_was(where, monkeypatch):
    """And a graph that was built in the middle of a capture is built again."""

    def fail() -> None:
        raise RuntimeError("operation not permitted")

    card = Card(monkeypatch, fail if where == "end" else lambda: None)
    edge_index, found = grid(2, 3)[0], []

    def step() -> None:
        found.append(laplacian_of(edge_index, None, 6, "rw"))
        if where == "warm-up" or (where == "capture" and len(found) == 4):
            fail()

    with pytest.raises(RuntimeError, match="not permitted"):
        captured(step)
    assert card.stream == "usual"
    assert not lasts()
    again = laplacian_of(edge_index, None, 6, "rw")
    assert (again is found[-1]) == (where == "warm-up")


def test_what_runs_elsewhere_is_no_graph(monkeypatch):
    card = Card(monkeypatch, lambda: warnings.warn(f"{EMPTY}. This usually", stacklevel=1))
    with pytest.raises(ValueError, match="step runs nothing on the current CUDA device"):
        captured(lambda: None)
    assert card.stream == "usual"
