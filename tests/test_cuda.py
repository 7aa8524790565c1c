"""What changes on a GPU: devices, streams, captures. Skipped where there is none."""

import contextlib
import copy
import math
import warnings

import pytest
import torch
from torch_geometric.utils import to_undirected

from bunn import BuNN, BuNNConv, FlatBundle, Laplacian, diffuse
from bunn.bundle import MAPS, num_map_params
from bunn.diffusion import METHODS, chebyshev_degree
from bunn.keeping import lasting
from bunn.nn import SAGEPhi, SumGNNPhi, refresh_times
from bunn.replay import captured
from tests.graphs import ZOO, relative_error, zoo_laplacian

pytestmark = pytest.mark.gpu

GRID, NODES = ZOO["grid"]()
OPTIONS = [{"method": name} for name in ("auto", *METHODS) if name != "taylor"]
OPTIONS.append({"method": "taylor", "degree": 6})


@contextlib.contextmanager
def waiting_is_an_error():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def time_for(options: dict) -> float:
    return math.inf if options["method"] == "limit" else 3.0


@pytest.mark.parametrize("graph", ZOO)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: o["method"])
def test_agrees_with_the_cpu(options, graph):
    for normalization in ("rw", "sym"):
        host = zoo_laplacian(graph, normalization)
        lap = host.to("cuda")
        x = torch.randn(host.num_nodes, 2, 3, dtype=torch.float64)
        expected = diffuse(x, host, time_for(options), tol=1e-10, **options)
        found = diffuse(x.cuda(), lap, time_for(options), tol=1e-10, **options)
        torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=1e-9)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            y = diffuse(x.to("cuda", dtype), lap, time_for(options), **options)
            assert y.dtype == dtype
            slack = max(2e-5, 8 * torch.finfo(dtype).eps) * max(1.0, float(expected.abs().max()))
            torch.testing.assert_close(y.double().cpu(), expected, rtol=0, atol=slack)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_graph_that_is_asked_for_often(dtype):
    """By polynomials for its eigenvalues, which are small, and the limit; captured, too."""
    ends = torch.randint(100_000, (2, 500_000), generator=torch.Generator().manual_seed(0))
    host = Laplacian(to_undirected(ends), num_nodes=100_000)
    lap = host.to("cuda")
    x = torch.randn(host.num_nodes, 16, device="cuda").to(dtype)
    x[:, 0] = 1
    low, high = lap.eigenpairs.between(lap)
    assert (low, high) == pytest.approx(tuple(host.eigenpairs.between(host)), abs=1e-3)
    for time in (1.0, 10.0, 100.0):
        exact = diffuse(x.double(), lap, time, method="chebyshev", tol=1e-12)
        with lasting():
            y = diffuse(x, lap, time)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                replayed = diffuse(x, lap, time)
        graph.replay()
        assert replayed.equal(y)
        bound = 1e-5 if dtype == torch.float32 else torch.finfo(dtype).eps
        assert relative_error(y, exact, x, lap) <= bound
        if time == 100.0:
            assert y.equal(diffuse(x, lap, math.inf))


@pytest.mark.parametrize("options", OPTIONS[:5], ids=lambda o: o["method"])
def test_gradients(options):
    lap = zoo_laplacian("bipartite", "rw").to("cuda")
    x = torch.randn(lap.num_nodes, 2, dtype=torch.float64, device="cuda", requires_grad=True)
    time = torch.tensor([0.4, 1.3], dtype=torch.float64, device="cuda", requires_grad=True)
    function = lambda x, t: diffuse(x, lap, t, tol=1e-13, **options)  # noqa: E731
    assert torch.autograd.gradcheck(function, (x, time))
    assert torch.autograd.gradgradcheck(function, (x, time))


