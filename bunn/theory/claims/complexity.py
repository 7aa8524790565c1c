"""What heat costs (Appendix E): products with the sparse matrix, memory, and time."""

from __future__ import annotations

import math
import time as clock
from collections.abc import Iterator, Sequence
from fractions import Fraction
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from bunn.diffusion import chebyshev_degree, diffuse
from bunn.laplacian import Laplacian
from bunn.theory import graphs as g
from bunn.theory import reference
from bunn.theory.claim import Erratum, Evidence, Table, at_least, at_most, claim
from bunn.theory.drawing import BLUE, GREY, ORANGE, name_axes, new_figure
from bunn.theory.graphs import Graph
from bunn.theory.reference import relative

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def products(time: float, method: str, *, tol: float = 1e-6, degree: int | None = None) -> int:
    """How many products with the sparse matrix heat takes, seen from outside.

    A product moves what a node holds by one hop. So heat let out at the end of a path long enough
    has come exactly as many hops far as there were products.
    """
    longest = degree if degree is not None else 2 * chebyshev_degree(time, tol) + 10
    graph = g.path(longest + 10)
    lap = Laplacian(graph.edge_index).to(torch.float64)
    x = torch.zeros(graph.num_nodes, 1, dtype=torch.float64)
    x[0] = 1.0
    y = diffuse(x, lap, time, method=method, tol=tol, degree=degree)
    return int(y.nonzero()[:, 0].max())


def taylor_degree(time: int, tol: float) -> int:
    """The degree a Taylor polynomial needs, in exact arithmetic: at the eigenvalue 2, the worst."""
    terms = [Fraction(1)]
    while len(terms) <= 4 * time + 4 or abs(terms[-1]) > tol / 1000:
        terms.append(terms[-1] * (-2 * time) / len(terms))
    error, degree = Fraction(0), len(terms) - 1
    while degree > 0 and abs(error + terms[degree]) <= tol:  # what leaving the last terms out costs
        error += terms[degree]
        degree -= 1
    return degree


def _taylor_error(time: float, degree: int) -> float:
    """What is left of it in float64, on a cycle that has the eigenvalue 2."""
    graph = g.cycle(8)
    lap = Laplacian(graph.edge_index).to(torch.float64)
    x = torch.eye(8, dtype=torch.float64)
    found = diffuse(x, lap, time, method="taylor", degree=degree)
    return relative(found, reference.heat_kernel(graph, time))


def _constant_error(time: float, **options: Any) -> float:
    """The error of Chebyshev heat on a constant, which heat leaves alone: where it is largest."""
    lap = Laplacian(g.cycle(8).edge_index).to(torch.float64)
    x = torch.ones(8, 1, dtype=torch.float64)
    return float((diffuse(x, lap, time, method="chebyshev", **options) - x).abs().max())


def _saved_bytes(degree: int) -> int:
    """What a differentiated call keeps for its backward pass."""
    lap = Laplacian(g.grid(6, 6).edge_index).to(torch.float64)
    x = torch.ones(36, 4, dtype=torch.float64, requires_grad=True)
    time = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    kept = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel() * tensor.element_size())
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        diffuse(x, lap, time, method="chebyshev", degree=degree)
    return sum(kept)


def _seconds(graph: Graph, columns: int, time: float) -> float:
    """The median of five runs of Chebyshev heat."""
    lap = Laplacian(graph.edge_index)
    x = torch.ones(graph.num_nodes, columns)
    runs = []
    for _ in range(6):
        start = clock.perf_counter()
        diffuse(x, lap, time, method="chebyshev")
        runs.append(clock.perf_counter() - start)
    return median(runs[1:])


def _products_plot(tables: Sequence[Table]) -> Figure:
    table = tables[0]
    figure, (ax,) = new_figure()
    times = table.column("time")
    for name, colour in (("Taylor, exact arithmetic", ORANGE), ("Chebyshev", BLUE)):
        pairs = [(t, k) for t, k in zip(times, table.column(name), strict=True) if k]
        ax.loglog(*zip(*pairs, strict=True), "o-", color=colour, label=name)
    ax.loglog(times, [10 * math.sqrt(t) for t in times], ":", color=GREY, label="∝ √t")
    ax.loglog(times, [10 * t for t in times], "--", color=GREY, linewidth=1, label="∝ t")
    ax.set_ylim(1, 3000)
    axes = "diffusion time t", "products with the sparse matrix"
    name_axes(ax, table.title, *axes, legend="lower right")
    return figure


