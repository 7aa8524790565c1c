"""The kernels on a card, on graphs of the size that they are for; skipped where there is none."""

import pytest
import torch
from torch import Tensor

from bunn import Laplacian, diffuse, kernels
from bunn.baselines.attention import AttentionEdges
from bunn.diffusion.chebyshev import chebyshev_coefficients, chebyshev_degree
from bunn.diffusion.dense import in_place
from bunn.kernels.chebyshev import chebyshev_heat
from bunn.kernels.frame import Frame
from bunn.kernels.walk import walk
from tests.kernels.test_walk import poisoned

pytestmark = pytest.mark.gpu

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def star(leaves: int) -> Tensor:
    ends = torch.stack((torch.zeros(leaves, dtype=torch.long), torch.arange(1, leaves + 1)))
    return torch.cat((ends, ends.flip(0)), 1)


def skewed(nodes: int, edges: int) -> Tensor:
    """Random edges whose ends prefer nodes of low index: degrees from one to many thousands."""
    ends = (nodes * torch.rand(2, edges, dtype=torch.float64).pow(4)).long()
    ends = ends[:, ends[0] != ends[1]]
    return torch.cat((ends, ends.flip(0)), 1).unique(dim=1)


def exact_product(lap: Laplacian, x: Tensor) -> Tensor:
    """``S x`` in float64, a sum over edges."""
    row, col, value = lap.coordinates()
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for columns in torch.arange(x.size(1), device=x.device).split(8):
        out[:, columns] = out[:, columns].index_add_(0, row, value[:, None] * x[:, columns][col])
    return out


GRAPHS = {
    "skewed": lambda: (skewed(20_000, 400_000), 20_001),
    "hub": lambda: (star(1_000_000), 1_000_001),
    "one node": lambda: (torch.zeros(2, 0, dtype=torch.long), 1),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [1, 33, 64])
@pytest.mark.parametrize("graph", GRAPHS)
def test_a_product(graph, width, dtype):
    edge_index, n = GRAPHS[graph]()
    lap = Laplacian(edge_index, num_nodes=n).to("cuda", torch.float32)
    x = torch.randn(n, width, device="cuda").to(dtype)
    y = poisoned(x)
    walk(x, lap.operator.rows, y=y)
    exact = exact_product(lap, x.double())
    assert float((y - exact).norm() / x.double().norm()) <= 1e-6
    again = poisoned(x)
    walk(x, lap.operator.rows, y=again)
    assert torch.equal(y, again)


@pytest.mark.slow
def test_ten_million_edges():
    n = 1_000_000
    ends = torch.randint(n, (2, 5_000_000))
    lap = Laplacian(torch.cat((ends, ends.flip(0)), 1), num_nodes=n).to("cuda", torch.float32)
    x = torch.randn(n, 16, device="cuda")
    y = poisoned(x)
    walk(x, lap.operator.rows, y=y)
    assert float((y - exact_product(lap, x.double())).norm() / x.norm()) <= 1e-6


def test_offsets_beyond_32_bits():
    n, width = 5_000_000, 512  # 2.56e9 entries
    forth = torch.stack((torch.arange(n - 1), torch.arange(1, n)))
    lap = Laplacian(torch.cat((forth, forth.flip(0)), 1), num_nodes=n).to("cuda", torch.float32)
    x = torch.randn(n, width, device="cuda", dtype=torch.bfloat16)
    y = poisoned(x, torch.bfloat16)
    walk(x, lap.operator.rows, y=y)
    tail = (x[-3].float() * 0.5 + x[-1].float() * 0.5**0.5).bfloat16()
    torch.testing.assert_close(y[-2], tail, rtol=1e-2, atol=1e-2)
    assert not torch.isnan(y[-1000:]).any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("time", [1.0, 10.0, 100.0])
