"""What every family of maps promises; one that is added to MAPS is tested by being there."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bunn import FlatBundle, num_map_params
from bunn.bundle import MAPS

CASES = [(name, d) for name, family in MAPS.items() for d in family.dims or (1, 2, 3, 5)]
SCALES = (0.0, 1e-38, 1e-20, 1e-6, 1e-2, 1.0, 30.0, 1e4, 1e10, 1e20, 3e37)
ORTHOGONALITY = {torch.float32: 1e-5, torch.float64: 1e-12}


def parameters(maps, d, scale=1.0, n=6, b=3, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(n, b, num_map_params(maps, d), dtype=torch.float64, generator=generator)
    return (scale * values).to(dtype)


def fields(d, p=2, n=6, b=3, dtype=torch.float64):
    return torch.randn(n, b * d * p, dtype=dtype, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", ORTHOGONALITY)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(("maps", "d"), CASES)
def test_orthogonal_with_finite_gradients_everywhere(maps, d, scale, dtype):
    params = parameters(maps, d, scale, n=40, dtype=dtype).requires_grad_()
    x = fields(d, n=40, dtype=dtype).requires_grad_()
    bundle = FlatBundle(params, maps, d)
    matrices = bundle.matrices().detach()
    defect = matrices @ matrices.mT - torch.eye(d, dtype=dtype)
    assert float(defect.abs().max()) <= ORTHOGONALITY[dtype]
    bundle.sync(x).sin().sum().backward()
    assert x.grad.isfinite().all()
    assert params.grad is None or params.grad.isfinite().all()


@given(data=st.data())
@pytest.mark.parametrize(("maps", "d"), CASES)
def test_any_numbers_give_orthogonal_maps(maps, d, data):
    size = num_map_params(maps, d)
    number = st.floats(-1e300, 1e300, allow_subnormal=True)
    values = data.draw(st.lists(number, min_size=2 * size, max_size=2 * size))
    params = torch.tensor(values, dtype=torch.float64).reshape(1, 2, size).requires_grad_()
    matrices = FlatBundle(params, maps, d).matrices()
    defect = matrices.detach() @ matrices.detach().mT - torch.eye(d, dtype=torch.float64)
    assert float(defect.abs().max()) <= 1e-12
    if size:
        (gradient,) = torch.autograd.grad(matrices.sin().sum(), params)
        assert gradient.isfinite().all()


@pytest.mark.parametrize(("maps", "d"), CASES)
def test_sync_is_the_matrix_and_desync_its_transpose(maps, d):
    bundle, x = FlatBundle(parameters(maps, d), maps, d), fields(d)
    matrices, field = bundle.matrices(), x.view(6, 3, d, 2)
    torch.testing.assert_close(bundle.sync(x), (matrices @ field).reshape(6, -1))
    torch.testing.assert_close(bundle.desync(x), (matrices.mT @ field).reshape(6, -1))
    torch.testing.assert_close(bundle.sync(field), matrices @ field)
    torch.testing.assert_close(bundle.desync(bundle.sync(x)), x)


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e6])
@pytest.mark.parametrize(("maps", "d"), CASES)
def test_all_nodes_of_a_bundle_share_a_determinant(maps, d, scale):
    matrices = FlatBundle(parameters(maps, d, scale, n=20), maps, d).matrices()
    determinants = torch.linalg.det(matrices).round()
    assert (determinants == determinants[:1]).all()


@pytest.mark.parametrize(("maps", "d"), CASES)
@pytest.mark.parametrize(("direction", "p"), [("sync", 2), ("desync", 1)])
def test_derivatives(maps, d, direction, p):
    params = parameters(maps, d, n=2, b=2).requires_grad_(num_map_params(maps, d) > 0)
    x = fields(d, p, n=2, b=2).requires_grad_()

    def apply(params, x):
        return getattr(FlatBundle(params, maps, d), direction)(x)

    assert torch.autograd.gradcheck(apply, (params, x))
    assert torch.autograd.gradgradcheck(apply, (params, x))
    reverse = torch.func.jacrev(apply, (0, 1))(params, x)
    forward = torch.func.jacfwd(apply, (0, 1))(params, x)
    for a, b in zip(reverse, forward, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("maps", "d"), CASES)
def test_vmap_over_parameters_and_fields(maps, d):
    params = torch.stack([parameters(maps, d, seed=s) for s in range(3)])
    x = torch.stack([fields(d), 2 * fields(d), fields(d).flip(0)])

    def sync(params, x):
        return FlatBundle(params, maps, d).sync(x)

    expected = torch.stack([sync(a, b) for a, b in zip(params, x, strict=True)])
    torch.testing.assert_close(torch.func.vmap(sync)(params, x), expected)
    first = torch.func.vmap(sync, in_dims=(0, None))(params, x[0])
    torch.testing.assert_close(first, torch.stack([sync(a, x[0]) for a in params]))


@pytest.mark.parametrize(("maps", "d"), CASES)
def test_compiles_into_one_graph(maps, d):
    torch._dynamo.reset()
    params, x = parameters(maps, d).requires_grad_(), fields(d).requires_grad_()

    def loss(params, x):
        bundle = FlatBundle(params, maps, d)
        return bundle.desync(bundle.sync(x).sin()).square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    expected = torch.autograd.grad(loss(params, x), x)
    torch.testing.assert_close(torch.autograd.grad(compiled(params, x), x), expected)


@pytest.mark.parametrize(("maps", "d"), CASES)
def test_half_precision_features_keep_their_type(maps, d):
    bundle = FlatBundle(parameters(maps, d, dtype=torch.bfloat16), maps, d)
    x = fields(d)
    y = bundle.sync(x.bfloat16())
    assert y.dtype == torch.bfloat16
    exact = FlatBundle(parameters(maps, d, dtype=torch.bfloat16).double(), maps, d).sync(x)
    torch.testing.assert_close(y.double(), exact, rtol=0.03, atol=0.06)
