import copy
import math
import pickle

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GIN

from bunn import BuNN, BuNNConv, Laplacian
from bunn.nn import UPDATES, BuNNBlock, SAGEPhi, SumGNNPhi, Update
from tests.graphs import ZOO

GRID, NODES = ZOO["grid"]()


@pytest.mark.parametrize("norm", ["layer", "batch", None])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("update", UPDATES)
def test_every_combination_trains(norm, norm_first, residual, update):
    model = BuNN(
        3,
        8,
        2,
        5,
        num_bundles=2,
        norm=norm,
        norm_first=norm_first,
        residual=residual,
        update=update,
        dropout=0.1,
    )
    y = model(torch.randn(NODES, 3), GRID)
    assert y.shape == (NODES, 5)
    y.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("pooling", ["mean", "sum", "max"])
def test_graph_output(pooling):
    graphs = [
        Data(x=torch.randn(n, 3), edge_index=e) for e, n in (ZOO["star"](), ZOO["complete"]())
    ]
    model = BuNN(3, 8, 2, 4, num_bundles=2, pooling=pooling, head_layers=3).eval()
    batch = Batch.from_data_list(graphs)
    together = model(batch.x, batch.edge_index, batch=batch.batch)
    alone = torch.cat([model(graph.x, graph.edge_index) for graph in graphs])
    assert together.shape == (2, 4)
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)
    padded = model(batch.x, batch.edge_index, batch=batch.batch, batch_size=3)
    assert padded.shape == (3, 4)


def test_without_output_size_the_hidden_features_are_returned():
    model = BuNN(3, 8, 1)
    assert model(torch.randn(NODES, 3), GRID).shape == (NODES, 8)
    assert model.out_channels == 8


@pytest.mark.parametrize("phi", ["mlp", "sum", "sage"])
@pytest.mark.parametrize("shared", [True, False])
def test_phi_networks(phi, shared):
    model = BuNN(
        3, 8, 3, 2, num_bundles=2, phi=phi, phi_layers=2, phi_channels=6, shared_phi=shared
    )
    networks = {id(block.conv.phi) for block in model.blocks}
    assert len(networks) == (1 if shared else 3)
    model(torch.randn(NODES, 3), GRID).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_phi_as_module_and_as_function():
    module = GIN(8, 8, 1, 2)
    copied = BuNN(3, 8, 2, num_bundles=2, phi=module)
    assert copied.blocks[0].conv.phi is not copied.blocks[1].conv.phi
    shared = BuNN(3, 8, 2, num_bundles=2, phi=module, shared_phi=True)
    assert shared.blocks[0].conv.phi is shared.blocks[1].conv.phi is module
    built = BuNN(3, 8, 2, num_bundles=2, pe_channels=1, phi=lambda i, o: SumGNNPhi(i, o, 5))
    assert built.blocks[0].conv.phi is not built.blocks[1].conv.phi
    x, pe = torch.randn(NODES, 3), torch.randn(NODES, 1)
    assert built(x, GRID, pe=pe).shape == (NODES, 8)
    assert BuNN(3, 8, 1, phi=SAGEPhi(8, 1))(x, GRID).shape == (NODES, 8)


def test_keywords_reach_the_layers():
    model = BuNN(
        3,
        12,
        2,
        num_bundles=2,
        bundle_dim=3,
        maps="cayley",
        time=(1.0, 2.0),
        learn_time=True,
        bias="local",
        normalization="sym",
        method="chebyshev",
        tol=1e-4,
        update=Update("after"),
    )
    conv = model.blocks[1].conv
    assert (conv.maps, conv.bundle_dim, conv.normalization) == ("cayley", 3, "sym")
    assert (conv.method, conv.options.tol, conv.bias_frame) == ("chebyshev", 1e-4, "local")
    assert conv.time.learn
    assert conv.update.position == "after"
    taylor = BuNN(3, 8, 1, method="taylor", degree=8)
    assert taylor.blocks[0].conv.options.degree == 8
    assert taylor(torch.randn(NODES, 3), GRID).isfinite().all()


