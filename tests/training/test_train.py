"""Training from outside: signals, watchers, events, outcomes."""

import json
import math
import os
import signal
import threading
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from bunn.data import load_dataset
from bunn.training import (
    CompileError,
    ConfigError,
    InterruptedRunError,
    NonFiniteLossError,
    Progressed,
    Run,
    RunFolderError,
    train,
)
from tests.training.tiny import StoppedError, left_behind, stop_after, tiny


def interrupt_at(epoch: int, times: int = 1, number: int = signal.SIGINT):
    """A watcher that sends a signal when the first run has done some epochs."""

    def watch(progressed: Progressed) -> None:
        if progressed.epoch == epoch and progressed.run == "split0-seed0":
            for _ in range(times):
                os.kill(os.getpid(), number)

    return watch


@pytest.mark.parametrize(
    ("number", "times"), [(signal.SIGINT, 1), (signal.SIGTERM, 1), (signal.SIGTERM, 2)]
)
@pytest.mark.parametrize("together", [True, False])
def test_an_interrupt_saves_and_can_be_resumed(number, times, together, tmp_path):
    training = {"together": together, "checkpoint_seconds": 1e6}
    config, runs = tiny(model={"dropout": 0.2}, training=training), [(0, 0), (1, 1)]
    train(config, runs, folder=tmp_path / "whole", device="cpu")
    before = signal.getsignal(number)
    cut = tmp_path / "cut"
    with pytest.raises(InterruptedRunError) as error:
        train(config, runs, folder=cut, device="cpu", watcher=interrupt_at(2, times, number))
    assert signal.getsignal(number) is before
    for part in ("interrupted after epoch 2", str(cut), "everything is saved"):
        assert part in str(error.value)
    assert len(list(cut.glob("checkpoints/*/last.json"))) == 1
    train(config, runs, folder=cut, device="cpu", resume=True)
    assert left_behind(cut) == left_behind(tmp_path / "whole")


def test_the_second_interrupt_stops_at_once(tmp_path):
    config = tiny(training={"checkpoint_seconds": 0.0})
    train(config, folder=tmp_path / "whole", device="cpu")
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(config, folder=tmp_path / "cut", device="cpu", watcher=interrupt_at(3, times=2))
    assert signal.getsignal(signal.SIGINT) is before
    train(config, folder=tmp_path / "cut", device="cpu", resume=True)
    assert left_behind(tmp_path / "cut") == left_behind(tmp_path / "whole")


def test_an_interrupt_where_nothing_is_recorded():
    with pytest.raises(InterruptedRunError, match="after epoch 1; nothing was recorded"):
        train(tiny(architecture="mlp"), device="cpu", watcher=interrupt_at(1))


def test_training_in_another_thread():
    outcomes = []

    def work():
        outcomes.extend(train(tiny(architecture="mlp"), device="cpu"))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    (expected,) = train(tiny(architecture="mlp"), device="cpu")
    assert outcomes[0].evaluations == expected.evaluations


@pytest.mark.parametrize("together", [True, False])
def test_what_a_watcher_is_told(together):
    told: list[Progressed] = []
    config = tiny(architecture="mlp", training={"epochs": 5, "eval_every": 2, "together": together})
    runs = [(0, 0), (1, 1)]
    outcomes = train(config, runs, device="cpu", watcher=told.append)
    for (split, seed), outcome in zip(runs, outcomes, strict=True):
        own = [entry for entry in told if entry.run == f"split{split}-seed{seed}"]
        assert [entry.epoch for entry in own] == [0, 2, 4, 5]
        assert [entry.finished for entry in own] == [False, False, False, True]
        assert {entry.epochs for entry in own} == {5}
        for entry, evaluation in zip(own[1:], outcome.evaluations, strict=True):
            assert (entry.step, entry.metric) == (evaluation.step, "mse")
            assert entry.loss == evaluation.loss
            assert entry.val == evaluation.metrics["val"]
        for count, entry in enumerate(own[1:], start=1):
            best = min(outcome.evaluations[:count], key=lambda known: known.metrics["val"])
            assert (entry.best, entry.test) == (best.metrics["val"], best.metrics["test"])


def test_outcomes_and_finished_runs():
    kept: list[Run] = []
    config, runs = tiny(architecture="mlp"), [(3, 1), (0, 2), (1, 0)]
    outcomes = train(config, runs, device="cpu", keep=kept.append)
    assert [(outcome.split, outcome.seed) for outcome in outcomes] == runs
    assert [(run.split, run.seed) for run in kept] == runs
    assert len({outcome.seconds for outcome in outcomes}) == 1  # trained together: one clock
    for outcome, run in zip(outcomes, kept, strict=True):
        assert run.finished
        assert outcome.parameters == sum(p.numel() for p in run.model.parameters())
        assert outcome.best == run.best
        run.model.load_state_dict(run.best_weights)


@pytest.mark.parametrize("dataset", ["barbell", "minesweeper-board"])
def test_who_chooses_does_without_test_metrics(dataset, tmp_path):
    """The same training, validated the same; the folder is none to go on in with test metrics."""
    config, seen = tiny(dataset=dataset), []
    (tested,) = train(config, device="cpu")
    folder = tmp_path / "untested"
    (chosen,) = train(config, folder=folder, device="cpu", watcher=seen.append, with_test=False)
    assert [entry.metrics["val"] for entry in chosen.evaluations] == [
        entry.metrics["val"] for entry in tested.evaluations
    ]
    assert all("test" in entry.metrics for entry in tested.evaluations)
    assert not any("test" in entry.metrics for entry in chosen.evaluations)
    assert all(math.isnan(progressed.test) for progressed in seen)
    with pytest.raises(RunFolderError, match=r"was trained without test metrics.*another folder"):
        train(config, folder=folder, device="cpu", resume=True)
    (again,) = train(config, folder=folder, device="cpu", resume=True, with_test=False)
    assert again.best == chosen.best


