"""Products with a matrix for every component where they lie, against the same in float64."""

from types import SimpleNamespace

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import forward_ad

import bunn.diffusion.dense
from bunn import Laplacian, diffuse, kernels
from bunn.diffusion.auto import cheapest, costs_of
from bunn.diffusion.blockwise import Basis, BlockMatrix, basis_heat, block_product
from bunn.diffusion.options import Options, Time
from bunn.graph.components import Blocks
from bunn.kernels.arguments import Decay
from bunn.kernels.grouped import SquareTiling, multiply_grouped
from tests.batches.test_rooms import PAIRS, batch_of, filled, room_for
from tests.graphs import edges_of
from tests.kernels.test_walk import DEVICE

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SIZES = (3, 40, 1, 5, 3, 1, 71, 66)


def components(sizes: list[int]) -> Blocks:
    """Components of some sizes, whose nodes are anywhere."""
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return Blocks.of(labels[torch.randperm(len(labels))].to(DEVICE), len(sizes))


def dense(matrix: BlockMatrix, blocks: Blocks) -> Tensor:
    """The same as one matrix in float64."""
    ordered = torch.block_diag(*(entry for stack in matrix.stacks() for entry in stack.double()))
    return ordered[blocks.rank[:, None], blocks.rank[None, :]]


def random_matrix(blocks: Blocks, dtype: torch.dtype) -> BlockMatrix:
    stacks = [torch.randn(m, s, s, device=DEVICE) / s**0.5 for m, s in blocks.shapes]
    return BlockMatrix.of(stacks, blocks, dtype)


def close(y: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    slack = 2e-5 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), exact, rtol=slack, atol=slack)


