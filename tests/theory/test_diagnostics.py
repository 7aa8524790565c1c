"""Diagnostics: what they measure, against the definitions, and what they leave untouched."""

import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from torch import nn
from torch_geometric.nn import GAT, GCN, GIN, GCNConv, GraphSAGE, global_add_pool

import bunn
from bunn.theory.diagnostics import (
    heat_rows,
    hop_distances,
    receptive_field,
    sensitivity,
    smoothing_profile,
)
from bunn.theory.graphs import barbell, cycle, grid, path
from bunn.theory.plots import (
    plot_node_signal,
    plot_receptive_field,
    plot_sensitivity,
    plot_smoothing,
)
from tests.graphs import ZOO, graphs, zoo_laplacian

C = 3
GRAPH = grid(3, 4)
TWO_PATHS = torch.tensor([[0, 1, 1, 2, 3, 4], [1, 0, 2, 1, 4, 3]])


class Pooled(nn.Module):
    """Two graphs, one number each."""

    def __init__(self):
        super().__init__()
        self.conv = GCNConv(C, 4)

    def forward(self, x, edge_index, batch):
        return global_add_pool(self.conv(x, edge_index).tanh(), batch).sum(1)


class NumpySquare(torch.autograd.Function):
    """A square whose derivative leaves torch, so that nothing can be batched."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return torch.from_numpy(2 * x.numpy() * grad.numpy())


class WithNumpy(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = GCNConv(C, 2)

    def forward(self, x, edge_index):
        return self.conv(NumpySquare.apply(x), edge_index)


class Recurrent(nn.Module):
    """One layer, called several times; the output has two axes of channels."""

    def __init__(self):
        super().__init__()
        self.conv = GCNConv(C, C)
        self.act = nn.Tanh()

    def forward(self, x, edge_index, steps=3):
        for _ in range(steps):
            x = self.act(self.conv(x, edge_index))
        return torch.stack((x, x.square()), dim=2)


MODELS = {
    "BuNN": lambda: bunn.BuNN(C, 8, 2, 2, num_bundles=2, time=2.0, dropout=0.5),
    "BuNN, householder": lambda: bunn.BuNN(C, 6, 1, maps="householder", bundle_dim=3),
    "GCN": lambda: GCN(C, 8, 2, 2, dropout=0.5),
    "GAT": lambda: GAT(C, 8, 2, 2, heads=2),
    "GraphSAGE": lambda: GraphSAGE(C, 8, 2, 2),
    "GIN": lambda: GIN(C, 8, 2, 2, norm="batch"),
    "pooled": Pooled,
    "not batchable": WithNumpy,
    "several axes": Recurrent,
}


def built(name, seed=0):
    torch.manual_seed(seed)
    return MODELS[name]().double()


def features(n=GRAPH.num_nodes, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, C, dtype=torch.float64, generator=generator)


def inputs_of(name):
    return {"batch": torch.arange(GRAPH.num_nodes) // 6} if name == "pooled" else {}


def jacobian_norms(model, x, inputs, ord="fro"):
    """The norms from the whole Jacobian."""
    model.eval()
    jacobian = torch.autograd.functional.jacobian(
        lambda z: model(z, GRAPH.edge_index, **inputs), x, vectorize=False
    )
    rows = jacobian.shape[0]
    blocks = jacobian.reshape(rows, -1, *x.shape).transpose(1, 2)
    return torch.linalg.matrix_norm(blocks, ord)


class TestSensitivity:
    @pytest.mark.parametrize("name", MODELS)
    def test_norms_of_the_blocks_of_the_jacobian(self, name):
        model, x, inputs = built(name), features(), inputs_of(name)
        found = sensitivity(model, x, GRAPH.edge_index, **inputs)
        expected = jacobian_norms(model, x, inputs)
        assert found.shape == expected.shape
        torch.testing.assert_close(found, expected)

    @pytest.mark.parametrize("ord", ["fro", "nuc", 2, -2, 1, math.inf])
    def test_any_matrix_norm(self, ord):
        model, x = built("GAT"), features()
        found = sensitivity(model, x, GRAPH.edge_index, ord=ord)
        torch.testing.assert_close(found, jacobian_norms(model, x, {}, ord))

    @pytest.mark.parametrize(
        ("targets", "index"),
        [
            (None, range(12)),
            (5, [5]),
            (torch.tensor(5), [5]),
            ([7, 0, 7], [7, 0, 7]),
            (range(2, 4), [2, 3]),
            (torch.tensor([3, 1], dtype=torch.int32), [3, 1]),
            (torch.arange(12) == 4, [4]),
            ([], []),
        ],
        ids=str,
    )
    def test_targets_and_sources_keep_two_axes(self, targets, index):
        model, x = built("GCN"), features()
        whole = sensitivity(model, x, GRAPH.edge_index)
        index = list(index)
        rows = sensitivity(model, x, GRAPH.edge_index, targets, [1, 8])
        columns = sensitivity(model, x, GRAPH.edge_index, [1, 8], targets)
        assert rows.shape == (len(index), 2)
        torch.testing.assert_close(rows, whole[index][:, [1, 8]])
        torch.testing.assert_close(columns, whole[[1, 8]][:, index])

    def test_linear_model_in_closed_form(self):
        """``y = H x W`` has the blocks ``H_vu W``."""
        weight = torch.tensor([[1.0, 2.0], [0.0, -1.0], [3.0, 1.0]], dtype=torch.float64)
        lap = bunn.Laplacian(GRAPH.edge_index).to(torch.float64)
        found = sensitivity(
            lambda x, lap: bunn.diffuse(x, lap, 1.5, tol=1e-13) @ weight, features(), lap
        )
        expected = bunn.heat_kernel(lap, 1.5) * weight.norm()
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)

    @pytest.mark.parametrize("depth", [1, 2, 3])
    def test_nothing_comes_from_beyond_the_depth_of_a_gcn(self, depth):
        graph = path(8)
        model = GCN(C, 16, depth, act="tanh").double()
        found = sensitivity(model, features(8), graph.edge_index)
        distance = hop_distances(bunn.Laplacian(graph.edge_index))
        assert (found[distance > depth] == 0).all()
        assert (found[distance <= depth] > 0).all()

    def test_batched_and_single_passes_agree(self, monkeypatch):
        model, x = built("BuNN"), features()
        batched = sensitivity(model, x, GRAPH.edge_index)
        for passes, entries in ((1, 2**17), (3, 2**17), (64, 1)):
            monkeypatch.setattr("bunn.theory.diagnostics.sensitivities._PASSES", passes)
            monkeypatch.setattr("bunn.theory.diagnostics.sensitivities._CPU_ENTRIES", entries)
            torch.testing.assert_close(sensitivity(model, x, GRAPH.edge_index), batched)

    def test_one_output_per_node_without_an_axis_for_it(self):
        def model(x, edge_index):
            return x[:, 0] ** 2 + x[edge_index[0, 0], 1]

        x = features()
        expected = torch.diag(2 * x[:, 0].abs())
        u = int(GRAPH.edge_index[0, 0])
        expected[:, u] = 1.0
        expected[u, u] = (4 * x[u, 0] ** 2 + 1).sqrt()
        torch.testing.assert_close(sensitivity(model, x, GRAPH.edge_index), expected)

    @pytest.mark.parametrize("parameter", [True, False])
    def test_output_that_does_not_depend_on_x_gives_zeros(self, parameter):
        constant = torch.ones(4, 2, requires_grad=parameter)
        found = sensitivity(lambda x, edge_index: constant * 2, features(), GRAPH.edge_index)
        assert torch.equal(found, torch.zeros(4, 12, dtype=torch.float64))

    @pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
    def test_works_where_gradients_are_off(self, context):
        model, x = built("BuNN"), features()
        expected = sensitivity(model, x, GRAPH.edge_index)
        with context():
            found = sensitivity(model, x, GRAPH.edge_index)
            assert not torch.is_grad_enabled()
        torch.testing.assert_close(found, expected)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
    def test_precision_of_the_features(self, dtype):
        model, x = built("GCN").to(dtype), features().to(dtype)
        found = sensitivity(model, x, GRAPH.edge_index, ord=2)
        assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        expected = sensitivity(model.double(), x.double(), GRAPH.edge_index, ord=2)
        tolerance = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 0.1}[dtype]
        torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)

    @pytest.mark.filterwarnings("ignore:Sparse")  # torch announces the state of its sparse tensors
    def test_sparse_adjacency_as_graph(self):
        """Which PyG multiplies with by a product that autograd cannot always batch."""
        n, edges = GRAPH.num_nodes, GRAPH.edge_index
        ones = torch.ones(edges.size(1), dtype=torch.float64)
        adjacency = torch.sparse_coo_tensor(edges, ones, (n, n)).to_sparse_csr()
        for name in ("GCN", "BuNN"):
            model = built(name)
            torch.testing.assert_close(
                sensitivity(model, features(), adjacency), sensitivity(model, features(), edges)
            )

    def test_errors_name_argument_value_and_fix(self):
        model, x, edges = built("GCN"), features(), GRAPH.edge_index
        with pytest.raises(TypeError, match=r"x has dtype torch.int64.*x\.float\(\)"):
            sensitivity(model, x.long(), edges)
        with pytest.raises(TypeError, match="x is a list"):
            sensitivity(model, [1.0], edges)
        with pytest.raises(ValueError, match="x is a single number"):
            sensitivity(model, torch.tensor(1.0), edges)
        with pytest.raises(ValueError, match=r"targets names 12.*output has 12 rows; use 0 to 11"):
            sensitivity(model, x, edges, targets=12)
        with pytest.raises(ValueError, match=r"sources names -1.*use 0 to 11"):
            sensitivity(model, x, edges, sources=[0, -1])
        with pytest.raises(ValueError, match=r"sources is a mask of shape \(3,\)"):
            sensitivity(model, x, edges, sources=torch.ones(3, dtype=torch.bool))
        with pytest.raises(TypeError, match=r"targets has dtype torch.float32; use integers"):
            sensitivity(model, x, edges, targets=[0.5])
        with pytest.raises(ValueError, match=r"targets has shape \(1, 2\)"):
            sensitivity(model, x, edges, targets=[[0, 1]])
        with pytest.raises(TypeError, match="returned a tuple; wrap it in a function"):
            sensitivity(lambda x, edge_index: (x, x), x, edges)
        with pytest.raises(TypeError, match=r"returned torch.int64.*scores"):
            sensitivity(lambda x, edge_index: x.argmax(1), x, edges)
        with pytest.raises(ValueError, match="single number"):
            sensitivity(lambda x, edge_index: x.sum(), x, edges)


class TestLeftAsItWas:
    """Modes, gradients and hooks of the model, after a result and after an error."""

    DIAGNOSTICS = (sensitivity, smoothing_profile, receptive_field)

    @pytest.mark.parametrize("diagnostic", DIAGNOSTICS)
    @pytest.mark.parametrize("fails", [False, True])
    def test_modes_gradients_and_hooks(self, diagnostic, fails):
        model = built("GCN").train()
        model.convs[0].eval()
        modes = [module.training for module in model.modules()]
        marks = [torch.full_like(p, 7.0) for p in model.parameters()]
        for parameter, mark in zip(model.parameters(), marks, strict=True):
            parameter.grad = mark.clone()
        x = features().requires_grad_()

        seen = []
        watch = model.convs[1].register_forward_hook(
            lambda module, *_: seen.append(module.training)
        )
        extra = {"no_such_input": 1} if fails else {}
        if fails:
            with pytest.raises(TypeError, match="no_such_input"):
                diagnostic(model, x, GRAPH.edge_index, **extra)
        else:
            diagnostic(model, x, GRAPH.edge_index)
            assert seen == [False]
        watch.remove()

        assert [module.training for module in model.modules()] == modes
        assert not any(module._forward_hooks for module in model.modules())
        assert x.grad is None
        for parameter, mark in zip(model.parameters(), marks, strict=True):
            assert torch.equal(parameter.grad, mark)

    @pytest.mark.parametrize("diagnostic", DIAGNOSTICS)
    def test_dropout_plays_no_role(self, diagnostic):
        model, x = built("BuNN").train(), features()
        first, second = (diagnostic(model, x, GRAPH.edge_index) for _ in range(2))
        if diagnostic is not sensitivity:
            first, second = (
                getattr(r, "cosine", getattr(r, "influence", None)) for r in (first, second)
            )
        assert torch.equal(first, second)


def mean_cosine(x, batch):
    """The mean over pairs, pair by pair."""
    pairs = [
        float(torch.nn.functional.cosine_similarity(x[u], x[v], dim=0, eps=0.0))
        for u in range(len(x))
        for v in range(u)
        if batch[u] == batch[v] and x[u].any() and x[v].any()
    ]
    return math.fsum(pairs) / len(pairs) if pairs else math.nan


class Identity(nn.Module):
    """A model whose only layer changes nothing."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Identity()

    def forward(self, x, edge_index, edge_weight=None):
        return self.layer(x)


