"""Exphormer, against its formula written out node by node, and its expander graphs."""

import math
from collections import Counter

import networkx as nx
import pytest
import torch

from bunn.baselines.gps import LOCAL
from bunn.baselines.interactions import expander
from bunn.theory import graphs as shapes
from tests.baselines.test_gatedgcn import gated
from tests.baselines.variants import batch_of, build, livened, some_graphs


def edge_counts(edge_index):
    return Counter(map(tuple, edge_index.T.tolist()))


def attended(attention, x, pairs, features):
    """``{v: [(u, e)]}`` and features ``(m, c)`` of the pairs, to the result for every node."""
    width, heads = x.size(1), attention.heads
    query, key, value = attention.lin_in(x).chunk(3, -1)
    size, rows = width // heads, []
    for v in range(x.size(0)):
        out = torch.zeros(width, dtype=x.dtype)
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            scores, values = [], []
            for u, e in pairs.get(v, []):
                modulated = (attention.lin_pair.weight @ features[e])[part] * key[u, part]
                scores.append(query[v, part] @ modulated / math.sqrt(size))
                values.append(value[u, part])
            if scores:
                out[part] = torch.stack(scores).softmax(0) @ torch.stack(values)
        rows.append(out)
    return attention.lin_out(torch.stack(rows))


def naive(model, data, batch, edge_attr):
    """The model on nodes of graphs ``batch``, with ReLU, norms after layers, and ``local`` a
    ``"gcn"`` or ``"gatedgcn"``."""
    (stack,), options = model.blocks, model.options
    n, graphs = data.num_nodes, int(batch.max()) + 1
    features = edge_attr + stack.kinds.weight[0]
    kinds = list(stack.kinds.weight[1:])
    arrivals = [(u, v, features[i]) for i, (u, v) in enumerate(data.edge_index.T.tolist())]
    if options.expander_degree:
        random = expander(batch, options.expander_degree).T.tolist()
        arrivals += [(u, v, kinds[0]) for u, v in random]
        del kinds[0]
    for j in range(options.num_virtual):
        for v in range(n):
            virtual = n + int(batch[v]) * options.num_virtual + j
            arrivals += [(v, virtual, kinds[2 * j]), (virtual, v, kinds[2 * j + 1])]
    pairs = {}
    for e, (u, v, _) in enumerate(arrivals):
        pairs.setdefault(v, []).append((u, e))
    features = torch.stack([feature for *_, feature in arrivals])
    a = torch.eye(n, dtype=torch.float64)
    a[data.edge_index[1], data.edge_index[0]] = 1
    root = a.sum(1).rsqrt()
    x = torch.relu(model.encoder[0](data.x))
    virtual = stack.virtual.weight.repeat(graphs, 1) if options.num_virtual else x[:0]
    for layer in stack.layers:
        heard = attended(layer.attention, torch.cat((x, virtual)), pairs, features)
        if options.local == "gatedgcn":
            local, scores = gated(layer.local.layer, x, data.edge_index, edge_attr)
            local, edges = layer.local.norm(local).relu(), layer.local.layer.edges
            edge_attr = edge_attr + edges.norm(scores).relu()
        else:
            conv = layer.local.conv
            local = root[:, None] * a * root @ x @ conv.lin.weight.T + conv.bias
        y = layer.norm_global(x + heard[:n]) + layer.norm_local(x + local)
        x, virtual = layer.norm_mlp(y + layer.mlp(y)), virtual + heard[n:]
    return model.head(x)


@pytest.mark.parametrize("degree", [0, 4])
@pytest.mark.parametrize("num_virtual", [0, 1, 2])
@pytest.mark.parametrize("described", [True, False])
@pytest.mark.parametrize("local", ["gcn", "gatedgcn"])
def test_the_model_is_its_formula(degree, num_virtual, described, local):
    data = batch_of(some_graphs(dtype=torch.float64))
    options = {"expander_degree": degree, "num_virtual": num_virtual, "num_layers": 3, "heads": 2}
    model = build("exphormer", local=local, edge_channels=5 * described, **options)
    livened(model).double()
    raw = torch.randn(data.num_edges, 5, dtype=torch.float64) if described else None
    encoded = model.edge_encoder(raw) if described else data.x.new_zeros(data.num_edges, 8)
    y = model(data.x, data.edge_index, batch=data.batch, edge_attr=raw)
    torch.testing.assert_close(y, naive(model, data, data.batch, encoded))


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("local", [*LOCAL, None])
def test_without_attention_it_is_gps_without_attention(local, norm_first):
    """Whatever the message passing is, and whether or not it reads edges or changes them."""
    data = batch_of(some_graphs(dtype=torch.float64))
    options = {"local": local, "norm_first": norm_first, "num_layers": 3, "heads": 2}
    edge_attr = torch.randn(data.num_edges, 5, dtype=torch.float64)
    model = livened(build("exphormer", edge_channels=5, **options)).double()
    gps = build("gps", edge_channels=5, **options).double()
    shared = {name: model.get_submodule(name) for name in ("encoder", "norm", "head")}
    reads_edges = gps.options.reads_edges
    if reads_edges:
        shared["edge_encoder"] = model.edge_encoder
    for name, module in shared.items():
        gps.get_submodule(name).load_state_dict(module.state_dict())
    for layer, block in zip(model.blocks[0].layers, gps.blocks, strict=True):
        for parameter in layer.attention.lin_out.parameters():
            torch.nn.init.zeros_(parameter)
        state = {key: value for key, value in layer.state_dict().items() if "pair" not in key}
        block.load_state_dict(state)
    y = model(data.x, data.edge_index, batch=data.batch, edge_attr=edge_attr)
    edge_attr = edge_attr if reads_edges else None
    other = gps(data.x, data.edge_index, batch=data.batch, edge_attr=edge_attr)
    torch.testing.assert_close(y, other)


