"""What holds for every baseline: one suite over all of them."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import functional_call, stack_module_state, vmap

from bunn import Laplacian
from bunn.baselines import BASELINES, propagation, sheaf
from bunn.theory import graphs as shapes
from tests.baselines.variants import (
    NUMBERED,
    READS_EDGES,
    VARIANTS,
    WEIGHTED,
    batch_of,
    build,
    livened,
    some_graphs,
)
from tests.graphs import graphs

every_variant = pytest.mark.parametrize("variant", VARIANTS)
GRAPH = shapes.random(12, seed=3)


def test_the_registry_names_every_model_and_its_paper():
    names = "mlp resnet gcn sage gat gat-sep gin ggnn gps gt gt-sep nsd"
    benchmark = "gine gatedgcn drew exphormer san graph-vit"
    assert list(BASELINES) == [*names.split(), *benchmark.split()]
    for name, baseline in BASELINES.items():
        assert baseline.name == name
        assert "https://" in baseline.reference
        model = baseline.build(baseline.options(), 3, 2)
        assert model(torch.randn(GRAPH.num_nodes, 3), GRAPH.edge_index).shape == (12, 2)


@every_variant
@pytest.mark.parametrize("norm", ["batch", None])
def test_gradients_reach_every_parameter(variant, norm):
    # Not ReLU: its encoder can silence a node in all of eight channels.
    outside = {"act": "elu", "dropout": 0.1, "head_layers": 2, "edge_channels": 2}
    model = livened(build(variant, norm=norm, **outside))
    x = torch.randn(GRAPH.num_nodes, 3, requires_grad=True)
    # Edges without features enter as zeros, and a map of zeros has no gradient.
    features = torch.randn(GRAPH.edge_index.size(1), 2) if variant in READS_EDGES else None
    y = model(x, GRAPH.edge_index, edge_attr=features)
    assert y.shape == (GRAPH.num_nodes, 2)
    (y * torch.randn_like(y)).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        if variant == "nsd-rotation" and name.endswith("lin_own.bias"):
            continue  # plane rotations commute: a turn of both ends of an edge changes nothing
        assert parameter.grad.abs().max() > 0, name
    assert x.grad.abs().sum(1).min() > 0


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name not in NUMBERED])
@settings(max_examples=6)
@given(graph=graphs(), data=st.data())
def test_permuting_nodes_and_edges_permutes_the_output(variant, graph, data):
    edge_index, weight, n = graph
    weight = weight if variant in WEIGHTED else None
    order = torch.tensor(data.draw(st.permutations(range(n))))
    shuffle = torch.randperm(edge_index.size(1))
    model = livened(build(variant, norm="layer")).double()
    x = torch.randn(n, 3, dtype=torch.float64)
    y = model(x, edge_index, weight)
    place = torch.argsort(order)  # node v of the graph is node place[v] of the other
    other = model(
        x[order], place[edge_index][:, shuffle], None if weight is None else weight[shuffle]
    )
    torch.testing.assert_close(other, y[order], rtol=1e-8, atol=1e-8)


@every_variant
@pytest.mark.parametrize("pooling", [None, "mean"])
def test_graphs_of_a_batch_do_not_see_each_other(variant, pooling):
    model = livened(build(variant, pooling=pooling)).double()
    items = some_graphs(dtype=torch.float64)
    batch = batch_of(items)
    together = model(batch.x, batch.edge_index, batch=batch.batch)
    alone = torch.cat([model(item.x, item.edge_index) for item in items])
    torch.testing.assert_close(together, alone, rtol=1e-8, atol=1e-8)
    if pooling is not None:
        padded = model(batch.x, batch.edge_index, batch=batch.batch, batch_size=len(items) + 1)
        assert padded.shape == (len(items) + 1, 2)
        torch.testing.assert_close(padded[:-1], alone, rtol=1e-8, atol=1e-8)


@every_variant
def test_small_graphs_by_matrices_equal_large_ones_by_edges(variant, monkeypatch):
    model = livened(build(variant)).double()
    x = torch.randn(GRAPH.num_nodes, 3, dtype=torch.float64)
    results = []
    for size in (1000, 0):
        for module in (propagation, sheaf):
            monkeypatch.setattr(module, "DENSE_SIZE", size)
        model.zero_grad()
        y = model(x, GRAPH.edge_index)
        y.square().sum().backward()
        results.append([y.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
    for by_matrix, by_edges in zip(*results, strict=True):
        torch.testing.assert_close(by_matrix, by_edges, rtol=1e-8, atol=1e-8)


@every_variant
@pytest.mark.parametrize(("norm", "dense"), [("layer", True), (None, False)])
def test_stacked_models_equal_the_models_one_by_one(variant, norm, dense, monkeypatch):
    """In training mode, with the gradients by an ordinary backward pass."""
    for module in (propagation, sheaf):
        monkeypatch.setattr(module, "DENSE_SIZE", 1000 if dense else 0)
    models = [livened(build(variant, norm=norm)).double() for _ in range(3)]
    weight = torch.rand(12, 12)
    weight = (weight + weight.T)[tuple(GRAPH.edge_index)] if variant in WEIGHTED else None
    parameters, buffers = stack_module_state(models)
    x = torch.randn(3, GRAPH.num_nodes, 3, dtype=torch.float64)

    def call(parameters, buffers, x):
        arguments = (x, GRAPH.edge_index, weight)
        return functional_call(models[0], (parameters, buffers), arguments)

    together = vmap(call)(parameters, buffers, x)
    together.square().sum().backward()
    alone = torch.stack(
        [model(x_, GRAPH.edge_index, weight) for model, x_ in zip(models, x, strict=True)]
    )
    torch.testing.assert_close(together, alone, rtol=1e-8, atol=1e-8)
    alone.square().sum().backward()
    for name, stacked in parameters.items():
        single = torch.stack([model.get_parameter(name).grad for model in models])
        torch.testing.assert_close(stacked.grad, single, rtol=1e-8, atol=1e-8)
    with torch.no_grad():  # evaluation
        models[0].eval()
        torch.testing.assert_close(vmap(call)(parameters, buffers, x), alone, rtol=1e-8, atol=1e-8)


@every_variant
def test_stacked_models_take_batches(variant):
    models = [livened(build(variant, pooling="max", pe_channels=2)).eval() for _ in range(2)]
    parameters, buffers = stack_module_state(models)
    batch = batch_of(some_graphs())
    x, pe = torch.randn(2, batch.num_nodes, 3), torch.randn(batch.num_nodes, 2)
    graph = {"pe": pe, "batch": batch.batch, "batch_size": batch.num_graphs}

    def call(parameters, buffers, x):
        return functional_call(models[0], (parameters, buffers), (x, batch.edge_index), graph)

    together = vmap(call)(parameters, buffers, x)
    alone = [model(x_, batch.edge_index, **graph) for model, x_ in zip(models, x, strict=True)]
    torch.testing.assert_close(together, torch.stack(alone), rtol=1e-4, atol=1e-5)


@every_variant
@pytest.mark.parametrize("nodes", [1, 4])
def test_graphs_without_edges(variant, nodes):
    model = livened(build(variant))
    y = model(torch.randn(nodes, 3), torch.zeros(2, 0, dtype=torch.long))
    assert y.shape == (nodes, 2)
    assert y.isfinite().all()
    y.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@every_variant
def test_autocast(variant):
    model = livened(build(variant, norm="layer"))
    x = torch.randn(GRAPH.num_nodes, 3)
    exact = model(x, GRAPH.edge_index)
    batch = torch.tensor([0] * 4 + [1] * 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = model(x, GRAPH.edge_index)
        model(x, GRAPH.edge_index, batch=batch).float().sum().backward()
    assert rounded.dtype == torch.bfloat16
    assert (rounded - exact).abs().max() < 0.1 * exact.abs().max()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@every_variant
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions(variant, dtype):
    model = build(variant).to(dtype)
    weight = torch.ones(GRAPH.edge_index.size(1)) if variant in WEIGHTED else None
    y = model(torch.randn(GRAPH.num_nodes, 3, dtype=dtype), GRAPH.edge_index, weight)
    assert y.dtype == dtype
    assert y.isfinite().all()


@every_variant
def test_reset_parameters(variant):
    model = build(variant)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(9.0)
    model.reset_parameters()
    for name, parameter in model.named_parameters():
        assert not (parameter == 9.0).any(), name


@every_variant
def test_copies_and_repetition_give_the_same_bits(variant):
    model, x = livened(build(variant)).eval(), torch.randn(GRAPH.num_nodes, 3)
    y = model(x, GRAPH.edge_index)
    assert torch.equal(copy.deepcopy(model)(x, GRAPH.edge_index), y)
    assert torch.equal(pickle.loads(pickle.dumps(model))(x, GRAPH.edge_index), y)
    assert torch.equal(model(x, GRAPH.edge_index), y)
    other = build(variant).eval()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x, GRAPH.edge_index), y)


@every_variant
def test_edge_weights(variant):
    model = livened(build(variant)).double()
    x = torch.randn(GRAPH.num_nodes, 3, dtype=torch.float64)
    one = torch.ones(GRAPH.edge_index.size(1), dtype=torch.float64)
    if variant not in WEIGHTED:
        with pytest.raises(ValueError, match=r"edge_weight has shape .* knows no edge weights"):
            model(x, GRAPH.edge_index, one)
        return
    plain = model(x, GRAPH.edge_index)
    torch.testing.assert_close(model(x, GRAPH.edge_index, one), plain)
    u, v = GRAPH.edge_index
    gone = (u == 0) | (v == 0)
    without = model(x, GRAPH.edge_index[:, ~gone])
    torch.testing.assert_close(model(x, GRAPH.edge_index, torch.where(gone, 0.0, one)), without)
    heavier = model(x, GRAPH.edge_index, torch.where(gone, 5.0, one))
    blind = variant in {"mlp", "resnet", "gps-attention"}
    assert torch.allclose(heavier, plain) == blind
    with pytest.raises(ValueError, match=r"edge_weight has shape \(3,\)"):
        model(x, GRAPH.edge_index, one[:3])


#: All but a sheaf, which is undirected, and attention beyond the edges.
DIRECTED = [
    name
    for name in VARIANTS
    if name.split("-")[0] not in {"nsd", "gps", "exphormer", "san", "graph"}
]
DIRECTED.append("exphormer-edges")  # which has nothing else to attend along
#: From how many nodes away two layers hear, where that is not one for each.
REACH = {"mlp": 0, "resnet": 0, "ggnn-tied": 6, "ggnn-untied": 6, "drew-prompt": 3}


@pytest.mark.parametrize("variant", DIRECTED)
def test_messages_follow_the_edges(variant):
    """On a directed path: from source to target, a node farther with each step, and never back."""
    n, reach = 9, REACH.get(variant, 2)
    # A loop at the start: a GCN without self-loops normalises by the edges that arrive.
    edge_index = torch.stack((torch.arange(n - 1), torch.arange(1, n)))
    edge_index = torch.cat((torch.zeros(2, 1, dtype=torch.long), edge_index), dim=1)
    model, x = livened(build(variant, act="tanh", num_layers=2)), torch.randn(n, 3)
    for node in range(n):
        leaf = x.clone().requires_grad_()
        model(leaf, edge_index)[node].square().sum().backward()
        heard = (leaf.grad.abs().sum(1) > 0).nonzero().flatten().tolist()
        assert heard == list(range(max(0, node - reach), node + 1))


@every_variant
def test_bad_inputs(variant):
    model, x = build(variant), torch.randn(GRAPH.num_nodes, 3)
    with pytest.raises(TypeError, match=r"edge_index is a Laplacian; .* pass lap\.edge_index"):
        model(x, Laplacian(GRAPH.edge_index))
    with pytest.raises(TypeError, match=r"edge_index has dtype torch\.float32; use \.long\(\)"):
        model(x, GRAPH.edge_index.float())
    with pytest.raises(ValueError, match=r"edge_index has shape \(44, 2\); it must be"):
        model(x, torch.zeros(44, 2).long())
    with pytest.raises(ValueError, match="x is on meta and edge_index on cpu"):
        model(x.to("meta"), GRAPH.edge_index)
    y = model(x, GRAPH.edge_index.int())
    assert torch.equal(y, model(x, GRAPH.edge_index))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*torch-scatter.*:UserWarning")  # advice of PyG on a GPU
@every_variant
def test_cuda_equals_cpu_alone_and_stacked(variant):
    models = [livened(build(variant)).double() for _ in range(2)]
    batch = batch_of(some_graphs(dtype=torch.float64))
    alone = [model(batch.x, batch.edge_index, batch=batch.batch) for model in models]
    models, batch = [model.cuda() for model in models], batch.cuda()
    parameters, buffers = stack_module_state(models)

    def call(parameters, buffers):
        arguments = (batch.x, batch.edge_index, None, None, batch.batch)
        return functional_call(models[0], (parameters, buffers), arguments)

    y = vmap(call)(parameters, buffers)
    torch.testing.assert_close(y.cpu(), torch.stack(alone), rtol=1e-8, atol=1e-8)
    y.square().sum().backward()
    for model, reference in zip(models, alone, strict=True):
        z = model(batch.x, batch.edge_index, batch=batch.batch)
        torch.testing.assert_close(z.cpu(), reference, rtol=1e-8, atol=1e-8)
        z.square().sum().backward()
    for name, stacked in parameters.items():
        single = torch.stack([model.get_parameter(name).grad for model in models])
        torch.testing.assert_close(stacked.grad, single, rtol=1e-6, atol=1e-6)