class TestSmoothing:
    @pytest.mark.parametrize("name", ["BuNN", "GCN", "GAT", "GraphSAGE", "GIN"])
    def test_layers_are_found_and_measured(self, name):
        """Against the bundle energy with zero angles, and a dense quadratic form."""
        model, x = built(name), features()
        lap = bunn.Laplacian(GRAPH.edge_index).to(torch.float64)
        layers = model.blocks if name == "BuNN" else model.convs
        outputs = [x]
        hooks = [layer.register_forward_hook(lambda *a: outputs.append(a[-1])) for layer in layers]
        model.eval()(x, GRAPH.edge_index)
        for hook in hooks:
            hook.remove()
        # An even number of channels, for planes.
        padded = [nn.functional.pad(h, (0, h.size(1) % 2)).detach() for h in outputs]

        profile = smoothing_profile(model, x, GRAPH.edge_index)
        kind = "blocks" if name == "BuNN" else "convs"
        assert profile.names == ("input", f"{kind}.0", f"{kind}.1")
        flat = bunn.FlatBundle(torch.zeros(12, 1, 1, dtype=torch.float64), "rotation")
        energy = torch.stack([flat.energy(h, lap) for h in padded])
        torch.testing.assert_close(profile.energy, energy)
        quadratic = torch.stack([(h * (lap.degree[:, None] * (lap @ h))).sum() for h in padded])
        torch.testing.assert_close(profile.energy, quadratic)
        norm = torch.stack([(h * lap.degree[:, None] * h).sum() for h in padded])
        torch.testing.assert_close(profile.rayleigh, quadratic / norm)
        cosine = [mean_cosine(h, torch.zeros(12)) for h in padded]
        torch.testing.assert_close(profile.cosine, torch.tensor(cosine, dtype=torch.float64))

    @given(graph=graphs(), seed=st.integers(0, 9))
    def test_energy_is_the_sum_over_edges(self, graph, seed):
        edge_index, weight, n = graph
        x = features(n, seed)
        model = Identity()
        profile = smoothing_profile(model, x, edge_index, layers=[model.layer], edge_weight=weight)
        weights = torch.ones(edge_index.size(1)).double() if weight is None else weight
        terms = [
            float(w) * float((x[u] - x[v]).square().sum()) / 2
            for (u, v), w in zip(edge_index.T.tolist(), weights, strict=True)
        ]
        expected = torch.tensor(math.fsum(terms), dtype=torch.float64)
        torch.testing.assert_close(profile.energy, expected.expand(2))
        assert (profile.rayleigh >= 0).all()
        assert (profile.rayleigh <= 2 + 1e-12).all()

    @pytest.mark.parametrize(
        ("x", "edge_index", "expected"),
        [
            ([1.0, -1.0] * 3, cycle(6).edge_index, 2.0),
            ([4.0, 4.0, 4.0, -1.0, -1.0], TWO_PATHS, 0.0),
            ([4.0, 4.0, 4.0, -1.0, -2.0], TWO_PATHS, 1 / 69),
            ([0.0] * 6, cycle(6).edge_index, math.nan),
        ],
    )
    def test_rayleigh_quotient(self, x, edge_index, expected):
        model = Identity()
        x = torch.tensor(x)  # one number per node
        profile = smoothing_profile(model, x, edge_index, layers=[model.layer])
        expected = torch.tensor([expected] * 2, dtype=torch.float64)
        torch.testing.assert_close(profile.rayleigh, expected, equal_nan=True)

    @given(
        x=hnp.arrays(
            np.float64,
            st.tuples(st.integers(1, 9), st.integers(1, 4)),
            elements=st.one_of(
                st.just(0.0), st.floats(-3, 3).filter(lambda v: v == 0 or abs(v) > 1e-6)
            ),
        ),
        data=st.data(),
    )
    def test_cosine_is_the_mean_over_pairs(self, x, data):
        x = torch.from_numpy(x)
        n = x.size(0)
        batch = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)))
        edge_index = torch.zeros(2, 0, dtype=torch.long)
        model = Identity()
        profile = smoothing_profile(model, x, edge_index, layers=[model.layer], batch=batch)
        expected = torch.tensor([mean_cosine(x, batch)] * 2, dtype=torch.float64)
        torch.testing.assert_close(profile.cosine, expected, equal_nan=True, atol=1e-12, rtol=0)

    @pytest.mark.parametrize("scale", [1e-200, 1e200])
    def test_cosine_does_not_depend_on_the_scale(self, scale):
        x = features()
        model = Identity()
        near, far = (
            smoothing_profile(model, s * x, GRAPH.edge_index, layers=[model.layer]).cosine
            for s in (1.0, scale)
        )
        torch.testing.assert_close(far, near)

    def test_every_call_of_a_layer_is_recorded(self):
        model, x = built("several axes"), features()
        profile = smoothing_profile(model, x, GRAPH.edge_index, layers=[model.conv, model.act])
        assert profile.names == (
            "input",
            "conv",
            "act",
            "conv, call 2",
            "act, call 2",
            "conv, call 3",
            "act, call 3",
        )
        short = smoothing_profile(model, x, GRAPH.edge_index, layers=[model.conv], steps=1)
        assert torch.equal(short.energy, profile.energy[:2])

    def test_deep_untrained_gcn_smooths(self):
        torch.manual_seed(0)
        profile = smoothing_profile(GCN(C, 16, 16), features().float(), GRAPH.edge_index)
        assert profile.cosine[0].abs() < 0.5
        assert profile.cosine[-1] > 0.95
        assert profile.rayleigh[-1] < profile.rayleigh[0] / 20

    def test_batch_says_which_pairs_count_and_reaches_a_model_that_takes_it(self):
        x, batch = features(), torch.arange(12) // 6
        batch = batch[torch.randperm(12, generator=torch.Generator().manual_seed(0))]
        model = built("pooled")
        profile = smoothing_profile(model, x, GRAPH.edge_index, layers=[model.conv], batch=batch)
        assert float(profile.cosine[0]) == pytest.approx(mean_cosine(x, batch), abs=1e-12)
        plain = built("not batchable")  # takes no batch
        again = smoothing_profile(plain, x, GRAPH.edge_index, layers=[plain.conv], batch=batch)
        assert torch.equal(again.cosine[0], profile.cosine[0])

    def test_weights_of_a_laplacian_count(self):
        weight = torch.rand(12, 12, dtype=torch.float64)
        weight = (weight + weight.T)[GRAPH.edge_index[0], GRAPH.edge_index[1]]
        model, x = built("BuNN"), features()
        lap = bunn.Laplacian(GRAPH.edge_index, weight)
        for graph, inputs in ((lap, {}), (GRAPH.edge_index, {"edge_weight": weight})):
            profile = smoothing_profile(model, x, graph, **inputs)
            u, v = GRAPH.edge_index
            expected = (weight * (x[u] - x[v]).square().sum(1)).sum() / 2
            torch.testing.assert_close(profile.energy[0], expected)

    def test_errors_name_argument_value_and_fix(self):
        x, edges = features(), GRAPH.edge_index
        model = Recurrent().double()
        with pytest.raises(ValueError, match=r"layers of a Recurrent.*layers=\[model.conv1"):
            smoothing_profile(model, x, edges)
        with pytest.raises(ValueError, match="layers is empty"):
            smoothing_profile(model, x, edges, layers=[])
        with pytest.raises(TypeError, match="layers holds a str"):
            smoothing_profile(model, x, edges, layers=["conv"])
        with pytest.raises(ValueError, match=r"layers\[1\], a Linear, was not called"):
            smoothing_profile(model, x, edges, layers=[model.conv, nn.Linear(1, 1)])
        with pytest.raises(ValueError, match=r"batch has shape \(3,\)"):
            smoothing_profile(model, x, edges, layers=[model.conv], batch=torch.zeros(3))
        with pytest.raises(TypeError, match=r"x is None; pass a tensor"):
            smoothing_profile(model, None, edges, layers=[model.conv])
        pooled = built("pooled")
        with pytest.raises(ValueError, match=r"Pooled returned \(2,\).*12 nodes"):
            smoothing_profile(pooled, x, edges, layers=[pooled], **inputs_of("pooled"))