class Angles(nn.Module):
    """A bundle of given angles, the same in every layer."""

    def __init__(self, angles: torch.Tensor) -> None:
        super().__init__()
        self.angles = angles

    def forward(self, x, edge_index):
        return self.angles


@torch.no_grad()
def test_bundles_keep_nodes_apart_that_a_trivial_bundle_gives_the_same_features():
    """32 layers at t = infinity, without residual connections."""
    torch.manual_seed(0)
    options = {"num_bundles": 8, "time": math.inf, "residual": False, "maps": "rotation"}
    spread = {}
    for name, angles in (("random", torch.randn(NODES, 8)), ("trivial", torch.zeros(NODES, 8))):
        model = BuNN(3, 16, 32, phi=Angles(angles), shared_phi=True, **options)
        y = model(torch.randn(NODES, 3), GRID)
        assert y.isfinite().all()
        spread[name] = float((y - y.mean(0)).norm() / y.norm())
    assert spread["random"] > 0.1
    assert spread["trivial"] < 1e-5


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("phi_before_norm", [True, False])
@pytest.mark.parametrize("residual", [True, False])
def test_block_is_its_formula(norm_first, phi_before_norm, residual):
    conv = BuNNConv(8, 8, num_bundles=2)
    block = BuNNBlock(
        conv, norm_first=norm_first, phi_before_norm=phi_before_norm, residual=residual
    )
    nn.init.uniform_(block.norm.weight)
    x, lap, act = torch.randn(NODES, 8), Laplacian(GRID), nn.functional.gelu
    if norm_first:
        z = block.norm(x)
        h = act(conv(z, lap, phi_x=x if phi_before_norm else z))
    else:
        h = act(block.norm(conv(x, lap)))
    torch.testing.assert_close(block(x, lap), x + h if residual else h)


def test_activation_and_dropout_reach_a_named_update():
    model = BuNN(3, 8, 1, act="relu", dropout=0.3, update="mlp")
    conv = model.blocks[0].conv
    assert (conv.update.act, conv.update.dropout) == ("relu", 0.3)
    own = BuNN(3, 8, 1, act="relu", update=Update("after", 2, act="tanh")).blocks[0].conv.update
    assert own.act == "tanh"


def test_input_features_are_dropped_in_training_alone():
    model, x = BuNN(3, 8, 1, input_dropout=0.5), torch.ones(NODES, 3)
    seen = []
    linear = next(part for part in model.encoder if not isinstance(part, nn.Dropout))
    linear.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    model.train()(x, GRID)
    model.eval()(x, GRID)
    assert set(seen[0].unique().tolist()) == {0.0, 2.0}
    assert torch.equal(seen[1], x)
    with pytest.raises(ValueError, match=r"input_dropout=0\.5, but an encoder was passed"):
        BuNN(3, 8, 1, input_dropout=0.5, encoder=nn.Linear(3, 8))


def test_nodes_are_hidden_in_training_alone():
    model, x = BuNN(3, 8, 1, node_dropout=0.25), 1 + torch.rand(NODES, 3)
    seen = []
    model.encoder[1].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    for _ in range(200):
        model.train()(x, GRID)
    model.eval()(x, GRID)
    shown = torch.stack(seen[:-1])
    hidden = (shown == 0).all(-1)
    torch.testing.assert_close(shown[~hidden], x.expand_as(shown)[~hidden])
    assert 0.2 < float(hidden.float().mean()) < 0.3
    assert torch.equal(seen[-1], x)
    with pytest.raises(ValueError, match=r"node_dropout=0\.5, but an encoder was passed"):
        BuNN(3, 8, 1, node_dropout=0.5, encoder=nn.Linear(3, 8))
    with pytest.raises(ValueError, match=r"node_dropout=1\.5; it must be in \[0, 1\)"):
        BuNN(3, 8, 1, node_dropout=1.5)


