import pytest
import torch
from torch_geometric.nn import SAGEConv

from bunn import Laplacian
from bunn.nn import MLPPhi, ResidualSumPhi, SAGEPhi, SumGNNPhi
from tests.graphs import ZOO

EDGES, NODES = ZOO["disconnected"]()
NETWORKS = {
    "mlp": lambda **kw: MLPPhi(5, 4, **kw),
    "sum": lambda **kw: SumGNNPhi(5, 4, num_layers=2, **kw),
    "sum-residual": lambda **kw: ResidualSumPhi(5, 4, num_layers=2, **kw),
    "sage": lambda **kw: SAGEPhi(5, 4, num_layers=2, **kw),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_shapes_gradients_and_forms_of_a_graph(name):
    phi = NETWORKS[name](hidden_channels=6)
    x = torch.randn(NODES, 5, requires_grad=True)
    params = phi(x, EDGES)
    assert params.shape == (NODES, 4)
    params.sum().backward()
    assert x.grad.isfinite().all()
    assert all(p.grad is not None for p in phi.parameters())
    torch.testing.assert_close(phi(x, Laplacian(EDGES, num_nodes=NODES)), params)
    sym = Laplacian(EDGES, num_nodes=NODES, normalization="sym")
    torch.testing.assert_close(phi(x, sym), params)


@pytest.mark.parametrize("network", [MLPPhi, SumGNNPhi, SAGEPhi])
def test_one_bundle_gets_an_angle_of_its_own_at_every_node(network):
    torch.manual_seed(0)
    angles = network(5, 1)(torch.randn(NODES, 5), EDGES)
    assert angles.std() > 1e-2


@pytest.mark.parametrize("name", NETWORKS)
def test_equivariance(name):
    phi, x = NETWORKS[name](), torch.randn(NODES, 5)
    order = torch.randperm(NODES)
    moved = phi(x[order], torch.argsort(order)[EDGES])
    torch.testing.assert_close(moved, phi(x, EDGES)[order], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("width", [3, 9])
def test_sum_gnn_is_its_formula(width):
    """sigma(W_s x_v + W_n sum of the neighbours), however the product is ordered inside."""
    phi = SumGNNPhi(5, 4, hidden_channels=width)
    x = torch.randn(NODES, 5)
    adjacency = torch.zeros(NODES, NODES).index_put((EDGES[0], EDGES[1]), torch.tensor(1.0))
    own, neighbors = phi.lin_self[0], phi.lin_neighbors[0]
    hidden = torch.nn.functional.gelu(own(x) + neighbors(adjacency @ x))
    torch.testing.assert_close(phi(x, EDGES), phi.lin_out(hidden), rtol=1e-4, atol=1e-5)


def test_residual_sum_gnn_is_its_formula():
    phi = ResidualSumPhi(5, 4, hidden_channels=6)
    x = torch.randn(NODES, 5)
    adjacency = torch.zeros(NODES, NODES).index_put((EDGES[0], EDGES[1]), torch.tensor(1.0))
    gelu, (own,), (neighbors,) = torch.nn.functional.gelu, phi.lin_self, phi.lin_neighbors
    hidden = gelu(phi.lin_in(x))
    hidden = hidden + gelu(own(hidden) + neighbors(adjacency @ hidden))
    torch.testing.assert_close(phi(x, EDGES), phi.lin_out(hidden), rtol=1e-4, atol=1e-5)


def test_sage_aggregates_as_pyg_does():
    """The mean of the neighbours, zero for an isolated node."""
    x = torch.randn(NODES, 5)
    conv = SAGEConv(5, 5, root_weight=False, bias=False)
    with torch.no_grad():
        conv.lin_l.weight.copy_(torch.eye(5))
    mean = Laplacian(EDGES, num_nodes=NODES).aggregate(x)
    torch.testing.assert_close(mean, conv(x, EDGES).detach())


def test_sage_is_residual():
    """With its updates at zero it is the identity between the first and the last layer."""
    phi = SAGEPhi(5, 4, num_layers=3)
    for update in phi.updates:
        for parameter in update[3].parameters():
            torch.nn.init.zeros_(parameter)
    x = torch.randn(NODES, 5)
    torch.testing.assert_close(phi(x, EDGES), phi.lin_out(phi.lin_in(x)))


@pytest.mark.parametrize("network", [MLPPhi, SumGNNPhi, SAGEPhi])
def test_lazy_input(network):
    assert network(-1, 4)(torch.randn(NODES, 7), EDGES).shape == (NODES, 4)


def test_default_widths():
    assert MLPPhi(8, 100).lin_in.out_channels == 100
    assert MLPPhi(8, 1).lin_in.out_channels == 32
    assert SAGEPhi(8, 1).lin_in[0].out_channels == 32
    assert SumGNNPhi(8, 16).hidden_channels == 32


def test_reset_parameters():
    phi = NETWORKS["sage"]()
    with torch.no_grad():
        for parameter in phi.parameters():
            parameter.fill_(9.0)
    phi.reset_parameters()
    assert all(not (p == 9.0).any() for p in phi.parameters())
