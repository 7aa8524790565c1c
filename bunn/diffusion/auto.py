r"""Choosing the cheapest method that meets ``tol``.

The cost model counts multiply-adds of a sparse product, per column of ``x``:

====================  ==========================================================================
``chebyshev``         ``K(t, tol) * (nnz + fields * n)``, and ``step`` for each of ``K`` products
``dense``             ``dense * sum s_i^2``, and the forming of the kernel if it is not there
``spectral``          twice that, only if all eigenpairs are there already, or are soon
``limit``             ``LIMIT * n``, if it is exact to ``tol``
====================  ==========================================================================

On a GPU the kernel of ``dense`` may be kept by blocks of close nodes: then it costs ``dense * reach
+ move`` for each of ``n`` nodes, with ``reach`` the number of nodes that a block does.

``s_i`` are the sizes of the components: a batch of small graphs is many small dense products. They
cost ``stack`` for each size of component, or once where they are multiplied where they lie, and
where there are several components ``move * n`` for laying features side by side, or gathering them.
Forming a kernel takes the Chebyshev recurrence on as many columns as the largest component has
nodes; it is charged to ``reuse`` calls. What a :class:`Machine` is good at was measured. Whether
``limit`` is exact is found out by heating a few random vectors, once per graph, when the time is so
large that it is worth knowing.

Where somebody says that calls will be repeated, and ``chebyshev`` is left, it is found out between
which ends the eigenvalues lie: fewer products serve those, or none where all other heat has gone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from bunn.diffusion.chebyshev import chebyshev_degree
from bunn.diffusion.dense import (
    Form,
    form_of,
    in_place,
    kernel_entries,
    on_tensor_cores,
    patched,
)
from bunn.diffusion.limit import component_mean
from bunn.diffusion.options import Options, Time
from bunn.diffusion.patchwise import ROWS, PatchMatrix, capturing, mean_patches, reach
from bunn.diffusion.polynomial import FROM_TIME, Polynomial, heat
from bunn.graph.interval import Interval
from bunn.graph.operator import for_keeps
from bunn.keeping import handed_out, lasts
from bunn.laplacian import Laplacian


class Machine(NamedTuple):
    """What things cost on a kind of machine.

    Args:
        fields: Passes over the features beside a product, in sparse multiply-adds.
        dense: A dense multiply-add, in sparse ones.
        step: Launching one product, in sparse multiply-adds.
        stack: Launching one product of stacked matrices.
        move: Bringing one number of a batch to its stack, or to its product, and back.
        reuse: Calls that share the cost of forming a kernel.
    """

    fields: float
    dense: float
    step: float
    stack: float
    move: float
    reuse: int

    @classmethod
    def of(cls, x: Tensor, lap: Laplacian) -> Machine:
        """What multiplies features ``x``."""
        if not on_tensor_cores(lap):
            return PLAIN
        narrow = x.dtype.itemsize == 2
        if in_place(lap):
            return IN_PLACE_16 if narrow else IN_PLACE
        return TENSOR_CORES_16 if narrow else TENSOR_CORES


#: One where torch multiplies.
PLAIN = Machine(fields=4.0, dense=0.65, step=2e5, stack=2e5, move=0.0, reuse=8)
#: A GPU with our kernels, whose users train: a fraction of a second for a kernel is soon paid back.
TENSOR_CORES = Machine(fields=2.0, dense=0.08, step=2e6, stack=6e7, move=80.0, reuse=1000)
#: The same for features of 16 bits, which are not multiplied in float64.
TENSOR_CORES_16 = TENSOR_CORES._replace(dense=0.0105, stack=1.5e7, move=30.0)
#: Both for components that are multiplied where they lie, in one launch.
IN_PLACE = TENSOR_CORES._replace(dense=0.044, stack=2e6, move=6.0)
IN_PLACE_16 = TENSOR_CORES_16._replace(dense=0.0077, stack=2e6, move=5.0)

#: Both by blocks of rows: features of float32 are split first.
PATCHES = TENSOR_CORES._replace(dense=0.042, stack=2e7, move=10.0)
PATCHES_16 = TENSOR_CORES_16._replace(dense=0.022, stack=5e6, move=4.0)

#: The limit of one number, by a few passes in float64, in sparse multiply-adds.
LIMIT = 10.0

#: Calls with a graph on a GPU before kernels are formed, where nobody says that more will come: a
#: graph that is drawn for one step is not worth it.
PATIENCE = 32

#: The degree from which on a polynomial of a lower one may do.
LOWEST_DEGREE = 2

#: Degree, or time, above which it is worth finding out whether the limit is exact.
RELAXING_DEGREE, RELAXING_TIME = 200, 1e7
#: The first time at which that is looked at.
RELAXING_STEP = 100.0


def decide(x: Tensor, lap: Laplacian, time: Time, options: Options) -> tuple[str, Options]:
    """The name of the method to use for ``x: (n, c)``, and what it may know of the spectrum;
    ``"limit"`` only where that is exact."""
    if time.lower == math.inf:
        return "limit", options
    costs = costs_of(x, lap, time, options)
    method = cheapest(costs)
    if method not in ("chebyshev", "dense") or torch.compiler.is_compiling():
        return method, options
    if isinstance(time.value, Tensor) or not time.constant:
        return method, options
    # Wherever the eigenvalues are, so much is left: a product with a kernel is not worth a look.
    if method == "dense" and math.exp(-2 * time.value) > options.tol:
        return method, options
    interval = find_ends(lap, time.value, options.tol)
    over = interval is not None and interval.rest(time.value) <= options.tol
    if over and _limit_cost(x, lap) <= costs[method]:  # on small graphs a dense product costs less
        return "limit", options
    return method, replace(options, interval=interval) if method == "chebyshev" else options


def cheapest(costs: Mapping[str, float]) -> str:
    """The method that costs least."""
    return min(costs, key=lambda name: costs[name])


def costs_of(x: Tensor, lap: Laplacian, time: Time, options: Options) -> dict[str, float]:
    """What the methods that may be used for ``x: (n, c)`` cost, at times before the limit is
    exact."""
    known = lap.eigenpairs.known
    if torch.compiler.is_compiling() or time.upper is None:  # nothing to compare costs by
        return {"spectral" if known else "chebyshev": 0.0}
    lap.patchwork.calls += 1 + PATIENCE * lasts()  # what was said of a graph stays true
    machine = Machine.of(x, lap)
    degree = chebyshev_degree(time.upper, options.tol)
    costs = {"chebyshev": _chebyshev_cost(lap, x.size(1), degree, machine)}
    if known or _has_eigenvectors(lap):
        costs["spectral"] = 2 * _product_cost(x, lap, machine)
    # A batch is drawn for one step: a kernel for its graphs would not be used again.
    if not isinstance(time.value, Tensor) and time.constant and lap.origin is None:
        costs["dense"] = _dense_cost(x, lap, time.value, options.tol, machine)
    return costs


def find_ends(lap: Laplacian, time: float, tol: float) -> Interval | None:
    """Where the eigenvalues of a graph lie, if it was ever said that its heat will be asked for
    again and again; cached."""
    # A batch is drawn for one step; and float64 is for digits that are not looked for here.
    if lap.dtype == torch.float64 or lap.origin is not None or _watched():
        return None
    if lap.eigenpairs.interval is None:
        few = chebyshev_degree(time, tol) < LOWEST_DEGREE
        if few or not lasts() or capturing(lap):
            return None
    return lap.eigenpairs.between(lap)


def choose_mean(lap: Laplacian, dtype: torch.dtype, columns: int) -> PatchMatrix | None:
    """The mean of the neighbours by blocks of rows, for features of a type, where that is cheaper
    than along the edges; cached."""
    means = lap.patchwork.means
    if dtype not in means:
        # A batch is drawn for one step: blocks for its graphs would not be used again.
        if dtype.itemsize != 2 or lap.operator.chunks is not None or lap.origin is not None:
            return None
        if not _known_well(lap) or capturing(lap) or not patched(lap, dtype, 1.0):
            return None
        by_edges = _chebyshev_cost(lap, columns, 1, TENSOR_CORES_16)
        cheaper = _patch_cost(columns, lap, 1, PATCHES_16) < by_edges
        fits = _entries(lap, Form(0.0, 1, dtype, ROWS)) <= kernel_entries(lap, dtype)
        means[dtype] = mean_patches(lap, dtype) if cheaper and fits else None
    found: PatchMatrix | None = handed_out(means[dtype])
    return found


def saturate(time: Time, lap: Laplacian, tol: float) -> Time:
    """The same times, those so large that the limit is exact to ``tol`` taken for infinite."""
    if time.upper is None or tol >= 1 or _has_eigenvectors(lap):
        return time
    # Learned times keep their gradient, which is below tol then, but not nothing; unless they have
    # run away, so far that no polynomial would follow.
    if not time.fixed and (time.upper <= RELAXING_TIME or torch.compiler.is_compiling()):
        return time
    if not isinstance(time.value, Tensor):
        exact = _limit_is_exact(lap, time.value, tol)
        return Time(math.inf, math.inf, math.inf) if exact else time
    if not _worth_knowing(time.upper, tol) or not _relaxed(lap, time.upper, tol):
        return time
    relaxed = lap.relaxation[tol][1]
    even = time.value >= relaxed
    infinite = even if time.infinite is None else even | time.infinite
    value = time.value.masked_fill(infinite, 0.0)
    upper = relaxed  # which needs no look at the times
    if time.fixed:
        rest = time.value[~infinite]
        if rest.numel() == 0:
            return Time(math.inf, math.inf, math.inf)
        upper = float(rest.max())
    return replace(time, value=value, infinite=infinite, upper=upper, degree=None)


def _has_eigenvectors(lap: Laplacian) -> bool:
    """Whether it is a batch whose graphs are worth diagonalising, once for all batches."""
    return lap.origin is not None and lap.origin.whole.has_room and lasts()


def _chebyshev_cost(lap: Laplacian, columns: int, degree: int, machine: Machine) -> float:
    work = lap.num_entries + machine.fields * lap.num_nodes
    return degree * (work * columns + machine.step)


def _limit_cost(x: Tensor, lap: Laplacian) -> float:
    return LIMIT * x.numel() + Machine.of(x, lap).step


def _product_cost(x: Tensor, lap: Laplacian, machine: Machine) -> float:
    """One product of ``x`` with a matrix for every component."""
    blocks, columns, placed = lap.blocks, x.size(1), in_place(lap)
    cost = machine.dense * (blocks.tiled_area if placed else blocks.area) * columns
    if blocks.largest == lap.num_nodes:
        return cost + machine.step
    stacks = len(blocks.shapes)
    if on_tensor_cores(lap):
        stacks = 1 if placed else blocks.num_groups
    return cost + machine.stack * stacks + machine.move * lap.num_nodes * columns


def _dense_cost(x: Tensor, lap: Laplacian, time: float, tol: float, machine: Machine) -> float:
    if not _known_well(lap):
        return math.inf
    form = form_of(lap, time, tol, x.dtype)
    formed = form in lap.kernels
    if not formed and (capturing(lap) or _entries(lap, form) > kernel_entries(lap, form.dtype)):
        return math.inf
    if form.rows:
        patches = PATCHES_16 if x.dtype.itemsize == 2 else PATCHES
        cost = _patch_cost(x.size(1), lap, form.degree, patches)
    else:
        cost = _product_cost(x, lap, machine)
    if formed:
        return cost
    columns = lap.num_nodes if form.rows else lap.blocks.largest
    return cost + _chebyshev_cost(lap, columns, form.degree, machine) / machine.reuse


def _on_a_gpu(lap: Laplacian) -> bool:
    return lap.device.type == "cuda"


def _known_well(lap: Laplacian) -> bool:
    """Whether a graph is asked for so often that a kernel pays; on a CPU it soon does."""
    if not _on_a_gpu(lap):
        return True
    return (lasts() or lap.patchwork.calls > PATIENCE) and not _watched()


def _watched() -> bool:
    """Whether somebody watches what is saved for a backward pass, as checkpoints do: what is
    computed again then has to be what was computed before, and not by another method."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def _entries(lap: Laplacian, form: Form) -> float:
    """Those of a kernel that is kept in some form: four bytes each, or two and its transpose."""
    if form.rows:
        return reach(lap, form.degree) * lap.num_nodes
    return lap.blocks.filled_area if in_place(lap) else lap.blocks.area