def test_nodes_of_a_batch_may_come_in_any_order():
    items = some_graphs(dtype=torch.float64)
    data, model = batch_of(items), livened(build("exphormer")).double()
    # Graph by graph the order is kept: an expander is one on numbers.
    order = torch.rand(data.num_graphs, data.num_nodes).sort().values
    order = torch.stack([order[g, i] for i, g in enumerate(data.batch)]).argsort()
    place = order.argsort()
    other = model(data.x[order], place[data.edge_index], batch=data.batch[order])
    y = model(data.x, data.edge_index, batch=data.batch)
    assert not torch.equal(order, order.sort().values)
    torch.testing.assert_close(other, y[order])


@pytest.mark.parametrize("degree", [2, 6])
def test_an_expander_is_regular_and_connected_in_every_graph(degree):
    sizes = [1, 2, 3, 4, 7, 30, 30]
    batch = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    edges = expander(batch, degree)
    assert (batch[edges[0]] == batch[edges[1]]).all()
    assert (edges[0] != edges[1]).all()
    assert edge_counts(edges) == edge_counts(edges.flip(0))
    assert edges[0].bincount(minlength=batch.numel())[1:].tolist() == [degree] * (sum(sizes) - 1)
    components = nx.connected_components(nx.Graph(edges.T.tolist()))
    assert sorted(map(len, components)) == sizes[1:]
    alone, first = expander(torch.zeros(30, dtype=torch.long), degree), sum(sizes[:-1])
    assert edge_counts(edges[:, batch[edges[0]] == 6] - first) == edge_counts(alone)


@pytest.mark.parametrize("size", [50, 150, 444])
def test_an_expander_expands(size):
    """Its second eigenvalue is close to that of the best graphs, where a cycle's is the degree."""
    edges = expander(torch.zeros(size, dtype=torch.long), 6)
    a = torch.zeros(size, size, dtype=torch.float64)
    a.index_put_(tuple(edges), torch.ones((), dtype=torch.float64), accumulate=True)
    values = torch.linalg.eigvalsh(a)
    assert values[-1] == pytest.approx(6)
    assert max(values[-2], -values[0]) < 1.1 * 2 * math.sqrt(5)


def test_graphs_of_other_sizes_have_other_expanders():
    """Otherwise they would be unlucky together."""
    batch = torch.zeros(40, dtype=torch.long)
    small, large = expander(batch[:39], 2), expander(batch, 2)
    assert len(set(edge_counts(small)) & set(edge_counts(large))) < 20


def test_virtual_nodes_carry_messages_from_one_layer_to_the_next():
    """From node to virtual node and on: two layers, within a graph, whatever its edges are."""
    batch, empty = torch.tensor([0, 0, 1, 0]), torch.zeros(2, 0, dtype=torch.long)
    for layers, heard in ((1, [0]), (2, [0, 1, 3])):
        options = {"local": None, "expander_degree": 0, "num_virtual": 1, "num_layers": layers}
        model = livened(build("exphormer", act="tanh", **options))
        x = torch.randn(4, 3, requires_grad=True)
        model(x, empty, batch=batch)[0].sum().backward()
        assert (x.grad.abs().sum(1) > 0).nonzero().flatten().tolist() == heard


def test_one_layer_hears_along_the_expander():
    empty, batch = torch.zeros(2, 0, dtype=torch.long), torch.zeros(30, dtype=torch.long)
    model = livened(build("exphormer", act="tanh", num_virtual=0, num_layers=1, local=None))
    x = torch.randn(30, 3, requires_grad=True)
    model(x, empty)[0].sum().backward()
    source, target = expander(batch, 6)
    heard = (x.grad.abs().sum(1) > 0).nonzero().flatten().tolist()
    assert heard == sorted({0, *source[target == 0].tolist()})


def test_attention_dropout_is_there_in_training_only():
    graph, x = shapes.random(12, seed=3), torch.randn(12, 3)
    model = build("exphormer", attention_dropout=0.5)
    assert not torch.equal(model(x, graph.edge_index), model(x, graph.edge_index))
    model.eval()
    assert torch.equal(model(x, graph.edge_index), model(x, graph.edge_index))
