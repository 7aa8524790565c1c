"""Heat in fused passes, against scipy's matrix exponential."""

import pytest
import torch

from bunn.diffusion.chebyshev import chebyshev_coefficients, chebyshev_degree
from bunn.kernels import cut_long_rows
from bunn.kernels.arguments import Rows
from bunn.kernels.chebyshev import chebyshev_heat
from bunn.kernels.frame import Frame
from tests.graphs import relative_error, zoo_kernel, zoo_laplacian
from tests.kernels.test_walk import DEVICE, DTYPES


def heated(name, normalization, x, times, degree, storage):
    lap = zoo_laplacian(name, normalization).to(DEVICE, torch.float32)
    crow, col, value, before, after, *_ = lap.operator
    table = chebyshev_coefficients(torch.as_tensor(times).double().view(-1), degree).float()
    coefficients = table.to(DEVICE) if isinstance(times, torch.Tensor) else table[:, 0].tolist()
    rows = Rows(crow, col, value, cut_long_rows(crow))
    return chebyshev_heat(Frame.of(x, rows, before, after, storage), coefficients)


@pytest.mark.parametrize("degree", range(1, 10))
def test_every_degree_adds_up_all_of_its_terms(degree):
    lap = zoo_laplacian("bipartite", "rw")
    x = torch.randn(lap.num_nodes, 3, device=DEVICE)
    y = heated("bipartite", "rw", x, 1.5, degree, torch.float32)
    root = lap.degree.sqrt().unsqueeze(1)
    s = torch.eye(lap.num_nodes, dtype=torch.float64) - root * lap.dense() / root.T
    coefficients = chebyshev_coefficients(torch.tensor([1.5]).double(), degree)[:, 0]
    t = [root * x.cpu().double(), s @ (root * x.cpu().double())]
    while len(t) <= degree:
        t.append(2 * s @ t[-1] - t[-2])
    expected = sum(c * term for c, term in zip(coefficients, t, strict=True)) / root
    torch.testing.assert_close(y.cpu().double(), expected, rtol=1e-5, atol=1e-5)


#: Graphs, times and types of features.
CASES = [
    *(("bipartite", time, dtype) for time in (0.3, 10.0) for dtype in DTYPES),
    ("disconnected", 1.0, torch.float32),
    ("single", 1.0, torch.bfloat16),
]


@pytest.mark.parametrize("normalization", ["rw", "sym"])
@pytest.mark.parametrize(("graph", "time", "dtype"), CASES, ids=str)
def test_heat(graph, time, dtype, normalization):
    lap = zoo_laplacian(graph, normalization)
    x = torch.randn(lap.num_nodes, 4, device=DEVICE).to(dtype)
    y = heated(graph, normalization, x, time, chebyshev_degree(time, 1e-6), dtype)
    assert y.dtype == dtype
    x, y = x.cpu().double(), y.cpu().double()
    error = relative_error(y, zoo_kernel(graph, normalization, time) @ x, x, lap)
    assert error <= max(4e-6, (1 if DEVICE == "cuda" else 2) * torch.finfo(dtype).eps)


def test_every_column_has_a_time_of_its_own():
    times = torch.tensor([0.1, 1.0, 4.0])
    lap = zoo_laplacian("bipartite", "rw")
    x = torch.randn(lap.num_nodes, 3, device=DEVICE)
    y = heated("bipartite", "rw", x, times, chebyshev_degree(4.0, 1e-6), torch.float32)
    for column, time in enumerate(times.tolist()):
        expected = zoo_kernel("bipartite", "rw", time) @ x[:, column].cpu().double()
        torch.testing.assert_close(y[:, column].cpu().double(), expected, rtol=0, atol=1e-5)
