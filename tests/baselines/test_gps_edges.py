"""GPS whose message passing reads the features of edges."""

import pytest
import torch

from bunn.baselines import gps
from bunn.baselines.gps import GPSBlock, GPSOptions
from bunn.baselines.padding import Padding
from bunn.theory import graphs as shapes
from tests.baselines.test_gatedgcn import gated
from tests.baselines.test_gine import formula
from tests.baselines.variants import batch_of, build, livened, some_graphs

WIDTH = 8
GRAPH = shapes.random(9, seed=5)


def case(**options):
    """A block, its edges, and features of nodes and edges."""
    block = livened(GPSBlock(GPSOptions(WIDTH, act="tanh", **options))).double()
    edges, _ = block.prepare(GRAPH.edge_index, None, 9, torch.float64)
    x = torch.randn(9, WIDTH, dtype=torch.float64)
    return block, edges, x, torch.randn(GRAPH.edge_index.size(1), WIDTH, dtype=torch.float64)


@pytest.mark.parametrize("residual", [True, False])
def test_gps_with_gine_is_its_formula(residual):
    block, edges, x, f = case(local="gine", residual=residual)
    heard = formula(block.local, x, GRAPH.edge_index, f)
    y = block.norm_local(residual * x + heard)
    y = y + block.norm_global(residual * x + block.attention(x))
    y = block.norm_mlp(residual * y + block.mlp(y))
    found, g = block(x, edges, None, None, f)
    torch.testing.assert_close(found, y)
    assert g is f


@pytest.mark.parametrize("residual", [True, False])
def test_gps_with_gatedgcn_is_its_formula(residual):
    """Nodes and edges leave as those of a GatedGCN, and nodes are normalised once more."""
    block, edges, x, f = case(local="gatedgcn", residual=residual)
    layer = block.local.layer
    heard, scores = gated(layer, x, GRAPH.edge_index, f)
    y = block.norm_local(residual * x + torch.tanh(block.local.norm(heard)))
    y = y + block.norm_global(residual * x + block.attention(x))
    y = block.norm_mlp(residual * y + block.mlp(y))
    found, g = block(x, edges, None, None, f)
    torch.testing.assert_close(found, y)
    torch.testing.assert_close(g, residual * f + torch.tanh(layer.edges.norm(scores)))


def test_gps_with_gatedgcn_before_norm_is_its_formula():
    block, edges, x, f = case(local="gatedgcn", norm_first=True)
    layer, z = block.local.layer, block.norm_global(x)
    heard, scores = gated(layer, z, GRAPH.edge_index, layer.edges.norm(f))
    y = x + block.attention(z) + torch.tanh(heard)
    found, g = block(x, edges, None, None, f)
    torch.testing.assert_close(found, y + block.mlp(block.norm_mlp(y)))
    torch.testing.assert_close(g, f + torch.tanh(scores))


def test_only_some_message_passing_reads_edges():
    reading = {local for local in (*gps.LOCAL, None) if GPSOptions(local=local).reads_edges}
    assert reading == {"gine", "gatedgcn"}


def test_the_table_of_a_batch_is_made_once_for_all_blocks(monkeypatch):
    calls, of = [], Padding.of
    monkeypatch.setattr(Padding, "of", lambda batch: calls.append(batch) or of(batch))
    model, batch = livened(build("gps", num_layers=3)), batch_of(some_graphs())
    model(batch.x, batch.edge_index, batch=batch.batch)
    model(batch.x, batch.edge_index, batch=batch.batch)
    assert len(calls) == 1
    model(batch.x, batch.edge_index, batch=batch.batch.clone())
    assert len(calls) == 2
