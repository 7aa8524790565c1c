import copy
import gc
import math
import pickle
import warnings

import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch_geometric.nn import GCN
from torch_geometric.utils import coalesce

import bunn.nn.conv
import bunn.sharing
from bunn import BuNNConv, FlatBundle, Laplacian, diffuse, heat_kernel, num_map_params
from bunn.bundle import MAPS
from bunn.nn import UPDATES, Update, log_spaced_times
from bunn.sharing import laplacian_of
from tests.graphs import ZOO, edges_of, graphs

GRID, NODES = ZOO["grid"]()


class Constant(nn.Module):
    """A phi that returns the map parameters it is given."""

    def __init__(self, params: torch.Tensor) -> None:
        super().__init__()
        self.params = nn.Parameter(params)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.params.flatten(1)


def by_the_equations(x, lap, matrices, weight, bias, time, frame):
    """Equations 1 to 3 with dense matrices, one bundle, ``c = d p`` laid out ``(d, p)``."""
    n, d = matrices.size(0), matrices.size(-1)
    kernel = heat_kernel(lap, time)
    field = (matrices @ x.view(n, d, -1)).reshape(n, -1) @ weight.T
    if frame == "global":
        field = field + bias
    elif frame == "local":
        field = field + (matrices @ bias.view(d, -1)).reshape(n, -1)
    return (matrices.mT @ (kernel @ field).view(n, d, -1)).reshape(n, -1)


@given(
    graph=graphs(max_nodes=8),
    case=st.sampled_from([(m, d) for m, f in MAPS.items() for d in f.dims or (2, 3)]),
    p=st.integers(1, 2),
    q=st.integers(1, 2),
    frame=st.sampled_from(["global", "local", None]),
    time=st.sampled_from([0.0, 0.5, 7.0, math.inf]),
    normalization=st.sampled_from(["rw", "sym"]),
)
def test_layer_is_the_equations(graph, case, p, q, frame, time, normalization):
    maps, d = case
    edge_index, edge_weight, n = graph
    params = torch.randn(n, 1, num_map_params(maps, d), dtype=torch.float64)
    conv = BuNNConv(
        d * p,
        d * q,
        bundle_dim=d,
        maps=maps,
        time=time,
        bias=frame,
        phi=Constant(params),
        normalization=normalization,
        tol=1e-12,
    ).double()
    bias = conv.bias if frame == "local" else getattr(conv.network, "bias", None)
    if bias is not None:
        nn.init.normal_(bias)
    lap = Laplacian(edge_index, edge_weight, n, normalization=normalization).to(torch.float64)
    x = torch.randn(n, d * p, dtype=torch.float64)
    matrices = FlatBundle(params, maps, d).matrices()[:, 0]
    expected = by_the_equations(x, lap, matrices, conv.network.weight, bias, time, frame)
    torch.testing.assert_close(conv(x, edge_index, edge_weight), expected, rtol=1e-9, atol=1e-9)


def test_bias_frames_are_different_layers():
    torch.manual_seed(0)
    x = torch.randn(NODES, 4, dtype=torch.float64)
    params = torch.randn(NODES, 1, 1, dtype=torch.float64)
    layers = {}
    for frame in ("global", "local"):
        torch.manual_seed(1)
        conv = BuNNConv(4, 4, bias=frame, phi=Constant(params)).double()
        nn.init.ones_(conv.bias if frame == "local" else conv.network.bias)
        layers[frame] = conv(x, GRID)
    assert float((layers["global"] - layers["local"]).detach().abs().max()) > 1e-2


def test_update_position_commutes_with_one_time_only():
    torch.manual_seed(0)
    x = torch.randn(NODES, 8, dtype=torch.float64)
    params = torch.randn(NODES, 2, 1, dtype=torch.float64)

    def run(update, time):
        torch.manual_seed(1)
        conv = BuNNConv(
            8, 8, num_bundles=2, time=time, update=update, phi=Constant(params), bias=None
        )
        return conv.double()(x, GRID)

    torch.testing.assert_close(run("before", 2.0), run("after", 2.0), rtol=0, atol=1e-4)
    times = (0.1, 20.0)
    assert float((run("before", times) - run("after", times)).abs().max().detach()) > 1e-2


