"""A model on a batch that is filled up, with heat from eigenvectors by kernels, as a GPU has it."""

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from bunn import kernels
from bunn.keeping import lasting
from bunn.nn.norm import counted_rows
from bunn.training import Run
from bunn.training.device import Device
from tests.kernels.test_walk import DEVICE
from tests.training.test_drafts import BUNN, ENCODED, config_of, packed  # noqa: F401

LEARNED = {"learn_time": True, "time": (0.1, 50.0)}
MODELS = {
    "released": BUNN | LEARNED | {"method": "spectral", "maps": "cayley", "normalization": "sym"},
    "rw": BUNN | LEARNED | {"method": "spectral", "update": "after"},
    "fixed": BUNN | {"method": "spectral", "time": 3.0},
}


@pytest.mark.parametrize("name", MODELS)
def test_losses_and_gradients_are_those_of_the_graphs(name, packed, monkeypatch):  # noqa: F811
    monkeypatch.setattr("bunn.training.run.may_have_rooms", lambda config, *_: True)
    config = config_of("bunn", MODELS[name], encoding=ENCODED, training={"precision": "32"})
    run = Run(config, packed, 0, 0, Device(DEVICE, "32"))
    (plain, *_), found = run.feed.training(0), []
    run.feed.drafts = True
    draft = next(run.feed.training(0))
    for given, by_kernels in ((plain, False), (draft, True)):
        torch.manual_seed(0)
        run.model.zero_grad()
        with monkeypatch.context() as patch, lasting():
            if by_kernels:
                patch.setattr(kernels, "serve_components", lambda value, largest: True)
            batch = given.read()
            with counted_rows(batch.counts):
                output = run.model(*batch.inputs.arguments)
            loss = binary_cross_entropy_with_logits(*batch.select(output, "train"))
            loss.backward()
        found.append([loss.detach(), *(p.grad.clone() for p in run.model.parameters())])
        found[-1] += [b.clone() for b in run.model.buffers() if b.is_floating_point()]
        for part in run.model.modules():
            if isinstance(part, torch.nn.BatchNorm1d):
                part.reset_running_stats()
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-5)
