"""Graph ViT: how graphs are cut, and the block against its formula, patch by patch."""

import math

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bunn.baselines import BASELINES, GraphViTOptions
from bunn.baselines.graph_vit import GraphViTBlock
from bunn.baselines.patches import Patches, partition
from bunn.theory import graphs as shapes
from tests.baselines.variants import batch_of, build, livened, some_graphs
from tests.graphs import edges_of, graphs

WIDTH, HEADS, STEPS = 8, 2, 3


def cut(edge_index: Tensor, n: int, pieces: int) -> list[set[int]]:
    """The nodes of the pieces of one graph."""
    piece = partition(edge_index, torch.zeros(n, dtype=torch.long), pieces)
    return [set((piece == p).nonzero().flatten().tolist()) for p in range(int(piece.max()) + 1)]


def patches_of(edge_index: Tensor, n: int, pieces: int) -> list[set[int]]:
    """The same with the neighbours of their nodes."""
    pairs = [(int(u), int(v)) for u, v in edge_index.T]
    found = []
    for piece in cut(edge_index, n, pieces):
        reached = {v for u, v in pairs if u in piece} | {u for u, v in pairs if v in piece}
        found.append(piece | reached)
    return found


@settings(max_examples=60)
@given(graph=graphs(max_nodes=20), pieces=st.integers(1, 9))
def test_a_graph_is_cut_into_as_many_pieces_as_asked_for(graph, pieces):
    edge_index, _, n = graph
    found = cut(edge_index, n, pieces)
    assert len(found) == min(pieces, n)
    assert all(found)
    assert sum(map(len, found)) == n


@settings(max_examples=60)
@given(graph=graphs(max_nodes=20), pieces=st.integers(1, 9))
def test_pieces_of_a_connected_graph_are_connected(graph, pieces):
    edge_index, _, n = graph
    whole = nx.empty_graph(n)
    whole.add_edges_from(edge_index.T.tolist())
    for part in list(nx.connected_components(whole))[1:]:
        whole.add_edge(0, min(part))
    directed = torch.tensor(list(whole.edges), dtype=torch.long).reshape(-1, 2).T
    for piece in cut(directed, n, pieces):
        assert nx.is_connected(whole.subgraph(piece))


@pytest.mark.parametrize(
    ("graph", "pieces", "smallest", "largest"),
    [
        (shapes.path(32), 8, 4, 4),
        (shapes.path(33), 8, 4, 5),
        (shapes.cycle(60), 7, 8, 9),
        (shapes.grid(8, 8), 8, 5, 12),
        (shapes.tree(5), 9, 3, 15),
    ],
)
def test_pieces_are_about_of_one_size(graph, pieces, smallest, largest):
    sizes = [len(piece) for piece in cut(graph.edge_index, graph.num_nodes, pieces)]
    assert len(sizes) == pieces
    assert smallest <= min(sizes) <= max(sizes) <= largest


def test_a_tree_loses_no_more_edges_than_it_must():
    edge_index, n = edges_of(nx.random_labeled_tree(150, seed=3))
    piece = partition(edge_index, torch.zeros(n, dtype=torch.long), 32)
    assert int((piece[edge_index[0]] != piece[edge_index[1]]).sum()) == 2 * 31


def test_a_graph_is_cut_in_the_same_way_in_every_batch():
    items = some_graphs() * 2
    batch = batch_of(items)
    together = partition(batch.edge_index, batch.batch, 4)
    for k, item in enumerate(items):
        alone = partition(item.edge_index, torch.zeros(item.num_nodes, dtype=torch.long), 4)
        assert torch.equal(together[batch.batch == k] - 4 * k, alone)
    shuffle = torch.randperm(batch.num_edges)
    assert torch.equal(partition(batch.edge_index[:, shuffle], batch.batch, 4), together)