@pytest.mark.parametrize("concat", [None, "global", "local"])
def test_two_layer_update_after_the_heat(concat):
    torch.manual_seed(0)
    params = torch.randn(NODES, 2, 1)
    update = Update("after", 2, concat)
    conv = BuNNConv(8, 4, num_bundles=2, time=3.0, update=update, phi=Constant(params), tol=1e-6)
    x, bundle, lap = torch.randn(NODES, 8), FlatBundle(params), Laplacian(GRID)
    own = bundle.sync(x)
    h = diffuse(own, lap, 3.0, tol=1e-6)
    if concat is not None:
        h = torch.cat((own if concat == "global" else x, h), dim=-1)
    torch.testing.assert_close(conv(x, GRID), bundle.desync(conv.network(h)), rtol=1e-4, atol=1e-5)


def test_weight_and_bias_can_be_left_out():
    """Without W and b a layer is bundle heat, and has no parameters but those of phi."""
    params = torch.randn(NODES, 2, 1)
    conv = BuNNConv(8, 8, num_bundles=2, weight=False, bias=None, phi=Constant(params))
    assert [name for name, _ in conv.named_parameters()] == ["phi.params"]
    bundle, x = FlatBundle(params), torch.randn(NODES, 8)
    expected = bundle.desync(diffuse(bundle.sync(x), Laplacian(GRID), 1.0))
    torch.testing.assert_close(conv(x, GRID), expected)
    biased = BuNNConv(8, 8, num_bundles=2, weight=False, phi=Constant(params))
    nn.init.ones_(biased.bias)
    shifted = bundle.desync(diffuse(bundle.sync(x) + 1, Laplacian(GRID), 1.0))
    torch.testing.assert_close(biased(x, GRID), shifted)


@pytest.mark.parametrize(("in_channels", "out_channels"), [(1, 1), (3, 5), (7, 2), (13, 12)])
@pytest.mark.parametrize("update", UPDATES)
def test_any_number_of_channels(in_channels, out_channels, update):
    conv = BuNNConv(
        in_channels, out_channels, num_bundles=2, bundle_dim=3, maps="householder", update=update
    )
    x = torch.randn(NODES, in_channels, requires_grad=True)
    y = conv(x, GRID)
    assert y.shape == (NODES, out_channels)
    y.sum().backward()
    assert x.grad.abs().sum() > 0


def test_lift_pads_with_zeros_and_cuts():
    """A scalar signal becomes (x, 0) in the plane: the lift of the universality proof."""
    params = torch.randn(NODES, 1, 1)
    conv = BuNNConv(1, 1, weight=False, bias=None, phi=Constant(params))
    x, bundle = torch.randn(NODES, 1), FlatBundle(params)
    lifted = torch.cat((x, torch.zeros_like(x)), dim=1)
    expected = bundle.desync(diffuse(bundle.sync(lifted), Laplacian(GRID), 1.0))[:, :1]
    torch.testing.assert_close(conv(x, GRID), expected)


@pytest.mark.parametrize("update", UPDATES)
def test_lazy_channels(update):
    conv = BuNNConv(-1, 6, num_bundles=2, pe_channels=3, update=update)
    x, pe = torch.randn(NODES, 5), torch.randn(NODES, 3)
    assert conv(x, GRID, pe=pe).shape == (NODES, 6)
    assert conv.in_channels == 5
    with pytest.raises(
        ValueError, match=r"x has shape \(72, 4\); the layer reads \(num_nodes, 5\)"
    ):
        conv(x[:, :4], GRID, pe=pe)


def test_phi_reads_features_and_encodings():
    seen = {}

    class Spy(nn.Module):
        def forward(self, x, edge_index):
            seen.update(x=x, edge_index=edge_index)
            return x[:, :2]

    conv = BuNNConv(4, 4, num_bundles=2, pe_channels=1, phi=Spy())
    x, pe, other = torch.randn(NODES, 4), torch.randn(NODES, 1), torch.randn(NODES, 4)
    conv(x, GRID, pe=pe)
    assert torch.equal(seen["x"], torch.cat((x, pe), dim=1))
    assert torch.equal(seen["edge_index"], coalesce(GRID))
    conv(x, torch.cat((GRID, GRID), dim=1), pe=pe)
    assert torch.equal(seen["edge_index"], coalesce(GRID))
    conv(x, Laplacian(GRID), pe=pe, phi_x=other)
    assert torch.equal(seen["x"], torch.cat((other, pe), dim=1))
    assert torch.equal(seen["edge_index"], Laplacian(GRID).edge_index)


