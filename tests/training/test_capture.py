"""Recorded steps are the steps, on whatever batch, at whatever learning rate.

A GPU replays a CUDA graph. Elsewhere a stand-in calls the function again on the memory that the
recording owns, which shows all that does not depend on the device: what is copied, and what is told
apart.
"""

import gc
import math
import warnings
import weakref
from contextlib import contextmanager

import pytest
import torch

import bunn
from bunn.baselines.memory import EdgeMemory
from bunn.data import Task, load_dataset
from bunn.keeping import handed_out, kept
from bunn.nn import DiffusionTime
from bunn.training import Config, Outcome, Run, train
from bunn.training import capture as module
from bunn.training.capture import RECORDINGS, WARMUP, Recorder, can_be_recorded
from bunn.training.device import Device
from bunn.training.drive import Driver
from tests.training.test_drive import VARIANTS, assert_close
from tests.training.tiny import StoppedError, molecules, stop_after, tiny

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def run_of(config: Config, seed: int = 0, device: str = "cpu") -> Run:
    data = load_dataset(config.dataset, options=config.data)
    return Run(config, data, 0, seed, Device(device, config.training.precision))


class Tape:
    """What was recorded, how often something was replayed, where the device would be waited for."""

    def __init__(self):
        self.recorded, self.replayed, self.waits = [], 0, []

    def record(self, call, batches, pool):
        replies = []

        def replay():
            replies[:] = call(batches)

        return replay, replies, None

    @contextmanager
    def watched(self):
        yield self.waits


@pytest.fixture
def tape(monkeypatch, request):
    """Real recordings where a test runs on a GPU, the stand-in elsewhere."""
    tape, replay = Tape(), module.Recording.replay
    record = module.record if "cuda" in request.node.name else tape.record

    def spy_record(call, batches, pool):
        tape.recorded.append(batches)
        return record(call, batches, pool)

    def spy_replay(recording, batches):
        tape.replayed += 1
        return replay(recording, batches)

    monkeypatch.setattr(module, "record", spy_record)
    monkeypatch.setattr(module.Recording, "replay", spy_replay)
    if "cuda" not in request.node.name:
        monkeypatch.setattr(module, "_watched", tape.watched)
        monkeypatch.setattr("bunn.training.drive.can_be_recorded", lambda run: True)
    return tape