@claim(
    "cost",
    "Appendix E",
    "a term of heat costs one product, O(d |E|); what t asks for is √t terms",
    plot=_products_plot,
)
def cost(
    times: Sequence[int] = (1, 10, 20, 100, 1000, 10000), tol: float = 1e-6
) -> Iterator[Evidence]:
    """Products counted from outside, for Taylor's and for Chebyshev's polynomials."""
    rows: list[tuple[Any, ...]] = []
    wrong, enough, short = [], [], []
    for time in times:
        chebyshev = products(time, "chebyshev", tol=tol)
        wrong.append(abs(chebyshev - chebyshev_degree(time, tol)))
        enough.append(_constant_error(time, tol=tol) / tol)
        short.append(_constant_error(time, degree=chebyshev - 1) / tol)
        if time > 100:
            rows.append((time, None, None, chebyshev))
            continue
        degree = taylor_degree(time, tol)
        rows.append((time, degree, _taylor_error(time, degree), chebyshev))
    taylor = [abs(products(1.0, "taylor", degree=k) - k) for k in (1, 4, 40)]
    first, last = rows[1], rows[-1]
    growth = math.log(last[3] / first[3]) / math.log(last[0] / first[0])
    memory = abs(_saved_bytes(64) - _saved_bytes(8))
    yield at_most(
        "products of a Taylor polynomial minus its degree", [float(k) for k in taylor], 0.0
    )
    yield at_most("products of Chebyshev's minus its degree", [float(k) for k in wrong], 0.0)
    yield at_most(
        f"exponent of its products from t = {first[0]} to {last[0]}, minus ½",
        abs(growth - 0.5),
        0.06,
    )
    yield at_most(f"error of Chebyshev's over tol = {tol:g}", enough, 1.0)
    yield at_least("and with one product less", short, 1.0)
    yield at_most("bytes kept for backward, degree 64 minus degree 8", float(memory), 0.0)
    yield _loop_erratum(tol)
    yield Table(
        f"Products for a relative error of {tol:g}",
        ("time", "Taylor, exact arithmetic", "its error in float64", "Chebyshev"),
        tuple(rows),
    )
    yield _timings()


def _loop_erratum(tol: float) -> Erratum:
    counted = [products(1.0, "taylor", degree=k) for k in (4, 40)]
    small, large = taylor_degree(5, tol), taylor_degree(50, tol)
    lost = _taylor_error(50, large)
    return Erratum(
        name="The cost of the loop",
        printed="the for loops consist of products, which are done in O(d |E|)",
        counterexample=(
            f"read as the cost of the loop, that is one term of it: degree 4 takes {counted[0]} "
            f"products, degree 40 takes "
            f"{counted[1]}. And for an error of {tol:g} the degree grows with t: {small} at t = 5, "
            f"{large} at t = 50, where rounding leaves an error of {lost:.0e} all the same"
        ),
        corrected=(
            "O(K d |E|). A Taylor polynomial needs K ∝ t and loses e^(2t) to rounding; Chebyshev's "
            "needs K ∝ √t and loses nothing, so that large t needs no eigenvectors"
        ),
        refutation=at_least("products at degree 40 over those at 4", counted[1] / counted[0], 2.0),
        verification=(
            at_least("degree of Taylor's at t = 50 over t = 5", large / small, 5.0),
            at_most(
                "degree of Chebyshev's at t = 50 over t = 5",
                products(50, "chebyshev", tol=tol) / products(5, "chebyshev", tol=tol),
                5.0,
            ),
            at_least("error of Taylor's in float64 at t = 50", lost, 1.0),
        ),
    )


def _timings() -> Table:
    """Wall time against edges, channels and time; nothing is decided by it."""
    base = (100, 8, 10.0)
    cases = {
        "4 times the edges": (200, 8, 10.0),
        "4 times the channels": (100, 32, 10.0),
        "4 times the time": (100, 8, 40.0),
    }
    start = _seconds(g.grid(base[0], base[0]), *base[1:])
    rows = [("100 × 100 grid, 8 channels, t = 10", 1e3 * start, 1.0)]
    for name, (side, columns, time) in cases.items():
        seconds = _seconds(g.grid(side, side), columns, time)
        rows.append((name, 1e3 * seconds, seconds / start))
    return Table("Time of Chebyshev heat (not judged)", ("case", "ms", "ratio"), tuple(rows))
