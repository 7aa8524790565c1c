"""A BatchNorm that looks at some rows is that of these rows alone."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bunn.nn.norm import BatchNorm, counted_rows


def pair(channels: int, affine: bool = True) -> tuple[BatchNorm, nn.BatchNorm1d]:
    ours = BatchNorm(channels, affine=affine).double()
    if affine:
        nn.init.normal_(ours.weight)
        nn.init.normal_(ours.bias)
    plain = nn.BatchNorm1d(channels, affine=affine).double()
    plain.load_state_dict(ours.state_dict())
    return ours, plain


@settings(max_examples=60)
@given(
    rows=st.integers(2, 30),
    more=st.integers(0, 40),
    offset=st.sampled_from([0.0, 10.0]),
    affine=st.booleans(),
    seed=st.integers(0, 99),
)
def test_rows_that_count(rows, more, offset, affine, seed):
    torch.manual_seed(seed)
    ours, plain = pair(5, affine)
    filled = torch.randn(rows + more, 5, dtype=torch.float64) + offset
    filled[rows:] *= 1e3  # which nobody should see
    filled.requires_grad_()
    x = filled.detach()[:rows].clone().requires_grad_()
    target = torch.randn(rows, 5, dtype=torch.float64)
    with counted_rows({rows + more: torch.tensor(rows)}):
        y = ours(filled)
    (y[:rows] * target).sum().backward()
    expected = plain(x)
    (expected * target).sum().backward()
    slack = {"rtol": 1e-9, "atol": 1e-9}  # all digits: nothing is rounded to float32 on the way
    torch.testing.assert_close(y[:rows], expected, **slack)
    torch.testing.assert_close(filled.grad[:rows], x.grad, **slack)
    assert not filled.grad[rows:].any()
    for mine, theirs in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, **slack)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, **slack)


def test_gradients_that_come_to_rows_that_do_not_count_are_left_out():
    ours, _ = pair(3)
    x = torch.randn(9, 3, dtype=torch.float64, requires_grad=True)

    def loss(x: torch.Tensor) -> torch.Tensor:
        with counted_rows({9: torch.tensor(6)}):
            return ours(x)[:6].square().sum()

    by_some = torch.autograd.grad(loss(x), x)[0]
    with counted_rows({9: torch.tensor(6)}):
        y = ours(x)
    of_all = torch.autograd.grad(y, x, torch.cat((2 * y[:6], torch.randn(3, 3).double())))[0]
    torch.testing.assert_close(of_all, by_some)


def test_no_digits_are_lost_to_what_fills_up():
    """A mean a hundred times the deviation, and many more rows than count."""
    norm = BatchNorm(3, affine=False)
    x = torch.randn(448, 3) + 100
    with counted_rows({448: torch.tensor(30)}):
        y = norm(x)[:30]
    exact = nn.BatchNorm1d(3, affine=False).double()(x[:30].double())
    torch.testing.assert_close(y.double(), exact, rtol=0, atol=3e-4)


def test_no_rows_count():
    norm = BatchNorm(3)
    with counted_rows({5: torch.tensor(0)}):
        norm(torch.randn(5, 3)).sum().backward()
    assert all(value.isfinite().all() for value in norm.state_dict().values())
    assert all(not parameter.grad.any() for parameter in norm.parameters())


def test_a_second_derivative_is_refused():
    x = torch.randn(5, 3, requires_grad=True)
    with counted_rows({5: torch.tensor(4)}):
        y = BatchNorm(3)(x)
    (grad,) = torch.autograd.grad(y[:4].square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_elsewhere_it_is_that_of_torch():
    ours, plain = pair(4)
    x = torch.randn(7, 4, dtype=torch.float64)
    assert torch.equal(ours(x), plain(x))
    with counted_rows(None):
        assert torch.equal(ours(x), plain(x))
    ours.eval(), plain.eval()
    with counted_rows({7: torch.tensor(3)}):
        assert torch.equal(ours(x), plain(x))


def test_a_number_of_rows_that_nobody_counted():
    with (
        counted_rows({7: torch.tensor(3)}),
        pytest.raises(ValueError, match=r"x has 8 rows.*known of \[7\] rows"),
    ):
        BatchNorm(2)(torch.randn(8, 2))


def test_features_of_16_bits_are_summed_in_float32():
    norm = BatchNorm(3)
    plain = copy.deepcopy(norm)
    x = (torch.randn(400, 3) + 5).bfloat16()
    with counted_rows({400: torch.tensor(300)}):
        y = norm(x)
    assert y.dtype == torch.bfloat16
    expected = plain(x[:300].float())
    torch.testing.assert_close(y[:300].float(), expected, rtol=2**-8, atol=1e-4)
    torch.testing.assert_close(norm.running_var, plain.running_var)
