"""What people see of a training."""

import io
import math

import pytest
from rich.console import Console

from bunn.training import LiveDisplay, Progressed, train
from tests.training.tiny import tiny

PROGRESS = [
    Progressed("split0-seed0", 0, 10),
    Progressed("split0-seed0", 5, 10, 50, "mse", 0.25, 0.5, 0.4, 0.75),
    Progressed("split1-seed0", 5, 10, 50, "mse", 0.125, 0.6, 0.6, 0.7),
    Progressed("split0-seed0", 8, 10, 80, "mse", 0.0625, 0.3, 0.3, 0.2, finished=True),
]


def shown(terminal: bool, every: float = 30.0) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=160, legacy_windows=False)
    with LiveDisplay(console, every) as display:
        for progressed in PROGRESS:
            display(progressed)
    return stream.getvalue()


def test_a_terminal_shows_a_line_for_every_run():
    text = shown(terminal=True)
    for run in ("split0-seed0", "split1-seed0"):
        assert run in text
    for part in ("step 80", "loss 0.0625", "mse 0.3000", "best 0.3000", "test 0.2000", "10/10"):
        assert part in text
    assert "loss 0.125" in text
    assert "nan" not in text


def test_without_a_terminal_there_is_a_line_when_a_run_ends():
    assert shown(terminal=False).splitlines() == [
        "split0-seed0: epoch 8/10  step 80  loss 0.0625  mse 0.3000, best 0.3000 (test 0.2000)"
    ]


def test_without_a_terminal_a_long_run_is_heard_of_now_and_then():
    lines = shown(terminal=False, every=0.0).splitlines()
    assert len(lines) == len(PROGRESS)
    assert any(line.startswith("split1-seed0: epoch 5/10  step 50") for line in lines)


def test_before_anything_is_known():
    progressed = Progressed("run", 0, 3)
    assert not progressed.finished
    assert math.isnan(progressed.best)
    stream = io.StringIO()
    with LiveDisplay(Console(file=stream, force_terminal=True, width=120)) as display:
        display(progressed)
    assert "0/3" in stream.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_the_display_watches_a_training_and_survives_its_end(terminal):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=160)
    with LiveDisplay(console) as display:
        train(tiny(architecture="mlp"), [(0, 0), (1, 1)], device="cpu", watcher=display)
    assert "split1-seed1" in stream.getvalue()
    assert "step 16" in stream.getvalue()
    with pytest.raises(ValueError, match="runs="), LiveDisplay(console) as display:
        train(tiny(), [], device="cpu", watcher=display)