def _patch_cost(columns: int, lap: Laplacian, degree: int, machine: Machine) -> float:
    """One product by blocks of rows with a polynomial of a degree."""
    work = machine.dense * reach(lap, degree) + machine.move
    return work * lap.num_nodes * columns + machine.stack


def _limit_is_exact(lap: Laplacian, time: float, tol: float) -> bool:
    if lap.known_spectral_gap is not None:
        return time * lap.known_spectral_gap >= math.log(1 / tol)
    if torch.compiler.is_compiling():
        return False
    return _worth_knowing(time, tol) and _relaxed(lap, time, tol)


def _worth_knowing(time: float, tol: float) -> bool:
    return time > RELAXING_TIME or chebyshev_degree(time, tol) > RELAXING_DEGREE


@for_keeps()
def _relaxed(lap: Laplacian, time: float, tol: float) -> bool:
    """Whether all heat that is going to move has moved, to ``tol``.

    Random vectors without their means are heated, in steps four times as long as the time before:
    once they have cooled below ``tol / 1000``, so has ``exp(-t lambda)`` below ``tol``, but for a
    chance of one in 10^12. Heat only ever gets more even, so what is learnt serves later calls.
    """
    uneven, even = lap.relaxation.get(tol, (0.0, math.inf))
    if time <= uneven or time >= even:
        return time >= even
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(lap.num_nodes, 4, dtype=torch.float64, generator=generator).to(lap.device)
    exact = lap.matching(noise)
    root = exact.operator.before
    noise = noise if root is None else noise / root
    field, now = noise - component_mean(noise, exact), 0.0
    while now < time:
        step = min(max(3 * now, RELAXING_STEP), time - now)
        precision = Polynomial("chebyshev", FROM_TIME, 1e-4 * tol, step)
        field = heat(field, None, exact.operator, precision)
        field = field - component_mean(field, exact)
        now += step
        heat_left = field if root is None else field * root
        if float(heat_left.norm(dim=0).max()) <= 1e-3 * tol:
            lap.relaxation[tol] = (uneven, now)
            return True
    lap.relaxation[tol] = (time, even)
    return False
