"""Chains of operations in one pass, against the same chains by torch in float64."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from bunn.kernels import chains
from bunn.kernels.arguments import Dropout
from bunn.kernels.chains import (
    activate_rows,
    activate_rows_back,
    add_and_norm_rows,
    add_and_norm_rows_back,
    add_up_parts,
    partial_sums,
)
from tests.kernels.test_walk import DEVICE, DTYPES

#: Rows and columns.
SHAPES = [(1, 1), (9, 300), (0, 8)]
ACTS = {"gelu": F.gelu, "relu": F.relu, "none": lambda x: x}


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype)


def dropout_of(rate: float) -> Dropout:
    return Dropout(rate, torch.tensor([3, 5, 11], device=DEVICE, dtype=torch.int32), 1)


def mask_of(n: int, width: int, dropout: Dropout) -> Tensor:
    """What is kept, seen on ones."""
    ones = torch.ones(n, width, device=DEVICE)
    return activate_rows(ones, None, dropout, "none").double()


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.7])
def test_what_is_dropped(rate):
    mask = mask_of(400, 100, dropout_of(rate))
    assert torch.equal(mask, mask_of(400, 100, dropout_of(rate)))
    kept = mask > 0
    share = 1 - math.floor(rate * 2**16) / 2**16  # by 16 bits, whose mean is kept
    torch.testing.assert_close(mask[kept], torch.full_like(mask[kept], 1 / share))
    kept = kept.double()
    assert abs(float(kept.mean()) - share) < 4 * (share * (1 - share) / 40_000) ** 0.5 + 1e-9
    for dim in (0, 1):  # neither rows nor columns repeat each other
        columns = kept.movedim(dim, 0)
        if rate > 0:
            assert columns.unique(dim=0).size(0) == columns.size(0)
        for apart in (1, 2, 3, 8, 16, 64):  # nor do they agree more often than by chance
            both = (columns[apart:] - share) * (columns[:-apart] - share)
            assert abs(float(both.mean())) < 4 * share * (1 - share) / both.numel() ** 0.5 + 1e-9
    if rate > 0:
        other = dropout_of(rate)._replace(place=2)
        assert not torch.equal(mask, mask_of(400, 100, other))


@pytest.fixture(autouse=True, params=[1, 528], ids=["many turns", "many programs"])
def programs(request, monkeypatch):
    monkeypatch.setattr(chains, "PROGRAMS", request.param)


@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_activations(shape, dtype, act, rate):
    dropout, eps = dropout_of(rate), torch.finfo(dtype).eps
    x, grad, bias = random(*shape, dtype=dtype), random(*shape, dtype=dtype), random(shape[1])
    leaves = [x.double().requires_grad_(), bias.double().requires_grad_()]
    exact = ACTS[act]((leaves[0] + leaves[1]) * mask_of(*shape, dropout))
    by_x, by_bias = torch.autograd.grad(exact, leaves, grad.double())
    out = activate_rows(x, bias, dropout, act)
    torch.testing.assert_close(out.double(), exact.detach(), rtol=eps, atol=8 * eps)
    grad_x, sums = torch.empty_like(x), partial_sums(x)
    activate_rows_back(grad, x, bias, dropout, act, grad_x, sums)
    grad_bias = add_up_parts(sums)
    torch.testing.assert_close(grad_x.double(), by_x, rtol=eps, atol=16 * eps)
    torch.testing.assert_close(grad_bias.double(), by_bias, rtol=1e-4, atol=1e-4)
    assert (out.dtype, grad_x.dtype, grad_bias.dtype) == (dtype, dtype, torch.float32)


@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize(("branched", "streamed"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_residual_connection_and_a_norm(shape, dtype, streamed, branched, rate):
    (n, width), dropout = shape, dropout_of(rate)
    x, branch = random(n, width), random(n, width, dtype=dtype) if branched else None
    bias, weight, shift = random(3, width).unbind(0)
    grads = (random(n, width) if streamed else None, random(n, width).half().to(dtype))
    grads = (grads[0], (4 * grads[1]).round() / 4)  # from which 2 can be taken away exactly
    leaves = {"x": x, "weight": weight, "shift": shift}
    if branch is not None:
        leaves |= {"branch": branch, "bias": bias}
    leaves = {name: value.double().requires_grad_() for name, value in leaves.items()}
    stream = leaves["x"]
    if branched:
        stream = stream + (leaves["branch"] + leaves["bias"]) * mask_of(n, width, dropout)
    normed = F.layer_norm(stream, (width,), leaves["weight"], leaves["shift"], 1e-3)
    loss = (normed * grads[1].double()).sum()
    if streamed:
        loss = loss + (stream * grads[0].double()).sum()
    expected = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))

    wider = torch.full((n, 2 * width), 7.0, device=DEVICE, dtype=dtype)
    bias = bias if branched else None
    found = add_and_norm_rows(x, branch, bias, weight, shift, 1e-3, dropout, wider[:, width:])
    assert bool((wider[:, :width] == 7).all())
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found.stream.double(), stream.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.normed.double(), normed.detach(), rtol=eps, atol=1e-4)
    more = torch.zeros(n, width, device=DEVICE, dtype=dtype) + 2 if streamed else None
    parts = grads[1] if more is None else (grads[1].float() - 2).to(dtype)
    wider = torch.stack((grads[1], parts), 1).flatten(1)
    grad_branch = torch.empty_like(branch) if branched else None
    sums = partial_sums(x, 3 if branched else 2)
    grad_x = add_and_norm_rows_back(
        *(grads[0], wider[:, width:], more, found.stream, found.mean, found.scale, weight, dropout),
        *(grad_branch, sums),
    )
    sums = add_up_parts(sums)
    torch.testing.assert_close(grad_x.double(), expected["x"], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(sums[0].double(), expected["weight"], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(sums[1].double(), expected["shift"], rtol=1e-4, atol=1e-4)
    if branched:
        by_branch = expected["branch"]
        torch.testing.assert_close(grad_branch.double(), by_branch, rtol=eps, atol=1e-4)
        torch.testing.assert_close(sums[2].double(), expected["bias"], rtol=1e-4, atol=1e-4)
