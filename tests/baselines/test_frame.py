from dataclasses import dataclass

import pytest
import torch
from torch import nn

from bunn.baselines import BASELINES, Block, FrameOptions, GCNOptions, GraphModel, GraphModule
from bunn.baselines.memory import EdgeMemory
from bunn.theory import graphs as shapes
from tests.baselines.variants import batch_of, build, livened, some_graphs

GRAPH = shapes.random(10, seed=2)


class Turned(GraphModule):
    """A layer whose result is known: twice its input."""

    def forward(self, x, edge_index, edge_weight=None, batch=None):
        return 2 * x


class Activated(Turned):
    activated = True


@dataclass(frozen=True)
class OfEdges(FrameOptions):
    norm: None = None

    @property
    def reads_edges(self):
        return True


class Counted(GraphModule):
    """A layer whose edges are known: one more in every block, which nodes are told the sum of."""

    activated, ended = True, False

    def end_edges(self):
        self.ended = True

    def forward(self, x, edge_index, edge_weight=None, batch=None, edge_attr=None):
        return torch.zeros_like(x) + edge_attr.sum(0), edge_attr + 1


def counting(**keywords):
    """Three blocks of :class:`Counted`, with the identity for an encoder and for a head."""
    options = OfEdges(8, num_layers=3)
    model = GraphModel(
        options, 8, 8, lambda own: Block(Counted(), own), encoder=nn.Identity(), **keywords
    )
    model.head = nn.Identity()
    model.head.register_parameter("unread", nn.Parameter(torch.zeros(1)))
    return model


def test_edges_without_features_enter_as_zeros():
    model, x, edges = counting(), torch.rand(10, 8), GRAPH.edge_index.size(1)
    assert model.edge_encoder is None
    torch.testing.assert_close(model(x, GRAPH.edge_index), x + edges * (0 + 1 + 2))


def test_features_of_edges_are_encoded_and_go_from_block_to_block():
    model, x, edges = counting(edge_channels=2), torch.rand(10, 8), GRAPH.edge_index.size(1)
    edge_attr = torch.rand(edges, 2)
    nn.init.uniform_(model.edge_encoder.weight)
    nn.init.uniform_(model.edge_encoder.bias)
    total = edge_attr.sum(0) @ model.edge_encoder.weight.T + edges * model.edge_encoder.bias
    y = model(x, GRAPH.edge_index, edge_attr=edge_attr)
    torch.testing.assert_close(y, x + 3 * total + edges * (0 + 1 + 2))
    own = nn.Embedding(5, 8)
    model = counting(edge_channels=1, edge_encoder=nn.Sequential(own, nn.Flatten()))
    edge_attr = torch.randint(5, (edges, 1))
    y = model(x, GRAPH.edge_index, edge_attr=edge_attr)
    torch.testing.assert_close(y, x + 3 * own.weight[edge_attr[:, 0]].sum(0) + edges * 3)


def test_the_last_block_is_told_that_nobody_reads_its_edges():
    assert [block.layer.ended for block in counting().blocks] == [False, False, True]


def test_models_that_read_no_edges_have_no_encoder_of_them():
    encoder = nn.Linear(2, 8)
    model = build("gcn", edge_channels=2, edge_encoder=encoder)
    assert model.edge_encoder is None
    assert model.edge_channels == 0
    model(torch.randn(10, 3), GRAPH.edge_index)


def test_bad_features_of_edges():
    x, edges = torch.randn(10, 8), GRAPH.edge_index.size(1)
    model, edge_attr = counting(edge_channels=2), torch.randn(edges, 2)
    asked = rf"with edge_channels=2 the model reads \({edges}, 2\)"
    with pytest.raises(ValueError, match=f"edge_attr is None; {asked}"):
        model(x, GRAPH.edge_index)
    with pytest.raises(ValueError, match=rf"edge_attr is of shape \({edges}, 1\); {asked}"):
        model(x, GRAPH.edge_index, edge_attr=edge_attr[:, :1])
    with pytest.raises(ValueError, match=rf"edge_attr is of shape \(3, 2\); {asked}"):
        model(x, GRAPH.edge_index, edge_attr=edge_attr[:3])
    with pytest.raises(TypeError, match=r"edge_attr has dtype torch\.int64; .* an edge_encoder"):
        model(x, GRAPH.edge_index, edge_attr=edge_attr.long())
    with pytest.raises(ValueError, match="leave it out, or build it with edge_channels"):
        counting()(x, GRAPH.edge_index, edge_attr=edge_attr)
    with pytest.raises(ValueError, match="this model reads no edge features; leave edge_attr out"):
        build("gcn")(x[:, :3], GRAPH.edge_index, edge_attr=edge_attr)
    with pytest.raises(ValueError, match=rf"the edge_encoder returned shape \({edges}, 5\)"):
        counting(edge_channels=2, edge_encoder=nn.Linear(2, 5))(
            x, GRAPH.edge_index, edge_attr=edge_attr
        )
    with pytest.raises(ValueError, match="edge_channels=-1; it must be >= 0"):
        counting(edge_channels=-1)


