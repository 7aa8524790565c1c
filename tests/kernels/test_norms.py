"""A BatchNorm over the rows that count by kernels, against torch's over these rows in float64."""

import pytest
import torch
from torch import Tensor, nn

from bunn import kernels
from bunn.nn.norm import BatchNorm, counted_rows
from tests.kernels.test_walk import DEVICE, DTYPES

#: Rows, those that count, and columns; more than a program takes, and fewer.
SHAPES = [(70, 50, 20), (200, 130, 70), (64, 64, 64), (3, 2, 1), (300, 65, 5)]


@pytest.fixture(autouse=True)
def _served(monkeypatch):
    monkeypatch.setattr(kernels, "serve_chains", lambda x: True)


def norms_of(width: int, affine: bool) -> tuple[BatchNorm, nn.BatchNorm1d]:
    ours = BatchNorm(width, affine=affine)
    if affine:
        nn.init.normal_(ours.weight)
        nn.init.normal_(ours.bias)
    plain = nn.BatchNorm1d(width, affine=affine).double()
    plain.load_state_dict(ours.state_dict())
    return ours.to(DEVICE), plain.to(DEVICE)


def normed(norm: BatchNorm, x: Tensor, count: int) -> Tensor:
    with counted_rows({x.size(0): torch.tensor(count, device=DEVICE)}):
        return norm(x)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_that_count(dtype, shape, affine):
    n, count, width = shape
    ours, plain = norms_of(width, affine)
    filled = (torch.randn(n, width, device=DEVICE) + 3).to(dtype)
    filled[count:] *= 1e3  # which nobody should see
    filled.requires_grad_()
    grad = torch.randn(n, width, device=DEVICE).to(dtype)
    x = filled.detach()[:count].double().requires_grad_()
    y, expected = normed(ours, filled, count), plain(x)
    assert y.dtype == dtype
    y.backward(grad)
    expected.backward(grad[:count].double())
    unit = 1e-5 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps
    slack = {"rtol": unit, "atol": unit * max(1.0, float(expected.detach().abs().max()))}
    torch.testing.assert_close(y[:count].double(), expected, **slack)
    slack["atol"] = unit * max(1.0, float(x.grad.abs().max()))
    torch.testing.assert_close(filled.grad[:count].double(), x.grad, **slack)
    assert not filled.grad[count:].any()
    for mine, theirs in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=1e-4, atol=1e-3)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name].to(value), value, rtol=1e-5, atol=1e-6)


def test_no_digits_are_lost_to_a_large_mean():
    ours, plain = norms_of(3, affine=False)
    x = torch.randn(448, 3, device=DEVICE) + 1000
    x[0] = 1e4  # nor to a row that is far from all others
    y = normed(ours, x, 330)[:330]
    torch.testing.assert_close(y.double(), plain(x[:330].double()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [0, 5])
def test_no_rows_count(n):
    norm = BatchNorm(3).to(DEVICE)
    x = torch.randn(n, 3, device=DEVICE, requires_grad=True)
    normed(norm, x, 0).sum().backward()
    assert all(value.isfinite().all() for value in norm.state_dict().values())
    assert all(not parameter.grad.any() for parameter in norm.parameters())
    assert not x.grad.any()


def test_what_fills_up_may_be_no_number():
    norm, _ = norms_of(4, affine=True)
    x = torch.randn(9, 4, device=DEVICE)
    x[6:] = torch.nan
    x.requires_grad_()
    y = normed(norm, x, 6)
    y[:6].square().sum().backward()
    assert y[:6].isfinite().all()
    assert x.grad.isfinite().all()
    assert norm.running_var.isfinite().all()


def test_without_running_statistics():
    norm = BatchNorm(4, track_running_stats=False).to(DEVICE)
    x = torch.randn(9, 4, device=DEVICE)
    exact = nn.BatchNorm1d(4, track_running_stats=False).double().to(DEVICE)(x[:6].double())
    torch.testing.assert_close(normed(norm, x, 6)[:6].double(), exact, rtol=1e-5, atol=1e-5)


def test_a_second_derivative_is_refused():
    x = torch.randn(5, 3, requires_grad=True, device=DEVICE)
    y = normed(BatchNorm(3).to(DEVICE), x, 4)
    (grad,) = torch.autograd.grad(y[:4].square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()
