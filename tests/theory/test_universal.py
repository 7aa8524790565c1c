"""Theorem 5.3: layers that are a given linear map on every graph of a family."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data

import bunn
from bunn.nn import MLPPhi
from bunn.theory import graphs as g
from bunn.theory.approximation import cube, universal_network
from bunn.theory.networks import mixing
from bunn.theory.universal import universal_layer

FAMILY = (g.path(1), g.path(9), g.cycle(5), g.tree(3), g.grid(2, 5), g.random(8, seed=11))
TIMES = (math.inf, 1000.0, 10.0, 1.0, 0.1, 0.01)
TOL = 1e-8


def edges_of(graphs):
    return [graph.edge_index for graph in graphs]


def encodings_of(graphs, channels=1, seed=0):
    """Different at all nodes of all graphs: whole numbers in the first channel, in random order."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [graph.num_nodes for graph in graphs]
    rest = torch.randn(sum(sizes), channels - 1, dtype=torch.float64, generator=generator)
    first = torch.randperm(sum(sizes), generator=generator).double()[:, None]
    return torch.cat((first, rest), dim=1).split(sizes)


def maps_of(graphs, c_in=1, c_out=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(n * c_out, n * c_in, dtype=torch.float64, generator=generator)
        for n in (graph.num_nodes for graph in graphs)
    ]


