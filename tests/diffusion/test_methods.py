"""What is particular to one method: the choice, the caches, the refusals, the memory."""

import math
from itertools import product

import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bunn.diffusion.dense
from benchmarks import gpu_batches
from benchmarks.results import load
from bunn import Laplacian, diffuse
from bunn.diffusion import METHODS, Options, Time
from bunn.diffusion.auto import cheapest, costs_of, saturate
from tests.graphs import edges_of, graphs, relative_error, zoo_laplacian


def lap_of(graph: nx.Graph, **options) -> Laplacian:
    edge_index, n = edges_of(graph)
    return Laplacian(edge_index, num_nodes=n, **options)


def circulant(n: int, reach: int) -> Laplacian:
    """Every node of a ring joined to those at most ``reach`` away (networkx takes seconds)."""
    v = torch.arange(n).repeat(2 * reach)
    steps = torch.cat((torch.arange(-reach, 0), torch.arange(1, reach + 1)))
    return Laplacian(torch.stack((v, (v + steps.repeat_interleave(n)) % n)), num_nodes=n)


def choice(lap: Laplacian, columns: int, time: float | torch.Tensor, tol: float = 1e-5) -> str:
    x = torch.zeros(lap.num_nodes, columns)
    saturated = saturate(Time.of(time, x.shape[1:]), lap, tol)
    return (
        "limit"
        if saturated.lower == math.inf
        else cheapest(costs_of(x, lap, saturated, Options(tol)))
    )


@given(
    graph=graphs(),
    normalization=st.sampled_from(["rw", "sym"]),
    time=st.one_of(st.just(0.0), st.just(math.inf), st.floats(1e-6, 1e6)),
    tol=st.sampled_from([1e-2, 1e-5, 1e-9]),
    shape=st.lists(st.integers(1, 3), max_size=3),
)
def test_methods_agree_on_any_graph(graph, normalization, time, tol, shape):
    lap = Laplacian(*graph, normalization=normalization).to(torch.float64)
    x = torch.randn(lap.num_nodes, *shape, dtype=torch.float64)
    exact = diffuse(x, lap, time, method="spectral", tol=1e-14)
    for method in ("auto", "chebyshev", "dense"):
        y = diffuse(x, lap, time, method=method, tol=tol)
        assert y.shape == x.shape
        rounding = 2**-51 * time if time < math.inf else 0.0  # of the operator, in both
        assert relative_error(y, exact, x, lap) <= tol * (1 + 1e-6) + rounding


# --- auto ---------------------------------------------------------------------------------------


def test_auto_takes_the_limit_when_it_is_exact():
    lap = lap_of(nx.complete_graph(30))
    assert choice(lap, 8, math.inf) == "limit"
    assert choice(lap, 8, 1e5) == "limit"
    assert choice(lap_of(nx.path_graph(400)), 8, 1e4) != "limit"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_auto_forms_kernels_where_tensor_cores_multiply_them(dtype, monkeypatch):
    monkeypatch.setattr("bunn.diffusion.auto.on_tensor_cores", lambda lap: True)
    sparse, dense = circulant(5000, 2), circulant(5000, 60)
    x, chosen = torch.zeros(5000, 512, dtype=dtype), {}
    for time in (1.0, 30.0):
        for lap in (sparse, dense):
            options = Options(1e-5).for_precision(dtype)
            chosen[time, lap] = cheapest(costs_of(x, lap, Time.of(time, x.shape[1:]), options))
    narrow = dtype.itemsize == 2  # others are multiplied in float64
    assert chosen == {
        (1.0, sparse): "chebyshev",
        (1.0, dense): "dense",
        (30.0, sparse): "dense" if narrow else "chebyshev",
        (30.0, dense): "dense",
    }


