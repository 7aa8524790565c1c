"""Maps of planes, against the same maps in float64."""

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from bunn import FlatBundle, kernels
from bunn.bundle.rotation import plane_map
from bunn.calling import plain
from bunn.kernels.planes import turn_planes, turn_planes_back
from tests.kernels.test_walk import DEVICE, DTYPES

#: Nodes, bundles, vectors of a bundle, bundles that rotate.
SHAPES = [(1, 1, 1, 1), (7, 5, 1, 3), (600, 2, 1, 0), (3, 1, 300, 1), (5, 4, 33, 2), (0, 2, 3, 1)]


def numbers(n: int, b: int, p: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    x, grad = (torch.randn(n, b, 2, p, device=DEVICE).to(dtype) for _ in range(2))
    cos, sin = (torch.randn(n, b, device=DEVICE) for _ in range(2))
    return x, grad, cos, sin


def exact(x: Tensor, grad: Tensor, cos: Tensor, sin: Tensor, turned: int) -> tuple[Tensor, ...]:
    """The map and its gradients in float64, by torch alone."""
    leaves = [value.double().requires_grad_() for value in (x, cos, sin)]
    y = plane_map(*leaves, turned)
    return y.detach(), *torch.autograd.grad(y, leaves, grad.double())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_maps_and_their_gradients(shape, dtype):
    n, b, p, turned = shape
    x, grad, cos, sin = numbers(n, b, p, dtype)
    y, by_x, by_cos, by_sin = exact(x, grad, cos, sin, turned)
    eps = torch.finfo(dtype).eps
    found = turn_planes(x, cos, sin, turned)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), y, rtol=eps, atol=8 * eps)
    grad_x, grad_cos, grad_sin = turn_planes_back(grad, x, cos, sin, turned)
    assert (grad_x.dtype, grad_cos.dtype, grad_sin.dtype) == (dtype, *2 * [torch.float32])
    torch.testing.assert_close(grad_x.double(), by_x, rtol=eps, atol=8 * eps)
    torch.testing.assert_close(grad_cos.double(), by_cos, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(grad_sin.double(), by_sin, rtol=1e-5, atol=1e-4)


def test_rows_need_not_lie_one_after_the_other():
    x, grad, cos, sin = numbers(6, 3, 4, torch.float32)
    apart = [value.repeat_interleave(2, -1)[..., ::2] for value in (grad, x, cos, sin)]
    assert not any(value.is_contiguous() for value in apart)
    assert torch.equal(turn_planes(*apart[1:], 2), turn_planes(x, cos, sin, 2))
    for mine, theirs in zip(
        turn_planes_back(*apart, 2), turn_planes_back(grad, x, cos, sin, 2), strict=True
    ):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_maps_by_their_angles(shape, dtype, inverse):
    n, b, p, turned = shape
    x, grad, angle, _ = numbers(n, b, p, dtype)
    angle = 30 * angle
    wide, leaf = x.double().requires_grad_(), angle.double().requires_grad_()
    sign = torch.ones(b, dtype=torch.float64, device=DEVICE)
    if inverse:
        sign[:turned] = -1
    y = plane_map(wide, torch.cos(leaf), sign * torch.sin(leaf), turned)
    by_x, by_angle = torch.autograd.grad(y, (wide, leaf), grad.double())
    eps = torch.finfo(dtype).eps
    found = kernels.turn_by(x, angle, turned, inverse)
    torch.testing.assert_close(found.double(), y.detach(), rtol=eps, atol=8 * eps)
    grad_x, grad_angle = kernels.turn_by_back(grad, x, angle, turned, inverse)
    assert (found.dtype, grad_x.dtype, grad_angle.dtype) == (dtype, dtype, torch.float32)
    torch.testing.assert_close(grad_x.double(), by_x, rtol=eps, atol=8 * eps)
    torch.testing.assert_close(grad_angle.double(), by_angle, rtol=1e-5, atol=1e-4)


@pytest.mark.filterwarnings("ignore:invalid value encountered in (cos|sin):RuntimeWarning")
@pytest.mark.parametrize("size", [1.0, 1e3, 4000.0, 1e5, 1e8])
def test_sines_and_cosines(size):
    """Of all angles that are numbers; what is none stays so, and changes no other."""
    angle = torch.linspace(-size, size, 3001, device=DEVICE)
    angle[:5] = torch.tensor([0.0, -0.0, torch.pi / 4, -torch.pi / 2, 1e-30], device=DEVICE)
    x = torch.tensor([1.0, 0.0], device=DEVICE).expand(len(angle), 1, 2)[..., None].contiguous()
    c, s = kernels.turn_by(x, angle[:, None], 1, True).squeeze().unbind(1)
    torch.testing.assert_close(c.double(), angle.double().cos(), rtol=0, atol=2e-7)
    torch.testing.assert_close(s.double(), angle.double().sin(), rtol=0, atol=2e-7)
    assert float((c.square() + s.square() - 1).abs().max()) < 4e-7
    angle[7], angle[8] = torch.inf, torch.nan
    again = kernels.turn_by(x, angle[:, None], 1, True).squeeze()
    assert again.isnan().any(1).nonzero().flatten().tolist() == [7, 8]
    there = ~again.isnan().any(1)
    torch.testing.assert_close(again[there, 0], c[there], rtol=0, atol=2e-7)


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("p", [1, 3])
def test_angles_of_16_bits(p, narrow):
    x, grad, angle, _ = numbers(50, 4, p, narrow)
    angle = angle.to(narrow)
    for inverse in (False, True):
        y = kernels.turn_by(x, angle, 2, inverse)
        assert torch.equal(y, kernels.turn_by(x, angle.float(), 2, inverse))
        by_x, by_angle = kernels.turn_by_back(grad, x, angle, 2, inverse)
        exact = kernels.turn_by_back(grad, x, angle.float(), 2, inverse)
        assert torch.equal(by_x, exact[0])
        assert by_angle.dtype == narrow
        eps = torch.finfo(narrow).eps  # the interpreter cuts numbers off
        torch.testing.assert_close(by_angle.float(), exact[1], rtol=eps, atol=eps)


@pytest.fixture
def served(monkeypatch):
    """What the kernels were asked for; a CPU asks them, too."""
    calls: list[str] = []
    for name in ("turn", "turn_back", "turn_by", "turn_by_back"):
        real = getattr(kernels, name)
        spy = lambda *args, name=name, real=real: calls.append(name) or real(*args)  # noqa: E731
        monkeypatch.setattr(kernels, name, spy)
    monkeypatch.setattr(kernels, "serve_maps", lambda x, cos: cos.dtype == torch.float32)
    monkeypatch.setattr(
        kernels, "serve_angles", lambda x, angle: plain(x, angle) and angle.dtype in DTYPES
    )
    return calls


def test_by_a_gradient_that_is_differentiated(served):
    """The maps of a bundle twice, against float64 through torch."""
    angle, field = torch.randn(5, 3, 1, device=DEVICE), torch.randn(5, 3, 2, 2, device=DEVICE)
    found = {}
    for kind in (torch.float32, torch.float64):
        leaves = [value.to(kind).requires_grad_() for value in (angle, field)]
        bundle = FlatBundle(leaves[0], "o2")
        y = bundle.desync(bundle.sync(leaves[1]).sin())
        first = torch.autograd.grad(y.square().sum(), leaves, create_graph=True)
        found[kind] = torch.autograd.grad(sum(part.square().sum() for part in first), leaves)
    for mine, theirs in zip(found[torch.float32], found[torch.float64], strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-4)
    assert served.count("turn_by") == 2


@pytest.mark.parametrize("by_maps", [True, False])
def test_gradients_of_many_and_their_tangents(by_maps, served):
    """What arrives may be more than numbers: one of a batch, or with a tangent."""
    angle, field = torch.randn(5, 3, 1, device=DEVICE), torch.randn(5, 3, 2, 2, device=DEVICE)
    seeds, tangent = torch.randn(4, *field.shape, device=DEVICE), torch.randn_like(field)
    leaves = [value.requires_grad_() for value in ([field, angle] if by_maps else [field])]
    y = FlatBundle(angle, "o2").sync(field)

    def back(seed: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(y, leaves, seed, retain_graph=True)

    one_by_one = [torch.stack(found) for found in zip(*map(back, seeds), strict=True)]
    for mine, theirs in zip(torch.vmap(back)(seeds), one_by_one, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    with forward_ad.dual_level():
        found = [forward_ad.unpack_dual(g) for g in back(forward_ad.make_dual(seeds[0], tangent))]
    for dual, expected in zip(found, back(tangent), strict=True):  # linear in the seed
        torch.testing.assert_close(dual.tangent, expected, rtol=1e-5, atol=1e-5)


def test_forward_derivatives_do_without(served):
    angle, field = torch.randn(5, 3, 1, device=DEVICE), torch.randn(5, 3, 2, 2, device=DEVICE)
    tangent = torch.randn_like(angle)

    def sync(angle: Tensor) -> Tensor:
        return FlatBundle(angle, "o2").sync(field)

    _, slope = torch.func.jvp(sync, (angle,), (tangent,))
    step = 1e-3 * tangent
    expected = (sync((angle + step).double()) - sync((angle - step).double())) / 2e-3
    torch.testing.assert_close(slope, expected.float(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("maps", ["rotation", "o2", "cayley", "exp"])
@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_bundle_goes_through_them(dtype, narrow, maps, served):
    """Parameters in float32, or in the type of the features."""
    angle = torch.randn(9, 3, 1, device=DEVICE).to(dtype if narrow else torch.float32)
    field, between = (torch.randn(9, 3, 2, 4, device=DEVICE).to(dtype) for _ in range(2))
    found = {}
    for kind in (torch.float32, torch.float64):
        params = angle.to(angle.dtype if kind == torch.float32 else kind).requires_grad_()
        x = field.to(dtype if kind == torch.float32 else kind).requires_grad_()
        bundle = FlatBundle(params, maps)
        y = bundle.desync(bundle.sync(x) * between.to(x.dtype))
        found[kind] = (y.detach(), *torch.autograd.grad(y.square().sum(), (x, params)))
    assert sorted(served) == ["turn_by", "turn_by", "turn_by_back", "turn_by_back"]
    eps = torch.finfo(dtype).eps
    for mine, theirs in zip(found[torch.float32], found[torch.float64], strict=True):
        scale = float(theirs.abs().max())
        torch.testing.assert_close(mine.double(), theirs, rtol=0, atol=8 * eps * scale)


@pytest.mark.parametrize("params", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("features", DTYPES, ids=str)
def test_gradients_by_angles_are_added_up_in_float32(features, params, served):
    """Those of sync and desync nearly cancel where little happens in between. In bfloat16 alike,
    features have lost as much."""
    angle = torch.randn(40, 3, 1, device=DEVICE).to(params)
    x = (1e4 * torch.randn(40, 3, 2, 5, device=DEVICE)).clamp(-2e4, 2e4).to(features)
    found = []
    for widen in (False, True):
        leaf = angle.clone().requires_grad_()
        bundle = FlatBundle(leaf.float() if widen else leaf, "o2")
        with torch.no_grad():  # which others must not be given
            bundle.sync(x)
        (grad,) = torch.autograd.grad(bundle.desync(1.01 * bundle.sync(x)), leaf, x)
        assert grad.dtype == params
        found.append(grad)
    alike = features == params == torch.bfloat16
    scale = float(found[1].abs().max())
    torch.testing.assert_close(*found, rtol=0, atol=0.1 * scale if alike else 0)


def test_a_gradient_can_be_differentiated(served):
    x, _, cos, sin = numbers(4, 2, 3, torch.float32)
    leaves = [value.requires_grad_() for value in (x, cos, sin)]

    def twice(leaves: list[Tensor]) -> tuple[Tensor, ...]:
        y = plane_map(*leaves, 1)
        first = torch.autograd.grad(y.square().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(part.square().sum() for part in first), leaves)

    wide = [value.detach().double().requires_grad_() for value in leaves]
    for mine, theirs in zip(twice(leaves), twice(wide), strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-4)
    assert "turn" in served


def test_only_what_is_needed(served):
    """A gradient by the features alone is a map, the inverse one."""
    x, grad, cos, sin = numbers(4, 2, 3, torch.float32)
    x.requires_grad_()
    (found,) = torch.autograd.grad(plane_map(x, cos, sin, 1), x, grad)
    assert served == ["turn", "turn"]
    torch.testing.assert_close(found.double(), exact(x, grad, cos, sin, 1)[1])