class TestReceptiveField:
    @pytest.mark.parametrize("depth", [1, 2, 3])
    def test_gcn_sees_as_many_hops_as_it_has_layers(self, depth):
        torch.manual_seed(0)
        graph = grid(4, 5)
        model = GCN(C, 16, depth, act="tanh").double()
        field = receptive_field(model, features(20), graph.edge_index, targets=0)
        assert torch.equal(field.hops, torch.arange(8))
        assert (field.influence[: depth + 1] > 0).all()
        assert (field.influence[depth + 1 :] == 0).all()
        assert float(field.influence.sum()) == pytest.approx(1.0)
        assert 0 < field.range <= depth
        assert field.unreachable == 0

    @pytest.mark.parametrize("targets", [None, [0, 5], 3])
    def test_sums_of_sensitivities_by_distance(self, targets, monkeypatch):
        monkeypatch.setattr("bunn.theory.diagnostics.reach._TARGETS", 5)  # several rounds
        model, x = built("BuNN"), features()
        s = sensitivity(model, x, GRAPH.edge_index, targets, ord=2)
        delta = hop_distances(bunn.Laplacian(GRAPH.edge_index), targets)
        field = receptive_field(model, x, GRAPH.edge_index, targets, ord=2)
        for hop in field.hops:
            at_hop = s[delta == hop]
            assert float(field.influence[hop]) == pytest.approx(float(at_hop.sum() / s.sum()))
            assert float(field.per_node[hop]) == pytest.approx(float(at_hop.mean()))
        assert field.hops[-1] == delta.max()
        assert field.range == pytest.approx(float((s * delta).sum() / s.sum()))

    def test_share_of_other_components(self):
        """``y_v = sum_u x_u`` weighs all five nodes alike, at whatever distance."""
        x = features(5)
        field = receptive_field(lambda x, e: x.sum(0).expand(5, C), x, TWO_PATHS, targets=0)
        torch.testing.assert_close(field.influence, torch.full((3,), 0.2, dtype=torch.float64))
        assert field.unreachable == pytest.approx(0.4)
        assert field.range == pytest.approx(1.0)
        local = receptive_field(built("BuNN"), x, TWO_PATHS)
        assert local.unreachable == 0
        assert float(local.influence.sum()) == pytest.approx(1.0)

    def test_no_dependence_has_no_shares(self):
        field = receptive_field(lambda x, e: torch.ones(5), features(5), TWO_PATHS)
        assert field.influence.isnan().all()
        assert math.isnan(field.range)
        assert torch.equal(field.per_node, torch.zeros(3, dtype=torch.float64))

    def test_pooled_model_and_empty_targets_are_errors(self):
        x, edges = features(), GRAPH.edge_index
        with pytest.raises(ValueError, match=r"2 rows for 12 nodes; .* leave out the pooling"):
            receptive_field(built("pooled"), x, edges, **inputs_of("pooled"))
        with pytest.raises(ValueError, match="targets is empty"):
            receptive_field(built("GCN"), x, edges, [])