def test_mixed_devices():
    lap, x = Laplacian(GRID), torch.randn(NODES, 4)
    with pytest.raises(ValueError, match="x is on cuda:0 and the Laplacian on cpu"):
        diffuse(x.cuda(), lap, 1.0)
    with pytest.raises(ValueError, match="time is on cuda:0 and x on cpu"):
        diffuse(x, lap, torch.ones(4, device="cuda"))
    with pytest.raises(ValueError, match="x is on cpu, the bundle on cuda:0"):
        FlatBundle(torch.zeros(NODES, 2, 1, device="cuda")).sync(x)
    with pytest.raises(ValueError, match="x is on cuda:0 and the Laplacian on cpu"):
        BuNNConv(4, 4).cuda()(x.cuda(), GRID)
    one = torch.tensor(1.0)  # a single time may stay on the host
    diffuse(x.cuda(), lap.to("cuda"), one)


@pytest.mark.parametrize("maps", MAPS)
def test_maps(maps):
    d = (MAPS[maps].dims or (3,))[0]
    params = torch.randn(50, 4, num_map_params(maps, d), device="cuda")
    x = torch.randn(50, 4 * d * 2, device="cuda")
    bundle = FlatBundle(params, maps, d)
    torch.testing.assert_close(bundle.desync(bundle.sync(x)), x, rtol=1e-4, atol=1e-5)
    on_host = FlatBundle(params.cpu(), maps, d).sync(x.cpu())
    torch.testing.assert_close(bundle.sync(x).cpu(), on_host, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"time": 1.0},
        {"time": math.inf},
        {"time": (0.5, 20.0)},
        {"time": (0.5, math.inf)},
        {"time": 1.0, "learn_time": True},
        {"time": (0.5, 20.0), "learn_time": True},
        {"maps": "rotation", "update": "mlp-concat"},
        {"maps": "householder", "bundle_dim": 2},
        {"maps": "cayley", "bundle_dim": 4},
        {"method": "spectral"},
        {"method": "dense"},
    ],
    ids=str,
)
@pytest.mark.parametrize("phi", [None, SumGNNPhi, SAGEPhi])
def test_a_training_step_never_waits_for_the_device(options, phi):
    lap, x = Laplacian(GRID).to("cuda"), torch.randn(NODES, 8, device="cuda")
    size = 2 * num_map_params(options.get("maps", "o2"), options.get("bundle_dim", 2))
    network = None if phi is None else phi(8, size)
    conv = BuNNConv(8, 8, num_bundles=2, phi=network, **options).cuda()
    conv(x, lap).sum().backward()  # the first call looks at the times
    with waiting_is_an_error():
        conv(x, lap).sum().backward()


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")
def test_compiles_into_one_graph():
    torch._dynamo.reset()
    model = BuNN(3, 8, 2, 4, num_bundles=2, learn_time=True, phi="sage").cuda()
    lap, x = Laplacian(GRID).to("cuda"), torch.randn(NODES, 3, device="cuda")
    compiled = torch.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(x, lap), model(x, lap), rtol=1e-3, atol=1e-4)
    compiled(x, lap).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")