def features(graph, channels, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(graph.num_nodes, channels, dtype=torch.float64, generator=generator)


def applied(matrix, x):
    """A matrix on features flattened node by node."""
    return (matrix @ x.flatten()).view(len(x), -1)


def check(found, matrix, x, bias=0.0):
    """Every entry is exact relative to the terms that it sums."""
    terms = applied(matrix.abs(), x.abs()) + abs(bias)
    assert bool(((found - applied(matrix, x) - bias).abs() <= TOL * terms).all())


class TestLinearMaps:
    @pytest.mark.parametrize("time", TIMES)
    @pytest.mark.parametrize(("c_in", "c_out", "channels"), [(1, 1, 1), (3, 2, 6), (1, 4, 2)])
    def test_each_graph_has_its_own(self, time, c_in, c_out, channels):
        encodings, maps = encodings_of(FAMILY, channels), maps_of(FAMILY, c_in, c_out)
        layer = universal_layer(edges_of(FAMILY), encodings, maps, time=time)
        for graph, encoding, matrix in zip(FAMILY, encodings, maps, strict=True):
            x = features(graph, c_in)
            found = layer(x, graph.edge_index, pe=encoding)
            assert found.dtype == torch.float64
            check(found, matrix, x)

    @pytest.mark.parametrize("time", TIMES)
    def test_all_graphs_in_one_batch_and_in_any_order_of_nodes(self, time):
        encodings, maps = encodings_of(FAMILY, 3), maps_of(FAMILY, 2, 3)
        layer = universal_layer(edges_of(FAMILY), encodings, maps, time=time)
        several = [(i, seed) for seed in (0, 1) for i in range(len(FAMILY))]
        xs = [features(FAMILY[i], 2, seed) for i, seed in several]
        data = [
            Data(x, FAMILY[i].edge_index, pe=encodings[i])
            for (i, _), x in zip(several, xs, strict=True)
        ]
        batch = Batch.from_data_list(data)
        found = layer(batch.x, batch.edge_index, pe=batch.pe)
        for (i, _), x, part in zip(several, xs, found.split([len(x) for x in xs]), strict=True):
            check(part, maps[i], x)
        order = torch.randperm(len(found), generator=torch.Generator().manual_seed(1))
        moved = layer(batch.x[order], order.argsort()[batch.edge_index], pe=batch.pe[order])
        torch.testing.assert_close(moved, found[order], rtol=TOL, atol=TOL)

    @settings(max_examples=25)
    @given(
        sizes=st.lists(st.integers(1, 7), min_size=1, max_size=4),
        c_in=st.integers(1, 3),
        c_out=st.integers(1, 3),
        channels=st.integers(1, 4),
        time=st.floats(0.02, 200.0) | st.just(math.inf),
        seed=st.integers(0, 2**31),
    )
    def test_any_family(self, sizes, c_in, c_out, channels, time, seed):
        graphs = [g.random(n, seed + i, extra=i) for i, n in enumerate(sizes)]
        encodings, maps = encodings_of(graphs, channels, seed), maps_of(graphs, c_in, c_out, seed)
        generator = torch.Generator().manual_seed(seed)
        biases = [torch.randn(len(m), dtype=torch.float64, generator=generator) for m in maps]
        layer = universal_layer(edges_of(graphs), encodings, maps, biases, time=time)
        assert layer.width == 2 * max(c_in, c_out) * sum(sizes)
        for graph, encoding, matrix, bias in zip(graphs, encodings, maps, biases, strict=True):
            x = features(graph, c_in, seed)
            found = layer(x, graph.edge_index, pe=encoding)
            check(found, matrix, x, bias.view(graph.num_nodes, c_out))

    @pytest.mark.parametrize("time", [math.inf, 2.0])
    def test_bias_alone_differs_from_node_to_node(self, time):
        graphs = (g.star(6), g.path(4))
        encodings, maps = encodings_of(graphs), [torch.zeros(14, 7), torch.zeros(8, 4)]
        biases = [torch.arange(14.0) - 3, torch.linspace(-1, 1, 8)]
        layer = universal_layer(edges_of(graphs), encodings, maps, biases, time=time)
        for graph, encoding, bias in zip(graphs, encodings, biases, strict=True):
            found = layer(features(graph, 1), graph.edge_index, pe=encoding)
            torch.testing.assert_close(found.flatten(), bias.double(), rtol=TOL, atol=0)

    @pytest.mark.parametrize("time", [math.inf, 0.5])
    def test_zero_maps_are_zero(self, time):
        graphs = (g.cycle(6), g.tree(1))
        encodings, maps = encodings_of(graphs, 2), [torch.zeros(18, 12), torch.zeros(9, 6)]
        layer = universal_layer(edges_of(graphs), encodings, maps, time=time)
        for graph, encoding in zip(graphs, encodings, strict=True):
            assert not layer(features(graph, 2), graph.edge_index, pe=encoding).any()

    def test_other_graphs_do_not_leak_in(self):
        """With a huge map on one graph, the other is as exact as before."""
        graphs = (g.cycle(4), g.path(6))
        encodings, (small, large) = encodings_of(graphs), maps_of(graphs)
        layer = universal_layer(edges_of(graphs), encodings, [small, 1e30 * large], time=1.0)
        x = features(graphs[0], 1)
        check(layer(x, graphs[0].edge_index, pe=encodings[0]), small, x)


class TestTheLayer:
    @pytest.mark.parametrize(("c_in", "c_out"), [(1, 1), (3, 1), (2, 5)])
    def test_width_is_linear_in_the_number_of_nodes(self, c_in, c_out):
        layer = universal_layer(
            edges_of(FAMILY), encodings_of(FAMILY), maps_of(FAMILY, c_in, c_out)
        )
        k = sum(graph.num_nodes for graph in FAMILY)
        assert layer.conv.num_bundles == k
        assert layer.width == 2 * max(c_in, c_out) * k
        assert mixing(layer.conv).weight.shape == (2 * c_out * k, 2 * c_in * k)

    @pytest.mark.parametrize("channels", [1, 5])
    def test_phi_is_a_perceptron_on_the_encodings_alone(self, channels):
        encodings = encodings_of(FAMILY, channels)
        layer = universal_layer(edges_of(FAMILY), encodings, maps_of(FAMILY))
        assert type(layer.conv) is bunn.BuNNConv
        assert type(layer.conv.phi) is MLPPhi
        assert layer.conv.phi.lin_in.in_channels == channels
        quarter = math.pi / 2 * torch.eye(layer.conv.num_bundles, dtype=torch.float64)
        assert torch.equal(layer.conv.phi(torch.cat(encodings)), quarter)

    def test_state_dict_and_deepcopy_are_the_same_layer(self):
        graphs = (g.grid(2, 3), g.cycle(3))
        encodings, maps = encodings_of(graphs, 2), maps_of(graphs, 2, 2)
        layer = universal_layer(edges_of(graphs), encodings, maps, time=3.0)
        blank = universal_layer(
            edges_of(graphs), encodings_of(graphs, 2, seed=1), maps_of(graphs, 2, 2, 1), time=3.0
        )
        x, (edge_index, _) = features(graphs[0], 2), edges_of(graphs)
        expected = layer(x, edge_index, pe=encodings[0])
        blank.load_state_dict(layer.state_dict())
        for other in (blank, copy.deepcopy(layer)):
            assert torch.equal(other(x, edge_index, pe=encodings[0]), expected)

    @pytest.mark.parametrize("time", [math.inf, 1.0, 0.05])
    def test_gradient_is_the_transposed_map(self, time):
        graphs = (g.path(2), g.random(9, seed=2))
        encodings, maps = encodings_of(graphs), maps_of(graphs, 2, 3)
        layer = universal_layer(edges_of(graphs), encodings, maps, time=time)
        for graph, encoding, matrix in zip(graphs, encodings, maps, strict=True):
            x, cotangent = features(graph, 2).requires_grad_(), features(graph, 3, seed=1)
            layer(x, graph.edge_index, pe=encoding).backward(cotangent)
            torch.testing.assert_close(x.grad, applied(matrix.T, cotangent), rtol=TOL, atol=TOL)

    def test_trains(self):
        """Its parameters are as free as any layer's."""
        graphs = (g.cycle(4),)
        encodings = encodings_of(graphs)
        layer = universal_layer(edges_of(graphs), encodings, maps_of(graphs))
        layer(features(graphs[0], 1), graphs[0].edge_index, pe=encodings[0]).sum().backward()
        assert mixing(layer.conv).weight.grad.any()

    def test_inputs_in_single_precision(self):
        graphs = (g.path(3), g.cycle(4))
        encodings = [encoding.float() for encoding in encodings_of(graphs, 2)]
        maps = [matrix.float().requires_grad_() for matrix in maps_of(graphs)]
        layer = universal_layer(edges_of(graphs), encodings, maps, time=1.0)
        x = features(graphs[1], 1)
        check(layer(x, graphs[1].edge_index, pe=encodings[1]), maps[1].detach().double(), x)


class TestComponents:
    """A path of three nodes, a cycle of four and a node of its own, in any order of nodes."""

    EDGES = torch.tensor(
        [[0, 2, 2, 5, 1, 3, 3, 4, 4, 6, 6, 1], [2, 0, 5, 2, 3, 1, 4, 3, 6, 4, 1, 6]]
    )
    COMPONENT = torch.tensor([0, 1, 0, 1, 1, 0, 1, 2])

    @pytest.mark.parametrize("time", [math.inf, 1.0, 0.1])
    def test_any_map_within_components(self, time):
        same = self.COMPONENT[:, None] == self.COMPONENT
        (matrix,) = maps_of([g.path(8)], 3, 2)
        matrix = (matrix.view(8, 2, 8, 3) * same[:, None, :, None]).view(16, 24)
        (pe,) = encodings_of([g.path(8)])
        layer = universal_layer([self.EDGES], [pe], [matrix], time=time)
        x = features(g.path(8), 3)
        check(layer(x, self.EDGES, pe=pe), matrix, x)

    @pytest.mark.parametrize("time", [math.inf, 1.0])
    @pytest.mark.parametrize(("u", "v"), [(0, 3), (4, 7)])
    def test_no_map_between_them(self, time, u, v):
        graphs = (g.path(2), g.path(8))
        maps = [torch.eye(2), torch.eye(8)]
        maps[1][u, v] = 1e-9
        expected = (
            rf"linear_maps\[1\] lets node {v} act on node {u}, but the heat kernel between them is "
            rf"0 at time={time:g}: .* different components"
        )
        with pytest.raises(ValueError, match=expected):
            universal_layer(
                [graphs[0].edge_index, self.EDGES], encodings_of(graphs), maps, time=time
            )


class TestUnderflow:
    def test_kernel_that_underflows_is_an_error(self):
        graph, matrix = g.path(200), torch.eye(200)
        matrix[3, 190] = 1.0
        expected = (
            r"linear_maps\[0\] lets node 190 act on node 3, but the heat kernel .* is 0 at "
            r"time=0.001: use a larger time"
        )
        with pytest.raises(ValueError, match=expected):
            universal_layer([graph.edge_index], encodings_of([graph]), [matrix], time=1e-3)

    def test_is_none_where_nothing_is_asked_for(self):
        graph, matrix = g.path(200), torch.eye(200, dtype=torch.float64).roll(2, dims=1)
        matrix[:2] = matrix[-2:] = 0.0
        (pe,) = encodings_of([graph])
        layer = universal_layer([graph.edge_index], [pe], [matrix], time=1e-3)
        x = features(graph, 1)
        check(layer(x, graph.edge_index, pe=pe), matrix, x)

    def test_the_smallest_entries_still_work(self):
        """A kernel of 1e-248, far below what other methods of heat see."""
        graph = g.path(70)
        matrix = torch.zeros(70, 70, dtype=torch.float64)
        matrix[0, 69], matrix[69, 1] = 3.0, -2.0
        (pe,) = encodings_of([graph])
        layer = universal_layer([graph.edge_index], [pe], [matrix], time=1e-2)
        assert float(mixing(layer.conv).weight.detach().abs().max()) > 1e240
        x = features(graph, 1)
        check(layer(x, graph.edge_index, pe=pe), matrix, x)

    def test_single_precision_is_an_error(self):
        graph = g.path(3)
        (pe,) = encodings_of([graph])
        layer = universal_layer([graph.edge_index], [pe], [torch.eye(3)])
        with pytest.raises(TypeError, match=r"x has dtype torch.float32, .* use x.double\(\)"):
            layer(torch.zeros(3, 1), graph.edge_index, pe=pe)

    def test_weight_that_overflows_is_an_error(self):
        graph, matrix = g.path(80), torch.zeros(80, 80)
        matrix[0, 79] = 1e10
        with pytest.raises(ValueError, match=r"linear_maps\[0\]"):
            universal_layer([graph.edge_index], encodings_of([graph]), [matrix], time=1e-2)


class TestErrors:
    GRAPHS = (g.path(3), g.cycle(4))

    def error(self, match, *, encodings=None, maps=None, biases=None, graphs=GRAPHS, **options):
        with pytest.raises(ValueError, match=match):
            universal_layer(
                edges_of(graphs),
                encodings_of(graphs) if encodings is None else encodings,
                [torch.eye(3), torch.eye(4)] if maps is None else maps,
                biases,
                **options,
            )

    @pytest.mark.parametrize("time", [0.0, -1.0, math.nan])
    def test_time(self, time):
        self.error(rf"time={time}; heat has to flow: use a number > 0", time=time)

    def test_lists_of_different_lengths(self):
        first, _ = encodings_of(self.GRAPHS)
        self.error("edge_indices 2, encodings 1, linear_maps 2$", encodings=[first])
        self.error("edge_indices 2, encodings 2, linear_maps 1$", maps=[torch.eye(3)])
        self.error("linear_maps 2, biases 1$", biases=[torch.zeros(3)])
        self.error("edge_indices 0, encodings 0, linear_maps 0", graphs=(), encodings=[], maps=[])

    def test_encodings_that_two_nodes_share(self):
        first, second = (e.clone() for e in encodings_of(self.GRAPHS, 2))
        second[1] = first[2]
        message = (
            r"encodings of node 2 of graph 0 and node 1 of graph 1 are equal, \[.*\]; .*must be "
            "injective over all graphs"
        )
        self.error(message, encodings=[first, second])

    def test_encodings_too_close(self):
        first, second = encodings_of(self.GRAPHS)
        close = torch.cat((second[:3], second[:1] * (1 + 1e-14) + 1e-13))
        self.error(r"within \de-1\d of each other.*too close", encodings=[first, close])

    @pytest.mark.parametrize("shape", [(4,), (0, 1), (4, 2)])
    def test_shapes_of_encodings(self, shape):
        first, _ = encodings_of(self.GRAPHS)
        message = r"encodings\[1\] has (shape|2 channels, encodings\[0\] 1)"
        self.error(message, encodings=[first, torch.rand(shape)])

    @pytest.mark.parametrize("shape", [(4,), (5, 4), (4, 6), (0, 4), (4, 4, 1)])
    def test_shapes_of_maps(self, shape):
        seen = ", ".join(map(str, shape))
        message = rf"linear_maps\[1\] has shape \({seen},?\); graph 1 has 4 nodes, so it needs"
        self.error(message, maps=[torch.eye(3), torch.zeros(shape)])

    def test_channels_that_do_not_agree(self):
        maps = [torch.ones(3, 6), torch.ones(8, 4)]
        self.error(r"\(c_in, c_out\) = \[\(1, 2\), \(2, 1\)\]; all graphs must agree", maps=maps)

    @pytest.mark.parametrize("entry", [math.nan, math.inf])
    def test_maps_that_are_not_finite(self, entry):
        maps = [torch.eye(3), entry * torch.ones(4, 4)]
        self.error(r"linear_maps\[1\] has entries that are not finite", maps=maps)

    def test_shapes_of_biases(self):
        biases = [torch.zeros(3), torch.zeros(4, 1)]
        self.error(r"biases\[1\] has shape \(4, 1\); it needs \(4,\)", biases=biases)

    def test_encodings_for_too_few_nodes(self):
        first, second = encodings_of(self.GRAPHS)
        maps = [torch.eye(3), torch.eye(3)]
        self.error("edge_index names node 3", encodings=[first, second[:3]], maps=maps)


def waves(x):
    """A map that is neither linear nor local, two channels out: ``(batch, n, 1)``."""
    return torch.cat((torch.cos(2 * x + x.mean(1, keepdim=True)), x * x.prod(1, True)), dim=2)


class TestContinuousMaps:
    GRAPHS = (g.path(2), g.complete(3))

    def error(self, units, **options):
        """The mean squared error at fresh points, of all graphs."""
        encodings = encodings_of(self.GRAPHS, 2, seed=5)
        network = universal_network(
            edges_of(self.GRAPHS), encodings, [waves, waves], units=units, seed=4, **options
        )
        assert network.width == 2 * max(units, 2) * 5
        generator, total = torch.Generator().manual_seed(9), 0.0
        for graph, encoding in zip(self.GRAPHS, encodings, strict=True):
            x = cube(200, graph.num_nodes, 1, generator)
            assert x.shape == (200, graph.num_nodes, 1)
            assert float(x.abs().max()) <= 1
            data = [Data(one, graph.edge_index, pe=encoding) for one in x]
            batch = Batch.from_data_list(data)
            with torch.no_grad():
                found = network(batch.x, batch.edge_index, pe=batch.pe)
            total += float((found.view(200, -1, 2) - waves(x)).square().mean())
        return total

    @pytest.mark.parametrize(
        "options",
        [{}, {"time": 1.0, "activation": torch.relu}, {"activation": torch.sin, "samples": 1000}],
        ids=["defaults", "finite time, relu", "sin"],
    )
    def test_error_falls_with_units(self, options):
        few, some, many = (self.error(units, **options) for units in (1, 6, 36))
        assert some < few / 2
        assert many < few / 20

    def test_channels_in(self):
        def swap(x):
            return x.flip(2) * x[..., :1]

        (pe,) = encodings_of([g.path(2)])
        edges = g.path(2).edge_index
        network = universal_network([edges], [pe], [swap], in_channels=2, units=40)
        x = cube(1, 2, 2, torch.Generator().manual_seed(0))
        assert network.first.in_channels == network.second.out_channels == 2
        torch.testing.assert_close(network(x[0], edges, pe=pe), swap(x)[0], rtol=0, atol=0.1)

    def test_seed_is_the_network(self):
        (pe,) = encodings_of([g.path(2)])

        def built(seed):
            edges = g.path(2).edge_index
            network = universal_network([edges], [pe], [waves], units=4, seed=seed)
            return network(torch.ones(2, 1, dtype=torch.float64), edges, pe=pe)

        assert torch.equal(built(3), built(3))
        assert not torch.equal(built(3), built(4))
