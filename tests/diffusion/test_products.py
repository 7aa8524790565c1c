"""Products in two halves, against float64."""

import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bunn.diffusion.dense
import bunn.diffusion.spectral
from bunn import Laplacian, diffuse, heat_kernel
from bunn.components import Blocks
from bunn.diffusion import products
from bunn.diffusion.products import FINEST, SplitMatrix, split_product
from tests.graphs import ZOO, edges_of

TOLERANCE = 2e-6


def kernel() -> torch.Tensor:
    edge_index, n = ZOO["path"]()
    return heat_kernel(Laplacian(edge_index, num_nodes=n).to(torch.float64), 30.0).unsqueeze(0)


def errors(y: torch.Tensor, exact: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (y.double() - exact).norm(dim=-2) / x.double().norm(dim=-2)


@given(
    exponents=st.lists(st.integers(-35, 35), min_size=1, max_size=4),
    small=st.floats(1e-30, 1.0),
    seed=st.integers(0, 1000),
)
def test_every_column_has_its_digits(exponents, small, seed):
    matrix = kernel()
    torch.manual_seed(seed)
    x = torch.randn(1, matrix.size(1), len(exponents)) * torch.tensor([10.0**e for e in exponents])
    x[:, ::2] *= small
    y = split_product(SplitMatrix.of(matrix), x)
    assert float(errors(y, matrix @ x.double(), x).max()) <= TOLERANCE


def cut_off(number: torch.Tensor) -> torch.Tensor:
    """float64 in float32, rounded towards zero."""
    rounded = number.float()
    larger = rounded.double().abs() > number.abs()
    return torch.where(larger, torch.nextafter(rounded, torch.zeros_like(rounded)), rounded)


def as_tensor_cores_do(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b``: sixteen exact products at a time, sums cut off in float32."""
    total = torch.zeros(*a.shape[:2], b.size(2))
    for terms in zip(a.split(16, 2), b.split(16, 1), strict=True):
        total = cut_off(total.double() + torch.bmm(*(part.double() for part in terms)))
    return total


def test_long_sums_keep_their_digits_where_each_step_cuts_them_off(monkeypatch):
    torch.manual_seed(0)
    n = 5 * products.PART
    matrix, x = torch.rand(1, 40, n) / n, torch.randn(1, n, 3)
    matrix[0, :, :40] += 0.5 * torch.eye(40)  # as heat has it at small times: much stays, all moves
    split = SplitMatrix(*products._split(matrix))
    monkeypatch.setattr(products, "multiply_16_bits", as_tensor_cores_do)
    exact, scale = matrix.double() @ x.double(), x[:, :40].double().norm()
    found = products._SplitProduct.forward(x, *split)
    assert float((found - exact).norm() / scale) <= FINEST / 2
    monkeypatch.setattr(products, "PART", n)
    found = products._SplitProduct.forward(x, *split)
    assert float((found - exact).norm() / scale) > FINEST


@pytest.mark.parametrize("size", [1, 7, 8, 13])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sizes_are_filled_up(size, dtype):
    matrix = kernel()[:, :size, :size].repeat(3, 1, 1)
    split, x = SplitMatrix.of(matrix, dtype), torch.randn(3, size, 5).to(dtype)
    parts = [part for part in split if part is not None]
    assert len(parts) == dtype.itemsize // 2
    assert {part.shape for part in parts} == {(3, -(-size // 8) * 8, -(-size // 8) * 8)}
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    for found, exact in ((split, matrix), (split.adjoint, matrix.mT)):
        y = split_product(found, x)
        torch.testing.assert_close(y.double(), exact @ x.double(), rtol=tolerance, atol=tolerance)


def test_what_has_no_entries_above_zero():
    matrix = SplitMatrix.of(kernel())
    x = torch.zeros(1, 300, 3)
    assert torch.equal(split_product(matrix, x), x)
    x[:, 0, 1], x[:, 1, 2] = torch.inf, torch.nan
    y = split_product(matrix, x)
    assert torch.equal(y[..., 0], torch.zeros(1, 300))
    assert not torch.isfinite(y[..., 1:]).all(1).any()


def test_derivatives_and_transforms():
    torch.manual_seed(0)
    matrix = kernel()[:, :6, :6]
    split, x = SplitMatrix.of(matrix), torch.randn(1, 6, 2, requires_grad=True)
    function = lambda x: split_product(split, x)  # noqa: E731
    y = function(x)
    (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    exact = 2 * matrix.mT @ (matrix @ x.double())
    torch.testing.assert_close(grad.double(), exact, rtol=1e-5, atol=1e-6)
    (again,) = torch.autograd.grad(grad.sum(), x)
    ones = torch.ones(1, 6, 2, dtype=torch.float64)
    torch.testing.assert_close(again.double(), 2 * matrix.mT @ matrix @ ones, rtol=1e-5, atol=1e-6)
    _, tangent = torch.func.jvp(function, (x,), (torch.ones(1, 6, 2),))
    torch.testing.assert_close(tangent.double(), matrix @ ones, rtol=1e-5, atol=1e-6)
    batch = torch.randn(5, 1, 6, 2)
    for found in (
        torch.func.vmap(function)(batch),
        torch.func.vmap(function, 1)(batch.movedim(0, 1)),
    ):
        torch.testing.assert_close(found, torch.stack([function(entry) for entry in batch]))
    jacobian = torch.func.jacrev(function)(x)
    assert jacobian.shape == (1, 6, 2, 1, 6, 2)
    torch.testing.assert_close(jacobian[0, :, 0, 0, :, 0].double(), matrix[0], rtol=1e-5, atol=1e-6)


def test_graphs_cannot_be_mapped_over():
    split = SplitMatrix.of(torch.rand(2, 1, 3, 3))
    with pytest.raises(ValueError, match="vmap over graphs is not supported"):
        torch.func.vmap(
            lambda high: split_product(SplitMatrix(high, split.low[0]), torch.ones(1, 3, 1))
        )(split.high)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_kernel_in_two_halves(dtype, monkeypatch):
    monkeypatch.setattr(bunn.diffusion.dense, "on_tensor_cores", lambda lap: True)
    monkeypatch.setattr(bunn.diffusion.dense, "FORMED_ENTRIES", 100)  # three columns at a time
    edge_index, n = ZOO["disconnected"]()
    lap = Laplacian(edge_index, num_nodes=n)
    x = torch.randn(n, 4).to(dtype).requires_grad_()
    y = diffuse(x, lap, 2.0, method="dense")
    exact = diffuse(x.double(), lap, 2.0, tol=1e-12, method="chebyshev")
    assert y.dtype == dtype
    slack = 2e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(y.double(), exact, rtol=0, atol=slack)
    (stacks,) = lap.kernels.values()
    assert all(isinstance(stack, SplitMatrix) for stack in stacks)
    assert all((stack.low is None) == (dtype.itemsize == 2) for stack in stacks)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.isfinite(grad).all()


@pytest.mark.parametrize("normalization", ["rw", "sym"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_eigenvectors_in_two_halves(dtype, normalization, monkeypatch):
    monkeypatch.setattr(bunn.diffusion.dense, "on_tensor_cores", lambda lap: True)
    monkeypatch.setattr(bunn.diffusion.spectral, "on_tensor_cores", lambda lap: True)
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
    assert set(lap.eigenpairs.bases) == {dtype}
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
    monkeypatch.setattr(bunn.diffusion.spectral, "on_tensor_cores", lambda lap: True)
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
