"""What holds for every baseline that reads the features of edges: one suite over all of them."""

import pytest
import torch
from torch.func import functional_call, stack_module_state, vmap

from bunn.theory import graphs as shapes
from tests.baselines.variants import (
    NUMBERED,
    READS_EDGES,
    VARIANTS,
    batch_of,
    build,
    livened,
    some_graphs,
)

every_variant = pytest.mark.parametrize(
    "variant", [name for name in VARIANTS if name in READS_EDGES]
)
GRAPH = shapes.random(12, seed=3)
EDGES = GRAPH.edge_index.size(1)

#: Those in which neighbours compete by the features of edges: an only one wins in any case.
COMPETING = {"exphormer-edges", "san", "san-first"}


def features(edges: int = EDGES) -> torch.Tensor:
    return torch.randn(edges, 2, dtype=torch.float64)


def model_of(variant, **keywords):
    return livened(build(variant, edge_channels=2, act="elu", **keywords)).double()


@every_variant
def test_every_edge_is_heard(variant):
    model, x = model_of(variant), torch.randn(12, 3, dtype=torch.float64)
    edge_attr = features().requires_grad_()
    y = model(x, GRAPH.edge_index, edge_attr=edge_attr)
    (y * torch.randn_like(y)).sum().backward()
    heard = edge_attr.grad.abs().sum(1) > 0
    if variant in COMPETING:
        target = GRAPH.edge_index[1]
        heard |= target.bincount()[target] == 1
    assert heard.all()


@every_variant
def test_features_are_those_of_their_edges(variant):
    """In another order of nodes and edges the result is the same; with others' features it is
    another."""
    model, x, edge_attr = model_of(variant), torch.randn(12, 3, dtype=torch.float64), features()
    order = torch.arange(12) if variant in NUMBERED else torch.randperm(12)
    shuffle = torch.randperm(EDGES)
    place = torch.argsort(order)
    y = model(x, GRAPH.edge_index, edge_attr=edge_attr)
    edge_index = place[GRAPH.edge_index][:, shuffle]
    other = model(x[order], edge_index, edge_attr=edge_attr[shuffle])
    torch.testing.assert_close(other, y[order], rtol=1e-8, atol=1e-8)
    swapped = model(x[order], edge_index, edge_attr=edge_attr)
    assert not torch.allclose(swapped, y[order], rtol=1e-4)


@every_variant
def test_graphs_of_a_batch_have_their_own_edges(variant):
    model, items = model_of(variant, pooling="mean"), some_graphs(dtype=torch.float64)
    for item in items:
        item.edge_attr = features(item.num_edges)
    batch = batch_of(items)
    together = model(batch.x, batch.edge_index, batch=batch.batch, edge_attr=batch.edge_attr)
    alone = [model(item.x, item.edge_index, edge_attr=item.edge_attr) for item in items]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-8, atol=1e-8)


@every_variant
def test_stacked_models_read_edges(variant):
    models = [model_of(variant) for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    x, edge_attr = torch.randn(3, 12, 3, dtype=torch.float64), features()

    def call(parameters, buffers, x):
        keywords = {"edge_attr": edge_attr}
        return functional_call(models[0], (parameters, buffers), (x, GRAPH.edge_index), keywords)

    together = vmap(call)(parameters, buffers, x)
    pairs = zip(models, x, strict=True)
    alone = torch.stack([model(x_, GRAPH.edge_index, edge_attr=edge_attr) for model, x_ in pairs])
    torch.testing.assert_close(together, alone, rtol=1e-8, atol=1e-8)
    together.square().sum().backward()
    alone.square().sum().backward()
    for name, stacked in parameters.items():
        single = torch.stack([model.get_parameter(name).grad for model in models])
        torch.testing.assert_close(stacked.grad, single, rtol=1e-8, atol=1e-8)


@every_variant
def test_autocast(variant):
    model, x = model_of(variant).float(), torch.randn(12, 3)
    edge_attr = features().float()
    exact = model(x, GRAPH.edge_index, edge_attr=edge_attr)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = model(x, GRAPH.edge_index, edge_attr=edge_attr)
    assert (rounded - exact).abs().max() < 0.1 * exact.abs().max()