def test_any_pyg_model_is_a_phi():
    conv = BuNNConv(6, 6, num_bundles=3, phi=GCN(6, 8, 2, 3))
    x = torch.randn(NODES, 6)
    conv(x, GRID).sum().backward()
    assert all(p.grad is not None for p in conv.phi.parameters())
    torch.testing.assert_close(conv(x, Laplacian(GRID)), conv(x, GRID))


@pytest.mark.parametrize("method", ["auto", "chebyshev", "spectral", "dense"])
def test_times_per_bundle(method):
    times = (0.0, 0.5, 30.0, math.inf)
    params = torch.randn(NODES, 4, 1)
    conv = BuNNConv(
        8,
        8,
        num_bundles=4,
        time=times,
        weight=False,
        bias=None,
        phi=Constant(params),
        method=method,
    )
    x, bundle, lap = torch.randn(NODES, 8), FlatBundle(params), Laplacian(GRID)
    field = bundle.sync(x).view(NODES, 4, 2, 1)
    heated = torch.stack([diffuse(field[:, k], lap, t) for k, t in enumerate(times)], dim=1)
    torch.testing.assert_close(
        conv(x, GRID), bundle.desync(heated).reshape(NODES, -1), rtol=0, atol=5e-5
    )


@pytest.mark.parametrize("time", [3.0, (0.5, 2.0), log_spaced_times(2)])
def test_learned_times(time):
    conv = BuNNConv(4, 4, num_bundles=2, time=time, learn_time=True)
    names = [name for name, _ in conv.named_parameters() if "time" in name]
    assert names == ["time.log_time"]
    start = torch.tensor(time if isinstance(time, tuple) else (time, time))
    torch.testing.assert_close(conv.time().flatten().detach(), start)
    optimizer = torch.optim.SGD(conv.parameters(), lr=1.0)
    x = torch.randn(NODES, 4)
    conv(x, GRID).square().sum().backward()
    assert conv.time.log_time.grad.abs().min() > 0
    optimizer.step()
    assert (conv.time() >= 0).all()
    assert conv(x, GRID).isfinite().all()


def test_log_spaced_times():
    assert log_spaced_times(4) == pytest.approx((0.1, 1.0, 10.0, 100.0))
    assert log_spaced_times(4, 1e-2, 10) == pytest.approx((0.01, 0.1, 1.0, 10.0))
    assert log_spaced_times(1) == pytest.approx((math.sqrt(10),))
    with pytest.raises(ValueError, match="low=0, high=1"):
        log_spaced_times(3, 0, 1)


def test_learned_times_that_run_away_keep_finite_gradients():
    conv = BuNNConv(4, 4, num_bundles=2, learn_time=True)
    with torch.no_grad():
        conv.time.log_time[0] = 100.0
    lap, x = Laplacian(GRID.clone()), torch.randn(NODES, 4)  # of which nothing is known yet
    y = conv(x, lap)
    y.square().sum().backward()
    assert y.isfinite().all()
    assert conv.time.log_time.grad.isfinite().all()
    assert conv.time.log_time.grad[1] != 0
    fixed = BuNNConv(4, 4, num_bundles=2, time=(math.inf, 1.0))
    fixed.load_state_dict({k: v for k, v in conv.state_dict().items() if "log_time" not in k})
    torch.testing.assert_close(y, fixed(x, lap))


@pytest.mark.parametrize("time", [torch.tensor([0.5, 2.0]), [0.5, 2.0], (0.5, 2)])
def test_times_in_any_sequence(time):
    assert BuNNConv(4, 4, num_bundles=2, time=time).time.start == (0.5, 2.0)
    assert BuNNConv(4, 4, num_bundles=2, time=torch.tensor(3.0)).time.start == (3.0,)
    with pytest.raises(TypeError, match="time=None; pass a number, or one per bundle"):
        BuNNConv(4, 4, time=None)


def test_fixed_times_are_never_rounded():
    conv = BuNNConv(4, 4, num_bundles=2, time=(0.1, 0.2)).to(torch.bfloat16)
    assert conv.time().flatten().tolist() == [0.1, 0.2]
    assert "fixed_time" not in "".join(conv.state_dict())


