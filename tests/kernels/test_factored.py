"""Heat factor by factor, against scipy's matrix exponential."""

import networkx as nx
import pytest
import torch

from bunn import Laplacian, kernels
from bunn.diffusion import chebyshev_degree
from bunn.diffusion.chebyshev import coefficients_for
from bunn.diffusion.factors import build_factor, factorize
from bunn.kernels import cut_long_rows
from bunn.kernels.arguments import Rows
from bunn.kernels.factored import factored_heat
from bunn.kernels.frame import Frame
from tests.graphs import edges_of, relative_error, zoo_kernel, zoo_laplacian
from tests.kernels.test_chebyshev import CASES
from tests.kernels.test_walk import DEVICE, DTYPES


def graph_of(name, normalization):
    lap = zoo_laplacian(name, normalization).to(DEVICE, torch.float32)
    crow, col, value, before, after, *_ = lap.operator
    return Rows(crow, col, value, cut_long_rows(crow)), before, after


#: Scales and roots.
FACTORS = {
    "linear": [(0.5, 0.3)],
    "quadratic": [(0.2, -0.4 + 1.5j)],
    "two linear": [(0.5, 0.3), (-1.0, -1.2)],
    "linear, quadratic": [(0.5, 0.3), (0.2, -0.4 + 1.5j)],
    "quadratic, linear": [(0.2, -0.4 + 1.5j), (0.5, 0.3)],
    "two quadratic": [(0.2, -0.4 + 1.5j), (0.6, 0.1 + 0.2j)],
    "all": [(0.5, 0.3), (0.2, -0.4 + 1.5j), (0.7, -0.1), (0.6, 0.1 + 1j)],
}


@pytest.mark.parametrize("storage", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("normalization", ["rw", "sym"])
@pytest.mark.parametrize("name", FACTORS)
def test_factors_of_every_kind(name, normalization, storage):
    lap = zoo_laplacian("bipartite", normalization)
    x = torch.randn(lap.num_nodes, 3, device=DEVICE).bfloat16()
    given = x.clone()
    rows, before, after = graph_of("bipartite", normalization)
    factors = [build_factor(*factor) for factor in FACTORS[name]]
    y = factored_heat(Frame.of(x, rows, before, after, storage), factors)
    walk = torch.eye(lap.num_nodes, dtype=torch.float64) - lap.dense()
    expected = x.cpu().double()
    for scale, root in FACTORS[name]:
        shifted = walk - root.real * torch.eye(lap.num_nodes)
        part = shifted @ shifted + root.imag**2 * torch.eye(lap.num_nodes)
        expected = scale * (part if root.imag else shifted) @ expected
    torch.testing.assert_close(y.cpu().double(), expected, rtol=0.03, atol=0.03)
    assert y.dtype == x.dtype
    assert torch.equal(x, given)


@pytest.mark.parametrize("normalization", ["rw", "sym"])
@pytest.mark.parametrize(
    ("graph", "time", "dtype"),
    [
        *CASES,
        *(("bipartite", 0.01, dtype) for dtype in DTYPES),
        ("bipartite", 100.0, torch.float32),
    ],
    ids=str,
)
def test_heat(graph, time, dtype, normalization):
    lap = zoo_laplacian(graph, normalization)
    x = torch.randn(lap.num_nodes, 4, device=DEVICE).to(dtype)
    factors = factorize(coefficients_for(time, chebyshev_degree(time, 1e-6), x))
    rows, before, after = graph_of(graph, normalization)
    y = kernels.heat(x, rows, factors, before, after)
    assert y.dtype == dtype
    x, y = x.cpu().double(), y.cpu().double()
    error = relative_error(y, zoo_kernel(graph, normalization, time) @ x, x, lap)
    rounding = time * torch.finfo(torch.float32).eps / 2  # of the operator
    assert error <= max(4e-6 + rounding, (1 if DEVICE == "cuda" else 2) * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("time", [1.0, 10.0])
def test_constant_features_are_rounded_like_the_result(time, dtype):
    """On a graph that is nearly regular, where they are rounded alike: most of its degrees are one
    in the frame of the operator, and factors are powers of two there. At larger times the few other
    nodes cost more than that: ``benchmarks/rounding.py`` has how much."""
    if DEVICE == "cpu" and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter cuts digits of bfloat16 off, it does not round them")
    torus = nx.grid_2d_graph(8, 9, periodic=True)
    torus.remove_edge((0, 0), (0, 1))
    edge_index, num_nodes = edges_of(torus)
    lap = Laplacian(edge_index, num_nodes=num_nodes).to(DEVICE, torch.float32)
    crow, col, value, before, after, *_ = lap.operator
    x = torch.linspace(0.3, 0.8, 33, device=DEVICE).repeat(num_nodes, 1).to(dtype)
    tol = torch.finfo(dtype).eps / 16
    factors = factorize(coefficients_for(time, chebyshev_degree(time, tol), x))
    y = kernels.heat(x, Rows(crow, col, value, cut_long_rows(crow)), factors, before, after)
    root = lap.degree.sqrt().unsqueeze(1)
    off, whole = ((root * field.double()).norm(dim=0) for field in (y - x, x))
    assert float((off / whole).max()) <= tol + torch.finfo(dtype).eps / 2