@pytest.mark.parametrize("residual", [True, False])
def test_a_block_may_normalise_its_stream(residual):
    block = Block(
        Turned(),
        FrameOptions(8, norm_first=False, norm_residual=True, residual=residual, act="tanh"),
    )
    nn.init.uniform_(block.norm.weight)
    x = torch.randn(5, 8)
    h = x * residual + torch.tanh(2 * x)
    torch.testing.assert_close(block(x, GRAPH.edge_index), block.norm(h))


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("layer", [Turned, Activated])
def test_block_is_its_formula(norm_first, residual, layer):
    options = FrameOptions(8, norm_first=norm_first, residual=residual, act="tanh")
    block = Block(layer(), options)
    nn.init.uniform_(block.norm.weight)
    x, act = torch.randn(5, 8), torch.tanh if layer is Turned else lambda h: h
    h = act(2 * block.norm(x)) if norm_first else act(block.norm(2 * x))
    torch.testing.assert_close(block(x, GRAPH.edge_index), x + h if residual else h)


@pytest.mark.parametrize("norm_first", [True, False])
def test_model_is_its_formula(norm_first):
    options = FrameOptions(8, num_layers=3, norm_first=norm_first, head_layers=2, act="tanh")
    model = livened(
        GraphModel(options, 3, 2, lambda own: Block(Turned(), own), pooling="sum", pe_channels=1)
    )
    x, pe = torch.randn(10, 3), torch.randn(10, 1)
    h = torch.tanh(model.encoder[0](torch.cat((x, pe), 1)))
    assert len(model.blocks) == 3
    for block in model.blocks:
        h = block(h, GRAPH.edge_index)
    h = nn.functional.layer_norm(h, (8,), model.norm.weight, model.norm.bias) if norm_first else h
    y = model.head[2](torch.tanh(model.head[0](h.sum(0, keepdim=True))))
    torch.testing.assert_close(model(x, GRAPH.edge_index, pe=pe), y)


def test_dropout_is_there_in_training_only():
    model, x = build("gcn", dropout=0.5), torch.randn(10, 3)
    assert not torch.equal(model(x, GRAPH.edge_index), model(x, GRAPH.edge_index))
    model.eval()
    assert torch.equal(model(x, GRAPH.edge_index), model(x, GRAPH.edge_index))


@pytest.mark.parametrize("pooling", ["mean", "sum", "max"])
def test_pooling(pooling):
    model, seen = build("gcn", pooling=pooling), []
    model.norm.register_forward_hook(lambda module, inputs, output: seen.append(output))
    batch = batch_of(some_graphs())
    y = model(batch.x, batch.edge_index, batch=batch.batch)
    reduce = {"mean": lambda h: h.mean(0), "sum": lambda h: h.sum(0), "max": lambda h: h.amax(0)}
    parts = [reduce[pooling](seen[0][batch.batch == g]) for g in range(batch.num_graphs)]
    torch.testing.assert_close(y, model.head(torch.stack(parts)))


def test_an_encoder_of_ones_own_and_encodings():
    encoder = nn.Embedding(10, 8)
    model = build("gcn", in_channels=1, encoder=encoder, pe_channels=4)
    assert model.encoder is encoder
    x, pe = torch.randint(10, (10,)), torch.randn(10, 4)
    y = model(x, GRAPH.edge_index, pe=pe)
    assert y.shape == (10, 2)
    torch.testing.assert_close(
        model(x, GRAPH.edge_index, pe=torch.zeros(10, 4)),
        build_like(model, encoder)(x, GRAPH.edge_index),
    )
    assert not torch.allclose(y, model(x, GRAPH.edge_index, pe=2 * pe))
    y.sum().backward()
    assert model.pe_encoder.weight.grad.abs().max() > 0
    assert encoder.weight.grad.abs().max() > 0


def test_an_encoder_may_read_encodings():
    class Both(nn.Module):
        pe_channels = 4

        def forward(self, x, pe):
            return torch.cat((x, pe), -1)

    model, x, pe = (
        build("gcn", encoder=Both(), pe_channels=4),
        torch.randn(10, 4),
        torch.randn(10, 4),
    )
    assert model.pe_encoder is None
    plain = build("gcn", encoder=nn.Identity())
    plain.load_state_dict(model.state_dict())
    y = model(x, GRAPH.edge_index, pe=pe)
    torch.testing.assert_close(y, plain(torch.cat((x, pe), -1), GRAPH.edge_index))
    with pytest.raises(ValueError, match=r"pe=None, but the model reads 4"):
        model(x, GRAPH.edge_index)


