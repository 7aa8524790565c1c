"""Blocks of rows that share neighbours, against the same sums in float64."""

import copy
import pickle
from itertools import product

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bunn import Laplacian, diffuse, kernels
from bunn.kernels import grouping
from bunn.kernels.arguments import Blocks
from bunn.kernels.blocks import BlockTiling, walk_in_blocks, without_root
from bunn.nn import SAGEPhi
from tests.graphs import ZOO, edges_of
from tests.kernels.test_walk import DEVICE, poisoned

DTYPES = (torch.bfloat16, torch.float16)
SMALL = BlockTiling(width=32, stages=5)


def random_graph(nodes: int, probability: float) -> tuple[Tensor, int]:
    return edges_of(nx.gnp_random_graph(nodes, probability, seed=1))


GRAPHS = {
    "single": ZOO["single"],
    "isolated": ZOO["disconnected"],
    "hub": lambda: edges_of(nx.star_graph(69)),
    "random": lambda: random_graph(40, 0.4),
    "loops": lambda: (torch.tensor([[0, 1, 1, 2], [0, 2, 1, 1]]), 4),
}


def laplacian(name: str, normalization: str = "rw") -> Laplacian:
    edge_index, n = GRAPHS[name]()
    return Laplacian(edge_index, num_nodes=n, normalization=normalization).to(DEVICE)


def blocks_of(lap: Laplacian, rows: int = 32, chunk: int = 32, longest: int = 48) -> Blocks:
    root = lap.null_vector.to(lap.dtype)
    blocks, _ = grouping.cut_blocks(lap._crow, lap._col, lap._degree, root, rows, chunk, longest)
    return blocks


def adjacency(lap: Laplacian) -> Tensor:
    row, col, _ = lap.coordinates()
    matrix = torch.zeros(lap.num_nodes, lap.num_nodes, dtype=torch.float64, device=DEVICE)
    return matrix.index_put_((row, col), torch.ones((), dtype=torch.float64, device=DEVICE))


