"""Dense products on tensor cores, as far as they can be looked at elsewhere."""

import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bunn.diffusion.dense
from bunn import Laplacian, diffuse, heat_kernel
from bunn.diffusion.blockwise import lost_in_sums
from bunn.diffusion.patchwise import CHUNK, LOST_IN_SUMS
from bunn.diffusion.products import filled_up, narrow_product
from bunn.graph.components import Blocks
from bunn.kernels import LONGEST, TERMS
from bunn.kernels.arguments import BITS, split_matrix
from tests.graphs import ZOO, edges_of


def kernel(dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    edge_index, n = ZOO["path"]()
    whole = heat_kernel(Laplacian(edge_index, num_nodes=n).to(torch.float64), 30.0)
    return whole.unsqueeze(0).to(dtype)


def cut_off(number: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    """``number`` in units of the last of 24 digits of another, rounded towards zero."""
    unit = torch.ldexp(torch.ones_like(of), torch.frexp(of).exponent - 24)
    return torch.trunc(number / unit) * unit


def as_tensor_cores_do(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b``: sixteen exact products at a time and the sum so far, each cut off to the digits of
    the largest of them."""
    total = torch.zeros(a.size(0), b.size(1), dtype=torch.float64)
    for rows, columns in zip(a.double().split(16, 1), b.double().split(16, 0), strict=True):
        terms = torch.cat((total.unsqueeze(1), rows.unsqueeze(2) * columns), dim=1)
        largest = terms.abs().amax(1, keepdim=True)
        total = cut_off(terms, largest).sum(1)
        total = cut_off(total, total)
    return total


def in_chunks(a: torch.Tensor, b: torch.Tensor, size: int) -> torch.Tensor:
    """The same of so many terms, and their sums in float32."""
    total = torch.zeros(a.size(0), b.size(1))
    for rows, columns in zip(a.split(size, 1), b.split(size, 0), strict=True):
        total += as_tensor_cores_do(rows, columns).float()
    return total


@pytest.mark.parametrize("rows", ["alike", "about alike", "much stays", "few"])
@pytest.mark.parametrize("n", [200, 1024])
def test_what_is_lost_in_sums(n, rows):
    """As heat has it: on a hub's row all entries are alike, on others much stays where it is."""
    torch.manual_seed(0)
    matrix = torch.full((20, n), 1 / n) if rows == "alike" else torch.rand(20, n) / n
    if rows == "much stays":
        matrix[:, 0] += 0.6
    if rows == "few":
        matrix[:, 30:] *= 1e-4
    levels = 0.5 + torch.rand(30)
    x = torch.cat((levels.expand(n, 30), torch.rand(n, 10)), dim=1)
    exact = matrix.double() @ x.double()
    found, once = (in_chunks(matrix, x, size) - exact for size in (TERMS, n))
    assert float((found / exact).abs().max()) <= lost_in_sums(n)
    if rows != "few" and n == 1024:
        assert float((once / exact).abs().max()) > lost_in_sums(n)


def in_patches(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b`` as patches form it: halves, chunks from the smaller terms to the larger, pieces."""
    (high, low), scale = split_matrix(a), 2.0**10
    first = (b * scale).half()
    rest = (b * scale - first).half()
    pieces = []
    for at in range(0, a.size(1), LONGEST):
        total = torch.zeros(a.size(0), b.size(1))
        for start in range(at, min(at + LONGEST, a.size(1)), CHUNK):
            k = slice(start, start + CHUNK)
            factors = torch.cat((low[:, k], high[:, k], high[:, k]), 1)
            others = torch.cat((first[k], rest[k], first[k]))
            total += as_tensor_cores_do(factors, others).float()
        pieces.append(total)
    return torch.stack(pieces).double().sum(0).float() * 2.0**-BITS / scale


@pytest.mark.parametrize(
    "rows",
    ["alike", "about alike", "much stays", "most stays", "half elsewhere", "with hubs", "few"],
)
@pytest.mark.parametrize("own", [-1, -17, -64])
@pytest.mark.parametrize("n", [300, 2048, 20_000])
def test_what_patches_lose_in_sums(n, own, rows):
    """Nodes of the block come last, and with them what stays: the largest term, or half."""
    torch.manual_seed(0)
    matrix = torch.full((6, n), 1 / n) if rows == "alike" else 2 * torch.rand(6, n) / n
    if rows in ("most stays", "half elsewhere", "with hubs"):  # others add little, and are alike
        matrix = torch.logspace(-5, -1.5, 6)[:, None].repeat(1, n) / n
        matrix[:, own] = 0.99
    if rows == "half elsewhere":  # more cannot be at one other node
        matrix[:, 0], matrix[:, own] = 0.49, 0.51
    if rows == "with hubs":
        matrix[:, :7], matrix[:, own] = 1 / 8, 1 / 8
    if rows == "much stays":
        matrix[:, own] += 0.6
    if rows == "few":
        matrix[:, :-80] *= 1e-4
    x = torch.cat(((0.5 + torch.rand(30)).expand(n, 30), torch.rand(n, 4)), dim=1)
    exact = matrix.double() @ x.double()
    assert float(((in_patches(matrix, x) - exact) / exact).abs().max()) <= LOST_IN_SUMS
    if n == 20_000 and rows in ("alike", "about alike", "much stays"):
        once = as_tensor_cores_do(matrix.half(), x.half())
        exact = matrix.half().double() @ x.half().double()
        assert float(((once - exact) / exact).abs().max()) > LOST_IN_SUMS


@pytest.mark.parametrize("size", [1, 7, 8, 13])
def test_sizes_are_filled_up(size):
    matrix = kernel()[:, :size, :size].repeat(3, 1, 1)
    filled, x = filled_up(matrix), torch.randn(3, size, 5).bfloat16()
    assert filled.shape == (3, -(-size // 8) * 8, -(-size // 8) * 8)
    for found, exact in ((filled, matrix), (filled.mT, matrix.mT)):
        y = narrow_product(found, x)
        assert y.dtype == torch.bfloat16
        torch.testing.assert_close(y.double(), exact.double() @ x.double(), rtol=1e-2, atol=1e-2)


def test_derivatives_and_transforms():
    torch.manual_seed(0)
    matrix = kernel(torch.float16)[:, :6, :6]
    filled, x = filled_up(matrix), torch.randn(1, 6, 2).half().requires_grad_()
    function = lambda x: narrow_product(filled, x)  # noqa: E731
    close = {"rtol": 5e-3, "atol": 5e-3}
    exact = matrix.double()
    (grad,) = torch.autograd.grad(function(x).square().sum(), x, create_graph=True)
    torch.testing.assert_close(grad.double(), 2 * exact.mT @ (exact @ x.double()), **close)
    (again,) = torch.autograd.grad(grad.sum(), x)
    ones = torch.ones(1, 6, 2, dtype=torch.float64)
    torch.testing.assert_close(again.double(), 2 * exact.mT @ exact @ ones, **close)
    _, tangent = torch.func.jvp(function, (x,), (ones.half(),))
    torch.testing.assert_close(tangent.double(), exact @ ones, **close)
    batch = torch.randn(5, 1, 6, 2).half()
    for found in (
        torch.func.vmap(function)(batch),
        torch.func.vmap(function, 1)(batch.movedim(0, 1)),
    ):
        torch.testing.assert_close(found, torch.stack([function(entry) for entry in batch]))
    jacobian = torch.func.jacrev(function)(x)
    assert jacobian.shape == (1, 6, 2, 1, 6, 2)
    torch.testing.assert_close(jacobian[0, :, 0, 0, :, 0].double(), exact[0], **close)


def test_graphs_cannot_be_mapped_over():
    with pytest.raises(ValueError, match="vmap over graphs is not supported"):
        torch.func.vmap(lambda matrix: narrow_product(matrix, torch.ones(1, 8, 1).half()))(
            torch.rand(2, 1, 8, 8).half()
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_kernel_on_tensor_cores(dtype, monkeypatch):
    monkeypatch.setattr(bunn.diffusion.dense, "on_tensor_cores", lambda lap: True)
    monkeypatch.setattr(bunn.diffusion.dense, "FORMED_ENTRIES", 100)  # three columns at a time
    edge_index, n = ZOO["disconnected"]()
    lap = Laplacian(edge_index, num_nodes=n)
    x = torch.randn(n, 4).to(dtype).requires_grad_()
    y = diffuse(x, lap, 2.0, tol=1e-6, method="dense")  # finer than patches of float32 are
    exact = diffuse(x.double(), lap, 2.0, tol=1e-12, method="chebyshev")
    assert y.dtype == dtype
    slack = 2e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(y.double(), exact, rtol=0, atol=slack)
    (stacks,) = lap.kernels.values()
    kept = dtype if dtype.itemsize == 2 else torch.float64
    assert {stack.dtype for stack in stacks} == {kept}
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.isfinite(grad).all()


@pytest.mark.parametrize("normalization", ["rw", "sym"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_eigenvectors_on_tensor_cores(dtype, normalization, monkeypatch):
    monkeypatch.setattr(bunn.diffusion.dense, "on_tensor_cores", lambda lap: True)
    edge_index, n = ZOO["disconnected"]()
    lap = Laplacian(edge_index, num_nodes=n, normalization=normalization)
    x = torch.randn(n, 4).to(dtype).requires_grad_()
    for time in (2.0, torch.tensor([0.5, 1.0, 2.0, 30.0], requires_grad=True)):
        y = diffuse(x, lap, time, method="spectral")
        wide, late = x.detach().double().requires_grad_(), time
        if isinstance(time, torch.Tensor):
            late = time.detach().double().requires_grad_()
        exact = diffuse(wide, lap, late, tol=1e-12, method="chebyshev")
        assert y.dtype == dtype
        slack = 2e-5 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(y.double(), exact, rtol=0, atol=slack)
        leaves = [x] if late is time else [x, time]
        exact_leaves = [wide] if late is time else [wide, late]
        grads = torch.autograd.grad(y.float().sum(), leaves)
        for grad, expected in zip(
            grads, torch.autograd.grad(exact.sum(), exact_leaves), strict=True
        ):
            torch.testing.assert_close(grad.double(), expected, rtol=0, atol=10 * slack)
    assert set(lap.eigenpairs.bases) == {dtype if dtype.itemsize == 2 else torch.float64}
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: diffuse(x, lap, 2.0, method="spectral"), backend="eager")
    torch.testing.assert_close(
        compiled(x.detach()), diffuse(x.detach(), lap, 2.0, method="spectral"), rtol=0, atol=slack
    )
    lap.adopt_spectrum(lap.block_spectrum())
    assert not lap.eigenpairs.bases


@given(sizes=st.lists(st.integers(1, 80), min_size=1, max_size=9), seed=st.integers(0, 100))
def test_components_of_about_a_size_are_stacked(sizes, seed):
    torch.manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    labels = labels[torch.randperm(len(labels))]
    blocks = Blocks.of(labels, len(sizes))
    merged, x = blocks.merged, torch.randn(len(labels), 3)
    stacks = merged.split(x)
    assert len(stacks) == blocks.num_groups == len({-(-size // 32) for size in sizes})
    assert all(stack.size(1) % 8 == 0 for stack in stacks)
    assert torch.equal(merged.join(stacks), x)
    ones = merged.fill([torch.ones(m, s, s) for m, s in blocks.shapes])
    for stack, matrices in zip(stacks, ones, strict=True):
        assert matrices.shape == (*stack.shape[:2], stack.size(1))
        torch.testing.assert_close((matrices @ stack)[:, :1], stack.sum(1, keepdim=True))
    assert sum(int(matrices.sum()) for matrices in ones) == blocks.area
    zeros = sum(int((stack == 0).all(-1).sum()) for stack in stacks)
    assert zeros == sum(stack.size(0) * stack.size(1) for stack in stacks) - len(labels)


@pytest.mark.parametrize("method", ["dense", "spectral"])
def test_a_batch_of_graphs_of_all_sizes(method, monkeypatch):
    monkeypatch.setattr(bunn.diffusion.dense, "on_tensor_cores", lambda lap: True)
    graphs = [nx.path_graph(s) for s in (3, 40, 5, 3, 1, 41, 70)]
    edge_index, n = edges_of(nx.disjoint_union_all(graphs))
    lap, x = Laplacian(edge_index, num_nodes=n), torch.randn(n, 4, requires_grad=True)
    y = diffuse(x, lap, 2.0, method=method)
    exact = diffuse(x.double(), lap, 2.0, tol=1e-12, method="chebyshev")
    torch.testing.assert_close(y.double(), exact, rtol=0, atol=1e-4)
    weight = torch.randn(n, 4)
    (grad,) = torch.autograd.grad(y, x, weight)
    (expected,) = torch.autograd.grad(exact, x, weight.double())
    torch.testing.assert_close(grad, expected, rtol=0, atol=1e-4)