def test_data_of_another_name_is_refused():
    with pytest.raises(ConfigError, match=r"data is clique, but config.dataset='barbell'"):
        train(tiny(), data=load_dataset("clique"), device="cpu")


def test_the_clock_goes_on_after_a_resume(tmp_path, monkeypatch):
    config = tiny(architecture="mlp", training={"checkpoint_seconds": 0.0})
    clock = iter(range(0, 10**6, 100))  # a hundred seconds pass whenever somebody looks
    monkeypatch.setattr("bunn.training.group.time.monotonic", lambda: float(next(clock)))
    with pytest.raises(StoppedError):
        train(config, folder=tmp_path, device="cpu", watcher=stop_after(3))
    (values,) = tmp_path.glob("checkpoints/*/epoch-000002/values.json")
    saved = json.loads(values.read_text())["seconds"]
    assert saved > 100
    (outcome,) = train(config, folder=tmp_path, device="cpu", resume=True)
    assert outcome.seconds > saved


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_tensorboard(tmp_path):
    config = tiny("minesweeper-board", training={"checkpoint_seconds": 0.0, "epochs": 3})
    runs = [(0, 0), (1, 1)]
    keywords = {"folder": tmp_path, "device": "cpu", "tensorboard": True, "resume": True}
    with pytest.raises(StoppedError):
        train(config, runs, watcher=stop_after(2), **keywords)
    outcomes = train(config, runs, **keywords)
    for outcome in outcomes:
        seen = scalars(tmp_path / "tensorboard" / f"split{outcome.split}-seed{outcome.seed}")
        assert set(seen) == {"loss", "lr", "train", "val", "test"}
        for tag, points in seen.items():
            assert [step for step, _ in points] == [1, 2, 3]
            expected = [entry.as_dict()[tag] for entry in outcome.evaluations]
            assert [value for _, value in points] == pytest.approx(expected)


def test_no_events_unless_asked_for_and_none_without_a_folder(tmp_path):
    train(tiny(architecture="mlp"), folder=tmp_path, device="cpu")
    assert not (tmp_path / "tensorboard").exists()
    train(tiny(architecture="mlp"), device="cpu", tensorboard=True)


@pytest.mark.gpu
@pytest.mark.parametrize("together", [True, False])
def test_cuda_agrees_with_the_cpu(together):
    config = tiny("barbell", training={"together": together, "precision": "64"})
    runs = [(0, 0), (1, 1)]
    for one, other in zip(
        train(config, runs, device="cuda"), train(config, runs, device="cpu"), strict=True
    ):
        for mine, theirs in zip(one.evaluations, other.evaluations, strict=True):
            assert mine.metrics == pytest.approx(theirs.metrics, rel=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["32", "bf16-mixed", "16-mixed"])
def test_cuda_splits_precisions_and_resuming(precision, tmp_path):
    """Splits of a graph are in step on a device too; a run goes on where it was."""
    training = {"together": True, "precision": precision, "checkpoint_seconds": 0.0}
    config = tiny("minesweeper-board", optimizer={"clip": 1.0}, training=training)
    runs = [(0, 0), (1, 1)]
    whole = train(config, runs, folder=tmp_path / "whole", device="cuda")
    with pytest.raises(StoppedError):
        train(config, runs, folder=tmp_path / "cut", device="cuda", watcher=stop_after(3))
    again = train(config, runs, folder=tmp_path / "cut", device="cuda", resume=True)
    for one, other in zip(whole, again, strict=True):
        assert len(one.evaluations) == len(other.evaluations)
        assert one.best.metrics == pytest.approx(other.best.metrics, abs=0.1)


@pytest.mark.gpu
def test_cuda_finds_a_loss_that_is_no_number_once_an_epoch():
    config = tiny(architecture="mlp", model={"norm": None}, optimizer={"lr": 1e25})
    with pytest.raises(NonFiniteLossError, match=r"at step 2 \(epoch 1\)"):
        train(config, device="cuda")


@pytest.mark.parametrize("architecture", ["bunn", "gcn"])
def test_a_compiled_model_learns_the_same(architecture, monkeypatch):
    compiled = []
    real = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda model: compiled.append(model) or real(model, backend="aot_eager")
    )
    config = tiny("minesweeper-board", architecture, training={"epochs": 3})
    plain = train(config, device="cpu")
    assert not compiled
    fast = train(config, device="cpu", compile=True)
    assert len(compiled) == 1
    for before, after in zip(plain[0].evaluations, fast[0].evaluations, strict=True):
        assert after.loss == pytest.approx(before.loss, rel=1e-4)


def test_what_cannot_be_compiled_is_said(monkeypatch):
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: real(model, backend=_no_backend))
    with pytest.raises(CompileError, match=r"cannot be compiled here: .*; train without compile"):
        train(tiny("minesweeper-board", "mlp"), device="cpu", compile=True)


def _no_backend(graph: object, inputs: object) -> None:
    raise OSError("no C++ compiler")