@settings(max_examples=40)
@given(graph=graphs(), pieces=st.integers(1, 5), directed=st.booleans())
def test_patches_are_pieces_and_their_neighbours(graph, pieces, directed):
    edge_index, _, n = graph
    edge_index = edge_index[:, : edge_index.size(1) // 2] if directed else edge_index
    found = Patches.of(edge_index, torch.zeros(n, dtype=torch.long), pieces, torch.float64)
    sets = patches_of(edge_index, n, pieces)
    copies = [(p, v) for p, patch in enumerate(sets) for v in sorted(patch)]
    assert list(zip(found.place.tolist(), found.node.tolist(), strict=True)) == copies
    edges = {
        (p, k)
        for p, patch in enumerate(sets)
        for k, (u, v) in enumerate(edge_index.T.tolist())
        if u in patch and v in patch
    }
    source, target = found.edge_index
    assert torch.equal(found.node[source], edge_index[0, found.edge])
    assert torch.equal(found.node[target], edge_index[1, found.edge])
    assert torch.equal(found.place[source], found.place[target])
    seen = list(zip(found.place[target].tolist(), found.edge.tolist(), strict=True))
    assert len(seen) == len(edges)
    assert set(seen) == edges
    assert found.filled.tolist() == [[p < len(sets) for p in range(pieces)]]
    for p, patch in enumerate(sets):
        for q, other in enumerate(sets):
            assert found.overlap[0, p, q] == len(patch & other)


def test_walks_over_patches_return():
    graph = shapes.random(14, seed=2)
    patches = Patches.of(graph.edge_index, torch.zeros(14, dtype=torch.long), 4, torch.float64)
    walk = patches.overlap[0] / patches.overlap[0].sum(1, keepdim=True)
    expected = [torch.linalg.matrix_power(walk, k).diagonal() for k in (1, 2, 3)]
    torch.testing.assert_close(patches.return_probabilities(3)[0], torch.stack(expected, 1))


def network(layer: nn.Sequential, x: Tensor, act: nn.Module) -> Tensor:
    first, last = (part for part in layer if hasattr(part, "weight"))
    return act(x @ first.weight.T + first.bias) @ last.weight.T + last.bias


def mixed(mixer: nn.Module, t: Tensor, overlap: Tensor, pieces: int) -> Tensor:
    """One layer on the ``(p, c)`` tokens of one graph."""
    z = mixer.norm_tokens(t)
    if hasattr(mixer.tokens, "heads"):
        packed, heard = z @ mixer.tokens.lin_in.weight.T + mixer.tokens.lin_in.bias, []
        query, key, value = (part.chunk(HEADS, 1) for part in packed.chunk(3, 1))
        for q, k, v in zip(query, key, value, strict=True):
            heard.append((overlap * (q @ k.T / math.sqrt(WIDTH // HEADS)).softmax(1)) @ v)
        out = mixer.tokens.lin_out
        t = t + torch.cat(heard, 1) @ out.weight.T + out.bias
    else:
        padded = torch.cat((z, z.new_zeros(pieces - z.size(0), WIDTH)))
        t = t + network(mixer.tokens.network, padded.T, nn.GELU()).T[: z.size(0)]
    return t + network(mixer.channels, mixer.norm_channels(t), nn.GELU())


def formula(block: GraphViTBlock, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
    """One graph, with a dictionary of the copies ``h[p, i]``."""
    pieces, n = block.options.patches, x.size(0)
    sets = patches_of(edge_index, n, pieces)
    h = {(p, i): x[i] for p, patch in enumerate(sets) for i in patch}

    def pooled(h: dict[tuple[int, int], Tensor]) -> Tensor:
        means = [torch.stack([h[p, i] for i in patch]).mean(0) for p, patch in enumerate(sets)]
        return torch.stack(means)

    def at_nodes(h: dict[tuple[int, int], Tensor]) -> Tensor:
        rows = [[value for (_, j), value in h.items() if j == i] for i in range(n)]
        return torch.stack([torch.stack(row).mean(0) for row in rows])

    for number, outer in enumerate(block.layers):
        if number:
            lin = block.lin_patches[number - 1]
            told = (pooled(h) @ lin.weight.T + lin.bias).relu()
            mean = at_nodes({(p, i): value + told[p] for (p, i), value in h.items()})
            h = {(p, i): mean[i] for p, i in h}
        layer, new = outer.layer, {}
        for (p, i), value in h.items():
            total = (1 + layer.conv.eps) * value
            for (u, v), e in zip(edge_index.T.tolist(), edge_attr, strict=True):
                if v == i and u in sets[p]:
                    total = total + (h[p, u] + e).relu()
            heard = network(layer.conv.nn, total, nn.ReLU())
            new[p, i] = value + outer.norm(heard).relu()
        h = new
    overlap = torch.tensor([[len(a & b) for b in sets] for a in sets]).double()
    walk = overlap / overlap.sum(1, keepdim=True)
    powers = [torch.linalg.matrix_power(walk, k).diagonal() for k in range(1, STEPS + 1)]
    tokens = pooled(h) + block.lin_walks(torch.stack(powers, 1))
    for mixer in block.mixers:
        tokens = mixed(mixer, tokens, overlap, pieces)
    tokens = block.norm(tokens)
    kept = float(block.options.residual)
    return at_nodes({(p, i): kept * value + tokens[p] for (p, i), value in h.items()})


def block_of(**options) -> GraphViTBlock:
    small = {"heads": HEADS, "walk_steps": STEPS, "patch_layers": 3, "mixer_layers": 2}
    return livened(GraphViTBlock(GraphViTOptions(WIDTH, **{**small, **options}))).double()


@pytest.mark.parametrize("mixer", ["attention", "mlp"])
@pytest.mark.parametrize("residual", [True, False])
@settings(max_examples=10)
@given(graph=graphs(max_nodes=9))
def test_the_block_is_its_formula(mixer, residual, graph):
    edge_index, _, n = graph
    block = block_of(mixer=mixer, patches=4, residual=residual)
    x = torch.randn(n, WIDTH, dtype=torch.float64)
    edge_attr = torch.randn(edge_index.size(1), WIDTH, dtype=torch.float64)
    edges, _ = block.prepare(edge_index, None, n, torch.float64)
    y, same = block(x, edges, None, None, edge_attr)
    assert same is edge_attr
    torch.testing.assert_close(y, formula(block, x, edge_index, edge_attr))


@pytest.mark.parametrize("mixer", ["attention", "mlp"])
def test_a_batch_is_its_graphs_one_by_one_with_edge_features(mixer):
    block, items = block_of(mixer=mixer, patches=5), some_graphs(WIDTH, torch.float64)
    for item in items:
        item.edge_attr = torch.randn(item.num_edges, WIDTH, dtype=torch.float64)
    batch = batch_of(items)
    edges, _ = block.prepare(
        batch.edge_index, None, batch.num_nodes, torch.float64, batch=batch.batch
    )
    y, _ = block(batch.x, edges, None, batch.batch, batch.edge_attr)
    alone = [formula(block, item.x, item.edge_index, item.edge_attr) for item in items]
    torch.testing.assert_close(y, torch.cat(alone))


@pytest.mark.parametrize("mixer", ["attention", "mlp"])
def test_all_nodes_hear_of_all_patches_in_one_block(mixer):
    """Attention to patches that share no node has no values of theirs, but their scores."""
    graph, leaf = shapes.path(30), torch.randn(30, 3, requires_grad=True)
    options = {"patches": 10, "num_layers": 1, "patch_layers": 1, "mixer_layers": 1}
    model = livened(build("graph-vit", mixer=mixer, act="tanh", **options))
    model(leaf, graph.edge_index)[0].square().sum().backward()
    assert (leaf.grad.abs().sum(1) > 0).all()


def test_dropout_is_that_of_the_patch_encoder_or_of_the_mixer():
    graph, x = shapes.random(12, seed=3), torch.randn(12, WIDTH, dtype=torch.float64)
    edge_attr = torch.zeros(graph.edge_index.size(1), WIDTH, dtype=torch.float64)
    for own in ({"dropout": 0.5}, {"mixer_dropout": 0.5}, {"mixer_dropout": 0.5, "mixer": "mlp"}):
        block = block_of(**own)
        edges, _ = block.prepare(graph.edge_index, None, 12, torch.float64)
        arguments = (x, edges, None, None, edge_attr)
        assert not torch.equal(block(*arguments)[0], block(*arguments)[0])
        block.eval()
        assert torch.equal(block(*arguments)[0], block(*arguments)[0])


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"patches": 0}, "patches=0; it must be an integer >= 1"),
        ({"mixer": "sum"}, "mixer='sum'; use one of 'attention', 'mlp'"),
        ({"mixer_dropout": 1.0}, r"mixer_dropout=1\.0; it must be a number >= 0 and < 1"),
        ({"heads": 3}, "hidden_channels=128 is no multiple of heads=3"),
        ({"walk_steps": 0}, "walk_steps=0; it must be an integer >= 1"),
    ],
)
def test_bad_options(option, message):
    with pytest.raises(ValueError, match=message):
        GraphViTOptions(**option)


def test_the_paper_has_one_block():
    assert len(BASELINES["graph-vit"].build(GraphViTOptions(), 3, 2).blocks) == 1
