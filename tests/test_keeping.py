"""Steps of one's own, where there is no GPU; with one they are in test_cuda.py."""

import torch

from bunn.keeping import captured


def test_without_a_gpu_a_step_is_itself(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    calls = []
    step = captured(lambda: calls.append(1) or len(calls))
    assert calls == []
    assert [step(), step()] == [1, 2]