@pytest.mark.parametrize("form", ["laplacian", "csr", "coo"])
def test_every_form_of_a_graph_gives_the_same(form):
    conv, x = BuNNConv(4, 6, num_bundles=2), torch.randn(NODES, 4)
    if form == "laplacian":
        graph = Laplacian(GRID)
    else:
        adjacency = torch.sparse_coo_tensor(
            GRID, torch.ones(GRID.size(1)), (NODES, NODES), check_invariants=True
        )
        graph = adjacency.coalesce()
        if form == "csr":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch on the state of its sparse tensors
                graph = graph.to_sparse_csr()
    torch.testing.assert_close(conv(x, graph), conv(x, GRID))


def test_edge_weights():
    weight = torch.full((GRID.size(1),), 3.0)
    conv, x = BuNNConv(4, 4, num_bundles=2), torch.randn(NODES, 4)
    torch.testing.assert_close(conv(x, GRID, weight), conv(x, GRID))
    weight[(GRID[0] < 9) & (GRID[1] < 9)] = 0.1
    assert not torch.allclose(conv(x, GRID, weight), conv(x, GRID))


def test_permutation_equivariance():
    conv, x = BuNNConv(4, 4, num_bundles=2), torch.randn(NODES, 4)
    order = torch.randperm(NODES)
    y = conv(x[order], torch.argsort(order)[GRID])
    torch.testing.assert_close(y, conv(x, GRID)[order], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("trip", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies(trip):
    conv = BuNNConv(4, 4, num_bundles=2, learn_time=True, update="mlp")
    x = torch.randn(NODES, 4)
    expected = conv(x, GRID)
    torch.testing.assert_close(trip(conv)(x, GRID), expected)
    other = BuNNConv(4, 4, num_bundles=2, learn_time=True, update="mlp")
    other.load_state_dict(conv.state_dict())
    torch.testing.assert_close(other(x, GRID), expected)


def test_reset_parameters_starts_over():
    conv = BuNNConv(4, 4, num_bundles=2, learn_time=True, bias="local")
    before = copy.deepcopy(conv.state_dict())
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter.fill_(9.0)
    conv.reset_parameters()
    after = conv.state_dict()
    assert all(not (value == 9.0).any() for value in after.values())
    assert torch.equal(after["time.log_time"], before["time.log_time"])


def test_repr():
    assert repr(BuNNConv(4, 8, num_bundles=2, time=3)) == (
        "BuNNConv(4, 8, num_bundles=2, bundle_dim=2, maps='o2', time=(3, learn=False))"
    )


def test_learned_times_are_printed_as_they_are():
    conv = BuNNConv(4, 8, num_bundles=2, learn_time=True)
    assert "time=(1, 1, learn=True)" in repr(conv)
    with torch.no_grad():
        conv.time.log_time.copy_(torch.tensor([2.0, 50.0]).log())
    assert "time=(2, 50, learn=True)" in repr(conv)
    assert conv.time().flatten().tolist() == pytest.approx([2.0, 50.0])
    assert "time=(1, learn=True)" in repr(conv.to("meta"))  # how it starts is all that is known
    many = BuNNConv(4, 24, num_bundles=12, learn_time=True, time=bunn.nn.log_spaced_times(12))
    assert "time=(12 from 0.1 to 100, learn=True)" in repr(many)


def test_second_derivatives_and_functional_transforms():
    conv = BuNNConv(2, 2, num_bundles=2, learn_time=True, tol=1e-12).double()
    edge_index, n = edges_of(nx.cycle_graph(4))
    lap = Laplacian(edge_index)
    x = torch.randn(n, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: conv(x, lap), (x,))
    assert torch.autograd.gradgradcheck(lambda x: conv(x, lap), (x,))
    params = dict(conv.named_parameters())

    def loss(params, x):
        return torch.func.functional_call(conv, params, (x, lap)).square().sum()

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(
        params, torch.stack([x, -x])
    )
    one = torch.func.grad(loss)(params, x)
    for name, value in one.items():
        torch.testing.assert_close(gradients[name][0], value)


@pytest.mark.parametrize("method", ["auto", "spectral", "chebyshev"])
def test_a_time_that_is_no_number_is_said(method):
    conv = BuNNConv(4, 4, num_bundles=2, learn_time=True, method=method)
    conv.time.log_time.data[0] = math.nan
    with pytest.raises(ValueError, match="time holds nan"):
        conv(torch.randn(3, 4), torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))


@pytest.mark.parametrize("learn_time", [False, True])
@pytest.mark.parametrize("maps", ["o2", "householder"])
def test_compiles_into_one_graph(maps, learn_time):
    torch._dynamo.reset()
    torch.manual_seed(0)
    conv = BuNNConv(8, 8, num_bundles=2, maps=maps, learn_time=learn_time)
    lap, x = Laplacian(GRID), torch.randn(NODES, 8)
    compiled = torch.compile(conv, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, lap), conv(x, lap))
    compiled(x, lap).square().sum().backward()
    found = [p.grad.clone() for p in conv.parameters()]
    conv.zero_grad()
    conv(x, lap).square().sum().backward()
    for a, b in zip(found, conv.parameters(), strict=True):
        torch.testing.assert_close(a, b.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("update", ["before", "after", "mlp-concat"])
def test_autocast_reaches_the_heat(update, monkeypatch):
    """Half of the bits are half of the traffic; whatever the layer is given, and to tolerance."""
    heated = []

    def solve(x, *args):
        heated.append(x.dtype)
        return real(x, *args)

    real = bunn.nn.conv.solve
    monkeypatch.setattr(bunn.nn.conv, "solve", solve)
    conv = BuNNConv(8, 8, num_bundles=2, update=update)
    x = torch.randn(NODES, 8)
    exact = conv(x, GRID)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = conv(x, GRID)
        in_double = conv.double()(x.double(), GRID)
    assert heated == [torch.float32, torch.bfloat16, torch.float64]
    torch.testing.assert_close(half.float(), exact, rtol=0, atol=0.05)
    assert in_double.dtype == torch.float64


def test_autocast():
    conv = BuNNConv(8, 8, num_bundles=2, update="mlp", learn_time=True)
    x = torch.randn(NODES, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = conv(x, GRID)
    y.sum().backward()
    torch.testing.assert_close(y.float(), conv(x, GRID), rtol=0.1, atol=0.1)
    assert all(p.grad.isfinite().all() for p in conv.parameters())


# --- the shared Laplacian -----------------------------------------------------------------------


def test_a_graph_is_built_once_for_all_layers(monkeypatch):
    built = []
    original = Laplacian.__init__

    def counting(self, *args, **kwargs):
        built.append(1)
        original(self, *args, **kwargs)

    monkeypatch.setattr(Laplacian, "__init__", counting)
    edge_index, x = GRID.clone(), torch.randn(NODES, 4)
    first, second = BuNNConv(4, 4), BuNNConv(4, 4)
    for _ in range(3):
        second(first(x, edge_index), edge_index)
    assert len(built) == 1


def test_a_graph_that_changes_is_built_anew():
    edge_index, weight = GRID.clone(), torch.ones(GRID.size(1))
    lap = laplacian_of(edge_index, weight, NODES, "rw")
    assert laplacian_of(edge_index, weight, NODES, "rw") is lap
    weight.mul_(torch.where(edge_index[0] + edge_index[1] == 1, 5.0, 1.0))
    changed = laplacian_of(edge_index, weight, NODES, "rw")
    assert changed is not lap
    assert not torch.equal(changed.dense(), lap.dense())
    assert laplacian_of(edge_index, weight.clone(), NODES, "rw") is not changed
    assert laplacian_of(edge_index, weight, NODES + 1, "rw").num_nodes == NODES + 1
    assert laplacian_of(edge_index, weight, NODES, "sym").normalization == "sym"
    edge_index[:, :] = GRID.flip(1)
    assert torch.equal(laplacian_of(edge_index, None, NODES, "rw").dense(), Laplacian(GRID).dense())


def test_inference_first_and_training_after():
    conv, edge_index = BuNNConv(4, 4, phi=GCN(4, 4, 1, 1)), GRID.clone()
    with torch.inference_mode():
        assert conv(torch.ones(NODES, 4), edge_index).shape == (NODES, 4)
        assert conv(torch.ones(NODES, 4), GRID.clone()).shape == (NODES, 4)
    conv(torch.ones(NODES, 4), edge_index).sum().backward()
    assert all(p.grad is not None for p in conv.parameters())


def test_weights_that_want_a_gradient_are_refused_even_if_the_graph_is_known():
    conv, weight = BuNNConv(4, 4), torch.ones(GRID.size(1), requires_grad=True)
    x = torch.ones(NODES, 4)
    with torch.no_grad():
        conv(x, GRID, weight)
    with pytest.raises(ValueError, match="edge_weight requires a gradient"):
        conv(x, GRID, weight)


def test_graphs_are_forgotten(monkeypatch):
    monkeypatch.setattr(bunn.sharing, "REMEMBERED", 2)
    bunn.sharing.forget_graphs()
    graphs = [GRID.clone() for _ in range(4)]
    for edge_index in graphs:
        laplacian_of(edge_index, None, NODES, "rw")
    assert len(bunn.sharing._BUILT) == 2
    del graphs, edge_index
    gc.collect()
    assert len(bunn.sharing._BUILT) == 0


def test_a_phi_that_is_passed_keeps_its_weights():
    phi = GCN(4, 4, 1, 1)
    before = copy.deepcopy(phi.state_dict())
    BuNNConv(4, 4, phi=phi)
    assert all(torch.equal(before[name], value) for name, value in phi.state_dict().items())
    with pytest.raises(TypeError, match="phi='sage'; pass a module"):
        BuNNConv(4, 4, phi="sage")


@pytest.mark.parametrize(
    "phi", [nn.Linear(4, 1), nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)), lambda x: x]
)
def test_a_phi_that_takes_no_edges_is_refused_before_it_is_called(phi):
    with pytest.raises(TypeError, match=r"cannot be called as phi\(x, edge_index\)"):
        BuNNConv(4, 4, phi=phi)
    with pytest.raises(TypeError, match=r"such as bunn\.nn\.SAGEPhi"):
        BuNNConv(4, 4, phi=nn.Linear)