def build_like(model, encoder):
    """The same weights in a model that reads no encodings."""
    plain = build("gcn", in_channels=1, encoder=encoder)
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if "pe_encoder" not in k})
    return plain


BAD_OPTIONS = {
    "width": ({"hidden_channels": 0}, "hidden_channels=0; it must be an integer >= 1"),
    "float width": ({"hidden_channels": 8.0}, r"hidden_channels=8\.0; it must be an integer"),
    "depth": ({"num_layers": -1}, "num_layers=-1; it must be an integer >= 1"),
    "truth": ({"num_layers": True}, "num_layers=True; it must be an integer >= 1"),
    "dropout": ({"dropout": 1.0}, r"dropout=1\.0; it must be a number >= 0 and < 1"),
    "no dropout": ({"dropout": "0.1"}, "dropout='0.1'; it must be a number"),
    "act": ({"act": "magic"}, "act='magic' is unknown; use the name of an activation"),
    "no act": ({"act": None}, "act=None is unknown"),
    "norm": ({"norm": "instance"}, "norm='instance'; use one of 'layer', 'batch', None"),
    "order": ({"norm_first": "no"}, "norm_first='no'; it must be True or False"),
    "residual": ({"residual": 1}, "residual=1; it must be True or False"),
    "two orders": (
        {"norm_first": True, "norm_residual": True},
        "norm_residual=True normalises after the layer, but norm_first=True",
    ),
    "head": ({"head_layers": 0}, "head_layers=0; it must be an integer >= 1"),
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
@pytest.mark.parametrize("name", BASELINES)
def test_bad_options(case, name):
    options, message = BAD_OPTIONS[case]
    with pytest.raises(ValueError, match=message):
        BASELINES[name].options(**options)


BAD_OWN_OPTIONS = {
    "loops": ("gcn", {"self_loops": 2}, "self_loops=2; it must be True or False"),
    "improved": ("gcn", {"improved": True, "self_loops": False}, "improved=True weighs self-loops"),
    "aggr": ("sage", {"aggr": "median"}, "aggr='median'; use one of 'mean', 'sum', 'max'"),
    "no max": ("sage", {"aggr": "max", "feed_forward": True}, "knows no aggr='max'; use 'mean' or"),
    "network": ("gcn", {"feed_forward": 1}, "feed_forward=1; it must be True or False"),
    "itself": ("gat-sep", {"self_loops": True}, "separate=True .*: set self_loops=False and feed_"),
    "apart": ("gat", {"separate": True, "self_loops": False}, "separate=True .* feed_forward=True"),
    "separate": ("gt", {"separate": None}, "separate=None; it must be True or False"),
    "no width": ("gt", {"hidden_channels": 12}, "hidden_channels=12 is no multiple of heads=8"),
    "heads": ("gat", {"heads": 3}, "hidden_channels=128 is no multiple of heads=3; use .*=129"),
    "no heads": ("gps", {"heads": 0}, "heads=0; it must be an integer >= 1"),
    "attention": ("gat", {"attention_dropout": -0.1}, r"attention_dropout=-0\.1; it must be"),
    "eps": ("gin", {"learn_eps": "yes"}, "learn_eps='yes'; it must be True or False"),
    "steps": ("ggnn", {"steps": 0}, "steps=0; it must be an integer >= 1"),
    "tied": ("ggnn", {"tied": None}, "tied=None; it must be True or False"),
    "local": ("gps", {"local": "mlp"}, "local='mlp'; use one of 'gcn', .*, 'gatedgcn', None"),
    "delay": ("drew", {"nu": 0}, "nu=0; it must be an integer >= 1"),
    "hops": ("drew", {"max_hops": 0}, "max_hops=0; it must be an integer >= 1"),
    "odd": ("exphormer", {"expander_degree": 3}, "expander_degree=3; it must be even"),
    "degree": ("exphormer", {"expander_degree": -2}, "expander_degree=-2; .* an integer >= 0"),
    "virtual": ("exphormer", {"num_virtual": -1}, "num_virtual=-1; it must be an integer >= 0"),
    "stalk": ("nsd", {"stalk_dim": 3}, "hidden_channels=128 is no multiple of stalk_dim=3"),
    "maps": ("nsd", {"maps": "flat"}, "maps='flat'; use one of 'orthogonal', 'diagonal'"),
    "family": ("nsd", {"orthogonal": "qr"}, "orthogonal='qr' does not fit: maps='qr' is unknown"),
    "plane": ("nsd", {"orthogonal": "rotation", "stalk_dim": 4}, "orthogonal='rotation' does not"),
    "damping": ("nsd", {"damping": -1.0}, r"damping=-1\.0; it must be a number, 0 or more"),
    "singular": ("nsd", {"maps": "general", "damping": 0.0}, r"damping=0\.0; .* above 0 for maps="),
    "nothing": ("nsd", {"damping": float("nan")}, "damping=nan; it must be a number"),
    "channels": ("nsd", {"map_channels": 0}, "map_channels=0; it must be an integer >= 1"),
}


@pytest.mark.parametrize("case", BAD_OWN_OPTIONS)
def test_bad_options_of_a_model(case):
    name, options, message = BAD_OWN_OPTIONS[case]
    with pytest.raises(ValueError, match=message):
        BASELINES[name].options(**options)


def test_bad_arguments():
    gcn = BASELINES["gcn"]
    with pytest.raises(
        TypeError, match="options is a FrameOptions; 'gcn' is built with GCNOptions"
    ):
        gcn.build(FrameOptions(), 3, 2)
    with pytest.raises(ValueError, match="pooling='median'; use one of"):
        gcn.build(GCNOptions(), 3, 2, pooling="median")
    with pytest.raises(ValueError, match="in_channels=0; it must be >= 1, or pass an encoder"):
        gcn.build(GCNOptions(), 0, 2)
    with pytest.raises(ValueError, match="out_channels=0; it must be >= 1"):
        gcn.build(GCNOptions(), 3, 0)
    with pytest.raises(ValueError, match="pe_channels=-1; it must be >= 0"):
        gcn.build(GCNOptions(), 3, 2, pe_channels=-1)


def test_bad_inputs():
    model, x = build("gcn", pe_channels=2), torch.randn(10, 3)
    with pytest.raises(ValueError, match=r"pe=None, but the model reads 2 .*\(10, 2\)"):
        model(x, GRAPH.edge_index)
    with pytest.raises(ValueError, match=r"pe has shape \(10, 3\); .* reads \(10, 2\)"):
        model(x, GRAPH.edge_index, pe=x)
    with pytest.raises(ValueError, match="leave pe out, or build it with pe_channels"):
        build("gcn")(x, GRAPH.edge_index, pe=x)
    model = build("gcn")
    with pytest.raises(ValueError, match=r"x has shape \(10, 2\); .* reads \(num_nodes, 3\)"):
        model(x[:, :2], GRAPH.edge_index)
    with pytest.raises(TypeError, match=r"x has dtype torch\.int64"):
        model(x.long(), GRAPH.edge_index)
    with pytest.raises(TypeError, match="x is a list"):
        model([[1.0]], GRAPH.edge_index)
    with pytest.raises(ValueError, match=r"batch has shape \(4,\); it holds one graph index"):
        model(x, GRAPH.edge_index, batch=torch.zeros(4).long())
    with pytest.raises(ValueError, match=r"the encoder returned shape \(10, 5\)"):
        build("gcn", encoder=nn.Linear(3, 5))(x, GRAPH.edge_index)


def test_compiled_models_prepare_the_edges_of_a_graph_once(monkeypatch):
    model = livened(build("gat"))
    layer = type(model.blocks[0].layer)
    calls, prepare = [], layer.prepare
    monkeypatch.setattr(layer, "prepare", lambda *given: calls.append(given) or prepare(*given))
    edge_index, compiled = GRAPH.edge_index.clone(), torch.compile(model, backend="eager")
    for _ in range(3):
        x = torch.randn(10, model.in_channels)
        y = compiled(x, edge_index)
        assert len(calls) == 1
        torch.testing.assert_close(y, model(x, edge_index))


def test_edges_are_prepared_anew_for_another_batch_of_them():
    memory, edge_index, calls = EdgeMemory(), GRAPH.edge_index.clone(), []

    def prepared(batch):
        return memory.get((edge_index, batch), (10,), lambda: (calls.append(batch), None))

    first, second = torch.zeros(10).long(), torch.arange(10)
    for batch in (None, None, first, first, second, second, first):
        prepared(batch)
    assert len(calls) == 4
    assert all(a is b for a, b in zip(calls, (None, first, second, first), strict=True))
    first[5:] = 1  # written to: another batch in the same tensor
    prepared(first)
    prepared(first)
    assert len(calls) == 5


def test_models_hear_of_another_batch_on_the_same_edges():
    """A path of four nodes and two of two: edges that both batches have."""
    model, x = livened(build("gps", pooling="sum")), torch.randn(4, 3)
    edge_index = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
    whole, halves = torch.zeros(4).long(), torch.tensor([0, 0, 1, 1])
    one, two = model(x, edge_index, batch=whole), model(x, edge_index, batch=halves)
    assert not torch.allclose(one[0], two.sum(0))
    part = model(x[:2], edge_index[:, :2])
    torch.testing.assert_close(two[:1], part)
    torch.testing.assert_close(model(x, edge_index, batch=whole), one)