class TestHeat:
    @pytest.mark.parametrize("name", ZOO)
    @pytest.mark.parametrize("normalization", ["rw", "sym"])
    @pytest.mark.parametrize("time", [0.0, 1.0, 30.0, math.inf])
    def test_rows_of_the_kernel(self, name, normalization, time):
        lap = zoo_laplacian(name, normalization)
        nodes = sorted({0, lap.num_nodes // 2, lap.num_nodes - 1})
        rows = heat_rows(lap, nodes, time)
        expected = bunn.heat_kernel(lap, time)[nodes]
        assert rows.shape == (len(nodes), lap.num_nodes)
        torch.testing.assert_close(rows, expected, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("scale", [1e-60, 1e60])
    def test_single_precision_at_any_scale_of_the_weights(self, scale):
        star = torch.tensor([[0, 1, 0, 2], [1, 0, 2, 0]])
        weight = scale * torch.tensor([1.0, 1.0, 3.0, 3.0], dtype=torch.float64)
        lap = bunn.Laplacian(star, weight).to(torch.float32)
        whole = bunn.heat_kernel(lap, 2.0)
        assert heat_rows(lap, None, 2.0).dtype == torch.float32
        torch.testing.assert_close(heat_rows(lap, None, 2.0), whole)
        torch.testing.assert_close(heat_rows(lap, torch.arange(3) > 0, 2.0), whole[1:])
        assert heat_rows(lap, [], 2.0).shape == (0, 3)
        with pytest.raises(ValueError, match="nodes names 3, but the graph has 3 rows"):
            heat_rows(lap, 3, 1.0)
        with pytest.raises(TypeError, match="build it once with"):
            heat_rows(star, 0, 1.0)

    def test_hop_distances(self):
        lap = bunn.Laplacian(TWO_PATHS)
        inf = math.inf
        expected = torch.tensor([[0, 1, 2, inf, inf], [inf, inf, inf, 1, 0]], dtype=torch.float64)
        assert torch.equal(hop_distances(lap, [0, 4]), expected)
        assert hop_distances(lap).shape == (5, 5)
        assert hop_distances(lap, []).shape == (0, 5)


class TestPlots:
    """Each draws what it is handed, zeros included, on a new figure or on given axes."""

    def test_heat_map_masks_zeros(self):
        figure = plot_sensitivity(torch.tensor([[1.0, 0.0], [1e-3, 10.0]]))
        assert isinstance(figure, Figure)
        (image,) = figure.axes[0].images
        assert isinstance(image.norm, LogNorm)
        assert (image.norm.vmin, image.norm.vmax) == pytest.approx((1e-3, 10.0))
        assert np.array_equal(
            np.ma.getmaskarray(image.get_array()), [[False, True], [False, False]]
        )
        assert figure.axes[0].get_title(loc="right") == "grey: exactly zero"
        assert not plot_sensitivity(torch.ones(2, 3)).axes[0].get_title(loc="right")

    def test_heat_map_of_nothing_but_zeros(self):
        figure = plot_sensitivity(torch.zeros(2, 2))
        assert np.ma.getmaskarray(figure.axes[0].images[0].get_array()).all()
        figure.canvas.draw()

    def test_sensitivity_against_distance(self):
        graph = path(6)
        s = sensitivity(built("GCN"), features(6), graph.edge_index)
        distance = hop_distances(bunn.Laplacian(graph.edge_index))
        (ax,) = plot_sensitivity(s, distance=distance).axes
        (dots,) = [c for c in ax.collections if isinstance(c, PathCollection)]
        assert len(dots.get_offsets()) == int((s > 0).sum())
        zeros, median = ax.lines
        assert set(zeros.get_xdata()) == set(distance[s == 0].tolist())
        assert np.isnan(median.get_ydata()[3:]).all()
        assert ax.get_yscale() == "log"

    def test_sensitivity_must_be_finite_and_fit_the_distances(self):
        with pytest.raises(ValueError, match="finite numbers >= 0"):
            plot_sensitivity(torch.tensor([[math.nan]]))
        with pytest.raises(ValueError, match=r"distance has shape \(1, 2\)"):
            plot_sensitivity(torch.ones(2, 2), distance=torch.ones(1, 2))

    def test_smoothing_has_a_curve_per_model_and_panel(self):
        profiles = {
            name: smoothing_profile(built(name), features(), GRAPH.edge_index)
            for name in ("GCN", "BuNN")
        }
        left, right = plot_smoothing(profiles).axes
        assert left.get_yscale() == "log"
        assert [text.get_text() for text in right.get_legend().get_texts()] == ["GCN", "BuNN"]
        for ax, values in ((left, "rayleigh"), (right, "cosine")):
            for line, profile in zip(ax.lines, profiles.values(), strict=False):
                assert np.array_equal(line.get_ydata(), getattr(profile, values).numpy())

    def test_smoothing_marks_exact_zeros(self):
        model = Identity()
        constant = smoothing_profile(
            model, torch.ones(12, 2), GRAPH.edge_index, layers=[model.layer]
        )
        left = plot_smoothing({"constant": constant}).axes[0]
        curve, zeros = left.lines
        assert np.isnan(curve.get_ydata()).all()
        assert zeros.get_xdata().tolist() == [0, 1]

    def test_receptive_field_has_the_ranges_in_its_legend(self):
        fields = {
            "GCN": receptive_field(built("GCN"), features(), GRAPH.edge_index),
            "all": receptive_field(
                lambda x, e: x.sum(0).expand(5, C), features(5), TWO_PATHS, targets=0
            ),
        }
        (ax,) = plot_receptive_field(fields).axes
        assert np.array_equal(ax.lines[0].get_ydata(), fields["GCN"].influence.numpy())
        words = [text.get_text() for text in ax.get_legend().get_texts()]
        assert words[1] == "all: range 1, 40% from other components"

    @pytest.mark.parametrize(("shift", "limits"), [(0.0, (0.0, 1.0)), (-0.75, (-0.75, 0.75))])
    def test_node_signal(self, shift, limits):
        signal = torch.linspace(0, 1, 6) + shift
        figure = plot_node_signal(signal, barbell(3).edge_index, torch.rand(6, 2))
        ax = figure.axes[0]
        edges, dots = ax.collections
        assert isinstance(edges, LineCollection)
        assert len(edges.get_segments()) == 7
        assert np.allclose(dots.get_array(), signal)
        assert dots.get_clim() == pytest.approx(limits)
        with pytest.raises(ValueError, match=r"signal has shape \(6,\) and position \(5, 2\)"):
            plot_node_signal(signal, barbell(3).edge_index, torch.rand(5, 2))

    def test_given_axes_are_drawn_on(self):
        figure = Figure()
        axes = figure.subplots(1, 5)
        field = receptive_field(built("GCN"), features(), GRAPH.edge_index, targets=0)
        profile = smoothing_profile(built("GCN"), features(), GRAPH.edge_index)
        drawn = [
            plot_sensitivity(torch.eye(3), ax=axes[0]),
            plot_receptive_field({"GCN": field}, ax=axes[1]),
            plot_node_signal(torch.ones(12), GRAPH.edge_index, torch.rand(12, 2), ax=axes[2]),
            plot_smoothing({"GCN": profile}, axes=axes[3:]),
        ]
        assert all(one is figure for one in drawn)
        figure.canvas.draw()

    def test_missing_matplotlib_is_reported_with_the_command_that_installs_it(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        field = receptive_field(built("GCN"), features(), GRAPH.edge_index, targets=0)
        profile = smoothing_profile(built("GCN"), features(), GRAPH.edge_index)
        for plot in (
            lambda: plot_sensitivity(torch.eye(3)),
            lambda: plot_sensitivity(torch.eye(3), distance=torch.eye(3)),
            lambda: plot_receptive_field({"GCN": field}),
            lambda: plot_smoothing({"GCN": profile}),
            lambda: plot_node_signal(torch.ones(12), GRAPH.edge_index, torch.rand(12, 2)),
        ):
            with pytest.raises(ModuleNotFoundError, match=r"pip install 'bunn\[train\]'"):
                plot()


@pytest.mark.gpu
def test_same_on_a_gpu():
    x, edges = features(), GRAPH.edge_index
    lap = bunn.Laplacian(edges).to(torch.float64)
    for name in ("BuNN", "GCN", "GAT"):
        here, there = built(name), built(name).cuda()
        on_gpu = x.cuda(), edges.cuda()
        norms = sensitivity(there, *on_gpu, [1, 2], torch.arange(12) > 5)
        assert norms.is_cuda
        expected = sensitivity(here, x, edges, [1, 2], torch.arange(12) > 5)
        torch.testing.assert_close(norms.cpu(), expected)
        cosine = smoothing_profile(there, *on_gpu, batch=torch.arange(12).cuda() // 6).cosine
        expected = smoothing_profile(here, x, edges, batch=torch.arange(12) // 6).cosine
        torch.testing.assert_close(cosine, expected)
        influence = receptive_field(there, *on_gpu).influence
        torch.testing.assert_close(influence, receptive_field(here, x, edges).influence)
    torch.testing.assert_close(heat_rows(lap.to("cuda"), [3], 2.0).cpu(), heat_rows(lap, 3, 2.0))
    assert torch.equal(hop_distances(lap.to("cuda")).cpu(), hop_distances(lap))
    plot_sensitivity(norms)


def test_features_that_are_not_numbers_have_no_cosine():
    """A diverged model is not one whose features point opposite ways."""
    model, graph = GCN(6, 8, 2), path(5)
    x = torch.randn(5, 6)
    for wrong in (math.nan, math.inf):
        profile = smoothing_profile(model, x * wrong, graph.edge_index)
        assert profile.cosine.isnan().all()


@pytest.mark.parametrize("scale", [1e-170, 1e150])
def test_quotient_and_cosine_do_not_depend_on_the_scale(scale):
    graph = path(5)
    x = torch.randn(5, 3, dtype=torch.float64)

    class Identity(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Identity()

        def forward(self, x, edge_index):
            return self.layer(x)

    model = Identity()
    plain = smoothing_profile(model, x, graph.edge_index, layers=[model.layer])
    scaled = smoothing_profile(model, scale * x, graph.edge_index, layers=[model.layer])
    torch.testing.assert_close(scaled.rayleigh, plain.rayleigh)
    torch.testing.assert_close(scaled.cosine, plain.cosine)


def test_one_result_can_be_plotted_as_it_is():
    model, graph, x = GCN(6, 8, 2), path(5), torch.randn(5, 6)
    assert plot_smoothing(smoothing_profile(model, x, graph.edge_index)).axes
    assert plot_receptive_field(receptive_field(model, x, graph.edge_index)).axes


def test_edges_given_one_way_are_drawn():
    edge_index = torch.tensor([[1, 2, 3], [0, 1, 2]])
    figure = plot_node_signal(torch.ones(4), edge_index, torch.randn(4, 2))
    (lines,) = [c for c in figure.axes[0].collections if hasattr(c, "get_segments")]
    assert len(lines.get_segments()) == 3