@pytest.mark.parametrize("name", gpu_batches.batches())
def test_auto_takes_what_was_fast_on_batches(name, monkeypatch):
    for on in ("on_tensor_cores", "in_place"):
        monkeypatch.setattr(f"bunn.diffusion.auto.{on}", lambda lap: True)
    edge_index, n = gpu_batches.batches()[name]
    lap = Laplacian(edge_index, num_nodes=n)
    lap.block_spectrum()
    for row in load("gpu_batches")["rows"]:
        if row["batch"] == name:
            x = torch.empty(n, gpu_batches.CHANNELS, dtype=getattr(torch, row["dtype"]))
            options = Options(1e-5).for_precision(x.dtype)
            chosen = cheapest(costs_of(x, lap, Time.of(row["time"], x.shape[1:]), options))
            taken = {gpu_batches.METHODS[form]: ms for form, ms in row["milliseconds"].items()}
            assert taken[chosen] <= 1.1 * min(taken.values()), row


def test_auto_finds_out_quickly_that_a_graph_has_not_relaxed():
    """A long path has a gap of 1e-8 that no eigensolver should be asked for."""
    lap = lap_of(nx.disjoint_union(nx.path_graph(20_000), nx.empty_graph(500)))
    x = torch.randn(lap.num_nodes, 2)
    assert choice(lap, 2, 3000.0) == "chebyshev"
    assert lap.known_spectral_gap is None
    assert lap.relaxation[1e-5][0] == 3000.0
    assert diffuse(x, lap, 3000.0).isfinite().all()


def test_auto_at_the_limit_asks_for_no_eigenvalues(monkeypatch):
    monkeypatch.setattr("bunn.graph.spectrum.smallest_nonzero", None)
    lap = lap_of(nx.random_regular_graph(5, 3000, seed=0))
    x = torch.randn(3000, 2)
    torch.testing.assert_close(diffuse(x, lap, 1e6), diffuse(x, lap, math.inf))


@given(graph=graphs(), time=st.floats(1e3, 1e12), tol=st.sampled_from([1e-3, 1e-8]))
def test_auto_at_very_large_times(graph, time, tol):
    lap = Laplacian(*graph).to(torch.float64)
    x = torch.randn(lap.num_nodes, 2, dtype=torch.float64)
    exact = diffuse(x, lap, time, method="spectral", tol=1e-14)
    fresh = Laplacian(*graph).to(torch.float64)
    assert relative_error(diffuse(x, fresh, time, tol=tol), exact, x, lap) <= tol


def test_auto_forms_kernels_of_small_graphs_only():
    small = lap_of(nx.cycle_graph(20))
    batch = lap_of(nx.disjoint_union_all([nx.cycle_graph(20)] * 50))
    large = lap_of(nx.random_regular_graph(4, 6000, seed=0))
    assert choice(small, 16, 10.0) == "dense"
    assert choice(batch, 16, 10.0) == "dense"
    assert choice(large, 16, 10.0) == "chebyshev"


def test_auto_uses_a_spectrum_that_is_there():
    lap = lap_of(nx.random_regular_graph(3, 300, seed=0))
    learned = torch.tensor([900.0], requires_grad=True)
    assert choice(lap, 64, learned) == "chebyshev"
    lap.block_spectrum()
    assert choice(lap, 64, learned) == "spectral"


def test_spectral_uses_a_block_spectrum_of_any_size(monkeypatch):
    monkeypatch.setattr("bunn.diffusion.spectral.FULL_SIZE", 10)
    monkeypatch.setattr("bunn.graph.spectrum.lowest_eigenpairs", None)
    lap = lap_of(nx.cycle_graph(30))
    lap.block_spectrum()
    assert diffuse(torch.randn(30, 2), lap, 1.0, method="spectral").isfinite().all()