def test_phi_may_be_a_function():
    conv = BuNNConv(4, 4, phi=lambda x, edge_index: x[:, :1])
    assert conv(torch.randn(NODES, 4), GRID).shape == (NODES, 4)


def test_lazy_layer_without_weight_keeps_the_channels():
    with pytest.raises(
        ValueError, match=r"x has shape \(72, 5\); the layer reads \(num_nodes, 6\)"
    ):
        BuNNConv(-1, 6, weight=False)(torch.ones(NODES, 5), GRID)


def test_learned_times_leave_no_kernels_behind():
    conv, lap = BuNNConv(4, 4, learn_time=True), Laplacian(GRID)
    for _ in range(3):
        with torch.no_grad():
            conv.time.log_time.add_(0.1)
            conv(torch.ones(NODES, 4), lap)
    assert len(lap.kernels) == 0


def test_infinite_times_beside_finite_ones_compile():
    torch._dynamo.reset()
    conv = BuNNConv(4, 4, num_bundles=2, time=(0.5, math.inf))
    x, lap = torch.randn(NODES, 4), Laplacian(GRID)
    expected = conv(x, lap)
    compiled = torch.compile(conv, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, lap), expected)
    endless = BuNNConv(4, 4, num_bundles=2, time=(math.inf, math.inf))
    assert endless(x, lap).isfinite().all()


