"""Devices and precisions by name."""

import pytest
import torch

from bunn.training.device import Device


def test_names():
    with pytest.raises(ValueError, match=r"device='gpu'; use one of \['auto', 'cpu', 'cuda'\]"):
        Device("gpu", "32")
    assert Device("cpu", "32").device == torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_without_a_gpu():
    with pytest.raises(ValueError, match="torch sees no CUDA device; use device='cpu'"):
        Device("cuda", "32")
    assert Device("auto", "32").device == torch.device("cpu")


@pytest.mark.gpu
def test_with_a_gpu():
    assert Device("auto", "32").device.type == "cuda"
    device = Device("cuda", "32")
    device.start(3)
    state = device.random_state()
    first = torch.rand(4, device="cuda")
    device.restore(state, {})
    assert torch.equal(torch.rand(4, device="cuda"), first)


def test_random_streams_start_and_go_back():
    device = Device("cpu", "32")
    device.start(3)
    first = torch.rand(4)
    state = device.random_state()
    second = torch.rand(4)
    device.restore(state, device.precision_state())
    assert torch.equal(torch.rand(4), second)
    device.start(3)
    assert torch.equal(torch.rand(4), first)


@pytest.mark.parametrize("precision", ["32", "64", "tf32", "bf16-mixed"])
def test_no_loss_scale_is_needed(precision):
    device = Device("cpu", precision)
    assert device.precision_state() == {}
    with device.precision.forward_context():
        product = torch.rand(2, 2) @ torch.rand(2, 2)
    expected = {"64": torch.float64, "bf16-mixed": torch.bfloat16}
    assert product.dtype == expected.get(precision, torch.float32)


@pytest.mark.gpu
def test_tf32_is_for_the_model_alone():
    precision = Device("cuda", "tf32").precision
    x = torch.rand(512, 512, device="cuda", requires_grad=True)
    exact = x @ x
    with precision.forward_context():
        rounded = x @ x
    assert 0 < (rounded - exact).abs().max() < 0.2
    (by_hand,) = torch.autograd.grad(exact.sum(), x)
    precision.backward(rounded.sum(), None)
    assert 0 < (x.grad - by_hand).abs().max() < 1
    assert torch.equal(x @ x, exact)


def test_the_loss_scale_of_float16_starts_anew_and_goes_back():
    device = Device("cpu", "16-mixed")
    start = device.precision_state()
    assert start["scale"] > 1
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight])

    def step(value: float) -> float:
        device.precision.backward((weight * value).sum(), None)
        device.precision.optimizer_step(optimizer)
        optimizer.zero_grad()
        return device.precision_state()["scale"]

    assert step(1e38) < start["scale"]  # overflow
    lowered = device.precision_state()
    assert step(1e38) < lowered["scale"]
    device.restore(device.random_state(), lowered)
    assert device.precision_state() == lowered
    device.start(0)
    assert device.precision_state() == start
