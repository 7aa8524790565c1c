import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bunn import FlatBundle, Laplacian, diffuse, num_map_params
from bunn.bundle import MAPS
from tests.graphs import graphs, zoo_laplacian


def random_bundle(n, maps="o2", d=2, b=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    size = num_map_params(maps, d)
    params = torch.randn(n, b, size, dtype=torch.float64, generator=generator)
    return FlatBundle(params, maps, d)


@pytest.mark.parametrize("maps", MAPS)
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_a_look_without_gradients_leaves_them_to_later_calls(maps, context):
    params = torch.randn(4, 2, num_map_params(maps), requires_grad=True)
    bundle, x = FlatBundle(params, maps), torch.randn(4, 8)
    with context():
        bundle.desync(bundle.sync(x))
    (gradient,) = torch.autograd.grad(bundle.sync(x).sin().sum(), params)
    assert gradient.abs().sum() > 0


def test_plane_maps_follow_the_convention():
    angle = 0.3
    c, s = math.cos(angle), math.sin(angle)
    params = torch.full((1, 3, 1), angle, dtype=torch.float64)
    rotation = torch.tensor([[c, s], [-s, c]], dtype=torch.float64)
    reflection = torch.tensor([[c, s], [s, -c]], dtype=torch.float64)
    torch.testing.assert_close(
        FlatBundle(params, "o2").matrices()[0], torch.stack([rotation, rotation, reflection])
    )
    torch.testing.assert_close(
        FlatBundle(params, "rotation").matrices()[0], rotation.expand(3, 2, 2)
    )


def test_householder_is_the_product_of_its_reflections():
    d, params = 3, torch.randn(1, 2, 9, dtype=torch.float64)
    matrices = FlatBundle(params, "householder", d).matrices()
    for bundle, count in ((0, d), (1, d - 1)):
        product = torch.eye(d, dtype=torch.float64)
        for v in params[0, bundle].view(d, d)[:count]:
            product = product @ (torch.eye(d).double() - 2 * torch.outer(v, v) / v.dot(v))
        torch.testing.assert_close(matrices[0, bundle], product)


@pytest.mark.parametrize("d", [2, 3, 4])
def test_skew_maps_are_their_formulas(d):
    params = torch.randn(1, 1, d * (d - 1) // 2, dtype=torch.float64)
    skew = torch.zeros(d, d, dtype=torch.float64)
    skew[tuple(torch.triu_indices(d, d, 1))] = params.flatten()
    skew = skew - skew.T
    identity = torch.eye(d, dtype=torch.float64)
    cayley = torch.linalg.inv(identity - skew) @ (identity + skew)
    torch.testing.assert_close(FlatBundle(params, "cayley", d).matrices()[0, 0], cayley)
    exponential = torch.linalg.matrix_exp(skew)
    torch.testing.assert_close(FlatBundle(params, "exp", d).matrices()[0, 0], exponential)


@given(
    graph=graphs(max_nodes=6),
    case=st.sampled_from([(m, d) for m, f in MAPS.items() for d in f.dims or (2, 3)]),
    normalization=st.sampled_from(["rw", "sym"]),
    time=st.floats(0.01, 20),
)
def test_bundle_heat_is_synced_graph_heat(graph, case, normalization, time):
    """exp(-t L_B) = O^T (exp(-t L) x I) O, with L_B assembled block by block."""
    maps, d = case
    lap = Laplacian(*graph, normalization=normalization).to(torch.float64)
    bundle = random_bundle(lap.num_nodes, maps, d)
    x = torch.randn(lap.num_nodes, 2, d, 2, dtype=torch.float64)
    kernel = torch.linalg.matrix_exp(-time * bundle.laplacian(lap))
    expected = torch.einsum("bij,bjp->bip", kernel, x.transpose(0, 1).reshape(2, -1, 2))
    y = bundle.desync(diffuse(bundle.sync(x), lap, time, tol=1e-12))
    torch.testing.assert_close(y.transpose(0, 1).reshape(2, -1, 2), expected, rtol=0, atol=1e-9)


def test_laplacian_has_the_transports_as_blocks():
    lap = zoo_laplacian("weighted", "rw")
    bundle = random_bundle(lap.num_nodes, "householder", 3, b=2)
    matrices, full = bundle.matrices(), bundle.laplacian(lap).view(2, 40, 3, 40, 3)
    u, v = lap.edge_index[:, 5].tolist()
    transport = matrices[u].mT @ matrices[v]
    torch.testing.assert_close(full[:, u, :, v], lap.dense()[u, v] * transport)


@given(graph=graphs(max_nodes=8), maps=st.sampled_from(["o2", "householder"]))
def test_energy_is_the_edge_sum_and_decreases_along_the_flow(graph, maps):
    lap = Laplacian(*graph).to(torch.float64)
    bundle = random_bundle(lap.num_nodes, maps)
    x = torch.randn(lap.num_nodes, 2, 2, 3, dtype=torch.float64)
    u, v = lap.edge_index
    matrices = bundle.matrices()
    difference = x[u] - matrices[u].mT @ matrices[v] @ x[v]
    squares = difference.square().sum((1, 2, 3))
    energy = bundle.energy(x, lap)
    torch.testing.assert_close(
        energy, 0.5 * (lap.edge_weight * squares).sum(), rtol=1e-9, atol=1e-9
    )
    flow = [bundle.desync(diffuse(bundle.sync(x), lap, t, tol=1e-12)) for t in (0.1, 1.0, 5.0)]
    energies = [energy, *(bundle.energy(y, lap) for y in flow)]
    assert all(after <= before + 1e-9 for before, after in itertools.pairwise(energies))
    assert float(energies[-1]) >= -1e-9


def test_small_energies_do_not_drown_in_rounding():
    lap = zoo_laplacian("grid", "rw")
    bundle = FlatBundle(torch.zeros(lap.num_nodes, 1, 1))
    x = torch.ones(lap.num_nodes, 2) + 1e-5 * torch.randn(lap.num_nodes, 2)
    exact = FlatBundle(torch.zeros(lap.num_nodes, 1, 1).double()).energy(x.double(), lap)
    assert float(bundle.energy(x, lap)) == pytest.approx(float(exact), rel=1e-2)


def test_energy_of_the_symmetric_laplacian():
    lap = zoo_laplacian("weighted", "sym")
    bundle = random_bundle(lap.num_nodes, b=1)
    x = torch.randn(lap.num_nodes, 2, dtype=torch.float64)
    flat = x.reshape(-1)
    torch.testing.assert_close(bundle.energy(x, lap), flat @ bundle.laplacian(lap)[0] @ flat)


BAD_BUNDLES = {
    "unknown maps": (
        {"maps": "spin"},
        ValueError,
        r"maps='spin' is unknown; use one of \['rotation', 'o2', 'householder', 'cayley', 'exp'\]",
    ),
    "plane maps in space": (
        {"maps": "o2", "bundle_dim": 3},
        ValueError,
        r"maps='o2' exists for bundle_dim in \(2,\), not 3; use one of \['householder'",
    ),
    "no dimension": ({"maps": "exp", "bundle_dim": 0}, ValueError, "bundle_dim=0"),
    "shape": (
        {"maps": "householder", "bundle_dim": 3},
        ValueError,
        r"params has shape \(4, 2, 1\); .* needs \(num_nodes, num_bundles, 9\)",
    ),
    "integers": (
        {"params": torch.zeros(4, 2, 1).long()},
        TypeError,
        "params is of type torch.int64",
    ),
}


@pytest.mark.parametrize("case", BAD_BUNDLES)
def test_bad_bundles(case):
    options, error, message = BAD_BUNDLES[case]
    with pytest.raises(error, match=message):
        FlatBundle(**{"params": torch.zeros(4, 2, 1), **options})


def test_bad_fields():
    bundle = FlatBundle(torch.zeros(4, 2, 1))
    with pytest.raises(ValueError, match=r"x has shape \(4, 6\); 4 nodes with num_bundles=2"):
        bundle.sync(torch.zeros(4, 6))
    with pytest.raises(ValueError, match=r"x has shape \(3, 8\)"):
        bundle.desync(torch.zeros(3, 8))
    with pytest.raises(TypeError, match=r"x has dtype torch.int64"):
        bundle.sync(torch.zeros(4, 8).long())
    with pytest.raises(ValueError, match="x is on meta, the bundle on cpu"):
        bundle.sync(torch.zeros(4, 8, device="meta"))