@pytest.mark.parametrize("learn_time", [False, True])
def test_cuda_graph(learn_time):
    """Forward and backward captured once, replayed on new features and new times."""
    lap, x = Laplacian(GRID).to("cuda"), torch.randn(NODES, 8, device="cuda")
    conv = BuNNConv(8, 8, num_bundles=2, time=(0.5, 8.0), learn_time=learn_time).cuda()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            conv.zero_grad(set_to_none=False)
            conv(x, lap).square().sum().backward()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    conv.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph, stream=stream):
        y = conv(x, lap)
        y.square().sum().backward()
    x.copy_(torch.randn_like(x))
    if learn_time:
        with torch.no_grad():
            conv.time.log_time.add_(0.3)  # below the bound, which is twice the start
    graph.replay()
    replayed = {name: p.grad.clone() for name, p in conv.named_parameters()}
    result = y.clone()
    conv.zero_grad(set_to_none=True)
    eager = conv(x, lap)
    eager.square().sum().backward()
    torch.testing.assert_close(result, eager, rtol=1e-4, atol=1e-4)
    for name, parameter in conv.named_parameters():
        torch.testing.assert_close(replayed[name], parameter.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")
def test_a_loop_of_ones_own():
    """A captured step trains as the step itself does, on whatever is written into its tensors."""
    lap = Laplacian(GRID).to("cuda")
    torch.manual_seed(0)
    batches = torch.randn(6, NODES, 8, device="cuda")
    x, losses = batches[0].clone(), {}
    model = BuNN(8, 16, 2, 1, num_bundles=4).cuda()
    start = copy.deepcopy(model.state_dict())
    for wanted in (False, True):
        model.load_state_dict(start)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, capturable=True)

        def step(optimizer=optimizer):
            optimizer.zero_grad()
            loss = (model(x, lap) - x.mean(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()  # a graph that lives on has nodes of the stream of its step

        x.copy_(batches[0])
        if wanted:
            replay = captured(step)
        else:
            replay = step
            for _ in range(3):
                step()
        found = []
        for batch in batches:
            x.copy_(batch)
            found.append(replay().clone())
        losses[wanted] = torch.stack(found)
    torch.testing.assert_close(losses[True], losses[False], rtol=1e-3, atol=1e-4)


def test_a_step_that_runs_elsewhere_is_not_captured():
    x, lap = torch.randn(NODES, 8), Laplacian(GRID)
    conv = BuNNConv(8, 8)
    with pytest.raises(ValueError, match="move the model and its inputs there"):
        captured(lambda: conv(x, lap))


def test_bound_on_learned_times_is_raised():
    conv = BuNNConv(8, 8, num_bundles=2, time=1.0, learn_time=True).cuda()
    columns = torch.Size((2, 2, 1))
    assert conv.time.per_column(columns).degree == chebyshev_degree(2.0, 1e-5)
    with torch.no_grad():
        conv.time.log_time.fill_(math.log(50.0))
    refresh_times(conv)
    assert conv.time.per_column(columns).degree == pytest.approx(
        chebyshev_degree(100.0, 1e-5), abs=1
    )
    lap = zoo_laplacian("grid", "rw")
    x = torch.randn(NODES, 8)
    expected = conv.cpu()(x, lap)
    found = conv.cuda()(x.cuda(), lap.to("cuda"))
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=1e-4)


def test_bound_follows_parameters_that_are_exchanged():
    """By load_state_dict(assign=True) or functional_call, the version of a tensor says nothing."""
    lap, x = Laplacian(GRID).to("cuda"), torch.randn(NODES, 8, device="cuda")
    conv = BuNNConv(8, 8, num_bundles=2, learn_time=True).cuda()
    conv(x, lap)
    late = torch.full((2,), math.log(200.0), device="cuda")
    params = {**dict(conv.named_parameters()), "time.log_time": late}
    found = torch.func.functional_call(conv, params, (x, lap))
    conv.load_state_dict({**conv.state_dict(), "time.log_time": late}, assign=True)
    exact = conv.cpu().double()(x.cpu().double(), Laplacian(GRID))
    torch.testing.assert_close(found.cpu().double(), exact, rtol=1e-3, atol=1e-3)
    again = conv.float().cuda()(x, lap)
    torch.testing.assert_close(again, found, rtol=1e-3, atol=1e-3)


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_capture_without_a_bound_explains_itself():
    lap = Laplacian(GRID).to("cuda")
    x, time = torch.randn(NODES, 2, device="cuda"), torch.ones(2, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="a CUDA graph is being captured"):  # noqa: SIM117
        with torch.cuda.graph(graph):
            diffuse(x, lap, time)


def test_spectrum_and_pickle():
    lap = zoo_laplacian("disconnected", "rw").to("cuda")
    values, vectors = lap.spectrum(6)
    assert values.is_cuda
    assert vectors.is_cuda
    assert lap.block_spectrum().values[0].is_cuda
    x = torch.randn(lap.num_nodes, 2, device="cuda")
    back = lap.to("cpu")
    here, there = diffuse(x.cpu(), back, 2.0), diffuse(x, lap, 2.0).cpu()
    assert relative_error(there, here, x.cpu(), back) <= 2e-5  # twice tol: by two methods