def both(config: Config, runs=((0, 0),), device: str = "cpu") -> tuple[list[Outcome], ...]:
    return tuple(train(config, runs, device=device, capture=capture) for capture in (True, False))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dataset", ["barbell", "minesweeper-board"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_recorded_is_launched(variant, dataset, device, tape):
    architecture, options = VARIANTS[variant]
    training = {"epochs": 5, "batch_size": 2, "precision": "64"}
    if dataset == "minesweeper-board":
        training |= {"epochs": 8, "batch_size": None}
    recorded, launched = both(
        tiny(dataset, architecture, model=options, training=training), device=device
    )
    steps = recorded[0].evaluations[-1].step
    assert len(tape.recorded) == 2  # steps, evaluations
    assert tape.replayed > steps - WARMUP
    assert_close(recorded, launched, rel=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_runs_that_are_trained_together_are_recorded_together(device, tape):
    config = tiny("minesweeper-board", "gcn", training={"epochs": 8, "together": True})
    recorded, launched = both(config, [(0, 0), (0, 1), (1, 0)], device)
    assert {len(batches) for batches in tape.recorded} == {3}
    assert_close(recorded, launched)


@pytest.mark.parametrize("device", DEVICES)
def test_runs_that_are_left_are_recorded_anew(device, tape):
    training = {"epochs": 30, "patience": 1, "precision": "64"}
    config = tiny(architecture="mlp", optimizer={"lr": 0.1}, training=training)
    recorded, launched = both(config, [(0, 1), (0, 2), (0, 3), (0, 4)], device)
    assert len({len(batches) for batches in tape.recorded}) > 1
    assert_close(recorded, launched, rel=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_times_that_outgrow_their_bound_are_recorded_anew(device, tape):
    model = {"learn_time": True, "num_bundles": 2, "time": 0.1, "tol": 1e-15}  # at any bound
    training = {"epochs": 20, "precision": "64"}
    optimizer = {"lr": 0.0625, "time_lr": 0.25}  # in float32, too
    config = tiny("minesweeper-board", model=model, optimizer=optimizer, training=training)
    recorded, launched = both(config, device=device)
    assert len(tape.recorded) > 2
    assert_close(recorded, launched, rel=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_learned_times_of_several_runs_are_launched(device, tape):
    model = {"learn_time": True, "num_bundles": 2}
    training = {"epochs": 6, "together": True}
    config = tiny("minesweeper-board", model=model, training=training)
    both(config, [(0, 0), (0, 1)], device)
    assert not tape.recorded


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["cosine", "plateau"])
def test_learning_rates_move(name, device, tape):
    schedule = {"name": name} | ({"patience": 0} if name == "plateau" else {"warmup": 2})
    training = {"epochs": 12, "precision": "64"}
    config = tiny("minesweeper-board", "mlp", schedule=schedule, training=training)
    recorded, launched = both(config, device=device)
    assert len({evaluation.lr for evaluation in recorded[0].evaluations}) > 2
    assert_close(recorded, launched, rel=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_signs_of_encodings_flip(device, tape):
    config = tiny("minesweeper-board", encoding={"lap_pe": 3}, training={"epochs": 8})
    assert_close(*both(config, device=device))


@pytest.mark.parametrize("device", DEVICES)
def test_a_smaller_last_batch_is_another_recording(device, tape):
    config = tiny("tree-neighborsmatch", "gin", training={"epochs": 6, "batch_size": 4})
    recorded, launched = both(config, device=device)
    assert len({batches[0].inputs.batch_size for batches in tape.recorded}) > 1
    assert_close(recorded, launched)


@pytest.mark.parametrize("device", DEVICES)
def test_clipping(device, tape):
    config = tiny("minesweeper-board", "gcn", optimizer={"clip": 0.01}, training={"epochs": 8})
    assert_close(*both(config, device=device))


@pytest.mark.parametrize("device", DEVICES)
def test_dropout_is_drawn_anew(device, tape):
    config = tiny("minesweeper-board", "mlp", model={"dropout": 0.5}, optimizer={"lr": 1e-12})
    run = run_of(config.override(["training.epochs=8"]), device=device)
    driver = Driver([run])
    for _ in range(8):
        driver.train_epoch()
    assert tape.replayed > 8
    assert len({evaluation.loss for evaluation in run.evaluations}) == 8


@pytest.mark.parametrize("device", DEVICES)
def test_batches_of_other_graphs_are_launched(device, tape, monkeypatch):
    molecules(monkeypatch, Task("graph", "regression", "mae"))
    config = tiny("molecules", "gin", training={"epochs": 6, "batch_size": 3})
    assert_close(*both(config, device=device))
    sizes = {batches[0].inputs.batch_size for batches in tape.recorded}
    assert sizes == {8}  # evaluations, whose batches are kept


@pytest.mark.parametrize("device", DEVICES)
def test_a_resumed_run_is_recorded_again(device, tape, tmp_path):
    training = {"epochs": 9, "checkpoint_seconds": 0}
    config = tiny("minesweeper-board", "gcn", training=training)
    (whole,) = train(config, device=device)
    with pytest.raises(StoppedError):
        train(config, folder=tmp_path, device=device, watcher=stop_after(5))
    tape.recorded.clear()
    (resumed,) = train(config, folder=tmp_path, resume=True, device=device)
    assert tape.recorded
    assert_close([resumed], [whole])


def sums(recorder: Recorder, batches) -> None:
    """Calls a function of one batch after the other, and checks what it returns."""
    for batch in batches:
        (reply,) = recorder("sum", lambda given: [given[0].inputs.x.sum()], [batch])
        assert reply == batch.inputs.x.sum()


def batches_of(config: Config, epochs: int) -> list:
    feed = run_of(config).feed
    return [batch for epoch in range(epochs) for batch in feed.training(epoch)]


def test_numbers_are_copied_and_the_caller_keeps_its_own(tape):
    batches = batches_of(tiny(training={"batch_size": 2}), 4)
    before = [batch.inputs.x.clone() for batch in batches]
    sums(Recorder([]), batches)
    assert tape.replayed == len(batches) - WARMUP
    assert all(torch.equal(batch.inputs.x, x) for batch, x in zip(batches, before, strict=True))


def test_recordings_are_few(tape):
    boards = [batches_of(tiny("minesweeper-board"), 1)[0] for _ in range(2 * RECORDINGS)]
    recorder = Recorder([])
    sums(recorder, [board for board in boards for _ in range(WARMUP + 2)])
    assert len(tape.recorded) == RECORDINGS


def test_new_graphs_leave_nothing_behind(tape, monkeypatch):
    monkeypatch.setattr(module, "COUNTED", 3)
    recorder = Recorder([])
    sums(recorder, (batches_of(tiny("minesweeper-board"), 1)[0] for _ in range(6)))
    assert len(recorder._counts) == 3


def test_runs_that_stop_sharing_are_told_apart(tape):
    """What two runs had in common when they were recorded is one tensor there."""
    one, other = batches_of(tiny(training={"batch_size": 2}), 1)
    call = lambda given: [torch.stack([batch.inputs.x for batch in given])]  # noqa: E731
    recorder = Recorder([])
    for pair in [(one, one)] * 4 + [(one, other)] * 4 + [(other, other)]:
        (reply,) = recorder("stack", call, pair)
        assert torch.equal(reply, torch.stack([batch.inputs.x for batch in pair]))
    assert len(tape.recorded) == 2


def test_what_caches_handed_out_lives_as_long_as_the_recording(tape, monkeypatch):
    """A replay reads what a model prepared for a graph, which its memory may have dropped since."""
    capture = lambda call, batches, pool: (lambda: None, call(batches), None)  # noqa: E731
    monkeypatch.setattr(module, "record", capture)
    memory, prepared = EdgeMemory(), []

    def call(given):
        edges = memory.get(given[0].inputs.edge_index, (), lambda: (torch.ones(2, 3), None))
        prepared.append(weakref.ref(edges[0]))
        return [given[0].inputs.x.sum()]

    recorder, (board,) = Recorder([]), batches_of(tiny("minesweeper-board"), 1)
    for _ in range(WARMUP + 1):
        recorder("sum", call, [board])
    others = [torch.zeros(2, 1, dtype=torch.long) for _ in range(100)]
    for other in others:
        memory.get(other, (), lambda: (torch.ones(2, 3), None))
    gc.collect()
    assert prepared[-1]() is not None
    del recorder
    gc.collect()
    assert prepared[-1]() is None


def test_nothing_is_held_when_nothing_is_recorded():
    with kept() as keeper:
        assert handed_out(3) == 3
    handed_out(4)
    assert keeper == [3]


@pytest.mark.parametrize("who", ["the recorder", "somebody else"])
def test_bounds_that_moved_end_recordings(who, tape):
    time = DiffusionTime(1.0, 2, learn=True)
    optimizer = torch.optim.Adam(time.parameters(), lr=0.05)
    recorder, (board,) = Recorder([optimizer], [time]), batches_of(tiny("minesweeper-board"), 1)
    time.bounded = True
    call = lambda given: [torch.tensor(time.bounds[1])]  # noqa: E731
    for _ in range(WARMUP + 2):
        recorder("bound", call, [board])
    assert len(tape.recorded) == 1
    with torch.no_grad():
        time.log_time.fill_(math.log(1.9))  # within the bounds, but with no room left
    if who == "somebody else":
        time.refresh(2.0)
    for _ in range(WARMUP + 4):
        recorder("bound", call, [board])
    assert len(tape.recorded) == 2
    (bound,) = recorder("bound", call, [board])
    assert float(bound) == pytest.approx(3.8)


def test_a_faster_learning_rate_is_looked_at_more_often(tape):
    time = DiffusionTime(1.0, 2, learn=True)
    optimizer = torch.optim.Adam(time.parameters(), lr=1e-4)
    recorder, (board,) = Recorder([optimizer], [time]), batches_of(tiny("minesweeper-board"), 1)
    looks, time.bounded = [], True
    time.refresh = lambda room=1.0: looks.append(room)
    call = lambda given: [torch.zeros(())]  # noqa: E731
    for _ in range(WARMUP + 1):
        recorder("nothing", call, [board])
    looks.clear()
    for _ in range(20):
        recorder("nothing", call, [board])
    assert not looks
    optimizer.param_groups[0]["lr"] = module.DRIFT / 2
    for _ in range(20):
        recorder("nothing", call, [board])
    assert looks == [module.ROOM] * 10


def test_what_waits_for_the_device_is_launched(tape):
    tape.waits = ["model.py:1"]
    config = tiny("minesweeper-board", "gcn", training={"epochs": 6})
    recorded, launched = both(config)
    assert not tape.recorded
    assert recorded[0].evaluations == launched[0].evaluations


def test_what_cannot_be_recorded_is_launched_and_said(tape, monkeypatch):
    def fail(call, batches, pool):
        raise RuntimeError("out of memory\nmore")

    monkeypatch.setattr(module, "record", fail)
    config = tiny("minesweeper-board", "gcn", training={"epochs": 6})
    with pytest.warns(RuntimeWarning, match=r"no CUDA graph could be captured \(out of memory\)"):
        recorded, launched = both(config)
    assert recorded[0].evaluations == launched[0].evaluations


def test_after_a_capture_that_failed_nothing_is_replayed_any_more(tape, monkeypatch):
    """What was recorded before draws random numbers from a generator that is another one now."""
    record = module.record
    recorder, (board,) = Recorder([]), batches_of(tiny("minesweeper-board"), 1)
    call = lambda given: [given[0].inputs.x.sum()]  # noqa: E731
    for _ in range(WARMUP + 2):
        recorder("step", call, [board])
    assert recorder.num_recordings == 1

    def fail(call, batches, pool):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(module, "record", fail)
    for _ in range(WARMUP):
        recorder("evaluation", call, [board])
    with pytest.warns(RuntimeWarning, match="not permitted"):
        recorder("evaluation", call, [board])
    assert recorder.num_recordings == 0
    monkeypatch.setattr(module, "record", record)
    before = tape.replayed
    for _ in range(WARMUP + 2):
        recorder("step", call, [board])
    assert recorder.refuses("step")
    assert tape.replayed == before


@pytest.mark.gpu
def test_training_goes_on_after_a_capture_that_failed(monkeypatch):
    """With dropout, whose random numbers torch would not draw any more."""
    config = tiny("minesweeper-board", "gcn", model={"dropout": 0.5}, training={"epochs": 8})
    step = Driver._step

    def waiting(driver, batches):
        replies = step(driver, batches)
        if torch.cuda.is_current_stream_capturing():
            replies[0].item()
        return replies

    monkeypatch.setattr(Driver, "_step", waiting)
    with pytest.warns(RuntimeWarning, match="kernel by kernel: no CUDA graph could be captured"):
        (outcome,) = train(config, device="cuda")
    assert math.isfinite(outcome.evaluations[-1].loss)


def test_times_that_nobody_bounds_end_no_recording(tape):
    """Heat from all eigenvectors takes times as they are."""
    lap = bunn.Laplacian(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
    for method, recordings in (("spectral", 1), ("chebyshev", 2)):
        conv = bunn.BuNNConv(4, 4, num_bundles=2, learn_time=True, method=method)
        optimizer = torch.optim.Adam(conv.parameters(), lr=0.05)
        recorder = Recorder([optimizer], [conv])
        (board,) = batches_of(tiny("minesweeper-board"), 1)
        call = lambda given: [conv(torch.ones(3, 4), lap).detach()]  # noqa: E731, B023
        tape.recorded.clear()
        for moved in (0.0, 3.0):
            with torch.no_grad():
                conv.time.log_time.fill_(moved)
            for _ in range(WARMUP + 4):
                recorder("heat", call, [board])
        assert len(tape.recorded) == recordings, method
        assert conv.time.bounded == (method == "chebyshev")


def test_rates_are_tensors_for_the_recording_alone():
    optimizer = torch.optim.Adam([torch.zeros(2, requires_grad=True)], lr=0.5)
    (group,) = optimizer.param_groups
    rates = module._Rates([optimizer])
    with rates.on_device():
        seen = group["lr"]
        assert group["capturable"]
    assert (group["lr"], group["capturable"]) == (0.5, False)
    group["lr"] = 0.25
    rates.refresh()
    assert seen == 0.25


def test_nothing_is_recorded_on_a_cpu():
    assert not can_be_recorded(run_of(tiny()))


@pytest.mark.gpu
def test_what_is_recorded_on_a_gpu():
    assert can_be_recorded(run_of(tiny(), device="cuda"))
    half = tiny(training={"precision": "16-mixed"})
    assert not can_be_recorded(run_of(half, device="cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["item", "cpu"])
def test_waits_are_seen_and_other_warnings_pass(method):
    x = torch.ones((), device="cuda")
    with pytest.warns(UserWarning, match="look here"):
        found = waits_of(lambda: [getattr(x, method)(), warnings.warn("look here", stacklevel=1)])
    assert found
    assert not waits_of(x.exp)


def waits_of(call) -> list[str]:
    with module._watched() as waits:
        call()
    return waits