def test_features_are_dropped_once():
    """A network of two layers ends in a dropout of its own."""
    for update, inside, after in (("mlp-concat", [0.3, 0.3], 0.0), ("before", [], 0.3)):
        block = BuNN(3, 8, 1, dropout=0.3, update=update).blocks[0]
        rates = [layer.p for layer in block.conv.network.modules() if isinstance(layer, nn.Dropout)]
        assert (rates, block.dropout.p) == (inside, after)
    own = BuNN(3, 8, 1, dropout=0.3, update=Update("after", 2)).blocks[0]  # which drops nothing
    assert own.dropout.p == 0.3


def test_far_nodes_are_heard_in_one_layer():
    edge_index, n = ZOO["path"]()
    model = BuNN(1, 8, 1, 1, num_bundles=2, time=math.inf)
    x = torch.randn(n, 1, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(x, edge_index)[0], x)
    assert gradient[-1].abs() > 0


@pytest.mark.parametrize("trip", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies(trip):
    model = BuNN(3, 8, 2, 2, num_bundles=2, learn_time=True, norm="batch").eval()
    x = torch.randn(NODES, 3)
    torch.testing.assert_close(trip(model)(x, GRID), model(x, GRID))


def test_lazy_input_and_own_encoder():
    assert BuNN(-1, 8, 1, 2)(torch.randn(NODES, 5), GRID).shape == (NODES, 2)
    model = BuNN(1, 8, 1, encoder=nn.Embedding(10, 8))
    assert model(torch.randint(10, (NODES,)), GRID).shape == (NODES, 8)
    identity = nn.Sequential()
    assert BuNN(8, 8, 1, encoder=identity).encoder is identity


def test_reset_parameters():
    model = BuNN(3, 8, 2, 2, num_bundles=2, learn_time=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(9.0)
    model.reset_parameters()
    assert all(not (p == 9.0).any() for p in model.parameters())


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("norm", ["layer", "batch"])
@pytest.mark.parametrize("learn_time", [False, True])
def test_compiles_into_one_graph(norm, learn_time, dynamic):
    """For one size or for any; layers are alike, and a compiler meets the same numbers again."""
    torch._dynamo.reset()
    model = BuNN(3, 8, 2, 4, num_bundles=2, phi="sage", learn_time=learn_time, norm=norm)
    compiled = torch.compile(model, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for edge_index, n in ((GRID, NODES), ZOO["star"]()):
        lap, x = Laplacian(edge_index), torch.randn(n, 3)
        torch.testing.assert_close(compiled(x, lap), model(x, lap), rtol=1e-4, atol=1e-5)
        found = torch.autograd.grad(compiled(x, lap).square().sum(), tuple(model.parameters()))
        exact = torch.autograd.grad(model(x, lap).square().sum(), tuple(model.parameters()))
        for ours, theirs in zip(found, exact, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-2)


BAD_MODELS = {
    "width": (
        {"hidden_channels": 10, "num_bundles": 4},
        r"hidden_channels=10 is no multiple of num_bundles \* bundle_dim = 4 \* 2 = 8; use 8",
    ),
    "depth": ({"num_layers": 0}, "num_layers=0; it must be >= 1"),
    "pooling": ({"pooling": "median"}, "pooling='median'; use one of"),
    "norm": ({"norm": "instance"}, "norm='instance'; use 'layer', 'batch' or None"),
    "phi": ({"phi": "magic"}, r"phi='magic' is unknown; .*'sum-residual', 'sage'\], or a"),
    "bundles": ({"num_bundles": 0}, "num_bundles=0; it must be >= 1"),
    "phi depth": ({"phi": "sum", "phi_layers": 0}, "phi_layers=0; it must be >= 1"),
    "head": ({"head_layers": 0}, "head_layers=0; it must be >= 1"),
    "input": ({"in_channels": 0}, "in_channels=0; it must be >= 1, or -1 to infer it"),
    "output": ({"out_channels": 0}, "out_channels=0; it must be >= 1"),
    "no output": ({"out_channels": -1}, "out_channels=-1; it must be >= 1"),
}


@pytest.mark.parametrize("case", BAD_MODELS)
def test_bad_models(case):
    options, message = BAD_MODELS[case]
    with pytest.raises(ValueError, match=message):
        BuNN(**{"in_channels": 3, "hidden_channels": 8, "num_layers": 1, **options})


def test_bad_types():
    sizes = {"in_channels": 3, "hidden_channels": 8, "num_layers": 1}
    for name in (*sizes, "out_channels", "head_layers", "num_bundles", "pe_channels"):
        for value in (2.0, "2", True):
            with pytest.raises(TypeError, match=f"{name}={value!r}; it must be an integer"):
                BuNN(**{**sizes, name: value})


def test_bad_inputs():
    model, x = BuNN(3, 8, 1, 2, pooling="mean"), torch.randn(NODES, 3)
    with pytest.raises(
        ValueError, match=r"x has shape \(72, 2\); the model reads \(num_nodes, 3\)"
    ):
        model(x[:, :2], GRID)
    with pytest.raises(TypeError, match=r"x has dtype torch\.int64"):
        model(x.long(), GRID)
    with pytest.raises(TypeError, match="x is a list"):
        model([[1.0]], GRID)
    with pytest.raises(ValueError, match="x is on meta and edge_index on cpu"):
        model(x.to("meta"), GRID)
    graph = torch.arange(NODES) // 36
    for batch, error, message in (
        (torch.zeros(5).long(), ValueError, r"batch has shape \(5,\); it holds one graph index"),
        (graph.tolist(), TypeError, r"batch is a list; pass a \(72,\) tensor"),
        (graph.float(), TypeError, r"batch has dtype torch.float32; use batch.long\(\)"),
        (graph.int(), TypeError, r"batch has dtype torch.int32; use batch.long\(\)"),
        (graph - 1, ValueError, "batch holds -1; graphs are numbered from 0"),
        (graph + 1, ValueError, "batch holds graph 2, but batch_size=2; there are 3 graphs"),
    ):
        with pytest.raises(error, match=message):
            model(x, GRID, batch=batch, batch_size=2)
    assert model(x, GRID, batch=graph, batch_size=3).shape == (3, 2)
    with pytest.raises(ValueError, match=r"the encoder returned shape \(72, 4\)"):
        BuNN(3, 8, 1, encoder=nn.Linear(3, 4))(x, GRID)
    with pytest.raises(TypeError, match="phi=3; pass a name, a module, or a function"):
        BuNN(3, 8, 1, phi=3)


def test_repr():
    model = BuNN(3, 8, 2, 4)
    conv = repr(model.blocks[0].conv)
    assert repr(model) == f"BuNN(3, 8, num_layers=2, out_channels=4, conv={conv})"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dropout": 1.5}, ValueError, r"dropout=1\.5; it must be in \[0, 1\]"),
        ({"head_dropout": -0.1}, ValueError, r"head_dropout=-0\.1; it must be in \[0, 1\]"),
        ({"input_dropout": "a"}, TypeError, "input_dropout='a'; it must be a number"),
        ({"node_dropout": 1.0}, ValueError, r"node_dropout=1\.0; it must be in \[0, 1\)"),
        ({"act": "gelo"}, ValueError, "act='gelo' is unknown; use a name"),
        ({"phi_norm": "group"}, ValueError, "phi_norm='group'; use 'layer', 'batch' or None"),
        (
            {"time": nn.Parameter(torch.ones(1))},
            ValueError,
            "time requires a gradient, .*learn_time=True",
        ),
    ],
)
def test_an_option_that_cannot_be_meant_is_named(options, error, message):
    with pytest.raises(error, match=message):
        BuNN(3, 8, 1, 2, **options)


@pytest.mark.parametrize("build", [lambda: BuNN(3, 8, 1, 2), lambda: BuNNConv(3, 8)])
def test_features_of_another_type_are_refused_but_under_autocast(build):
    model, x = build(), torch.randn(NODES, 3)
    with pytest.raises(TypeError, match=r"x has dtype torch.float64, and the layer torch.float32"):
        model(x.double(), GRID)
    model.double()(x.double(), GRID)
    with pytest.raises(TypeError, match=r"use x\.to\(torch\.float64\)"):
        model(x, GRID)
    with torch.autocast("cpu", torch.bfloat16):
        model.float()(x.bfloat16(), GRID)
