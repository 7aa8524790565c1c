"""The public functions through the kernels give what they give through torch."""

from types import SimpleNamespace

import networkx as nx
import pytest
import torch

from bunn import Laplacian, diffuse, kernels
from bunn.diffusion import Options, Time, chebyshev_degree, solve
from bunn.kernels.frame import Frame
from tests.graphs import ZOO, edges_of
from tests.kernels.test_walk import DEVICE


@pytest.fixture
def served(monkeypatch):
    """Counts what the kernels were asked for; a CPU asks them, too."""
    calls = []

    def watch(name):
        real = getattr(kernels, name)

        def call(*args):
            calls.append(name)
            return real(*args)

        monkeypatch.setattr(kernels, name, call)

    watch("product")
    watch("heat")
    return calls


def through_kernels(monkeypatch, wanted: bool) -> None:
    monkeypatch.setattr(kernels, "serve", lambda x, value: wanted and value.dtype == torch.float32)


def laplacian(**options) -> Laplacian:
    edge_index, n = ZOO["bipartite"]()
    return Laplacian(edge_index, num_nodes=n + 1, **options).to(DEVICE)


@pytest.mark.parametrize("normalization", ["rw", "sym"])
@pytest.mark.parametrize("times", ["one", "learned", "per bundle"])
def test_heat_and_its_derivatives(times, normalization, monkeypatch, served):
    lap = laplacian(normalization=normalization)
    field = torch.randn(lap.num_nodes, 2, 2, 1, device=DEVICE)
    weight = torch.randn_like(field)
    found = {}
    for wanted in (True, False):
        through_kernels(monkeypatch, wanted)
        x = field.clone().requires_grad_()
        t: float | torch.Tensor = 1.2
        if times != "one":
            t = torch.tensor([[[1.2]], [[0.4]]] if times == "per bundle" else 1.2, device=DEVICE)
            t.requires_grad_()
        y = diffuse(x, lap, t, method="chebyshev")
        leaves = [x] if isinstance(t, float) else [x, t]
        found[wanted] = (y, *torch.autograd.grad((weight * y).sum(), leaves))
    for mine, theirs in zip(found[True], found[False], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert served.count("heat") == 2  # there and back
    assert served.count("product") == (0 if times == "one" else 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("normalization", ["rw", "sym"])
def test_polynomials_for_a_spectrum_that_is_known(normalization, dtype, monkeypatch):
    through_kernels(monkeypatch, True)
    steps, real = [], kernels.heat
    monkeypatch.setattr(kernels, "heat", lambda *args: steps.append(args[2]) or real(*args))
    edge_index, n = edges_of(nx.random_regular_graph(6, 60, seed=0))
    lap = Laplacian(edge_index, num_nodes=n, normalization=normalization).to(DEVICE)
    x = torch.randn(n, 8, device=DEVICE).to(dtype)
    exact = diffuse(x.double(), lap, 6.0, method="chebyshev", tol=1e-12)
    for interval in (None, lap.eigenpairs.between(lap)):
        options = Options(1e-5, interval=interval)
        y = solve(x, lap, Time.of(6.0, x.shape[1:]), "chebyshev", options)
        bound = max(1e-5, 2 * torch.finfo(dtype).eps if dtype.itemsize == 2 else 0)
        assert float((y.double() - exact).norm() / x.double().norm()) <= bound
    plain, known = (sum(len(factor.steps) for factor in factors) for factors in steps)
    assert known < plain


@pytest.mark.parametrize(("time", "degree"), [(1.0, 8), (1.5, 4), (0.0, 3), (0.4, 1)])
def test_taylor_polynomials(time, degree, monkeypatch, served):
    lap = laplacian()
    field, found = torch.randn(lap.num_nodes, 6, device=DEVICE), {}
    for wanted in (True, False):
        through_kernels(monkeypatch, wanted)
        x = field.clone().requires_grad_()
        y = diffuse(x, lap, time, method="taylor", degree=degree)
        found[wanted] = (y, *torch.autograd.grad(y.square().sum(), x))
    assert served == ["heat", "heat"]
    for mine, theirs in zip(found[True], found[False], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("time", [0.7, 50.0])
def test_float64(time, monkeypatch, served):
    lap = laplacian().to(DEVICE, torch.float64)
    x = torch.randn(lap.num_nodes, 3, dtype=torch.float64, device=DEVICE, requires_grad=True)
    found = {}
    for wanted in (True, False):
        monkeypatch.setattr(kernels, "serve", lambda x, value, wanted=wanted: wanted)
        y = diffuse(x, lap, time, method="chebyshev", tol=1e-13)
        found[wanted] = (y, *torch.autograd.grad(y.square().sum(), x))
    for mine, theirs in zip(found[True], found[False], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
    assert served == ["heat", "heat"]


@pytest.mark.parametrize(
    ("time", "tol", "dtype"),
    [(100.0, 1e-5, torch.float32), (300.0, 1e-5, torch.float64), (300.0, 1e-6, torch.float64)],
)
def test_times_that_ask_for_float64(time, tol, dtype, monkeypatch):
    """On a path, where heat takes longest, rounded entries would move it by ``t * eps``."""
    heated, real = [], Frame.of

    def watched(x, rows, before, after, storage):
        heated.append((x.dtype, rows.value.dtype, storage))
        return real(x, rows, before, after, storage)

    monkeypatch.setattr(Frame, "of", watched)
    monkeypatch.setattr(kernels, "serve", lambda x, value: x.dtype == value.dtype)
    forth = torch.stack((torch.arange(29), torch.arange(1, 30)))
    lap = Laplacian(torch.cat((forth, forth.flip(0)), 1)).to(DEVICE)
    x = 1 + torch.randn(30, 2, device=DEVICE)
    y = diffuse(x, lap, time, method="chebyshev", tol=tol)
    values, vectors = lap.to(DEVICE, torch.float64).spectrum()
    root = lap.degree.double().sqrt().unsqueeze(1)
    exact = vectors * torch.exp(-time * values) @ (vectors.T @ (root * x))
    assert float((root * y - exact).norm() / (root * x).norm()) <= tol
    assert heated == [(dtype, dtype, dtype)]


@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_the_mean_of_the_neighbours(reduce, monkeypatch, served):
    lap = laplacian()
    x = torch.randn(lap.num_nodes, 5, device=DEVICE, requires_grad=True)
    found = {}
    for wanted in (True, False):
        through_kernels(monkeypatch, wanted)
        y = lap.aggregate(x, reduce)
        found[wanted] = (y, *torch.autograd.grad(y.square().sum(), x))
    for mine, theirs in zip(found[True], found[False], strict=True):
        torch.testing.assert_close(mine, theirs)
    assert served.count("product") == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("time", [1.0, 200.0])
def test_half_precision(time, dtype, monkeypatch):
    through_kernels(monkeypatch, True)
    lap = laplacian()
    x = torch.randn(lap.num_nodes, 2, device=DEVICE).to(dtype)
    y = diffuse(x, lap, time, method="chebyshev", tol=1e-3)
    exact = diffuse(x.double(), lap, time)
    assert y.dtype == dtype
    error = (y.double() - exact).norm() / x.double().norm()
    assert float(error) <= 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_no_more_digits_are_asked_for_than_there_are(dtype, monkeypatch):
    through_kernels(monkeypatch, True)
    asked = []
    real = chebyshev_degree
    degrees = {"chebyshev": lambda time, tol: asked.append(tol) or real(time, tol)}
    monkeypatch.setattr("bunn.diffusion.polynomial.DEGREES", degrees)
    lap = laplacian()
    diffuse(torch.ones(lap.num_nodes, 1, device=DEVICE, dtype=dtype), lap, 1.0, method="chebyshev")
    floor = 1e-5 if dtype == torch.float32 else torch.finfo(dtype).eps / 16
    assert asked == [pytest.approx(floor, rel=0.02)]


def array(dtype: torch.dtype = torch.float32, *, is_cuda: bool = True, size: int = 1) -> object:
    """What ``serve`` asks of a tensor, on a device that need not be there."""
    return SimpleNamespace(dtype=dtype, is_cuda=is_cuda, numel=lambda: size)


def test_what_kernels_serve(monkeypatch):
    monkeypatch.setattr(kernels, "wanted", lambda: True)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        assert kernels.serve(array(dtype), array())
    assert kernels.serve(array(torch.float64), array(torch.float64))
    for dtype in (torch.float64, torch.int64):
        assert not kernels.serve(array(dtype), array())
    assert not kernels.serve(array(is_cuda=False), array())
    for dtype in (torch.bfloat16, torch.float32):
        assert not kernels.serve(array(dtype), array(torch.float64))
    assert not kernels.serve(array(), array(size=2**31))
    monkeypatch.setattr(kernels, "wanted", lambda: False)
    assert not kernels.serve(array(), array())
