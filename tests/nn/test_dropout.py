"""Dropout on a CPU: what it drops, and that torch's transforms see torch's own."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from bunn.nn.dropout import Dropout, is_plain_dropout


@given(st.floats(0.01, 0.99), st.sampled_from((torch.float32, torch.float64, torch.bfloat16)))
def test_drops_a_share_and_keeps_the_mean(p, dtype):
    x = torch.ones(301, 333, dtype=dtype, requires_grad=True)
    y = Dropout(p)(x)
    assert y.dtype == dtype
    kept = y != 0
    error = (p * (1 - p) / x.numel()) ** 0.5
    assert abs(float((~kept).double().mean()) - p) < 6 * error + 2**-17
    share = 1 - round(p * 2**16) / 2**16
    assert torch.equal(y[kept], torch.full_like(y[kept], 1 / share))
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad, y)


def test_features_are_dropped_independently():
    """Those that share a draw of 64 bits, neighbours, and rows alike."""
    dropped = (Dropout(0.5)(torch.ones(100_000, 8)) == 0).double() - 0.5
    correlation = 4 * dropped.T @ dropped / dropped.size(0)
    assert (correlation - torch.eye(8)).abs().max() < 6 * 100_000**-0.5 + 1e-3
    rows = 4 * (dropped[1:] * dropped[:-1]).mean()
    assert abs(float(rows)) < 6 * 800_000**-0.5


@pytest.mark.parametrize("shape", [(), (1,), (0, 4), (3, 5, 7), (6, 1)])
def test_shapes(shape):
    x = torch.ones(shape)
    y = Dropout(0.5)(x)
    assert y.shape == x.shape
    assert ((y == 0) | (y == 2)).all()


def test_seeds_and_modes():
    layer, x = Dropout(0.3), torch.randn(50, 20).t()
    torch.manual_seed(0)
    first, second = layer(x), layer(x)
    torch.manual_seed(0)
    assert torch.equal(layer(x), first)
    assert not torch.equal(first, second)
    assert layer.eval()(x) is x
    assert torch.equal(Dropout(0.0)(x), x)
    assert not Dropout(1.0)(x).any()
    assert torch.equal(Dropout(1e-9)(x), x)


def test_vmap_decides_about_randomness():
    layer, x = Dropout(0.5), torch.ones(3, 100)
    same = torch.func.vmap(layer, randomness="same")(x)
    assert torch.equal(same[0], same[1])
    assert not torch.equal(*torch.func.vmap(layer, randomness="different")(x)[:2])
    with pytest.raises(RuntimeError, match="randomness"):
        torch.func.vmap(layer)(x)


def test_a_subclass_is_not_fused():
    class Mine(Dropout):
        pass

    assert is_plain_dropout(Dropout(0.5))
    assert is_plain_dropout(nn.Dropout(0.5))
    assert not is_plain_dropout(Mine(0.5))
    assert not is_plain_dropout(Dropout(1.0))
    assert not is_plain_dropout(nn.Identity())
