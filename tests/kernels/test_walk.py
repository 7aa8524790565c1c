"""One pass over the edges, against the same sum in float64."""

import networkx as nx
import pytest
import torch
from torch import Tensor

from bunn import Laplacian
from bunn.kernels import cut_long_rows
from bunn.kernels.arguments import Rows
from bunn.kernels.walk import Tiling, walk
from tests.graphs import ZOO, edges_of

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
#: Rows of more entries are cut, here.
LONG = 16
GRAPHS = {
    **{name: ZOO[name] for name in ("disconnected", "weighted", "single")},
    "hub": lambda: edges_of(nx.star_graph(40)),
    "hubs": lambda: edges_of(nx.complete_bipartite_graph(3, 17)),
}


@pytest.fixture(autouse=True)
def _short_segments(monkeypatch):
    monkeypatch.setattr("bunn.kernels.LONG", LONG)


def laplacian(name: str, dtype: torch.dtype = torch.float32) -> Laplacian:
    edge_index, *weight, n = GRAPHS[name]()
    return Laplacian(edge_index, *weight, num_nodes=n).to(DEVICE, dtype)


def rows_of(lap: Laplacian) -> Rows:
    crow, col, value, *_ = lap.operator
    return Rows(crow, col, value, cut_long_rows(crow))


def dense(lap: Laplacian) -> Tensor:
    row, col, value = lap.coordinates()
    matrix = torch.zeros(lap.num_nodes, lap.num_nodes, dtype=torch.float64, device=DEVICE)
    return matrix.index_put_((row, col), value, accumulate=True)


def poisoned(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full(x.shape, torch.nan, dtype=dtype, device=x.device)


@pytest.mark.parametrize("width", [1, 3, 300])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_product(dtype, width):
    lap = laplacian("weighted")
    x = torch.randn(lap.num_nodes, width, device=DEVICE).to(dtype)
    y, out = poisoned(x), poisoned(x)
    walk(x, rows_of(lap), y=y, out=out)
    torch.testing.assert_close(y.double(), dense(lap) @ x.double(), rtol=1e-5, atol=1e-5)
    assert torch.equal(y, out)


@pytest.mark.parametrize("graph", GRAPHS)
def test_rows_that_lie_apart(graph):
    lap = laplacian(graph)
    both, out = torch.randn(2, lap.num_nodes, 40, device=DEVICE).unbind(0)
    untouched = out[:, :20].clone()
    beta = torch.rand(lap.num_nodes, 1, device=DEVICE)
    walk(both[:, 20:], rows_of(lap), out=out[:, 20:], beta=beta, c=0.5)
    x = (beta * both[:, 20:]).double()
    expected = dense(lap) @ x + 0.5 * x
    torch.testing.assert_close(out[:, 20:].double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(out[:, :20], untouched)


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_product_in_float64(graph):
    lap = laplacian(graph, torch.float64)
    x, p = torch.randn(2, lap.num_nodes, 20, dtype=torch.float64, device=DEVICE).unbind(0)
    y, out = poisoned(x, x.dtype), poisoned(x, x.dtype)
    a = torch.randn(20, dtype=torch.float64, device=DEVICE)
    walk(x, rows_of(lap), p=p, y=y, out=out, a=a)
    expected = dense(lap) @ x - p
    torch.testing.assert_close(y, expected, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(out, a * expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("tiling", [(32, 8, 1, 1), (16, 8, 4, 1, 4), (16, 8, 4, 1, 3)], ids=str)
@pytest.mark.parametrize("per_column", [True, False])
@pytest.mark.parametrize("graph", GRAPHS)
def test_all_terms(graph, per_column, tiling):
    lap, width, minus = laplacian(graph), 20, per_column  # neither knows of the other
    n = lap.num_nodes
    x, p, r = torch.randn(3, n, width, device=DEVICE).unbind(0)
    beta, gamma, delta = torch.rand(3, n, 1, device=DEVICE).unbind(0)
    a, b, c = torch.randn(3, width, device=DEVICE).unbind(0) if per_column else (0.7, -1.3, 0.2)
    new = 2 * dense(lap) @ (beta * x).double() - minus * delta * p
    heat = gamma * (r + a * new + b * delta * p + c * beta * x)
    numbers = {"alpha": 2.0, "a": a, "b": b, "c": c, "beta": beta, "gamma": gamma, "delta": delta}
    numbers |= {"minus": minus, "tiling": Tiling(*tiling)}
    y, out = poisoned(x), poisoned(x)
    walk(x, rows_of(lap), p=p, r=r, y=y, out=out, **numbers)
    torch.testing.assert_close(y.double(), new, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out.double(), heat, rtol=1e-5, atol=1e-5)
    walk(x, rows_of(lap), p=p, r=r, y=p, out=r, **numbers)
    assert torch.equal(p, y)  # in place, and the same at every run
    assert torch.equal(r, out)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_what_is_written_is_rounded_once(dtype):
    lap = laplacian("weighted")
    x = torch.randn(lap.num_nodes, 8, device=DEVICE)
    exact, y, out = poisoned(x), poisoned(x, dtype), poisoned(x, dtype)
    walk(x, rows_of(lap), y=exact)
    walk(x, rows_of(lap), y=y, out=out)
    assert torch.equal(y, out)
    half_an_ulp = torch.finfo(dtype).eps * (0.5 if DEVICE == "cuda" else 1)  # who interprets cuts
    assert bool(((y.float() - exact).abs() <= 1.001 * half_an_ulp * exact.abs() + 1e-7).all())


def test_rows_without_entries():
    crow = torch.tensor([0, 0, 1, 1], dtype=torch.int32, device=DEVICE)
    col = torch.tensor([2], dtype=torch.int32, device=DEVICE)
    x = torch.randn(3, 5, device=DEVICE)
    y = poisoned(x)
    walk(x, Rows(crow, col, torch.ones(1, device=DEVICE), None), y=y)
    assert torch.equal(y, torch.stack((torch.zeros_like(x[0]), x[2], torch.zeros_like(x[0]))))


def test_nothing_to_do():
    empty = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    x = torch.zeros(0, 4, device=DEVICE)
    walk(x, Rows(empty, empty[:0], x[:, 0], None), y=x)


@pytest.mark.parametrize("lengths", [[0, 3], [LONG], [LONG + 1, 2, 3 * LONG], [5 * LONG - 1]])
def test_long_rows_are_cut(lengths):
    crow = torch.tensor([0, *lengths]).cumsum(0)
    segments = cut_long_rows(crow)
    long = [row for row, length in enumerate(lengths) if length > LONG]
    if not long:
        assert segments is None
        return
    for row in long:
        mine = segments[segments[:, 0] == row]
        assert mine[:, 3].tolist() == [len(mine)] + [0] * (len(mine) - 1)
        entries = [i for _, first, last, _ in mine.tolist() for i in range(first, last)]
        assert entries == list(range(int(crow[row]), int(crow[row + 1])))
        assert int((mine[:, 2] - mine[:, 1]).max()) <= LONG
