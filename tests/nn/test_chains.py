"""A phi in few passes is the same phi."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

from bunn import BuNN, kernels
from bunn.kernels.arguments import Dropout
from bunn.nn import SAGEPhi
from bunn.nn.chains import (
    NOTHING,
    act_name,
    activate,
    feed_forward,
    pre_norm,
)
from tests.graphs import ZOO

pytest.importorskip("triton", reason="needs Triton")

from bunn.kernels import chains

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EDGES, NODES = ZOO["bipartite"]()
EDGES = EDGES.to(DEVICE)


@pytest.fixture
def served(monkeypatch):
    """Switches chains on, on a CPU, too, and counts them."""
    calls: list[str] = []
    for name in ("activate", "add_and_norm", "activate_back", "add_and_norm_back"):
        function = name.replace("_back", "") + "_rows" + ("_back" if "_back" in name else "")
        real = getattr(chains, function)
        spy = lambda *args, name=name, real=real: calls.append(name) or real(*args)  # noqa: E731
        monkeypatch.setattr(chains, function, spy)
    monkeypatch.setattr(kernels, "serve_chains", lambda x: x.dtype != torch.float64)
    return calls


def phi_of(**options) -> SAGEPhi:
    return SAGEPhi(5, 4, hidden_channels=8, num_layers=3, **options).to(DEVICE)


@pytest.mark.parametrize("act", ["gelu", "relu"])
def test_the_same_numbers(act, served):
    phi, x = phi_of(act=act), torch.randn(NODES, 5, device=DEVICE, requires_grad=True)
    wide, wide_x = copy.deepcopy(phi).double(), x.detach().double().requires_grad_()
    found, exact = phi(x, EDGES), wide(wide_x, EDGES)
    assert served == ["activate", "add_and_norm", *3 * ["activate", "add_and_norm"]]
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4)
    found.square().sum().backward()
    exact.square().sum().backward()
    assert len(served) == 2 * 8
    torch.testing.assert_close(x.grad.double(), wide_x.grad, rtol=1e-3, atol=1e-4)
    for mine, theirs in zip(phi.parameters(), wide.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=1e-3, atol=1e-4)


def test_second_derivatives(served):
    phi, x = phi_of(), torch.randn(NODES, 5, device=DEVICE)
    wide = copy.deepcopy(phi).double()

    def twice(phi, x):
        x = x.clone().requires_grad_()
        parameters = list(phi.parameters())
        first = torch.autograd.grad(
            phi(x, EDGES).square().sum(), [x, *parameters], create_graph=True
        )
        return torch.autograd.grad(sum(g.square().sum() for g in first), [x, *parameters])

    for mine, theirs in zip(twice(phi, x), twice(wide, x.double()), strict=True):
        scale = float(theirs.abs().max())
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-3, atol=1e-4 * scale)


def test_dropout(served):
    phi, x = phi_of(dropout=0.5), torch.randn(NODES, 5, device=DEVICE)
    first, second = phi(x, EDGES), phi(x, EDGES)
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    again = phi(x, EDGES)
    torch.manual_seed(1)
    assert torch.equal(again, phi(x, EDGES))
    phi.eval()
    assert torch.equal(phi(x, EDGES), phi(x, EDGES))


@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_gradients_know_what_was_dropped(rate, served):
    """A derivative by differences, with the same seeds."""
    phi, x = phi_of(dropout=rate), torch.randn(NODES, 5, device=DEVICE)
    leaves = [x, *(p.detach() for p in phi.parameters())]
    names = [name for name, _ in phi.named_parameters()]
    ways = [torch.randn_like(leaf) for leaf in leaves]
    weight = torch.randn(NODES, 4, device=DEVICE)

    def value(step: float, with_grad: bool = False):
        moved = [leaf + step * way for leaf, way in zip(leaves, ways, strict=True)]
        moved = [leaf.requires_grad_(with_grad) for leaf in moved]
        torch.manual_seed(3)
        parameters = dict(zip(names, moved[1:], strict=True))
        y = torch.func.functional_call(phi, parameters, (moved[0], EDGES))
        return (weight * y).sum().double(), moved

    loss, moved = value(0.0, with_grad=True)
    grads = torch.autograd.grad(loss, moved)
    slope = sum((grad * way).sum() for grad, way in zip(grads, ways, strict=True)).double()
    step = 1e-3
    with torch.no_grad():
        differences = (value(step)[0] - value(-step)[0]) / (2 * step)
    torch.testing.assert_close(slope, differences, rtol=1e-3, atol=3e-2)


def test_what_is_not_normalised_further_has_a_gradient(served):
    norm, x = nn.LayerNorm(4).to(DEVICE), torch.randn(3, 4, device=DEVICE, requires_grad=True)
    stream, _ = pre_norm(x, norm, torch.float32)
    stream.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))
    assert norm.weight.grad is None


def test_activations_that_kernels_know():
    assert act_name(nn.GELU()) == "gelu"
    assert act_name(nn.GELU(approximate="tanh")) is None
    assert act_name(nn.ELU()) is None


def test_an_activation_that_kernels_do_not_know(served):
    phi, x = phi_of(act="elu"), torch.randn(NODES, 5, device=DEVICE)
    phi(x, EDGES)
    assert served == []


@pytest.mark.parametrize("hook", ["forward_hook", "forward_pre_hook", "full_backward_pre_hook"])
def test_whoever_watches_a_module_sees_it(hook, served):
    phi, x = phi_of(), torch.randn(NODES, 5, device=DEVICE)
    seen: list[nn.Module] = []
    watch = lambda module, *_: seen.append(module)  # noqa: E731
    getattr(phi.updates[1][0], f"register_{hook}")(watch)
    phi(x, EDGES).sum().backward()
    assert seen == [phi.updates[1][0]]
    assert set(served) <= {"activate", "activate_back"}


def test_whoever_watches_all_modules_sees_them(served):
    phi, x = phi_of(), torch.randn(NODES, 5, device=DEVICE)
    seen: list[nn.Module] = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(module))
    try:
        phi(x, EDGES)
    finally:
        handle.remove()
    assert set(phi.updates[0]) <= set(seen)
    assert served == []


class Adapted(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 100


CHANGES = {
    "another activation": (2, nn.ReLU(), True),
    "another rate": (4, nn.Dropout(0.9), True),
    "everything dropped": (1, nn.Dropout(1.0), False),
    "a layer of its own": (3, Adapted(8, 8), False),
    "a layer without bias": (3, nn.Linear(8, 8, bias=False), False),
    "an activation that kernels do not know": (2, nn.ELU(), False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_network_that_was_changed(change, served):
    place, module, known = CHANGES[change]
    phi, x = phi_of(), torch.randn(NODES, 5, device=DEVICE)
    phi.updates[1][place] = copy.deepcopy(module).to(DEVICE)
    found = phi.eval()(x, EDGES)
    torch.testing.assert_close(
        found.double(), phi.double()(x.double(), EDGES), rtol=1e-3, atol=1e-3
    )
    assert ("add_and_norm" in served) == known
    phi.float().train()(x, EDGES).sum().backward()
    if change == "another rate":
        dropped = [rate for _, rate in seen_rates(phi, x)]
        assert dropped == [0.9]


def seen_rates(phi, x):
    """The rates above zero of the dropouts of a forward pass."""
    found = []
    for name in ("activate_rows", "add_and_norm_rows"):
        real = getattr(chains, name)

        def spy(*args, name=name, real=real):
            found.extend((name, value.rate) for value in args if isinstance(value, Dropout))
            return real(*args)

        setattr(chains, name, spy)
    phi(x, EDGES)
    return [(name, rate) for name, rate in found if rate > 0]


def test_no_layers_at_all(served):
    phi = SAGEPhi(5, 4, hidden_channels=8, num_layers=0).to(DEVICE)
    assert phi(torch.randn(NODES, 5, device=DEVICE), EDGES).shape == (NODES, 4)
    assert served == ["activate"]


@pytest.mark.parametrize("twice", [True, False])
def test_a_network_that_is_used_twice(twice, served):
    """Its parameters depend on nothing, its features on its parameters."""
    model = BuNN(5, 8, 3, 3, phi="sage", shared_phi=True, num_bundles=2).to(DEVICE)
    wide, x = copy.deepcopy(model).double(), torch.randn(NODES, 5, device=DEVICE)
    given = [(model, x), (wide, x.double())]
    found, exact = (
        torch.autograd.grad(m(f, EDGES).square().sum(), list(m.parameters()), create_graph=twice)
        for m, f in given
    )
    for mine, theirs in zip(found, exact, strict=True):
        scale = float(theirs.detach().abs().max())
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-3, atol=1e-4 * scale)


def test_a_hook_of_a_parameter_runs_once(served):
    phi, x = phi_of(), torch.randn(NODES, 5, device=DEVICE)
    calls: list[int] = []
    phi.norms[1].bias.register_hook(lambda grad: calls.append(1))
    torch.autograd.grad(phi(x, EDGES).sum(), phi.norms[1].bias, create_graph=True)
    assert calls == [1]


def test_features_that_need_no_gradient(served):
    norm, x = nn.LayerNorm(4).to(DEVICE), torch.randn(3, 4, device=DEVICE)
    stream, normed = pre_norm(x, norm, torch.float32)
    loss = stream.sum() + normed.square().sum()
    (grad,) = torch.autograd.grad(loss, norm.weight, create_graph=True)
    (expected,) = torch.autograd.grad(norm(x).square().sum(), norm.weight)
    torch.testing.assert_close(grad, expected)


def test_many_gradients_at_once(served):
    phi, x = phi_of(), torch.randn(NODES, 5, device=DEVICE, requires_grad=True)
    y = phi(x, EDGES)
    weights = torch.randn(3, *y.shape, device=DEVICE)
    (together,) = torch.autograd.grad(y, x, weights, is_grads_batched=True, retain_graph=True)
    for weight, found in zip(weights, together, strict=True):
        (alone,) = torch.autograd.grad(y, x, weight, retain_graph=True)
        torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-5)


def test_parameters_that_do_not_lie_together(served):
    phi, x = phi_of(), torch.randn(NODES, 5, device=DEVICE)
    expected = phi(x, EDGES)
    apart = {name: torch.stack((p, p), -1)[..., 0] for name, p in phi.named_parameters()}
    assert not apart["norms.0.bias"].is_contiguous()
    found = torch.func.functional_call(phi, apart, (x, EDGES))
    torch.testing.assert_close(found, expected)


def test_what_is_no_number_stays_so(served):
    x = torch.tensor([[torch.nan, 1.0, -1.0]], device=DEVICE, requires_grad=True)
    for act in ("relu", "gelu"):
        y = activate(x, None, NOTHING, act)
        assert y.isnan().tolist() == [[True, False, False]]


def test_tangents_go_through_torch(monkeypatch):
    monkeypatch.setattr(kernels, "wanted", lambda: True)
    on_a_gpu = SimpleNamespace(is_cuda=True, dtype=torch.float32, dim=lambda: 2, size=lambda dim: 8)
    assert kernels.serve_chains(on_a_gpu)
    with forward_ad.dual_level():
        assert not kernels.serve_chains(on_a_gpu)


def test_a_model_is_the_same(served):
    options = {"num_bundles": 2, "phi": "sage", "phi_layers": 1, "update": "mlp-concat"}
    model = BuNN(5, 8, 2, 3, dropout=0.3, **options).to(DEVICE)
    wide = copy.deepcopy(model).double().eval()
    x = torch.randn(NODES, 5, device=DEVICE, requires_grad=True)
    model(x, EDGES).square().sum().backward()  # with dropout
    per_block = ["add_and_norm", *["activate", "add_and_norm"] * 2, *["activate"] * 2]
    assert served[: 2 * len(per_block)] == 2 * per_block
    assert served.count("activate_back") == served.count("activate")
    model.zero_grad()
    found, exact = model.eval()(x, EDGES), wide(x.detach().double(), EDGES)
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4)
    found.square().sum().backward()
    exact.square().sum().backward()
    for mine, theirs in zip(model.parameters(), wide.parameters(), strict=True):
        scale = float(theirs.grad.abs().max())
        torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=1e-3, atol=1e-4 * scale)


NETWORKS = {
    "two layers": ([nn.Linear(4, 6), nn.Dropout(0.0), nn.GELU(), nn.Linear(6, 3)], 1),
    "no bias": ([nn.Linear(4, 6, bias=False), nn.ReLU()], 1),
    "an activation before dropout": ([nn.Linear(4, 6), nn.GELU(), nn.Dropout(0.0)], 0),
    "an unknown activation": ([nn.Linear(4, 6), nn.ELU(), nn.Linear(6, 3)], 0),
    "no linear layer": ([nn.GELU()], 0),
    "a linear layer alone": ([nn.Linear(4, 6)], 0),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_feed_forward(name, served):
    modules, passes = NETWORKS[name]
    network = nn.Sequential(*copy.deepcopy(modules)).to(DEVICE)
    x = torch.randn(5, 4, device=DEVICE)
    torch.testing.assert_close(feed_forward(network, x), network(x), rtol=1e-5, atol=1e-5)
    assert served == passes * ["activate"]


def test_what_is_normalised_has_the_type_of_products(served):
    norm, x = nn.LayerNorm(4).to(DEVICE), torch.randn(3, 4, device=DEVICE)
    stream, normed = pre_norm(x, norm, torch.bfloat16)
    assert torch.equal(stream, x)
    assert normed.dtype == torch.bfloat16
    torch.testing.assert_close(normed.float(), norm(x), rtol=1e-2, atol=1e-2)
    assert pre_norm(x, nn.BatchNorm1d(4).to(DEVICE), torch.bfloat16).normed.dtype == x.dtype
