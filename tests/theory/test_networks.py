"""Networks that are a table of values, and maps and mixing read and set outright."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bunn
from bunn.nn import MLPPhi
from bunn.theory.networks import FixedMaps, lookup_network, mixing

EDGES = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])

coordinate = st.integers(-(10**6), 10**6).map(lambda i: i / 1024)
encodings = st.sampled_from([1, 8]).flatmap(
    lambda f: st.lists(st.tuples(*[coordinate] * f), min_size=1, max_size=12, unique=True)
)


def exactly(points, values):
    """Asserts that the network is ``values`` at ``points``, bit by bit, in batches of any size."""
    network = lookup_network(points, values)
    k = len(points)
    assert isinstance(network, MLPPhi)
    with torch.no_grad():
        assert torch.equal(network(points), values)
        for i in range(k):
            assert torch.equal(network(points[i : i + 1]), values[i : i + 1])
        order = torch.arange(3 * k + 1).flip(0) % k
        assert torch.equal(network(points[order]), values[order])


def one_hot(k, value=math.pi / 2):
    """Every point has a channel of its own; all others are zero there."""
    return value * torch.eye(k, dtype=torch.float64)


class TestLookup:
    @given(rows=encodings, value=st.floats(1e-3, 1e3))
    def test_zero_and_value_to_the_last_digit(self, rows, value):
        points = torch.tensor(rows, dtype=torch.float64)
        exactly(points, one_hot(len(points), value))

    @given(rows=encodings, data=st.data())
    def test_any_integers(self, rows, data):
        row = st.lists(st.integers(-1000, 1000), min_size=3, max_size=3)
        values = data.draw(st.lists(row, min_size=len(rows), max_size=len(rows)))
        exactly(torch.tensor(rows, dtype=torch.float64), torch.tensor(values, dtype=torch.float64))

    @given(rows=encodings, seed=st.integers(0, 2**31))
    def test_any_numbers_up_to_the_rounding_of_a_sum(self, rows, seed):
        generator = torch.Generator().manual_seed(seed)
        points = torch.tensor(rows, dtype=torch.float64)
        values = torch.randn(len(rows), 4, dtype=torch.float64, generator=generator)
        found = lookup_network(points, values)(points)
        torch.testing.assert_close(found, values, rtol=0, atol=1e-13)

    @pytest.mark.parametrize("f", [1, 8])
    @pytest.mark.parametrize("gap", [1e-9, 1e-6, 1.0])
    @pytest.mark.parametrize("start", [1.0, -3.0, 0.0])
    def test_close_ones(self, f, gap, start):
        k, generator = 7, torch.Generator().manual_seed(4)
        offset = 5 * torch.rand(f, dtype=torch.float64, generator=generator) + start
        direction = torch.randn(f, dtype=torch.float64, generator=generator)
        steps = gap * torch.arange(k, dtype=torch.float64)[:, None] * direction / direction.norm()
        far = torch.full((1, f), 2.0, dtype=torch.float64)
        exactly(torch.cat((offset * (1 + steps), far, -far)), one_hot(k + 2))

    @pytest.mark.parametrize("offset", [1e6, -1e6])
    def test_large_offset(self, offset):
        points = offset + torch.arange(20, dtype=torch.float64)[:, None]
        exactly(points, one_hot(20))
        exactly(points[torch.randperm(20, generator=torch.Generator().manual_seed(2))], one_hot(20))

    @pytest.mark.parametrize("scale", [1e-200, 1e-9, 1e9, 1e100])
    def test_any_scale(self, scale):
        points = scale * torch.tensor([[-1.0, 0.5], [0.25, 0.0], [3.0, 0.5]], dtype=torch.float64)
        exactly(points, one_hot(3))

    def test_many_points(self):
        generator = torch.Generator().manual_seed(8)
        exactly(torch.randn(150, 5, dtype=torch.float64, generator=generator), one_hot(150))

    def test_lattice_that_no_axis_tells_apart(self):
        points = torch.cartesian_prod(torch.arange(5.0), torch.arange(4.0)).double()
        exactly(points, one_hot(20))

    def test_single_precision_points(self):
        points = torch.tensor([[0.1], [0.2], [0.3]])
        network = lookup_network(points, one_hot(3))
        assert torch.equal(network(points.double()), one_hot(3))

    def test_one_point_is_a_constant(self):
        values = torch.tensor([[0.1, -7.0]], dtype=torch.float64)
        network = lookup_network(torch.tensor([[3.0]], dtype=torch.float64), values)
        anywhere = torch.tensor([[3.0], [-100.0]], dtype=torch.float64)
        assert torch.equal(network(anywhere), values.expand(2, 2))

    def test_equal_rows_with_equal_values(self):
        points = torch.tensor([[2.0], [1.0], [2.0], [-0.0], [0.0]], dtype=torch.float64)
        values = torch.tensor([[5.0], [6.0], [5.0], [7.0], [7.0]], dtype=torch.float64)
        exactly(points, values)

    @pytest.mark.parametrize("values", [[5.0, 6.0, 4.0, 5.0], [5.0, 6.0, 6.0, 4.0]])
    def test_equal_rows_with_different_values_are_named(self, values):
        points = torch.tensor([[2.0, 1.0], [1.0, 1.0], [1.5, 1.0], [2.0, 1.0]], dtype=torch.float64)
        points[2] = points[0]
        values = torch.tensor(values, dtype=torch.float64)[:, None]
        with pytest.raises(ValueError, match=r"row \d and row \d are equal, \[2\.0, 1\.0\]") as e:
            lookup_network(points, values)
        first, second = (int(word) for word in str(e.value).split() if word.isdigit())
        assert torch.equal(points[first], points[second])
        assert not torch.equal(values[first], values[second])

    def test_too_close_to_be_told_apart(self):
        points = torch.tensor([[1.0], [1.0 + 1e-13], [2.0]], dtype=torch.float64)
        with pytest.raises(ValueError, match=r"within 5e-14 of each other.*must be injective"):
            lookup_network(points, one_hot(3))

    @pytest.mark.parametrize("row", [[0.0, math.nan, 1.0], [0.0, math.inf]])
    def test_points_that_are_not_finite_are_an_error(self, row):
        points = torch.tensor(row, dtype=torch.float64)[:, None]
        with pytest.raises(ValueError, match="encodings"):
            lookup_network(points, one_hot(len(points)))


class TestFixedMaps:
    def test_maps_are_parameters_whatever_the_input(self):
        params = torch.randn(3, 2, 1)
        phi = FixedMaps(params)
        assert torch.equal(phi(torch.randn(3, 5), EDGES), params.flatten(1))
        assert torch.equal(phi(torch.randn(3, 0)), params.flatten(1))
        assert [tuple(p.shape) for p in phi.parameters()] == [(3, 2, 1)]

    def test_own_copy(self):
        params = torch.zeros(3, 2, 1, requires_grad=True)
        phi = FixedMaps(params)
        with torch.no_grad():
            params += 1
        assert not phi.params.any()

    @pytest.mark.parametrize(("maps", "d"), [("o2", 2), ("householder", 3), ("cayley", 4)])
    def test_bundle_of_a_layer(self, maps, d):
        params = torch.randn(3, 2, bunn.num_map_params(maps, d))
        conv = bunn.BuNNConv(
            4 * d, 4 * d, num_bundles=2, bundle_dim=d, maps=maps, phi=FixedMaps(params)
        )
        found = conv.bundle(torch.randn(3, 4 * d), EDGES).matrices()
        torch.testing.assert_close(found, bunn.FlatBundle(params, maps, d).matrices())
        conv(torch.randn(3, 4 * d), EDGES).sum().backward()
        assert conv.phi.params.grad.any()


class TestMixing:
    @pytest.mark.parametrize("update", ["before", "after"])
    def test_w_and_b_of_a_layer(self, update):
        """At trivial maps and no time the layer is ``x W^T + b``."""
        conv = bunn.BuNNConv(
            4, 6, time=0.0, maps="rotation", phi=FixedMaps(torch.zeros(3, 1, 1)), update=update
        )
        x, linear = torch.randn(3, 4), mixing(conv)
        torch.testing.assert_close(conv(x, EDGES), x @ linear.weight.T + linear.bias)

    @pytest.mark.parametrize("options", [{"weight": False}, {"update": "mlp"}], ids=str)
    def test_layer_without_w_is_an_error(self, options):
        with pytest.raises(TypeError, match=r"BuNNConv\(4, 4.*no linear W; build it with .*True"):
            mixing(bunn.BuNNConv(4, 4, **options))
