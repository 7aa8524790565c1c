"""Steps on batches that are drawn anew: filled up, recorded and replayed, they are the same steps.

A CUDA graph does again what it did, whatever the host would decide now. So does :class:`Replayed`,
for any device: it notes the operations of a call and repeats them on the same memory.
"""

from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bunn.batches.rooms import Room
from bunn.data import GraphDataset, Split, Task
from bunn.data.pack import Pack, PackedGraphs
from bunn.training import Config, Run
from bunn.training import capture as module
from bunn.training.batch import Batch, Draft, may_have_rooms
from bunn.training.capture import WARMUP
from bunn.training.device import Device
from bunn.training.drive import Driver
from tests.training.tiny import molecule, register

TASK = Task("graph", "multilabel", "average-precision")
#: What a graph cannot do: wait for a number, or for a size.
WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique2", "equal")
WAITS = (*WAITS, "bincount", "unique_consecutive")
GPU = pytest.param("cuda", marks=pytest.mark.gpu)


def _indices(args):
    return [index for entry in args if isinstance(entry, list | tuple) for index in entry]


class Replayed(TorchDispatchMode):
    """The operations of a call, to be repeated."""

    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        masked = any(isinstance(a, torch.Tensor) and a.dtype == torch.bool for a in _indices(args))
        assert func.overloadpacket.__name__ not in WAITS, f"{func} waits"
        assert not masked or "index" not in str(func), f"{func} waits"
        repeated = func.overloadpacket.__name__ == "repeat_interleave"
        assert not repeated or (kwargs or {}).get("output_size") is not None, f"{func} waits"
        out = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, out))
        return out

    def again(self):
        for func, args, kwargs, out in self.operations:
            for old, new in zip(tree_leaves(out), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.detach().copy_(new)


def replayed(call, batches, pool):
    """A call is carried out as it is noted: the first time there is nothing left to do."""
    tape, done = Replayed(), []
    with tape:
        replies = call(batches)

    def replay():
        if done:
            with torch.no_grad():
                tape.again()
        done.append(None)

    return replay, replies, None


@contextmanager
def patiently():
    yield []


@pytest.fixture
def recorded(monkeypatch, request):
    """Recordings that were made, with room for batches of packed graphs, on any device."""
    found, record = [], module.record if "cuda" in request.node.name else replayed

    def spy(call, batches, pool):
        found.append(batches)
        return record(call, batches, pool)

    monkeypatch.setattr(module, "record", spy)
    if "cuda" not in request.node.name:
        monkeypatch.setattr(module, "_watched", patiently)
        monkeypatch.setattr(module._Rates, "on_device", lambda rates: nullcontext())
        monkeypatch.setattr("bunn.training.drive.can_be_recorded", lambda run: True)
        monkeypatch.setattr("bunn.training.run.may_have_rooms", lambda config, *_: True)
    return found


def graph(index: int):
    data = molecule(index, TASK)
    random = torch.Generator().manual_seed(index)
    if index % 6 == 0:  # no edges
        data.edge_index = data.edge_index[:, :0]
    data.edge_attr = torch.randn(data.num_edges, 2, generator=random)
    return data


@pytest.fixture
def packed(monkeypatch) -> GraphDataset:
    """Graphs in one pack, some of them disconnected, isolated nodes among them."""
    pack = Pack.of([graph(index) for index in range(40)])
    parts = [range(23), range(23, 31), range(31, 40)]
    split = Split(*(PackedGraphs(pack, torch.tensor([*part])) for part in parts))
    data = GraphDataset("packed", TASK, 3, 2, 1, lambda index: split, edge_channels=2)
    return register(monkeypatch, data)


def config_of(architecture: str, model: dict, **sections) -> Config:
    training = {"epochs": 5, "batch_size": 4, "precision": "64"}
    norm = {"norm": "batch", "norm_first": False}
    values = {"dataset": "packed", "architecture": architecture}
    values |= {"model": {"hidden_channels": 8, **norm, **model}, "optimizer": {"lr": 0.01}}
    values |= {"training": training | sections.pop("training", {}), **sections}
    return Config.from_dict(values)


BUNN = {"num_bundles": 2, "method": "chebyshev", "phi": "sum", "phi_norm": "batch"}
MODELS = {
    "bunn": ("bunn", BUNN),
    "bunn, after": ("bunn", BUNN | {"update": "after", "normalization": "sym", "phi": "mlp"}),
    "bunn, times": ("bunn", BUNN | {"time": (0.5, 20.0)}),
    "bunn, limit": ("bunn", BUNN | {"time": float("inf"), "method": "auto"}),
    "gcn": ("gcn", {}),
    "gine": ("gine", {}),
    "gatedgcn": ("gatedgcn", {}),
}
#: There heat comes from eigenvectors, where times are learned.
ON_A_GPU = {"bunn, learned": ("bunn", BUNN | {"learn_time": True, "method": "spectral"})}
ENCODED = {"lap_pe": 2, "rwse": 3, "pe_as": "encoder", "lap_channels": 2, "rwse_channels": 2}
CASES = [(name, device) for name in MODELS for device in ("cpu", "cuda")]
CASES += [(name, "cuda") for name in ON_A_GPU]


def trained(config: Config, data: GraphDataset, device: str, capture: bool) -> Run:
    run = Run(config, data, 0, 0, Device(device, config.training.precision))
    run.looks_at_once = False
    driver = Driver([run], capture=capture)
    while not run.finished:
        driver.train_epoch()
    return run


@pytest.mark.parametrize(
    ("name", "device"),
    [pytest.param(*case, marks=pytest.mark.gpu if case[1] == "cuda" else ()) for case in CASES],
)
@pytest.mark.parametrize("encoding", [{}, ENCODED], ids=["plain", "encoded"])
def test_recorded_steps_are_steps(name, device, encoding, packed, recorded):
    config = config_of(*(MODELS | ON_A_GPU)[name], encoding=encoding)
    if device == "cuda":
        config = config.override(("training.precision=32",))
    ours = trained(config, packed, device, capture=True)
    steps = [batches for batches in recorded if isinstance(batches[0], Draft)]
    assert {batches[0].room.size.graphs for batches in steps} == {4, 3}
    theirs = trained(config, packed, device, capture=False)
    slack = 1e-6 if device == "cpu" else 1e-2
    for mine, right in zip(ours.evaluations, theirs.evaluations, strict=True):
        assert mine.loss == pytest.approx(right.loss, rel=slack)
    if device == "cuda":  # where metrics of a few graphs, and weights, depend on the last digit
        return
    assert ours.evaluations[-1].metrics == pytest.approx(theirs.evaluations[-1].metrics)
    expected = theirs.model.state_dict()
    for key, value in ours.model.state_dict().items():
        torch.testing.assert_close(value, expected[key], rtol=1e-4, atol=1e-5, msg=key)


def test_batches_without_room_are_launched(packed, recorded, monkeypatch):
    plan = Room.plan
    monkeypatch.setattr(
        Room, "plan", lambda room, members: None if 0 in members else plan(room, members)
    )
    config = config_of(*MODELS["bunn"])
    ours = trained(config, packed, "cpu", capture=True)
    monkeypatch.undo()
    assert recorded
    theirs = trained(config, packed, "cpu", capture=False)
    assert ours.evaluations[-1].loss == pytest.approx(theirs.evaluations[-1].loss, rel=1e-6)


def test_what_waits_for_the_device_is_no_longer_filled_up(packed, recorded, monkeypatch):
    @contextmanager
    def waiting():
        yield ["here"]

    monkeypatch.setattr(module, "_watched", waiting)
    seen = []
    step = Driver._step
    monkeypatch.setattr(
        Driver, "_step", lambda driver, b: (seen.append(type(b[0])), step(driver, b))[1]
    )
    with pytest.warns(RuntimeWarning, match="kernel by kernel: here waits for the device"):
        trained(config_of(*MODELS["bunn"]), packed, "cpu", capture=True)
    assert not [batches for batches in recorded if isinstance(batches[0], Draft)]
    assert seen[0] is Draft
    assert seen[-1] is Batch
    assert len(seen) > 2 * WARMUP


def test_drafts_are_for_packed_graphs_with_targets(packed, recorded):
    run = Run(config_of(*MODELS["bunn"]), packed, 0, 0, Device("cpu", "64"))
    assert all(isinstance(batch, Batch) for batch in run.feed.training(0))
    run.feed.drafts = True
    assert all(isinstance(batch, Draft) for batch in run.feed.training(0))
    assert all(isinstance(batch, Batch) for batch in run.feed.evaluation("val"))
    whole = config_of(*MODELS["bunn"], training={"epochs": 1, "batch_size": None})
    run = Run(whole, packed, 0, 0, Device("cpu", "64"))
    run.feed.drafts = True
    assert all(isinstance(batch, Batch) for batch in run.feed.training(0))


def test_a_driver_that_is_ready_hands_out_drafts(packed, recorded):
    run = Run(config_of(*MODELS["bunn"]), packed, 0, 0, Device("cpu", "64"))
    driver = Driver([run])
    driver.make_ready([run])
    assert all(isinstance(batch, Draft) for batch in run.feed.training(0))
    for options in ({"capture": False}, {"compile": True}):
        Driver([run], **options).make_ready([run])
        assert all(isinstance(batch, Batch) for batch in run.feed.training(0))


@pytest.mark.parametrize("name", ["gine", "gatedgcn", "gcn"])
def test_rows_that_fill_up_stay_small(name, packed, recorded):
    """They are multiplied by gradients of zero, which infinity would turn into no number."""
    config = config_of(name, {"norm": None, "num_layers": 8})
    run = Run(config, packed, 0, 0, Device("cpu", "64"))
    run.feed.drafts = True
    found = []
    for block in run.model.blocks:
        block.register_forward_hook(lambda block, args, out: found.append(out))
    for draft in run.feed.training(0):
        found.clear()
        run.model(*draft.read().inputs.arguments)
        nodes = [out if isinstance(out, torch.Tensor) else out[0] for out in found]
        assert max(float(x.detach().abs().max()) for x in nodes) < 1e4


REFUSED = [
    {"method": "dense"},
    {"method": "spectral", "num_eigs": 3, "tol": float("inf")},
    {"method": "uniformization"},
    {"method": "taylor", "degree": 3, "time": (0.5, 1.0), "num_bundles": 2},
]


@pytest.mark.parametrize("options", REFUSED, ids=str)
def test_what_has_no_kernels_is_not_filled_up(options, packed, monkeypatch):
    assert config_of("bunn", BUNN).model.may_be_filled
    config = config_of("bunn", {"num_bundles": 2} | options, training={"precision": "32"})
    assert not config.model.may_be_filled
    monkeypatch.setattr("bunn.training.batch.wanted", lambda: True)
    gpu, layer = torch.device("cuda"), torch.nn.BatchNorm1d(2)
    fine = config_of("bunn", BUNN, training={"precision": "32"})
    assert may_have_rooms(fine, torch.nn.Identity(), gpu)
    assert not may_have_rooms(fine, layer, gpu)
    assert not may_have_rooms(fine, torch.nn.Identity(), torch.device("cpu"))
    assert not may_have_rooms(config, torch.nn.Identity(), gpu)
    exact = config_of("bunn", BUNN)
    assert not may_have_rooms(exact, torch.nn.Identity(), gpu)
    assert not config_of("gcn", {"feed_forward": True}).model.may_be_filled


def test_a_draft_is_the_batch(packed, recorded):
    encoding = ENCODED
    run = Run(config_of(*MODELS["gine"], encoding=encoding), packed, 0, 0, Device("cpu", "64"))
    run.feed.drafts = True
    drafts = [draft.read() for draft in run.feed.training(3)]
    run.feed.drafts = False
    for ours, theirs in zip(drafts, run.feed.training(3), strict=True):
        n, e = theirs.inputs.x.size(0), theirs.inputs.edge_index.size(1)
        for name, rows in (("x", n), ("pe", n), ("batch", n), ("edge_attr", e)):
            mine = getattr(ours.inputs, name)
            assert torch.equal(mine[:rows], getattr(theirs.inputs, name)), name
        assert torch.equal(ours.inputs.edge_index[:, :e], theirs.inputs.edge_index)
        assert not ours.inputs.x[n:].any()
        assert ours.inputs.batch_size == theirs.inputs.batch_size + 1
        output = torch.arange(ours.inputs.batch_size)
        selected, y = ours.select(output, "train")
        assert torch.equal(selected, output[:-1])
        assert torch.equal(y, theirs.y)