def test_heat(time, dtype):
    edge_index, n = GRAPHS["skewed"]()
    lap = Laplacian(edge_index, num_nodes=n).to("cuda", torch.float32)
    x = torch.randn(n, 64, device="cuda").to(dtype)
    degree = chebyshev_degree(time, 1e-6)
    times = torch.tensor([time], dtype=torch.float64)
    coefficients = chebyshev_coefficients(times, degree)[:, 0].tolist()
    before, after = lap.operator.before, lap.operator.after
    storage = dtype if degree <= kernels.NARROW_DEGREE else torch.float32
    frame = Frame.of(x, lap.operator.rows, before, after, storage)
    y = chebyshev_heat(frame, coefficients)
    exact = diffuse(x.double(), lap, time, tol=1e-12, method="chebyshev")
    root = lap.degree.sqrt().double().unsqueeze(1)
    error = float((root * (y.double() - exact)).norm() / (root * x.double()).norm())
    assert error <= max(4e-6, torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("width", [64, 200, 512])
def test_blocks_of_rows(width, dtype):
    """Communities of 200, in which everybody knows half of the others, and some strangers."""
    n = 4_000
    group = torch.randperm(n) % 20
    near = (torch.rand(n, n) < 0.5) & (group[:, None] == group)
    row, col = (near | (torch.rand(n, n) < 1e-3)).triu(1).nonzero().T
    edge_index = torch.stack((torch.cat((row, col)), torch.cat((col, row))))
    lap = Laplacian(edge_index, num_nodes=n).to("cuda", torch.float32)
    assert lap.operator.chunks is not None
    x = torch.randn(n, width, device="cuda").to(dtype).requires_grad_()
    weight = torch.randn_like(x)
    exact = lap.to(torch.float64)
    for step in (lambda g, z: g.aggregate(z), lambda g, z: diffuse(z, g, 0.5, method="chebyshev")):
        y = step(lap, x)
        (grad,) = torch.autograd.grad(y, x, weight)
        wide = x.detach().double().requires_grad_()
        expected = step(exact, wide)
        (expected_grad,) = torch.autograd.grad(expected, wide, weight.double())
        for mine, theirs in ((y, expected), (grad, expected_grad)):
            error = (mine.double() - theirs).norm() / theirs.norm()
            assert float(error.detach()) <= 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize("method", ["chebyshev", "dense", "auto"])
@pytest.mark.parametrize("time", [1.0, 30.0, 160.0, 1000.0])
def test_hubs_meet_tol(time, method):
    """Of features that are alike every term of a long sum is rounded the same way."""
    leaves, tol = 20_000, 1e-5
    ends = torch.stack((torch.zeros(leaves, dtype=torch.long), torch.arange(1, leaves + 1)))
    few = torch.stack((torch.zeros(300, dtype=torch.long), torch.arange(1, 301))) + leaves + 1
    ends = torch.cat((ends, few, torch.tensor([[0], [leaves + 1]])), dim=1)
    lap = Laplacian(torch.cat((ends, ends.flip(0)), 1)).to("cuda", torch.float32)
    x = torch.cat((0.5 + torch.rand(16), torch.zeros(16))).expand(lap.num_nodes, 32).clone().cuda()
    x[:, 16:] = torch.rand(lap.num_nodes, 16, device="cuda")
    exact = diffuse(x.double(), lap, time, tol=1e-12, method="chebyshev")
    apart = diffuse(x, lap, time, tol=tol, method=method).double() - exact
    weight = lap.degree.double().unsqueeze(1)
    error = (weight * apart.square()).sum(0) / (weight * x.double().square()).sum(0)
    assert float(error.max().sqrt()) <= tol


@pytest.mark.parametrize("smooth", [True, False])
def test_large_dense_products_meet_tol(smooth):
    """Sums over 24,000 nodes: tensor cores cut off what others round."""
    n, tol = 24_000, 1e-5
    ends = torch.randint(n, (2, 4 * n))
    ends = ends[:, ends[0] != ends[1]]
    edge_index = torch.cat((ends, ends.flip(0)), 1).unique(dim=1)
    lap = Laplacian(edge_index, num_nodes=n).to("cuda", torch.float32)
    x = torch.randn(n, 16, device="cuda")
    if smooth:  # 1.01 is no number of 16 bits
        x = torch.full_like(x, 1.01)
    weight = lap.degree.double().unsqueeze(1)  # of the norm in which errors are measured
    for time in (0.1, 1.0, 2.0, 10.0, 100.0):  # at 2 and 100 the polynomial takes most of tol
        exact = diffuse(x.double(), lap, time, tol=1e-12, method="chebyshev")
        apart = diffuse(x, lap, time, tol=tol, method="dense").double() - exact
        error = (weight * apart.square()).sum(0).sqrt()
        assert bool((error <= tol * (weight * x.double().square()).sum(0).sqrt()).all()), time


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_attention_along_edges(dtype):
    edges = AttentionEdges.of(skewed(5_000, 50_000).cuda(), 5_001, True)
    x = (0.5 * torch.randn(5_001, 3, 8, 64, device="cuda")).to(dtype).requires_grad_()
    seed = torch.randn(5_001, 8, 64, device="cuda")
    found = []
    for z in (x, x, x.double()):
        query, key, values = z.unbind(1)
        y = edges.weighted_sum(values, edges.softmax(edges.products(query, key)))
        found.append((y, *torch.autograd.grad((y * seed).sum(), x)))
    for once, again, exact in zip(*found, strict=True):
        assert torch.equal(once, again)
        tolerance = 1e-5 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps
        assert float(((once - exact).norm() / exact.norm()).detach()) <= tolerance


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("method", ["dense", "spectral"])
def test_batches_of_small_graphs(method, dtype):
    sizes = torch.randint(1, 250, (40,)).tolist()
    ends = torch.cat([torch.arange(s - 1) + sum(sizes[:i]) for i, s in enumerate(sizes)])
    nodes = torch.randperm(sum(sizes))
    edge_index = nodes[torch.stack((torch.cat((ends, ends + 1)), torch.cat((ends + 1, ends))))]
    lap = Laplacian(edge_index, num_nodes=nodes.numel()).to("cuda", torch.float32)
    assert in_place(lap)
    x = torch.randn(nodes.numel(), 100, device="cuda").to(dtype).requires_grad_()
    time: float | torch.Tensor = 2.0
    if method == "spectral":
        time = torch.linspace(0.1, 4, 100, device="cuda", requires_grad=True)
    leaves = [x, time] if isinstance(time, torch.Tensor) else [x]
    seed = torch.randn_like(x)
    y = diffuse(x, lap, time, method=method)
    grads = torch.autograd.grad(y, leaves, seed)
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    exact = diffuse(wide[0], lap, *(wide[1:] or [time]), method="chebyshev", tol=1e-12)
    expected = torch.autograd.grad(exact, wide, seed.double())
    for mine, theirs in zip((y, *grads), (exact, *expected), strict=True):
        error = float(((mine - theirs).norm() / theirs.norm()).detach())
        assert error <= (2e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps)