@settings(max_examples=12)
@given(
    sizes=st.lists(st.integers(1, 70), min_size=1, max_size=5),
    width=st.integers(0, 70),
    dtype=st.sampled_from(DTYPES),
    apart=st.booleans(),
    seed=st.integers(0, 100),
)
def test_products(sizes, width, dtype, apart, seed):
    torch.manual_seed(seed)
    blocks = components(sizes)
    x = torch.randn(sum(sizes), width + apart, device=DEVICE).to(dtype)[:, :width]
    matrix = random_matrix(blocks, dtype)
    for one in (matrix, matrix.adjoint()):
        close(one.times(x), dense(one, blocks) @ x.double(), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_matrix_is_what_it_was_made_of(dtype):
    blocks = components(list(SIZES))
    stacks = [torch.randn(m, s, s, device=DEVICE) for m, s in blocks.shapes]
    matrix = BlockMatrix.of(stacks, blocks, dtype)
    for stack, kept, turned in zip(stacks, matrix.stacks(), matrix.adjoint().stacks(), strict=True):
        assert torch.equal(kept, stack.to(dtype))
        assert torch.equal(turned, stack.to(dtype).mT)


def test_tiles_cover_every_row_once():
    tiles = components(list(SIZES)).tiles
    rows = [
        first + tiles.rows * part + offset
        for _, _, first, size, part in tiles.table.tolist()
        for offset in range(min(tiles.rows, size - tiles.rows * part))
    ]
    assert sorted(rows) == list(range(sum(SIZES)))
    assert tiles.table[0, 3] == max(SIZES)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("per_column", [False, True])
def test_decay_and_sums(per_column, dtype):
    blocks = components(list(SIZES))
    matrix, values = random_matrix(blocks, dtype), torch.rand(sum(SIZES), device=DEVICE)
    x, other = (torch.randn(sum(SIZES), 37, device=DEVICE).to(dtype) for _ in range(2))
    times = torch.linspace(0, 5, 37, device=DEVICE) if per_column else 1.5
    product = dense(matrix, blocks) @ x.double()
    expected = product * torch.exp(-values.double().unsqueeze(1) * times)
    close(matrix.times(x, Decay(values, times)), expected, dtype)
    y, sums = matrix.times_back(x, Decay(values, times), other)
    close(y, expected, dtype)
    rate = -(values.unsqueeze(1) * other.double() * product).sum(0)
    torch.testing.assert_close(sums.double(), rate, rtol=1e-5, atol=1e-4)


def test_what_is_not_finite_stays_in_its_component():
    blocks = components([5, 70, 9])
    matrix, x = random_matrix(blocks, torch.float32), torch.randn(84, 4, device=DEVICE)
    x[blocks.order[3], 1] = torch.nan
    y = matrix.times(x)
    assert torch.isnan(y[blocks.order[:5], 1]).all()
    assert int(torch.isnan(y).sum()) == 5


def test_other_tilings():
    blocks = components([33, 20])
    matrix, x = random_matrix(blocks, torch.float32), torch.randn(53, 20, device=DEVICE)
    tiling = SquareTiling(16, 16, 2, 2)
    y = multiply_grouped(x, matrix.entries, blocks.tiles, False, None, tiling)
    close(y, dense(matrix, blocks) @ x.double(), torch.float32)


@pytest.fixture
def served(monkeypatch):
    """Counts what the kernels were asked for; a CPU asks them, too."""
    calls = []
    for name in ("multiply_components", "multiply_components_back"):
        real = getattr(kernels, name)
        spy = lambda *args, name=name, real=real: calls.append(name) or real(*args)  # noqa: E731
        monkeypatch.setattr(kernels, name, spy)
    monkeypatch.setattr(bunn.diffusion.dense, "on_tensor_cores", lambda lap: True)
    monkeypatch.setattr(kernels, "serve_components", lambda value, largest: True)
    return calls


def batch(normalization: str = "rw", sizes: tuple[int, ...] = SIZES) -> Laplacian:
    """Paths and stars, whose nodes are anywhere."""
    graphs = [nx.path_graph(s) if s % 2 else nx.star_graph(s - 1) for s in sizes]
    edge_index, n = edges_of(nx.disjoint_union_all(graphs))
    lap = Laplacian(torch.randperm(n)[edge_index], num_nodes=n, normalization=normalization)
    return lap.to(DEVICE, torch.float32)


@pytest.mark.parametrize("normalization", ["rw", "sym"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", ["dense", "spectral", "one time", "many times"])
def test_heat_and_its_gradients(case, dtype, normalization, served):
    lap = batch(normalization)
    x = torch.randn(lap.num_nodes, 6, device=DEVICE).to(dtype).requires_grad_()
    weight = torch.randn(lap.num_nodes, 6, device=DEVICE)
    time: float | Tensor = 1.5
    if case.endswith("time") or case.endswith("times"):
        many = [0.1, 0.5, 1.0, 2.0, 30.0, 0.0] if case.startswith("many") else 1.5
        time = torch.tensor(many, device=DEVICE, requires_grad=True)
    method = "dense" if case == "dense" else "spectral"
    y = diffuse(x, lap, time, method=method)
    leaves = [x, time] if isinstance(time, Tensor) else [x]
    grads = torch.autograd.grad((y * weight).sum(), leaves)
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    exact = diffuse(
        wide[0], lap, wide[-1] if len(wide) == 2 else time, method="chebyshev", tol=1e-12
    )
    expected = torch.autograd.grad((exact * weight).sum(), wide)
    slack = 4e-5 if dtype == torch.float32 else 8 * torch.finfo(dtype).eps
    for mine, theirs in zip((y, *grads), (exact, *expected), strict=True):
        scale = max(1.0, float(theirs.detach().abs().max()))
        torch.testing.assert_close(mine.double(), theirs, rtol=0, atol=slack * scale)
    assert len(served) == (2 if method == "dense" else 4)
    assert ("multiply_components_back" in served) == isinstance(time, Tensor)


def test_a_graph_of_one_component_is_left_to_others(served):
    lap = batch(sizes=(40,))
    diffuse(torch.randn(40, 3, device=DEVICE), lap, 1.0, method="dense")
    diffuse(torch.randn(40, 3, device=DEVICE), lap, 1.0, method="spectral")
    assert not served


@pytest.mark.parametrize("many", [False, True])
def test_gradients_are_differentiated_again(many, served):
    lap, found = batch(sizes=(3, 12, 1, 9)), {}
    field = torch.randn(lap.num_nodes, 4, device=DEVICE)
    for kind in (torch.float32, torch.float64):
        x = field.to(kind).requires_grad_()
        t = torch.tensor([0.3, 1.0, 2.0, 0.7] if many else 0.8, dtype=kind, device=DEVICE)
        leaves = (x, t.requires_grad_())
        y = diffuse(
            *(x, lap.to(kind), t), method="spectral" if kind == torch.float32 else "chebyshev"
        )
        first = torch.autograd.grad(y.square().sum(), leaves, create_graph=True)
        (third,) = torch.autograd.grad(first[1].sum(), t, retain_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), leaves)
        found[kind] = (*first, third, *second)
    for mine, theirs in zip(found[torch.float32], found[torch.float64], strict=True):
        scale = float(theirs.detach().abs().max())
        torch.testing.assert_close(mine.double(), theirs, rtol=0, atol=1e-4 * scale)


@pytest.mark.parametrize("method", ["dense", "spectral"])
def test_whoever_watches_gets_the_same(method, served):
    lap = batch(sizes=(3, 12, 1, 9))
    x = torch.randn(lap.num_nodes, 4, device=DEVICE, requires_grad=True)
    t = 0.8
    if method == "spectral":
        t = torch.tensor([0.3, 1.0, 2.0, 0.7], device=DEVICE, requires_grad=True)
    leaves = (x, t) if isinstance(t, Tensor) else (x,)

    def heat(x: Tensor) -> Tensor:
        return diffuse(x, lap, t, method=method)

    fields, tangent = torch.randn(3, *x.shape, device=DEVICE), torch.randn_like(x)
    separate = torch.stack([heat(field) for field in fields])
    torch.testing.assert_close(torch.vmap(heat)(fields), separate, rtol=1e-5, atol=1e-5)
    _, slope = torch.func.jvp(heat, (x,), (tangent,))
    torch.testing.assert_close(slope, heat(tangent), rtol=1e-5, atol=1e-5)
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(heat(forward_ad.make_dual(x, tangent)))
    torch.testing.assert_close(dual.tangent, heat(tangent), rtol=1e-5, atol=1e-5)

    y = heat(x)
    back = lambda seed: torch.autograd.grad(y, leaves, seed, retain_graph=True)  # noqa: E731
    one_by_one = [torch.stack(found) for found in zip(*map(back, fields), strict=True)]
    batched = torch.autograd.grad(y, leaves, fields, retain_graph=True, is_grads_batched=True)
    for many in (torch.vmap(back)(fields), batched):
        for mine, theirs in zip(many, one_by_one, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_a_gradient_by_the_features_alone(served):
    lap = batch(sizes=(3, 12, 1))
    x = torch.randn(lap.num_nodes, 4, device=DEVICE)
    t = torch.tensor([0.3, 1.0, 2.0, 0.7], device=DEVICE)
    for leaf, calls in ((x, 4), (t, 3)):
        served.clear()
        leaf.requires_grad_()
        torch.autograd.grad(diffuse(x, lap, t, method="spectral").sum(), leaf)
        leaf.requires_grad_(False)
        assert len(served) == calls


def test_by_torch_and_by_the_kernel():
    blocks = components(list(SIZES))
    x = torch.randn(sum(SIZES), 5, device=DEVICE)
    for dtype in DTYPES:
        matrix = random_matrix(blocks, dtype)
        by_torch = torch.vmap(lambda x, m=matrix: block_product(m, x))(x.to(dtype).unsqueeze(0))[0]
        close(by_torch, dense(matrix, blocks) @ x.to(dtype).double(), dtype)


def test_what_is_multiplied_in_place(monkeypatch):
    monkeypatch.setattr(kernels, "wanted", lambda: True)
    on_a_gpu = SimpleNamespace(is_cuda=True, dtype=torch.float32)
    assert kernels.serve_components(on_a_gpu, kernels.LARGEST)
    assert not kernels.serve_components(on_a_gpu, kernels.LARGEST + 1)
    assert not kernels.serve_components(SimpleNamespace(is_cuda=True, dtype=torch.float64), 5)
    assert not kernels.serve_components(torch.ones(1), 5)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert not kernels.serve_components(on_a_gpu, 5)


@pytest.mark.parametrize("width", [16, 6])
@pytest.mark.parametrize("method", ["dense", "spectral"])
def test_the_result_is_the_callers(method, width, served):
    """Who asked for it may write into it, and look at it as one row."""
    lap = batch(sizes=(3, 12, 1))
    x = torch.randn(lap.num_nodes, width, device=DEVICE, requires_grad=True)
    expected = diffuse(x, lap, 1.0, method=method).detach()
    y = diffuse(x, lap, 1.0, method=method)
    assert torch.equal(y.view(-1), expected.view(-1))
    y.relu_().sum().backward()
    (whole,) = torch.autograd.grad(diffuse(x, lap, 1.0, method=method), x, (expected > 0).float())
    torch.testing.assert_close(x.grad, whole)
    assert served


def test_matrices_are_little_larger_than_their_components():
    blocks = Blocks.of(torch.cat((torch.arange(1, 501), torch.zeros(31))).long().to(DEVICE), 501)
    matrix = random_matrix(blocks, torch.float32)
    assert matrix.entries.numel() == 500 * 8**2 + 32**2 == blocks.filled_area


def test_auto_leaves_isolated_nodes_to_sparse_products(monkeypatch):
    """A million of them would each have a tile of its own."""
    for on in ("on_tensor_cores", "in_place"):
        monkeypatch.setattr(f"bunn.diffusion.auto.{on}", lambda lap: True)
    path = torch.stack((torch.arange(30), torch.arange(1, 31)))
    lap = Laplacian(torch.cat((path, path.flip(0)), 1), num_nodes=10_000)
    x = torch.zeros(10_000, 64)
    assert cheapest(costs_of(x, lap, Time.of(1.0, x.shape[1:]), Options(1e-5))) == "chebyshev"


@pytest.mark.parametrize("norm", ["rw", "sym"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_heat_where_batches_are_filled_up(norm, dtype):
    """Matrices are read where they are among those of all graphs; what fills up counts nowhere."""
    room, chosen = room_for(4, device=DEVICE), [7, 4, 1, 2]
    lap, whole = filled(room, chosen).laplacian(norm), room.union.whole(norm).lap
    basis = Basis.of(*whole.block_spectrum(), whole.operator.before, whole.blocks, dtype)
    part = basis.part(lap.origin)
    assert part.left.entries is basis.left.entries
    edges, n = batch_of([PAIRS[i] for i in chosen])
    x = torch.randn(room.size.nodes, 5, device=DEVICE).to(dtype)
    target = torch.randn(n, 5, device=DEVICE).to(dtype)
    times = torch.tensor([0.1, 1.0, 3.0, 10.0, 1e3], device=DEVICE)
    exact = Laplacian(edges.to(DEVICE), num_nodes=n, normalization=norm).to(torch.float64)

    def heat_and_gradients(heat, x, times, rows):
        x, times = x.clone().requires_grad_(), times.clone().requires_grad_()
        y = heat(x, times)
        assert y.isfinite().all()
        (y[:rows] * target.to(y.dtype)).sum().backward()
        assert not x.grad[rows:].any()
        return y.detach()[:rows], x.grad[:rows], times.grad

    ours = heat_and_gradients(lambda x, t: basis_heat(x, t, part), x, times, n)
    theirs = heat_and_gradients(
        lambda x, t: diffuse(x, exact, t, tol=1e-12), x[:n].double(), times.double(), n
    )
    slack = 2e-4 if dtype == torch.float32 else 0.1
    for mine, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.double(), right, rtol=slack, atol=slack)
