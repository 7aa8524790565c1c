"""The blocks of a SAGEPhi as one function: the gradients by its parameters."""

import copy

import pytest
import torch
from torch import nn

from bunn import Laplacian, kernels
from bunn.diffusion import auto
from bunn.diffusion.patchwise import mean_patches, patch_product
from bunn.graph.operator import random_walk
from bunn.keeping import lasting
from bunn.nn import SAGEPhi, residual
from tests.graphs import ZOO

pytest.importorskip("triton", reason="needs Triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EDGES, NODES = ZOO["bipartite"]()
EDGES = EDGES.to(DEVICE)


@pytest.fixture(autouse=True)
def served(monkeypatch):
    """Switches chains on, on a CPU, too, and counts those that are one function."""
    calls: list[int] = []
    real = residual._Blocks.apply
    monkeypatch.setattr(kernels, "serve_chains", lambda x: x.dtype != torch.float64)
    monkeypatch.setattr(residual._Blocks, "apply", lambda *args: calls.append(1) or real(*args))
    return calls


def phi_of(**options) -> SAGEPhi:
    return SAGEPhi(5, 4, **{"hidden_channels": 8, "num_layers": 3, **options}).to(DEVICE)


def features() -> torch.Tensor:
    return torch.randn(NODES, 5, device=DEVICE)


def gradients(phi, x, edges=EDGES, precision=torch.float32):
    """Those of a loss, with the same seeds each time."""
    torch.manual_seed(3)
    narrow = precision.itemsize == 2
    with torch.autocast(DEVICE, precision if narrow else torch.bfloat16, enabled=narrow):
        loss = phi(x, edges).float().square().sum()
    return torch.autograd.grad(loss, [p for p in phi.parameters() if p.requires_grad])


def assert_close(found, expected, tolerance=1e-5):
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == theirs.dtype
        assert float((mine - theirs).norm()) <= tolerance * float(theirs.norm())


def test_gradients_accumulate():
    phi, first, second = phi_of(), features(), features()
    expected = [
        sum(pair) for pair in zip(gradients(phi, first), gradients(phi, second), strict=True)
    ]
    for x in (first, second):
        phi(x, EDGES).square().sum().backward()
    assert_close([p.grad for p in phi.parameters()], expected)


def test_one_backward_pass_after_the_other():
    phi = phi_of(dropout=0.3)
    loss, parameters = phi(features(), EDGES).square().sum(), list(phi.parameters())
    first = torch.autograd.grad(loss, parameters, retain_graph=True)
    kept = [grad.clone() for grad in first]
    twice = torch.autograd.grad(loss, parameters, create_graph=True)
    last = torch.autograd.grad(loss, parameters)
    for mine, theirs, own in zip(last, first, kept, strict=True):
        assert torch.equal(mine, own)
        assert torch.equal(theirs, own)  # nobody wrote over them
    assert_close([grad.detach() for grad in twice], last)


def test_gradients_under_autocast():
    """Products of 16 bits, gradients by weights in float32."""
    phi, x = phi_of(hidden_channels=32), features()
    found, wide = gradients(phi, x, precision=torch.bfloat16), copy.deepcopy(phi).double()
    assert_close([grad.double() for grad in found], gradients(wide, x.double()), 4e-2)
    assert {grad.dtype for grad in found} == {torch.float32}


@pytest.mark.parametrize("graph", ["grid", "disconnected"])
def test_means_by_blocks_of_rows(graph, monkeypatch):
    """In float16: Triton's interpreter does not multiply bfloat16."""
    edge_index, n = ZOO[graph]()
    lap = Laplacian(edge_index, num_nodes=n).to(DEVICE)
    phi, x = phi_of(hidden_channels=32), torch.randn(n, 5, device=DEVICE)
    expected = gradients(phi, x, lap, torch.float16)
    products = []
    real = kernels.multiply_patches
    spy = lambda *args: products.append(args[0]) or real(*args)  # noqa: E731
    monkeypatch.setattr(kernels, "multiply_patches", spy)
    monkeypatch.setattr(auto, "patched", lambda *args: True)
    monkeypatch.setattr(auto, "PATCHES_16", auto.PATCHES_16._replace(dense=0, stack=0, move=0))
    with lasting():
        found = gradients(phi, x, lap, torch.float16)
        assert [part.dtype for part in products] == [torch.float16] * 6  # three forth, three back
        assert_close(found, expected, 1e-2)
        wide = copy.deepcopy(phi).double()
        exact = gradients(wide, x.double(), lap)
        assert_close([grad.double() for grad in found], exact, 1e-2)
        products.clear()
        gradients(phi, x, lap)
        assert not products  # of float32
    assert set(lap.patchwork.means) == {torch.float16}
    assert not copy.deepcopy(lap).patchwork.means


def test_a_mean_by_blocks_is_the_mean():
    edge_index, n = ZOO["disconnected"]()  # three of its nodes have no neighbours
    lap = Laplacian(edge_index, num_nodes=n).to(DEVICE)
    x = torch.randn(n, 7, device=DEVICE).half()
    matrix = mean_patches(lap, torch.float16)
    for mine, theirs in (
        (patch_product(matrix, x), lap.aggregate(x.double())),
        (
            patch_product(matrix.adjoint(), x),
            random_walk(x.double(), lap.matching(x.double()).aggregation("mean").adjoint()),
        ),
    ):
        torch.testing.assert_close(mine.double(), theirs, rtol=0, atol=4e-3)
    both = torch.full((n, 14), 3.0, device=DEVICE).half()
    kernels.multiply_patches(x, matrix.patches, both[:, 7:])
    assert torch.equal(both[:, 7:], patch_product(matrix, x))
    assert bool((both[:, :7] == 3.0).all())


def test_without_a_backward_pass():
    phi, x = phi_of(dropout=0.3).eval(), features()
    expected = phi(x, EDGES)
    with torch.no_grad():
        assert torch.equal(phi(x, EDGES), expected)
    found = phi.requires_grad_(False)(x, EDGES)
    assert torch.equal(found, expected)
    assert not found.requires_grad


def test_weights_that_are_not_trained():
    phi, x = phi_of(), features()
    expected = dict(zip(phi.state_dict(), gradients(phi, x), strict=True))
    for update in phi.updates:
        update[0].weight.requires_grad_(False)
    trained = [name for name, p in phi.named_parameters() if p.requires_grad]
    assert_close(gradients(phi, x), [expected[name] for name in trained])
    for update in phi.updates:
        update[3].weight.requires_grad_(False)
    trained = [name for name, p in phi.named_parameters() if p.requires_grad]
    assert_close(gradients(phi, x), [expected[name] for name in trained])


@pytest.mark.parametrize("hidden", [8, 12])
def test_layers_of_other_widths_and_without_bias(hidden, served):
    phi, x = phi_of(), features()
    for update in phi.updates:
        update[0] = nn.Linear(16, hidden, bias=False, device=DEVICE)
        update[3] = nn.Linear(hidden, 8, device=DEVICE)
    wide = copy.deepcopy(phi).double()
    assert_close([grad.double() for grad in gradients(phi, x)], gradients(wide, x.double()), 1e-4)
    assert served == [1]


def test_blocks_that_are_not_alike(served):
    phi, x = phi_of(), features()
    phi.updates[1][0] = nn.Linear(16, 12, device=DEVICE)
    phi.updates[1][3] = nn.Linear(12, 8, device=DEVICE)
    wide = copy.deepcopy(phi).double()
    assert_close([grad.double() for grad in gradients(phi, x)], gradients(wide, x.double()), 1e-4)
    assert served == []


@pytest.mark.gpu
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=str)
def test_a_captured_step(precision):
    """Replays of a CUDA graph give the gradients of a step."""
    n, tolerance = 20_000, 1e-4 if precision == torch.float32 else 1e-2
    ends = torch.randint(n, (2, 100_000))
    lap = Laplacian(torch.cat((ends, ends.flip(0)), 1).unique(dim=1), num_nodes=n).to("cuda")
    phi = phi_of(hidden_channels=512, num_layers=8)
    x = torch.randn(n, 5, device="cuda")
    for _ in range(3):
        expected = gradients(phi, x, lap, precision)

    def step():
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == torch.bfloat16):
            loss = phi(x, lap).float().square().sum()
        return torch.autograd.grad(loss, list(phi.parameters()))

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for _ in range(3):
        for grad in captured:
            grad.fill_(torch.nan)
        graph.replay()
        assert_close(captured, expected, tolerance)
