"""Products by blocks of rows and what these reach, against the same in float64."""

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import bunn.diffusion.auto
import bunn.diffusion.dense
from bunn import Laplacian, diffuse, kernels
from bunn.diffusion import patchwise
from bunn.diffusion.auto import cheapest, costs_of
from bunn.diffusion.dense import form_of
from bunn.diffusion.options import Options, Time
from bunn.diffusion.patchwise import PatchMatrix, heat_patches
from bunn.keeping import lasting
from bunn.kernels.arguments import BITS, Patches, Spans, joined_matrix, split_matrix
from bunn.kernels.patches import PatchTiling, multiply, split
from tests.graphs import ZOO, edges_of, relative_error
from tests.kernels.test_walk import DEVICE

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
GRAPHS = {
    **{name: ZOO[name] for name in ("disconnected", "weighted", "single", "complete")},
    "path": lambda: edges_of(nx.path_graph(150)),
    "grid": lambda: edges_of(nx.grid_2d_graph(13, 11)),
    "hub": lambda: edges_of(nx.star_graph(70)),
}


def patches_of(
    matrix: Tensor, dtype: torch.dtype, rows: int, chunk: int, most: int = 64
) -> Patches:
    """A matrix by blocks of rows at random, the columns of each in whole chunks, of which at most
    so many are taken together."""
    n = matrix.size(0)
    order = torch.full((-(-n // rows) * rows,), -1)
    order[:n] = torch.randperm(n)
    order = order.view(-1, rows)
    tiles, nodes, lengths = [], [], []
    for block in order:
        own = matrix[block[block >= 0]]
        columns = (own != 0).any(0).nonzero().squeeze(1)
        lengths.append(-(-len(columns) // chunk))
        width = lengths[-1] * chunk
        tile = matrix.new_zeros(rows, width)
        tile[: len(own), : len(columns)] = own[:, columns]
        tiles.append(tile.view(rows, -1, chunk).transpose(0, 1))
        nodes.append(torch.cat((columns, columns[:1].expand(width - len(columns)))))
    entries: tuple[Tensor, Tensor | None] = (torch.cat(tiles), None)
    entries = split_matrix(entries[0]) if dtype == torch.float32 else (entries[0].to(dtype), None)
    tables = (torch.cat(nodes).int(), order.int())
    found = [t if t is None else t.contiguous().to(DEVICE) for t in (*entries, *tables)]
    return Patches(*found, Spans.of(torch.tensor(lengths, device=DEVICE), most))


@settings(max_examples=15)
@given(
    n=st.integers(1, 90),
    width=st.integers(0, 40),
    share=st.floats(0.02, 1.0),
    shape=st.sampled_from([(16, 16), (32, 16), (16, 32)]),
    dtype=st.sampled_from(DTYPES),
    most=st.sampled_from([1, 3, 64]),
    apart=st.booleans(),
    seed=st.integers(0, 100),
)
def test_products(n, width, share, shape, dtype, most, apart, seed):
    torch.manual_seed(seed)
    matrix = torch.rand(n, n, dtype=torch.float64) * (torch.rand(n, n) < share)
    matrix[torch.arange(n), torch.arange(n)] += 0.1
    matrix /= matrix.sum(1, keepdim=True)
    patches = patches_of(matrix, dtype, *shape, most)
    x = torch.randn(n, width + apart, device=DEVICE).to(dtype)[:, :width]
    y = multiply(x, patches)
    assert y.dtype == dtype
    there = torch.full((n, width + 3), 7.0, dtype=dtype, device=DEVICE)
    assert torch.equal(multiply(x, patches, there[:, 3:]), y)
    assert torch.equal(there[:, 3:], y)
    assert (there[:, :3] == 7).all()
    slack = 1e-6 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    exact = matrix.to(DEVICE) @ x.double()
    scale = float(x.abs().max()) if x.numel() else 0.0
    torch.testing.assert_close(y.double(), exact, rtol=0, atol=slack * scale)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30), st.integers(1, 12))
def test_pieces_cover_every_block_once(lengths, most):
    pieces, cut, num_sums = Spans.of(torch.tensor(lengths), most)
    assert (pieces[:, 2] <= most).all()
    assert pieces[:, 2].tolist() == sorted(pieces[:, 2].tolist(), reverse=True)
    starts = [sum(lengths[:block]) for block in range(len(lengths))]
    covered = {block: [] for block in range(len(lengths))}
    for block, first, count, place in pieces.tolist():
        covered[block] += [(chunk, place) for chunk in range(first, first + count)]
        assert (place < 0) == (lengths[block] <= most)
    for block, length in enumerate(lengths):
        chunks = [chunk for chunk, _ in sorted(covered[block])]
        assert chunks == list(range(starts[block], starts[block] + length))
    assert sorted(p for p in pieces[:, 3].tolist() if p >= 0) == list(range(num_sums))
    for block, first, count in cut.tolist():
        found = {place for _, place in covered[block]}
        assert found == set(range(first, first + count))
        assert count > 1
    assert {row[0] for row in cut.tolist()} == {b for b, long in enumerate(lengths) if long > most}


def test_a_hub_cuts_no_other_block():
    lengths = torch.full((100,), 5)
    lengths[3] = 160
    pieces, cut, num_sums = Spans.of(lengths, 32)
    assert len(pieces) == 104
    assert num_sums == 5
    assert cut.tolist() == [[3, 0, 5]]


def test_other_tilings():
    matrix = torch.rand(70, 70, dtype=torch.float64) / 70
    x = torch.randn(70, 100, device=DEVICE)
    patches = patches_of(matrix, torch.float32, 16, 16)
    exact = matrix.to(DEVICE) @ x.double()
    for tiling in (PatchTiling(16, 2, 4), PatchTiling(64, 4, 8)):
        torch.testing.assert_close(
            multiply(x, patches, tiling=tiling).double(), exact, rtol=0, atol=1e-6
        )


@pytest.mark.parametrize("exponent", [-38, -30, -5, 0, 20, 37])
def test_halves_keep_the_digits_of_a_column(exponent):
    x = torch.randn(130, 3, device=DEVICE) * 10.0**exponent
    x[:, 1] = 0.0
    high, low, largest = split(x)
    assert torch.equal(largest.view(torch.float32), x.abs().amax(0))
    field = (largest >> 23).clamp(min=15)
    back = torch.ldexp((high.double() + low.double()), field - 127 - BITS)
    unit = max(float(x.abs().max()), 2.0 ** (15 - 127)) * 2.0**-22
    assert float((back - x.double()).abs().max()) <= unit
    assert bool((high.abs() < 2.0 ** (BITS + 1)).all())


def test_halves_of_a_matrix_are_the_matrix():
    matrix = torch.rand(40, 40, dtype=torch.float64) ** 8
    assert float((joined_matrix(*split_matrix(matrix)) - matrix).abs().max()) <= 2.0**-23


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # the interpreter's
def test_what_is_not_finite_spoils_no_other_block():
    matrix = torch.block_diag(*(torch.rand(16, 16, dtype=torch.float64) / 16 for _ in range(3)))
    order = torch.arange(48).view(3, 16).int().to(DEVICE)
    blocks = torch.stack([matrix[at : at + 16, at : at + 16] for at in (0, 16, 32)]).to(DEVICE)
    spans = Spans.of(torch.ones(3, dtype=torch.long, device=DEVICE), 1)
    patches = Patches(*split_matrix(blocks), order.flatten(), order, spans)
    x = torch.randn(48, 4, device=DEVICE)
    for bad in (torch.nan, torch.inf, -torch.inf):
        x[3, 1] = bad
        y = multiply(x, patches)
        assert not torch.isfinite(y[:16, 1]).any()
        exact = matrix.to(DEVICE)[16:, 16:] @ x[16:].double()
        torch.testing.assert_close(y[16:].double(), exact, rtol=0, atol=1e-6)


@pytest.fixture
def served(monkeypatch):
    """Counts products; a CPU asks for them, too, in smaller blocks."""
    calls = []
    real = kernels.multiply_patches
    spy = lambda *args: calls.append(args) or real(*args)  # noqa: E731
    monkeypatch.setattr(kernels, "multiply_patches", spy)
    for module in (bunn.diffusion.dense, bunn.diffusion.auto):
        monkeypatch.setattr(module, "on_tensor_cores", lambda lap: True)
        monkeypatch.setattr(module, "in_place", lambda lap: False)
    for name, value in {"ROWS": 16, "MORE_ROWS": 32, "CHUNK": 16, "MANY": 100}.items():
        monkeypatch.setattr(patchwise, name, value)
    monkeypatch.setattr(patchwise, "FORMED_ENTRIES", 10_000)  # a few blocks at a time
    return calls


def laplacian(name: str, normalization: str = "rw") -> Laplacian:
    edge_index, *weight, n = GRAPHS[name]()
    lap = Laplacian(edge_index, *weight, num_nodes=n, normalization=normalization)
    return lap.to(DEVICE, torch.float32)


@pytest.mark.parametrize("normalization", ["rw", "sym"])
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("time", [0.1, 3.0])
def test_heat_meets_tol(time, graph, normalization, served):
    lap = laplacian(graph, normalization)
    x = torch.randn(lap.num_nodes, 6, device=DEVICE)
    x[:, 0] = 0.7371  # whatever moves it is an error
    exact = diffuse(x.double(), lap, time, tol=1e-12, method="chebyshev")
    y = diffuse(x, lap, time, method="dense")
    assert relative_error(y, exact, x, lap.to(torch.float64)) <= 1e-5
    assert len(served) == 1


@pytest.mark.parametrize("normalization", ["rw", "sym"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_derivatives(dtype, normalization, served):
    lap = laplacian("path", normalization)
    x = torch.randn(lap.num_nodes, 5, device=DEVICE).to(dtype).requires_grad_()
    weight = torch.randn(lap.num_nodes, 5, device=DEVICE)
    found = []
    for z in (x, x.detach().double().requires_grad_()):
        same = z is x
        y = diffuse(z, lap, 2.0, **({"method": "dense"} if same else {"tol": 1e-12}))
        (grad,) = torch.autograd.grad((y * weight).square().sum(), z, create_graph=True)
        (again,) = torch.autograd.grad((grad * weight).sum(), z)
        found.append((y, grad, again))
    slack = 1e-5 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps
    for mine, theirs in zip(*found, strict=True):
        scale = float(theirs.detach().abs().max())
        torch.testing.assert_close(mine.double(), theirs, rtol=0, atol=slack * scale)
    assert len(served) == 4


def test_transforms(served):
    lap = laplacian("grid")
    x = torch.randn(lap.num_nodes, 3, device=DEVICE, requires_grad=True)
    heat = lambda x: diffuse(x, lap, 1.5, method="dense")  # noqa: E731
    fields = torch.randn(4, *x.shape, device=DEVICE)
    separate = torch.stack([heat(field) for field in fields])
    close = {"rtol": 0, "atol": 1e-6}
    served.clear()
    torch.testing.assert_close(torch.vmap(heat)(fields), separate, **close)
    moved = torch.vmap(heat, 2, 2)(fields.permute(1, 2, 0)).permute(2, 0, 1)
    torch.testing.assert_close(moved, separate, **close)
    assert len(served) == 2  # of all columns at once
    _, slope = torch.func.jvp(heat, (x,), (fields[0],))
    torch.testing.assert_close(slope, separate[0], **close)
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(heat(forward_ad.make_dual(x, fields[0])))
    torch.testing.assert_close(dual.tangent, separate[0], **close)
    y = heat(x)
    back = lambda seed: torch.autograd.grad(y, x, seed, retain_graph=True)[0]  # noqa: E731
    one_by_one = torch.stack([back(seed) for seed in fields])
    torch.testing.assert_close(torch.vmap(back)(fields), one_by_one, **close)
    (many,) = torch.autograd.grad(y, x, fields, is_grads_batched=True)
    torch.testing.assert_close(many, one_by_one, **close)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_out_of_reach_is_exactly_zero(dtype, served):
    lap = laplacian("path")
    degree = form_of(lap, 1.0, 1e-5, dtype).degree
    x = torch.zeros(150, 2, device=DEVICE, dtype=dtype)
    x[70] = 1.0
    y = diffuse(x, lap, 1.0, method="dense").float()
    assert (y[70 - degree : 71 + degree] > 0).all() or dtype != torch.float32
    assert y[: 70 - degree].abs().max() == y[71 + degree :].abs().max() == 0.0
    assert len(served) == 1


def test_reach_counts_what_is_kept(served):
    for name in ("path", "grid", "hub", "disconnected"):
        lap = laplacian(name)
        for degree in (1, 3, 6):
            matrix = heat_patches(lap, 1.0, degree, torch.float32, patchwise.ROWS)
            chunks, blocks = len(matrix.patches.entries), len(matrix.patches.rows)
            kept = chunks / blocks * patchwise.CHUNK
            reach = patchwise.reach(lap, degree)
            assert reach == pytest.approx(kept) or kept >= reach > lap.num_nodes / 2
            assert sorted(matrix.patches.rows.flatten().tolist())[-lap.num_nodes :] == list(
                range(lap.num_nodes)
            )
        assert patchwise.reach(lap, patchwise.FARTHEST + 1) == lap.num_nodes


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["path", "grid", "hub", "disconnected"])
def test_nodes_of_a_block_come_last(name, dtype):
    """To what stays at a node, the largest term, little is added."""
    edge_index, n = GRAPHS[name]()
    lap = Laplacian(edge_index, num_nodes=n).to(DEVICE)
    entries, _, nodes, rows, spans = heat_patches(lap, 1.0, 3, dtype, 16).patches
    places = nodes.view(-1, patchwise.CHUNK)
    for block, begin, count, _ in spans.pieces.tolist():  # one to a block, of so few nodes
        there = (entries[begin : begin + count] != 0).any(1)
        reached = places[begin : begin + count][there].tolist()
        own = [node for node in rows[block].tolist() if node >= 0]
        assert sorted(reached[-len(own) :]) == sorted(own)
        assert len(set(reached)) == len(reached)


def test_what_is_kept_is_counted(served):
    """One symmetric matrix for float32, in two halves; one for each direction in 16 bits."""
    for normalization, dtype, size in (
        *(("rw", torch.float32, 4), ("sym", torch.float32, 4)),
        *(("rw", torch.float16, 4), ("sym", torch.float16, 2)),
    ):
        lap = laplacian("path", normalization)
        x = torch.randn(150, 2, device=DEVICE).to(dtype)
        diffuse(x, lap, 0.3, method="dense")
        ((form, matrix),) = lap.kernels.items()
        assert isinstance(matrix, PatchMatrix)
        assert form.dtype == dtype
        assert matrix.num_bytes == size * matrix.patches.entries.numel()
        assert matrix.adjoint().adjoint().patches is matrix.patches
        assert (matrix.before is None) == (normalization == "sym" or dtype != torch.float32)


def test_rows_of_a_block(served):
    lap = laplacian("grid")
    few, many = form_of(lap, 0.1, 1e-5, torch.float32), form_of(lap, 30.0, 1e-5, torch.float32)
    assert (few.rows, many.rows) == (16, 32)
    assert form_of(laplacian("path"), 0.1, 1e-5, torch.bfloat16).rows == 16
    whole = form_of(lap, 30.0, 1e-5, torch.bfloat16)
    assert (whole.rows, whole.dtype) == (0, torch.bfloat16)
    fine = form_of(lap, 0.1, 7e-6, torch.float32)
    assert (fine.rows, fine.dtype) == (0, torch.float64)


def chosen(lap: Laplacian, dtype: torch.dtype = torch.float32) -> str:
    x = torch.zeros(lap.num_nodes, 256, device=DEVICE, dtype=dtype)
    return cheapest(costs_of(x, lap, Time.of(1.0, x.shape[1:]), Options(1e-5).for_precision(dtype)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_chain_takes_patches_and_a_small_world_does_not(dtype, served, monkeypatch):
    for name, value in {"ROWS": 64, "MORE_ROWS": 128, "CHUNK": 32, "MANY": 2048}.items():
        monkeypatch.setattr(patchwise, name, value)
    chain = Laplacian(edges_of(nx.path_graph(4000))[0]).to(DEVICE)
    with lasting():
        assert chosen(chain, dtype) == "dense"
        small_world = Laplacian(edges_of(nx.random_regular_graph(4, 4000, seed=0))[0]).to(DEVICE)
        assert chosen(small_world, dtype) == "chebyshev"


def test_graphs_that_come_once_have_no_kernels_formed(served, monkeypatch):
    monkeypatch.setattr(bunn.diffusion.auto, "_on_a_gpu", lambda lap: True)
    chain = Laplacian(edges_of(nx.path_graph(4000))[0]).to(DEVICE)
    names = [chosen(chain) for _ in range(bunn.diffusion.auto.PATIENCE + 1)]
    assert names == ["chebyshev"] * bunn.diffusion.auto.PATIENCE + ["dense"]
    fine = Options(2e-6)  # in float64, without blocks: a kernel as large as any
    other = Laplacian(edges_of(nx.path_graph(40))[0]).to(DEVICE)
    x = torch.zeros(40, 256, device=DEVICE)
    assert cheapest(costs_of(x, other, Time.of(1.0, x.shape[1:]), fine)) == "chebyshev"
    monkeypatch.setattr(bunn.diffusion.auto, "capturing", lambda lap: True)
    assert chosen(chain) == "chebyshev"  # nothing can be formed now
    diffuse(torch.randn(4000, 1, device=DEVICE), chain, 1.0, method="dense")
    assert chosen(chain) == "dense"


def test_what_was_said_to_last_is_taken_by_a_capture_that_follows(served, monkeypatch):
    monkeypatch.setattr(bunn.diffusion.auto, "_on_a_gpu", lambda lap: True)
    chain = Laplacian(edges_of(nx.path_graph(4000))[0]).to(DEVICE)
    x = torch.randn(4000, 256, device=DEVICE)
    with lasting():
        diffuse(x, chain, 1.0)
    assert len(served) == 1
    for module in (bunn.diffusion.auto, patchwise):
        monkeypatch.setattr(module, "capturing", lambda lap: True)
    diffuse(x, chain, 1.0)
    assert len(served) == 2


@pytest.mark.parametrize("normalization", ["rw", "sym"])
def test_a_capture_in_a_type_that_is_new_asks_the_device_nothing(
    normalization, served, monkeypatch
):
    chain = laplacian("path", normalization)
    for module in (bunn.diffusion.auto, patchwise):
        monkeypatch.setattr(module, "capturing", lambda lap: True)
    assert chosen(chain, torch.bfloat16) == "chebyshev"
    with lasting():
        assert bunn.diffusion.auto.choose_mean(chain, torch.bfloat16, 256) is None
    assert chain.patchwork.spread is None


def test_nothing_is_found_out_during_a_capture(served, monkeypatch):
    chain = laplacian("path")
    known = patchwise.reach(chain, 3)
    monkeypatch.setattr(patchwise, "capturing", lambda lap: True)
    assert patchwise.reach(chain, 3) == known < chain.num_nodes
    assert patchwise.reach(chain, 2) == chain.num_nodes
    assert set(chain.patchwork.reaches) == {3}


def test_a_checkpoint_computes_what_was_computed(served, monkeypatch):
    """It would refuse to save other tensors the second time, by another method."""
    monkeypatch.setattr(bunn.diffusion.auto, "_on_a_gpu", lambda lap: True)
    monkeypatch.setattr(bunn.diffusion.auto, "PATIENCE", 2)
    cheap = bunn.diffusion.auto.PATCHES._replace(dense=0.0, stack=0.0, move=0.0)
    monkeypatch.setattr(bunn.diffusion.auto, "PATCHES", cheap)
    chain = laplacian("path")
    layer = lambda x: torch.tanh(diffuse(x, chain, 1.0))  # noqa: E731
    x = torch.randn(150, 4, device=DEVICE, requires_grad=True)
    for _ in range(2):
        y = x
        for _ in range(3):
            y = checkpoint(layer, y, use_reentrant=False)
        (grad,) = torch.autograd.grad(y.sum(), x)
        assert not served
    (plain,) = torch.autograd.grad(layer(layer(layer(x))).sum(), x)
    assert served
    torch.testing.assert_close(grad, plain, rtol=0, atol=1e-5)


@pytest.mark.parametrize("normalization", ["rw", "sym"])
@pytest.mark.parametrize("time", [1.0, 30.0])
@pytest.mark.parametrize("graph", ["growing", "one heavy edge"])
def test_weights_of_all_sizes(graph, time, normalization, served):
    """Degrees that differ by far more than float16 can tell."""
    if graph == "growing":
        ends = torch.stack((torch.arange(19), torch.arange(1, 20)))
        weight = 10.0 ** torch.arange(19)
    else:
        ends = torch.stack((torch.zeros(301, dtype=torch.long), torch.arange(1, 302)))
        weight = torch.ones(301)
        weight[0] = 2.0**38
    edge_index, both = torch.cat((ends, ends.flip(0)), 1), torch.cat((weight, weight))
    lap = Laplacian(edge_index, both.double(), normalization=normalization).to(DEVICE)
    lap = lap.to(torch.float32)
    x = torch.rand(lap.num_nodes, 3, device=DEVICE)
    exact = diffuse(x.double(), lap, time, tol=1e-12, method="chebyshev")
    y = diffuse(x, lap, time, method="dense")
    assert len(served) == 1
    assert relative_error(y, exact, x, lap.to(torch.float64)) <= 1e-5
    narrow = form_of(lap, time, 1e-3, torch.float16)
    assert narrow.rows == 0 or normalization == "sym"


def test_other_makers_have_less_memory(served, monkeypatch):
    lap = laplacian("path")
    assert form_of(lap, 1.0, 1e-5, torch.float32).rows
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert not form_of(lap, 1.0, 1e-5, torch.float32).rows