# --- errors -------------------------------------------------------------------------------------

BAD_LAYERS = {
    "bias": ({"bias": "middle"}, "bias='middle'; use 'global', 'local' or None"),
    "method": ({"method": "euler"}, "method='euler' is unknown; use 'auto' or one of"),
    "taylor": ({"method": "taylor"}, "method='taylor' needs degree"),
    "degree": ({"degree": 8}, "degree=8 is not used by method='auto'"),
    "normalization": ({"normalization": "none"}, "normalization='none' is unknown"),
    "maps": ({"maps": "spin"}, "maps='spin' is unknown; use one of"),
    "update": ({"update": "never"}, r"update='never' is unknown; use one of \['before'"),
    "tol": ({"tol": 0}, "tol=0; it must be positive"),
    "bundles": ({"num_bundles": 0}, "num_bundles=0; it must be >= 1"),
    "encodings": ({"pe_channels": -1}, "pe_channels=-1; it must be >= 0"),
    "time": ({"time": -1.0}, "time=-1.0; every time must be a number >= 0"),
    "NaN time": ({"time": math.nan}, "time=nan; every time must be"),
    "times": ({"time": (1.0, 2.0)}, "time holds 2 values; give one, or num_bundles=1 of them"),
    "learned zero": ({"time": 0.0, "learn_time": True}, "starts at a finite value > 0"),
    "learned infinity": ({"time": math.inf, "learn_time": True}, "starts at a finite value > 0"),
    "no network": (
        {"weight": False, "out_channels": 4, "update": "mlp"},
        "weight=False leaves no network for update='mlp'",
    ),
    "weight": ({"weight": False}, "weight=False keeps the channels, but in_channels=4"),
}


