"""What every diffusion method promises; one that is added to METHODS is tested by being there."""

import math

import pytest
import torch

from bunn import Laplacian, diffuse, heat_kernel
from bunn.diffusion import METHODS
from tests.graphs import TIMES, ZOO, relative_error, zoo_kernel, zoo_laplacian

NORMALIZATIONS = ("rw", "sym")
#: Those that meet ``tol`` at any time; ``taylor`` and ``limit`` make promises of their own.
EXACT = ("auto", *(name for name in METHODS if name not in ("taylor", "limit")))
TAYLOR = {"method": "taylor", "degree": 5}
ALL = [*({"method": name} for name in EXACT), TAYLOR, {"method": "limit"}]


def features(lap: Laplacian, *shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(lap.num_nodes, *shape, dtype=torch.float64, generator=generator)


def name_of(options: dict) -> str:
    return options["method"]


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("graph", ZOO)
@pytest.mark.parametrize("method", EXACT)
def test_error_is_within_tol(method, graph, normalization):
    lap = zoo_laplacian(graph, normalization)
    x = features(lap, 4)
    for time in TIMES:
        reference = zoo_kernel(graph, normalization, time) @ x
        for tol in (1e-3, 1e-6, 1e-10):
            y = diffuse(x, lap, time, method=method, tol=tol)
            assert relative_error(y, reference, x, lap) <= tol, (time, tol)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("graph", ZOO)
def test_taylor_is_its_polynomial(graph, normalization):
    lap = zoo_laplacian(graph, normalization)
    x, matrix = features(lap, 4), lap.dense()
    for time in (0.0, 1e-3, 1.5, 10.0):
        for degree in (0, 1, 4, 8):
            term = total = x
            for k in range(1, degree + 1):
                term = -(time / k) * matrix @ term
                total = total + term
            y = diffuse(x, lap, time, method="taylor", degree=degree)
            torch.testing.assert_close(y, total, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("graph", ZOO)
def test_limit_holds_at_infinity_and_where_it_is_exact(graph, normalization):
    lap = zoo_laplacian(graph, normalization)
    x = features(lap, 4)
    y = diffuse(x, lap, math.inf, method="limit")
    assert relative_error(y, zoo_kernel(graph, normalization, math.inf) @ x, x, lap) <= 1e-10
    gap = lap.spectral_gap()
    late = 1.0 if math.isinf(gap) else 16 / gap  # exp(-16) = 1.1e-7
    reference = zoo_kernel(graph, normalization, late) @ x
    assert (
        relative_error(diffuse(x, lap, late, method="limit", tol=1e-6), reference, x, lap) <= 1e-6
    )
    if not math.isinf(gap):
        with pytest.raises(ValueError, match="method='limit' is off by"):
            diffuse(x, lap, 1 / gap, method="limit", tol=1e-6)


@pytest.mark.parametrize("graph", ZOO)
@pytest.mark.parametrize("options", ALL, ids=name_of)
def test_constants_stay_where_they_are(options, graph):
    """The rows of the random-walk kernel sum to one, isolated nodes included."""
    lap = zoo_laplacian(graph, "rw")
    ones = torch.ones(lap.num_nodes, 1, dtype=torch.float64)
    times = (math.inf,) if options["method"] == "limit" else (0.5, 20.0)
    for time in times:
        torch.testing.assert_close(
            diffuse(ones, lap, time, tol=1e-12, **options), ones, rtol=0, atol=1e-9
        )


def star(leaves: int) -> torch.Tensor:
    ends = torch.stack((torch.zeros(leaves, dtype=torch.long), torch.arange(1, leaves + 1)))
    return torch.cat((ends, ends.flip(0)), dim=1)


@pytest.mark.parametrize(
    "edge_index",
    [star(1500), (1 - torch.eye(600)).nonzero().T, star(11)],
    ids=["hub", "complete", "few"],
)
@pytest.mark.parametrize("method", [*EXACT, "limit"])
def test_sums_of_float32_do_not_add_up_their_roundings(method, edge_index):
    """Of features that are alike every term is rounded the same way: by torch, a sum of ``m`` is
    off by ``m / 4`` roundings."""
    lap, exact = Laplacian(edge_index), Laplacian(edge_index).to(torch.float64)
    generator = torch.Generator().manual_seed(0)
    levels = 0.5 + torch.rand(16, generator=generator)
    noise = torch.rand(lap.num_nodes, 16, generator=generator)
    x = torch.cat((levels.expand(lap.num_nodes, 16), noise), dim=1)
    x[: lap.num_nodes // 2, 8:16] = 0.0
    for time in (math.inf,) if method == "limit" else (1.0, 30.0, 160.0):
        reference = diffuse(x.double(), exact, time, tol=1e-12)
        y = diffuse(x, lap, time, method=method, tol=1e-5)
        for column in range(x.size(1)):
            apart = [part[:, column : column + 1].double() for part in (y, reference, x)]
            assert relative_error(*apart, exact) <= 1e-5, (time, column)


@pytest.mark.parametrize("hidden_by", ["vmap", "compiler"])
def test_sums_of_float32_at_times_that_are_hidden(hidden_by):
    lap = Laplacian(star(1500))
    x = torch.full((lap.num_nodes, 1), 0.7371)  # which stays as it is
    times = torch.tensor([1.0, 30.0])
    if hidden_by == "vmap":
        found = torch.func.vmap(lambda time: diffuse(x, lap, time))(times)
    else:
        torch._dynamo.reset()
        heat = torch.compile(lambda time: diffuse(x, lap, time), fullgraph=True, backend="eager")
        found = torch.stack([heat(time) for time in times])
    for y in found:
        assert relative_error(y.double(), x.double(), x.double(), lap) <= 1e-5


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("graph", ZOO)
@pytest.mark.parametrize("method", EXACT)
def test_semigroup(method, graph, normalization):
    """H(s) H(t) = H(s + t)."""
    lap = zoo_laplacian(graph, normalization)
    x = features(lap, 3)
    for s, t in ((0.3, 0.9), (2.0, 40.0)):
        twice = diffuse(
            diffuse(x, lap, t, method=method, tol=1e-12), lap, s, method=method, tol=1e-12
        )
        torch.testing.assert_close(
            twice, diffuse(x, lap, s + t, method=method, tol=1e-12), rtol=0, atol=1e-10
        )


@pytest.mark.parametrize("graph", ["grid", "disconnected", "weighted"])
@pytest.mark.parametrize("options", ALL, ids=name_of)
def test_permutation_equivariance(options, graph):
    lap = zoo_laplacian(graph, "rw")
    x = features(lap, 3)
    order = torch.randperm(lap.num_nodes, generator=torch.Generator().manual_seed(1))
    place = torch.argsort(order)
    moved = Laplacian(place[lap.edge_index], lap.edge_weight, lap.num_nodes)
    time = math.inf if options["method"] == "limit" else 3.0
    y = diffuse(x, lap, time, tol=1e-12, **options)
    torch.testing.assert_close(
        diffuse(x[order], moved, time, tol=1e-12, **options), y[order], rtol=0, atol=1e-11
    )


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("options", ALL, ids=name_of)
def test_is_linear_and_acts_on_columns_alone(options, normalization):
    lap = zoo_laplacian("weighted", normalization)
    x = features(lap, 2, 3, 2)
    time = math.inf if options["method"] == "limit" else 2.0
    y = diffuse(x, lap, time, **options)
    assert y.shape == x.shape
    torch.testing.assert_close(
        diffuse(x[:, 1, 2], lap, time, **options), y[:, 1, 2], rtol=0, atol=1e-12
    )
    z = diffuse(2 * x - x.flip(1), lap, time, **options)
    torch.testing.assert_close(z, 2 * y - y.flip(1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("graph", ["star", "disconnected", "weighted"])
@pytest.mark.parametrize("options", [o for o in ALL if o["method"] != "limit"], ids=name_of)
def test_one_time_per_column(options, graph, normalization):
    """Also where a time is zero, and where it is infinite beside finite ones."""
    lap = zoo_laplacian(graph, normalization)
    x = features(lap, 3, 2, 2)
    endless = () if options["method"] == "taylor" else (math.inf,)
    times = (0.0, 0.7, 2.0)[len(endless) :] + endless
    time = torch.tensor(times, dtype=torch.float64).view(3, 1, 1)
    y = diffuse(x, lap, time, tol=1e-12, **options)
    for index, t in enumerate(times):
        expected = diffuse(x[:, index], lap, t, tol=1e-12, **options)
        torch.testing.assert_close(y[:, index], expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("options", ALL, ids=name_of)
def test_gradients_by_features(options, normalization):
    lap = zoo_laplacian("bipartite", normalization)
    x = features(lap, 2).requires_grad_()
    time = math.inf if options["method"] == "limit" else 1.3

    def heat(x):
        return diffuse(x, lap, time, tol=1e-13, **options)

    assert torch.autograd.gradcheck(heat, (x,))
    assert torch.autograd.gradgradcheck(heat, (x,))
    assert torch.autograd.gradcheck(heat, (x,), check_forward_ad=True, check_backward_ad=False)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("shape", [(), (2, 1)], ids=["one", "per-bundle"])
@pytest.mark.parametrize("options", [o for o in ALL if o["method"] != "limit"], ids=name_of)
def test_gradients_by_time(options, shape, normalization):
    edge_index = torch.tensor([[0, 1, 1, 2, 2, 3, 3, 1], [1, 0, 2, 1, 3, 2, 1, 3]])
    lap = Laplacian(edge_index, num_nodes=5, normalization=normalization).to(torch.float64)
    x = features(lap, 2, 2).requires_grad_()
    time = (torch.rand(shape, dtype=torch.float64) + 0.4).requires_grad_()

    def heat(x, time):
        return diffuse(x, lap, time, tol=1e-13, **options)

    assert torch.autograd.gradcheck(heat, (x, time))
    assert torch.autograd.gradgradcheck(heat, (x, time))
    assert torch.autograd.gradcheck(heat, (x, time), check_forward_ad=True, check_backward_ad=False)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("options", ALL, ids=name_of)
def test_runs_under_torch_func(options, normalization):
    lap = zoo_laplacian("disconnected", normalization)
    x = features(lap, 2)
    time = math.inf if options["method"] == "limit" else 1.3

    def heat(x):
        return diffuse(x, lap, time, tol=1e-13, **options)

    identity = torch.eye(lap.num_nodes, dtype=torch.float64)
    kernel = heat(identity)
    jacobian = torch.func.jacrev(heat)(x)
    expected = torch.einsum("vu,ij->viuj", kernel, torch.eye(2, dtype=torch.float64))
    torch.testing.assert_close(jacobian, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(torch.func.jacfwd(heat)(x), expected, rtol=0, atol=1e-10)
    batch = torch.stack([x, 2 * x, x.flip(0)])
    each = torch.stack([heat(part) for part in batch])
    torch.testing.assert_close(torch.func.vmap(heat)(batch), each)
    sideways = torch.func.vmap(heat, in_dims=2, out_dims=2)(batch.movedim(0, 2))
    torch.testing.assert_close(sideways, each.movedim(0, 2))


@pytest.mark.parametrize("options", [o for o in ALL if o["method"] != "limit"], ids=name_of)
def test_vmap_over_times(options):
    lap = zoo_laplacian("star", "rw")
    x, times = features(lap, 3), torch.tensor([[0.2, 1.0, 3.0], [1.5, 0.0, 0.3]]).double()

    def heat(x, time):
        return diffuse(x, lap, time, tol=1e-13, **options)

    expected = torch.stack([heat(x, time) for time in times])
    torch.testing.assert_close(torch.func.vmap(heat, in_dims=(None, 0))(x, times), expected)
    both = torch.func.vmap(heat)(torch.stack([x, x]), times)
    torch.testing.assert_close(both, expected)
    one = torch.func.vmap(heat, in_dims=(None, 0))(x, times[:, 0])
    torch.testing.assert_close(one, torch.stack([heat(x, time) for time in times[:, 0]]))


@pytest.mark.parametrize("options", ALL, ids=name_of)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_is_rounded_once(options, dtype):
    """Sums are formed in float32 at least: the result is the rounding of the exact one."""
    lap = zoo_laplacian("grid", "rw")
    x = features(lap, 5).to(dtype)
    time = math.inf if options["method"] == "limit" else 2.0
    y = diffuse(x, lap, time, **options)
    reference = diffuse(x.double(), lap, time, **options)
    assert y.dtype == dtype
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(y.double(), reference, rtol=2 * eps, atol=max(eps / 8, 4e-6))


@pytest.mark.parametrize("options", ALL, ids=name_of)
@pytest.mark.parametrize("dynamic", [None, True])
def test_compiles_into_one_graph(options, dynamic):
    lap = zoo_laplacian("disconnected", "rw")
    time = math.inf if options["method"] == "limit" else 1.3
    torch._dynamo.reset()

    def loss(x):  # compiled, another method may be chosen
        once = diffuse(x.sin(), lap, time, tol=1e-13, **options)
        return diffuse(once, lap, time, tol=1e-13, **options).square().sum()

    x = features(lap, 3).requires_grad_()
    (expected,) = torch.autograd.grad(loss(x), x)
    value = torch.compile(loss, fullgraph=True, dynamic=dynamic, backend="aot_eager")(x)
    torch.testing.assert_close(value, loss(x))
    torch.testing.assert_close(torch.autograd.grad(value, x)[0], expected)


@pytest.mark.parametrize("options", [o for o in ALL if o["method"] != "limit"], ids=name_of)
def test_compiles_with_learned_times(options):
    lap = zoo_laplacian("disconnected", "sym")
    torch._dynamo.reset()

    def loss(x, log_time):
        return diffuse(x, lap, log_time.exp(), **options).square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for scale in (0.0, 2.0):  # a time that outgrows the first one needs a higher degree
        x = features(lap, 3).requires_grad_()
        log_time = (torch.tensor([-1.0, 0.0, 0.5]).double() + scale).requires_grad_()
        expected = torch.autograd.grad(loss(x, log_time), (x, log_time))
        found = torch.autograd.grad(compiled(x, log_time), (x, log_time))
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=2e-4)


@pytest.mark.parametrize("graph", ZOO)
def test_heat_kernel_is_the_kernel(graph):
    for normalization in NORMALIZATIONS:
        lap = zoo_laplacian(graph, normalization)
        for time in (0.0, 1.0, 100.0, math.inf):
            torch.testing.assert_close(
                heat_kernel(lap, time), zoo_kernel(graph, normalization, time), rtol=0, atol=1e-9
            )