def unpacked(blocks: Blocks, n: int) -> Tensor:
    """The adjacency matrix that the words say."""
    matrix, rows = torch.zeros(n, n, dtype=torch.float64), blocks.pieces.size(1) - 4
    chunk = blocks.chunks.size(1) * 32 // (32 + rows)
    for first, count, _, _, *nodes in blocks.pieces.tolist():
        for line in blocks.chunks[first : first + count].tolist():
            for (lane, row), (place, column) in product(enumerate(nodes), enumerate(line[:chunk])):
                word = line[chunk + place // 32 * rows + lane]
                if row >= 0 and word >> place % 32 & 1:
                    matrix[row, column] += 1
    return matrix


@pytest.mark.parametrize(("rows", "chunk", "longest"), [(16, 32, 1), (32, 64, 48)])
@pytest.mark.parametrize("graph", GRAPHS)
def test_the_words_say_who_is_a_neighbour(graph, rows, chunk, longest):
    lap = laplacian(graph)
    blocks = blocks_of(lap, rows, chunk, longest)
    assert torch.equal(unpacked(blocks, lap.num_nodes), adjacency(lap).cpu())
    assert int(blocks.pieces[:, 1].max()) <= longest
    nodes = blocks.pieces[blocks.pieces[:, 2] > 0][:, 4:].flatten()
    assert nodes[nodes >= 0].sort().values.tolist() == list(range(lap.num_nodes))
    bits = blocks.chunks[0, :chunk].cpu().numpy().view(np.uint32)
    assert bits[:32].tolist() == [2**k for k in range(32)]


def test_the_longest_pieces_come_first():
    lap = laplacian("random")
    pieces = blocks_of(lap, 16, 32, 2).pieces
    whole = pieces[:, 2] == 1
    assert bool((whole.int().diff() >= 0).all())
    assert bool((pieces[whole, 1].diff() <= 0).all())
    assert int((~whole).sum()) <= 2 * (pieces.size(0) - -(-lap.num_nodes // 16))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "chunk", "longest"), [(32, 32, 1), (32, 64, 48)])
@pytest.mark.parametrize("graph", GRAPHS)
def test_all_terms(graph, rows, chunk, longest, dtype):
    lap, width = laplacian(graph), 40
    blocks, n = blocks_of(lap, rows, chunk, longest), lap.num_nodes
    x, p = torch.randn(2, n, width, device=DEVICE).to(dtype).unbind(0)
    r = torch.randn(n, width, device=DEVICE)
    left, gamma = torch.rand(2, n, device=DEVICE).unbind(0)
    step = {"alpha": 2.0, "a": 0.7, "b": -1.3, "c": 0.2, "gamma": gamma}
    y, out = poisoned(x), poisoned(x)
    walk_in_blocks(x, blocks, left=left, p=p, r=r, y=y, out=out, tiling=SMALL, **step)
    new = 2 * left[:, None] * (adjacency(lap) @ x.double()) - p.double()
    heat = gamma[:, None] * (r + 0.7 * new - 1.3 * p.double() + 0.2 * x.double())
    torch.testing.assert_close(y.double(), new, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out.double(), heat, rtol=1e-5, atol=1e-5)
    walk_in_blocks(x, blocks, left=left, p=p, r=r, out=r, tiling=SMALL, **step)
    assert torch.equal(r, out)  # in place, and the same at every run


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_factors_of_the_neighbours(dtype):
    lap = laplacian("random")
    blocks = blocks_of(lap)
    x = torch.randn(lap.num_nodes, 70, device=DEVICE).to(dtype)[:, 3:]
    before = 0.5 + torch.rand(lap.num_nodes, 1, device=DEVICE)
    inverse = blocks.scales[1].unsqueeze(1).double()
    for factors, expected in ((None, inverse), (before, inverse * before)):
        found = without_root(x, blocks, factors)
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(found.double(), expected * x.double(), rtol=eps, atol=1e-6)
    assert without_root(x, blocks, blocks.scales[0].unsqueeze(1)) is x
    assert without_root(x[:, :0], blocks, None).shape == (lap.num_nodes, 0)


def test_rows_that_lie_apart():
    lap = laplacian("random")
    both, out = torch.randn(2, lap.num_nodes, 80, device=DEVICE).bfloat16().unbind(0)
    untouched = out[:, :40].clone()
    left = torch.ones(lap.num_nodes, device=DEVICE)
    walk_in_blocks(both[:, 40:], blocks_of(lap), left=left, out=out[:, 40:], tiling=SMALL)
    expected = adjacency(lap) @ both[:, 40:].double()
    torch.testing.assert_close(out[:, 40:].double(), expected, rtol=1e-2, atol=1e-6)
    assert torch.equal(out[:, :40], untouched)


def test_a_coefficient_for_every_column():
    lap = laplacian("hub")
    x = torch.randn(lap.num_nodes, 20, device=DEVICE).bfloat16()
    a, out = torch.rand(20, device=DEVICE), poisoned(x)
    left = torch.ones(lap.num_nodes, device=DEVICE)
    walk_in_blocks(x, blocks_of(lap), left=left, out=out, a=a, tiling=SMALL)
    torch.testing.assert_close(
        out.double(), a * (adjacency(lap) @ x.double()), rtol=1e-5, atol=1e-5
    )


def test_nothing_to_do():
    lap = laplacian("single")
    x = torch.zeros(1, 0, dtype=torch.bfloat16, device=DEVICE)
    walk_in_blocks(x, blocks_of(lap), left=x[:, :0], y=x)


@pytest.fixture
def taken(monkeypatch):
    """Blocks are made of any graph, on a CPU, too; counts the steps that are taken by them."""
    steps = []
    real = walk_in_blocks

    def step(x, *args, **kwargs):
        steps.append(x)
        real(x, *args, **kwargs)

    monkeypatch.setattr(grouping, "wanted", lambda like: True)
    monkeypatch.setattr(grouping, "ENTRIES", (0, 10**6))
    monkeypatch.setattr(grouping, "MEAN_DEGREE", 0)
    monkeypatch.setattr(grouping, "REUSE", 0)
    monkeypatch.setattr(kernels, "serve", lambda x, value: value.dtype == torch.float32)
    monkeypatch.setattr("bunn.kernels.blocks.walk_in_blocks", step)
    monkeypatch.setattr("bunn.kernels.frame.walk_in_blocks", step)
    return steps


def exact(lap: Laplacian, reduce: str) -> Tensor:
    matrix = adjacency(lap)
    matrix[lap._isolated] = 0
    return matrix / lap._degree.unsqueeze(1) if reduce == "mean" else matrix


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reduce", ["mean", "sum"])
@pytest.mark.parametrize("graph", GRAPHS)
def test_the_mean_of_the_neighbours_and_its_adjoint(graph, reduce, dtype, taken):
    lap = laplacian(graph)
    x = torch.randn(lap.num_nodes, 64, device=DEVICE).to(dtype).requires_grad_()
    y = lap.aggregate(x, reduce)
    weight = torch.randn_like(x)
    (grad,) = torch.autograd.grad(y, x, weight)
    matrix, eps = exact(lap, reduce), torch.finfo(dtype).eps
    for found, operator, given_x in ((y, matrix, x), (grad, matrix.T, weight)):
        expected, terms = (operator @ given_x.double(), operator @ given_x.double().abs())
        assert bool(((found - expected).abs() <= 2 * eps * terms + 1e-9).all())
    assert len(taken) == (2 if dtype == torch.bfloat16 else 1)  # factors are not for float16


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("normalization", ["rw", "sym"])
@pytest.mark.parametrize(("graph", "time"), [("random", 1.0), ("isolated", 6.0)])
def test_heat_and_its_adjoint(graph, time, normalization, dtype, taken):
    lap = laplacian(graph, normalization)
    x = torch.randn(lap.num_nodes, 64, device=DEVICE).to(dtype).requires_grad_()
    weight = torch.randn_like(x)
    y = diffuse(x, lap, time, method="chebyshev", tol=1e-3)
    (grad,) = torch.autograd.grad(y, x, weight)
    heat = torch.linalg.matrix_exp(-time * lap.to(torch.float64).dense())
    root = lap._degree.sqrt().unsqueeze(1) if normalization == "rw" else 1.0
    for found, operator, given_x, scale in (
        (y.detach(), heat, x.detach().double(), root),
        (grad, heat.T, weight.double(), 1 / root),
    ):
        error = (scale * (found - operator @ given_x)).norm() / (scale * given_x).norm()
        assert float(error) <= 2 * torch.finfo(dtype).eps + 1e-3
    assert bool(taken) == (dtype == torch.bfloat16 or normalization == "rw")


def test_the_mean_beside_what_is_normalised(taken, monkeypatch):
    """Columns of a wider matrix, in a phi: its two blocks forwards and backwards."""
    monkeypatch.setattr(kernels, "serve_chains", lambda x: x.dtype != torch.float64)
    lap, phi = laplacian("random"), SAGEPhi(8, 4, 64, num_layers=2).to(DEVICE)
    x = torch.randn(lap.num_nodes, 8, device=DEVICE, requires_grad=True)
    with torch.autocast(DEVICE, torch.bfloat16):
        y = phi(x, lap)
    wide, wide_x = copy.deepcopy(phi).double(), x.detach().double().requires_grad_()
    expected = wide(wide_x, lap)
    distance = (y - expected).detach().norm() / expected.detach().norm()
    assert float(distance) < 2e-2
    y.float().square().sum().backward()
    expected.square().sum().backward()
    assert float((x.grad - wide_x.grad).norm() / wide_x.grad.norm()) < 5e-2
    assert len(taken) == 4


def test_products_of_the_symmetric_laplacian(taken):
    lap = laplacian("random", "sym")
    x = torch.randn(lap.num_nodes, 64, device=DEVICE).bfloat16()
    expected = lap.to(torch.float64).dense() @ x.double()
    torch.testing.assert_close((lap @ x).double(), expected, rtol=2e-2, atol=2e-2)
    assert len(taken) == 1


def test_what_is_not_taken_by_blocks(taken):
    lap = laplacian("loops")
    x = torch.ones(lap.num_nodes, 64, device=DEVICE)
    lap.aggregate(x)
    lap.aggregate(x[:, 1:].bfloat16())
    edge_index = lap.edge_index
    weight = torch.full((edge_index.size(1),), 2.0, device=DEVICE)
    weighted = Laplacian(edge_index, weight, num_nodes=4)
    assert weighted.operator.chunks is None
    weighted.aggregate(x.bfloat16())
    assert lap.to(torch.float64).operator.chunks is None
    assert not taken


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda lap: pickle.loads(pickle.dumps(lap))])
def test_a_copy_knows_its_root(copied, taken):
    lap = copied(laplacian("random"))
    operator = lap.operator
    assert operator.rows.blocks.has_root(operator.before)
    assert not operator.rows.blocks.has_root(operator.after)
    assert operator.rows.blocks.has_root(lap.aggregation("mean").before)


def test_large_numbers_of_float16(taken):
    """They are not divided by small roots before they are added up."""
    lap = laplacian("hub")
    x = torch.full((lap.num_nodes, 64), 6e4, device=DEVICE).half().requires_grad_()
    y = lap.aggregate(x)
    assert y.isfinite().all()
    weight = torch.zeros_like(y)
    weight[1] = 4e4  # of a leaf, all of which reaches the hub
    (grad,) = torch.autograd.grad(y, x, weight)
    assert torch.equal(grad[0], weight[1])
    assert not grad[1:].any()


def test_weights_of_one_are_no_weights(taken):
    edge_index, n = GRAPHS["random"]()
    lap = Laplacian(edge_index, torch.ones(edge_index.size(1)), num_nodes=n).to(DEVICE)
    assert lap.operator.chunks is not None


def test_graphs_that_would_not_gain(monkeypatch):
    lap = laplacian("random")
    monkeypatch.setattr(grouping, "wanted", lambda like: True)
    parts = (lap._crow, lap._col, None, lap._degree, lap.operator.before.squeeze(1))
    assert grouping.group_rows(*parts) is None
    monkeypatch.setattr(grouping, "ENTRIES", (0, 10**6))
    assert grouping.group_rows(*parts) is None
    monkeypatch.setattr(grouping, "MEAN_DEGREE", 10)
    assert grouping.group_rows(*parts) is not None
    assert grouping.group_rows(*parts[:4], 100 * parts[4]) is None
    monkeypatch.setattr(grouping, "REUSE", 100)
    assert grouping.group_rows(*parts) is None


@settings(max_examples=15)
@given(st.integers(1, 40), st.floats(0, 1), st.integers(1, 70), st.integers(0, 2**31))
def test_any_graph(nodes, probability, width, seed):
    generator = torch.Generator().manual_seed(seed)
    edge_index = (torch.rand(nodes, nodes, generator=generator) < probability).triu().nonzero().T
    lap = Laplacian(torch.cat((edge_index, edge_index.flip(0)), 1), num_nodes=nodes).to(DEVICE)
    x = torch.randn(nodes, width, generator=generator).to(DEVICE, torch.bfloat16)
    left, y = torch.ones(nodes, device=DEVICE), poisoned(x)
    walk_in_blocks(x, blocks_of(lap, 16), left=left, y=y, tiling=SMALL)
    torch.testing.assert_close(y.double(), adjacency(lap) @ x.double(), rtol=1e-5, atol=1e-5)