def test_auto_does_not_let_a_learned_time_lose_its_gradient():
    lap = lap_of(nx.complete_graph(10))
    time = torch.tensor(50.0, dtype=torch.float64, requires_grad=True)
    x = torch.randn(10, 2, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(diffuse(x, lap, time, tol=1e-3).sin().sum(), time)
    assert gradient != 0


# --- dense --------------------------------------------------------------------------------------


def test_dense_forms_a_kernel_once():
    lap = lap_of(nx.cycle_graph(8)).to(torch.float64)
    x = torch.randn(8, 2, dtype=torch.float64)
    diffuse(x, lap, 2.0, method="dense")
    (kernel,) = lap.kernels.values()
    diffuse(x, lap, 2.0, method="dense")
    assert next(iter(lap.kernels.values())) is kernel


def test_dense_drops_the_least_used_kernel(monkeypatch):
    monkeypatch.setattr(bunn.diffusion.dense, "KERNEL_BYTES", 2 * 8 * 8 * 8)  # two kernels
    lap = lap_of(nx.cycle_graph(8)).to(torch.float64)
    x = torch.randn(8, 2, dtype=torch.float64)
    for time in (1.0, 2.0, 1.0, 3.0):
        diffuse(x, lap, time, method="dense")
    assert [time for time, *_ in lap.kernels] == [1.0, 3.0]


def test_dense_holds_a_batch_block_by_block():
    lap = lap_of(nx.disjoint_union_all([nx.path_graph(s) for s in (3, 5, 3, 1)])).to(torch.float64)
    x = torch.randn(12, 2, dtype=torch.float64)
    diffuse(x, lap, 1.0, method="dense")
    (stacks,) = lap.kernels.values()
    assert [tuple(stack.shape) for stack in stacks] == [(1, 1, 1), (2, 3, 3), (1, 5, 5)]


def test_dense_and_chebyshev_are_one_polynomial():
    """So which of them ``auto`` picks, for a batch or for its graphs, changes nothing."""
    parts = [nx.path_graph(9), nx.star_graph(4), nx.empty_graph(2)]
    lap = lap_of(nx.disjoint_union_all(parts)).to(torch.float64)
    x = torch.randn(lap.num_nodes, 3, dtype=torch.float64)
    loose = [diffuse(x, lap, 2.0, method=m, tol=1e-2) for m in ("dense", "chebyshev", "auto")]
    torch.testing.assert_close(loose[0], loose[1], rtol=0, atol=1e-13)
    torch.testing.assert_close(loose[0], loose[2], rtol=0, atol=1e-13)


# --- spectral -----------------------------------------------------------------------------------


def test_spectral_refuses_to_miss_tol():
    lap = zoo_laplacian("grid", "sym")
    x = torch.randn(lap.num_nodes, 2, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"num_eigs=5 leaves an error of .* at time=1, more than"):
        diffuse(x, lap, 1.0, method="spectral", num_eigs=5)
    late = diffuse(x, lap, 500.0, method="spectral", num_eigs=10)
    assert relative_error(late, diffuse(x, lap, 500.0, tol=1e-12), x, lap) <= 1e-5
    with pytest.raises(ValueError, match="num_eigs=5 leaves an error"):
        diffuse(x, lap, torch.tensor([500.0, 1.0]), method="spectral", num_eigs=5)


def test_spectral_accepts_a_truncation_that_is_asked_for():
    lap = zoo_laplacian("grid", "sym")
    x = torch.randn(lap.num_nodes, 2, dtype=torch.float64)
    values, vectors = lap.spectrum(5)
    y = diffuse(x, lap, 1.0, method="spectral", num_eigs=5, tol=math.inf)
    torch.testing.assert_close(y, vectors @ (torch.exp(-values)[:, None] * (vectors.T @ x)))


def test_spectral_extends_until_tol_is_met(monkeypatch):
    monkeypatch.setattr("bunn.diffusion.spectral.FULL_SIZE", 10)
    lap = lap_of(nx.grid_2d_graph(20, 20)).to(torch.float64)
    x = torch.randn(400, 2, dtype=torch.float64)
    for time in (1.0, 30.0):
        y = diffuse(x, lap, time, method="spectral", tol=1e-6)
        assert relative_error(y, diffuse(x, lap, time, tol=1e-12), x, lap) <= 1e-6


# --- arguments ----------------------------------------------------------------------------------

BAD_CALLS = {
    "negative time": ({"time": -1.0}, ValueError, "time=-1.0; it must be a number >= 0"),
    "NaN time": ({"time": math.nan}, ValueError, "time=nan; it must be"),
    "negative times": ({"time": torch.tensor([1.0, -2.0])}, ValueError, "time holds -2.0"),
    "NaN times": ({"time": torch.tensor([1.0, math.nan])}, ValueError, "time holds nan"),
    "integer times": ({"time": torch.tensor([1, 2])}, TypeError, "time has dtype torch.int64"),
    "times of another shape": ({"time": torch.ones(3)}, ValueError, r"time has shape \(3,\)"),
    "a word": ({"time": "long"}, TypeError, "time is a str"),
    "taylor without degree": ({"method": "taylor"}, ValueError, "method='taylor' needs degree=K"),
    "zero tol": ({"tol": 0.0}, ValueError, "tol=0.0; it must be positive"),
    "negative tol": ({"tol": -1e-3}, ValueError, "tol=-0.001; it must be positive"),
    "NaN tol": ({"tol": math.nan}, ValueError, "tol=nan; it must be positive"),
    "unknown method": (
        {"method": "euler"},
        ValueError,
        r"method='euler' is unknown; use 'auto' or one of \['taylor', 'chebyshev', "
        r"'uniformization', 'spectral', 'dense', 'limit'\]",
    ),
    "taylor at infinity": (
        {"method": "taylor", "degree": 3, "time": math.inf},
        ValueError,
        "time is inf, where a Taylor polynomial is too",
    ),
    "negative degree": ({"method": "taylor", "degree": -1}, ValueError, "degree=-1"),
    "fractional degree": ({"method": "taylor", "degree": 1.5}, ValueError, "degree=1.5"),
    "degree for auto": ({"degree": 4}, ValueError, "degree=4 is not used by method='auto'"),
    "num_eigs for auto": ({"num_eigs": 4}, ValueError, "num_eigs=4 is not used by method='auto'"),
    "no eigenpairs": ({"method": "spectral", "num_eigs": 0}, ValueError, "num_eigs=0"),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_arguments(case):
    options, error, message = BAD_CALLS[case]
    lap = zoo_laplacian("star", "rw")
    arguments = {"time": 1.0, **options}
    with pytest.raises(error, match=message):
        diffuse(torch.ones(lap.num_nodes, 2), lap, **arguments)


def test_not_a_laplacian():
    with pytest.raises(TypeError, match=r"lap is a Tensor; build it once with bunn\.Laplacian"):
        diffuse(torch.ones(3, 2), torch.zeros(2, 0).long(), 1.0)
    with pytest.raises(TypeError, match="x is a list"):
        diffuse([[1.0]], zoo_laplacian("single", "rw"), 1.0)


def test_bad_times_in_compiled_code_are_found_as_well():
    lap = zoo_laplacian("star", "rw")
    x = torch.ones(lap.num_nodes, 2)
    lap = lap.matching(x)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, t: diffuse(x, lap, t), fullgraph=True, backend="aot_eager")
    with pytest.raises(ValueError, match="times must be non-negative and finite"):
        compiled(x, torch.tensor([1.0, -1.0]))


@pytest.mark.parametrize("method", ["chebyshev", "dense", "spectral", "uniformization"])
def test_many_gradients_at_once(method):
    lap = zoo_laplacian("weighted", "rw").to(torch.float64)
    x = torch.randn(lap.num_nodes, 2, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian
    function = lambda x: diffuse(x, lap, 1.0, method=method)  # noqa: E731
    torch.testing.assert_close(jacobian(function, x, vectorize=True), jacobian(function, x))
    aggregate = lambda x: lap.aggregate(x).square()  # noqa: E731
    torch.testing.assert_close(jacobian(aggregate, x, vectorize=True), jacobian(aggregate, x))


def test_empty_features():
    lap = zoo_laplacian("star", "rw")
    for method in ("auto", *METHODS):
        degree = 3 if method == "taylor" else None
        time = math.inf if method == "limit" else 1.0
        y = diffuse(torch.ones(lap.num_nodes, 0), lap, time, method=method, degree=degree)
        assert y.shape == (lap.num_nodes, 0)


def test_zero_time_gives_the_features_back_but_not_the_same_tensor():
    lap = zoo_laplacian("weighted", "rw")
    x = torch.randn(lap.num_nodes, 2)
    y = diffuse(x, lap, 0.0)
    assert torch.equal(x, y)
    assert x.data_ptr() != y.data_ptr()


# --- memory and precision -----------------------------------------------------------------------


def saved_bytes(function) -> int:
    """Bytes that a forward pass keeps for its backward pass."""
    kept: dict[int, int] = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function()
    return sum(kept.values())


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("method", ["chebyshev", "taylor"])
def test_nothing_of_the_recurrence_is_stored(method, learned):
    lap = lap_of(nx.cycle_graph(50))
    x = torch.randn(50, 40, requires_grad=True)
    time = torch.full((40,), 2.0, requires_grad=True) if learned else 2.0
    few, many = (
        saved_bytes(lambda d=d: diffuse(x, lap, time, method=method, degree=d)) for d in (8, 64)
    )
    assert few == many


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_keeps_features_of_16_bits_and_sums_in_float32(dtype):
    lap = lap_of(nx.complete_graph(300))
    x = torch.randn(300, 4).to(dtype)
    with torch.autocast("cpu", dtype=dtype):
        half = diffuse(x, lap, 0.5)
        taylor = diffuse(x, lap, 0.5, method="taylor", degree=16)
        full = diffuse(x.float(), lap, 0.5)
    assert half.dtype == dtype
    assert full.dtype == torch.float32
    exact, eps = diffuse(x.double(), lap, 0.5, tol=1e-12), torch.finfo(dtype).eps
    # What has no tolerance is rounded once, and nothing more; what has one takes its share.
    torch.testing.assert_close(taylor.double(), exact, rtol=eps / 2, atol=1e-6)
    once = (exact.to(dtype).double() - exact).norm(dim=0)
    off = (half.double() - exact).norm(dim=0)
    assert (off <= once + eps / 16 * x.double().norm(dim=0)).all()


@pytest.mark.parametrize("method", ["chebyshev", "auto"])
def test_backward_inside_autocast(method):
    lap = lap_of(nx.random_regular_graph(3, 3000, seed=0))
    x = torch.randn(3000, 2, requires_grad=True)
    (expected,) = torch.autograd.grad(diffuse(x, lap, 1.0, method=method).square().sum(), x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (found,) = torch.autograd.grad(diffuse(x, lap, 1.0, method=method).square().sum(), x)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("method", ["auto", "chebyshev", "spectral", "dense"])
def test_inference_first_and_training_after(method):
    """As a sanity check of the validation loop does."""
    lap = lap_of(nx.cycle_graph(12))
    x = torch.randn(12, 2)
    with torch.inference_mode():
        expected = diffuse(x, lap, 1.0, method=method)
        diffuse(x.double(), lap, 1.0, method=method)
    for dtype in (torch.float32, torch.float64):
        z = x.clone().to(dtype).requires_grad_()
        y = diffuse(z, lap, 1.0, method=method)
        y.sum().backward()
        assert z.grad.isfinite().all()
    torch.testing.assert_close(y.detach().float(), expected.clone(), rtol=0, atol=1e-4)


def test_gradients_of_a_batch_of_times():
    """vmap(grad(...)): every level of the transforms is looked through."""
    lap = zoo_laplacian("star", "rw")
    x = torch.randn(lap.num_nodes, 3, dtype=torch.float64)
    times = torch.tensor([0.3, 2.0, 7.0], dtype=torch.float64)
    loss = lambda t: diffuse(x, lap, t, tol=1e-12).square().sum()  # noqa: E731
    found = torch.func.vmap(torch.func.grad(loss))(times)
    torch.testing.assert_close(found, torch.stack([torch.func.grad(loss)(t) for t in times]))
    with pytest.raises(ValueError, match="method='limit' needs to know the times"):
        torch.func.vmap(lambda t: diffuse(x, lap, t, method="limit"))(times)
    with pytest.raises(ValueError, match="method='spectral' with tol needs to know the times"):
        torch.func.vmap(lambda t: diffuse(x, lap, t, method="spectral", num_eigs=3))(times)


@pytest.mark.parametrize("time", [80.0, 1e2, 165.0, 1.3e3, 1e4, 1e6])
@pytest.mark.parametrize("graph", ["grid", "star", "ring"])
def test_float32_meets_tol_at_large_times(graph, time):
    """Rounding the operator moves heat by t * eps; that must not be seen."""
    if graph == "ring":  # weights from 1e-4 to 1e4: a tiny gap
        edge_index, n = edges_of(nx.cycle_graph(20))
        exponent = ((edge_index.sum(0) * 7) % 9 - 4).double()
        lap = Laplacian(edge_index, 10**exponent, n)
    else:
        lap = lap_of(nx.grid_2d_graph(4, 5) if graph == "grid" else nx.star_graph(1000))
    fresh = Laplacian(lap.edge_index, lap.edge_weight, lap.num_nodes)
    columns, largest = [0, 2, 3], int(lap.edge_index[0].bincount().max())
    methods = ["auto"] if time > 1e4 else ["auto", "chebyshev"]
    for seed in range(8):
        x = torch.randn(lap.num_nodes, 4, generator=torch.Generator().manual_seed(seed))
        exact = diffuse(x.double(), lap, time, method="spectral")
        learned = torch.full((4,), time, requires_grad=True)
        times = (time, learned, torch.tensor([time, 1.0, time, time]))
        for method, t in product(methods, times):  # on a graph whose spectrum is not known yet
            y = diffuse(x, fresh, t, tol=1e-5, method=method).detach()
            error = relative_error(y[:, columns], exact[:, columns], x[:, columns], lap)
            assert error <= 1e-5 + largest * 1.2e-7


def test_weights_of_any_size_give_the_same():
    edge_index, n = edges_of(nx.barbell_graph(4, 2))
    x = torch.randn(n, 3)
    for time in (1.0, 1e5, math.inf):
        for method in ("auto", "chebyshev", "spectral", "dense"):
            expected = diffuse(x, Laplacian(edge_index), time, method=method)
            for size in (1e-200, 1e-80, 1e80, 1e200):
                weight = torch.full((edge_index.size(1),), size, dtype=torch.float64)
                y = diffuse(x, Laplacian(edge_index, weight), time, method=method)
                torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)


def test_mixtures_of_small_and_huge_times_are_cheap():
    lap = lap_of(nx.grid_2d_graph(4, 5)).to(torch.float64)
    x = torch.randn(20, 128, dtype=torch.float64)
    times = torch.tensor([1.0, 1e9] * 64, dtype=torch.float64)
    y = diffuse(x, lap, times)
    torch.testing.assert_close(y[:, ::2], diffuse(x[:, ::2], lap, 1.0), rtol=0, atol=1e-4)
    mean = diffuse(x[:, 1::2], lap, math.inf)
    torch.testing.assert_close(y[:, 1::2], mean, rtol=0, atol=1e-4)
    late = torch.tensor([1e9, math.inf] * 64, dtype=torch.float64)
    torch.testing.assert_close(diffuse(x, lap, late, method="limit"), diffuse(x, lap, math.inf))


def test_non_contiguous_features():
    lap = zoo_laplacian("grid", "rw")
    x = torch.randn(5, lap.num_nodes, dtype=torch.float64).T
    torch.testing.assert_close(
        diffuse(x, lap, 2.0, method="chebyshev"), diffuse(x.contiguous(), lap, 2.0, method="dense")
    )


def test_wide_features_are_taken_in_panels(monkeypatch):
    monkeypatch.setattr("bunn.diffusion.polynomial.PANEL_BYTES", 1)
    lap = zoo_laplacian("grid", "rw")
    x = torch.randn(lap.num_nodes, 70, dtype=torch.float64)
    times = torch.rand(70, dtype=torch.float64) * 5
    y = diffuse(x, lap, times, method="chebyshev", tol=1e-12)
    torch.testing.assert_close(y, diffuse(x, lap, times, method="spectral"), rtol=0, atol=1e-11)