@pytest.mark.parametrize("case", BAD_LAYERS)
def test_bad_layers(case):
    options, message = BAD_LAYERS[case]
    with pytest.raises(ValueError, match=message):
        BuNNConv(**{"in_channels": 4, "out_channels": 6, **options})


@pytest.mark.parametrize("model", [BuNNConv(-1, 4), bunn.BuNN(-1, 4, 1)])
def test_an_input_that_is_refused_settles_no_channels(model):
    for wrong in (torch.ones(NODES, 3).long(), torch.randn(NODES - 1, 3), torch.randn(NODES)):
        with pytest.raises((TypeError, ValueError)):
            model(wrong, Laplacian(GRID))
    assert model(torch.randn(NODES, 5), GRID).shape == (NODES, 4)
    assert model.in_channels == 5
    with pytest.raises(ValueError, match=r"reads \(num_nodes, 5\)"):
        model(torch.randn(NODES, 3), GRID)


def test_bad_types():
    for options in ({"out_channels": 4.0}, {"num_bundles": 2.0}, {"in_channels": None}):
        ((name, value),) = options.items()
        with pytest.raises(TypeError, match=f"{name}={value}; it must be an integer"):
            BuNNConv(**{"in_channels": 4, "out_channels": 4, **options})
    with pytest.raises(TypeError, match="learn_time='no'; use True or False"):
        BuNNConv(4, 4, learn_time="no")


def test_bad_sizes():
    with pytest.raises(ValueError, match="in_channels=0; it must be >= 1, or -1 to infer it"):
        BuNNConv(0, 4)
    with pytest.raises(ValueError, match="out_channels=0; it must be >= 1"):
        BuNNConv(4, 0)


def test_bad_inputs():
    x, pe = torch.randn(NODES, 4), torch.randn(NODES, 3)
    with pytest.raises(
        ValueError, match=r"x has shape \(72, 4\); the layer reads \(num_nodes, 5\)"
    ):
        BuNNConv(5, 4)(x, GRID)
    with pytest.raises(TypeError, match=r"x has dtype torch.int64"):
        BuNNConv(4, 4)(x.long(), GRID)
    with pytest.raises(
        ValueError, match="pe is missing, but the layer was built with pe_channels=3"
    ):
        BuNNConv(4, 4, pe_channels=3)(x, GRID)
    with pytest.raises(
        ValueError,
        match="pe is given, but the layer was built without; build it with pe_channels=3",
    ):
        BuNNConv(4, 4)(x, GRID, pe=pe)
    with pytest.raises(ValueError, match=r"phi returned shape \(72, 4\)"):
        BuNNConv(4, 4, phi=GCN(4, 4, 1))(x, GRID)
    with pytest.raises(ValueError, match="has normalization='sym', the layer 'rw'"):
        BuNNConv(4, 4)(x, Laplacian(GRID, normalization="sym"))
    with pytest.raises(ValueError, match="a Laplacian already holds its weights"):
        BuNNConv(4, 4)(x, Laplacian(GRID), torch.ones(GRID.size(1)))
    with pytest.raises(ValueError, match="x is on meta"):
        BuNNConv(4, 4)(x.to("meta"), GRID)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"position": "during"}, "position='during'; use 'before' or 'after'"),
        ({"num_layers": 3}, "num_layers=3; an update has 1 or 2 layers"),
        ({"concat": "both"}, "concat='both'; use None, 'global' or 'local'"),
        ({"concat": "global"}, "concat='global' needs position='after'"),
    ],
)
def test_bad_updates(options, message):
    with pytest.raises(ValueError, match=message):
        Update(**options)


@pytest.mark.parametrize("method", ["auto", "chebyshev", "spectral", "dense", "uniformization"])
@pytest.mark.parametrize("transform", [torch.func.jacrev, torch.func.jacfwd])
def test_a_graph_first_seen_inside_a_transform(transform, method):
    """It is built, and what it keeps serves calls outside the transform as well."""
    edge_index = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
    conv = bunn.BuNNConv(2, 2, time=2.0, method=method).double()
    x = torch.randn(4, 2, dtype=torch.float64)
    inside = transform(lambda x: conv(x, edge_index))(x)
    outside = torch.autograd.functional.jacobian(lambda x: conv(x, edge_index), x)
    torch.testing.assert_close(inside, outside)
    conv(x, edge_index).sum().backward()
