"""The paper's table of run times on a GPU: five layers, 512 wide, one bundle of planes, t = 1.

A step is forward, backward and optimiser of a stack of layers with ReLU between them and a linear
head, on random features. Forms of it:

- ``eager``: as it is written down, on ``edge_index``;
- ``sparse``: the adjacency as a sparse CSR matrix (whose backward pass copies from the host, so
  that it cannot be captured);
- ``kernel``: the mean of the neighbours by the kernel that a BuNN has for its products;
- ``compiled``: layer by layer through ``torch.compile``, with the ReLU;
- ``captured``: as one CUDA graph, which ``bunn train`` does unasked; GAT with loops in its
  ``edge_index``, since it waits for the host to add them.

``tf32`` lets matrix products round their factors, ``bf16`` is autocast; the same for all. Memory is
what a step needs beyond parameters, optimiser and features, at its peak. A form that fails, for
want of memory say, has no time but a reason.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch_geometric.nn import GATConv, SAGEConv, TransformerConv
from torch_geometric.utils import add_self_loops

from benchmarks.device import about, by_kind, medians, save_measured, side_by_side
from benchmarks.graphs import graphs_of_the_table
from benchmarks.layer import sparse_adjacency
from benchmarks.results import unfinished
from bunn import BuNNConv, Laplacian
from bunn.baselines import BASELINES
from bunn.replay import captured

CHANNELS, LAYERS, CLASSES = 512, 5, 10
PRECISIONS = ("tf32", "bf16")
RATE = 3e-5


class Layer(nn.Module):
    """A layer and a ReLU."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor, graph: Tensor | Laplacian) -> Tensor:
        out: Tensor = self.conv(x, graph).relu()
        return out


class Stack(nn.Module):
    """Layers, and a linear head."""

    def __init__(self, conv: Callable[[], nn.Module], channels: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(conv()) for _ in range(layers))
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, x: Tensor, graph: Tensor | Laplacian) -> Tensor:
        for layer in self.layers:
            x = layer(x, graph)
        out: Tensor = self.head(x)
        return out


class KernelSAGE(SAGEConv):  # type: ignore[misc]
    """PyG's layer, whose mean is a Laplacian's."""

    def propagate(self, lap: Laplacian, x: tuple[Tensor, Tensor], size: None = None) -> Tensor:
        return lap.aggregate(x[0])


class Form(NamedTuple):
    """A model and how its step is run."""

    model: str
    sparse: bool = False
    kernel: bool = False
    compiled: bool = False
    captured: bool = False

    def __str__(self) -> str:
        words = [word for word in self._fields[1:] if getattr(self, word)]
        return f"{self.model}, {' '.join(words) or 'eager'}"


def forms_of_pyg(model: str) -> tuple[Form, ...]:
    """What PyG and torch offer besides the eager one."""
    return (
        *(Form(model, compiled=True), Form(model, sparse=True), Form(model, captured=True)),
        Form(model, compiled=True, captured=True),
    )


#: What is compared. What is captured keeps its memory: those that need most of it come last.
FORMS = (
    *(Form(model) for model in ("SAGE", "BuNN", "GAT", "GT", "NSD")),
    Form("BuNN", captured=True),
    *forms_of_pyg("SAGE"),
    *(Form("SAGE", captured=True, kernel=True, compiled=compiled) for compiled in (False, True)),
    *forms_of_pyg("GAT"),
    *forms_of_pyg("GT"),
)


def build(form: Form, channels: int = CHANNELS, layers: int = LAYERS) -> nn.Module:
    """The stack of some form."""
    if form.model == "NSD":
        nsd = BASELINES["nsd"]
        options = nsd.options(hidden_channels=channels, num_layers=layers, linear_encoder=True)
        return nsd.build(options, channels, CLASSES)
    kinds: dict[str, Callable[..., nn.Module]] = {
        "SAGE": KernelSAGE if form.kernel else SAGEConv,
        "GAT": partial(GATConv, add_self_loops=not form.captured),
        "GT": TransformerConv,
        "BuNN": BuNNConv,
    }
    return Stack(lambda: kinds[form.model](channels, channels), channels, layers)


def autocast(precision: str, device: str) -> AbstractContextManager[Any]:
    return torch.autocast(device, torch.bfloat16) if precision == "bf16" else nullcontext()


class TrainingStep:
    """Forward, backward and optimiser, by calling it.

    Args:
        model: On the device of what follows.
        graph: Its second argument.
        x: Its first.
        y: What its output should be.
        loss: Of output and target.
        precision: ``"tf32"`` or ``"bf16"``.
    """

    def __init__(
        self,
        model: nn.Module,
        graph: Tensor | Laplacian,
        x: Tensor,
        y: Tensor,
        loss: Callable[[Tensor, Tensor], Tensor],
        precision: str,
    ) -> None:
        self.model, self.graph, self.x, self.y = model, graph, x, y
        self.loss, self.precision = loss, precision
        self.optimizer = torch.optim.Adam(
            model.parameters(), lr=RATE, fused=True, capturable=x.is_cuda
        )

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        with autocast(self.precision, self.x.device.type):
            output = self.model(self.x, self.graph)
        self.loss(output.float(), self.y).backward()
        self.optimizer.step()


class Step(TrainingStep):
    """That of a form.

    Args:
        form: What is run, and how; the caller captures it.
        edge_index: ``(2, e)`` edges.
        num_nodes: The number of nodes.
        precision: ``"tf32"`` or ``"bf16"``.
        channels: Width of the layers.
        device: Where it runs.
    """

    def __init__(
        self,
        form: Form,
        edge_index: Tensor,
        num_nodes: int,
        precision: str,
        channels: int = CHANNELS,
        device: str = "cuda",
    ) -> None:
        torch.manual_seed(0)
        x = torch.randn(num_nodes, channels, device=device)
        y = torch.randint(CLASSES, (num_nodes,), device=device)
        graph: Tensor | Laplacian = edge_index.to(device)
        if form.sparse:  # which autocast leaves alone: its product takes one type
            dtype = torch.bfloat16 if precision == "bf16" else torch.float32
            graph = sparse_adjacency(edge_index, num_nodes, dtype).to(device)
            x = x.to(dtype)
        elif form.model == "GAT" and form.captured:
            graph = add_self_loops(graph, num_nodes=num_nodes)[0]
        elif form.kernel:
            graph = Laplacian(edge_index, num_nodes=num_nodes).to(device)
        model = build(form, channels).to(device)
        if isinstance(model, Stack) and form.compiled:
            for layer in model.layers:  # which are one to the compiler
                layer.compile()
        super().__init__(model, graph, x, y, F.cross_entropy, precision)


def peak_bytes(step: TrainingStep) -> int:
    """Bytes that a step holds at its peak, beyond what is there before and after it."""
    step()
    step.optimizer.zero_grad()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def jobs() -> Iterator[tuple[str, str, Form]]:
    """What has to be compiled; a captured step runs the same code."""
    for name in graphs_of_the_table():
        for precision in PRECISIONS:
            for form in FORMS:
                if form.compiled and (form.kernel or form.model == "GAT" or not form.captured):
                    yield name, precision, form


def warm(job: tuple[str, str, Form]) -> None:
    """Compiles one step; the code stays in a cache on disk.

    Others do so at the same time: where memory runs out, the step is compiled when it is measured.
    Whatever else a compiler raises, which need not be a ``RuntimeError``, it will raise again then.
    """
    warnings.simplefilter("ignore")
    name, precision, form = job
    edge_index, num_nodes = graphs_of_the_table()[name]
    torch.set_float32_matmul_precision("high")
    torch.compiler.reset()
    with suppress(Exception):
        Step(form, edge_index, num_nodes, precision)()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


@contextmanager
def noting(failed: dict[str, str], form: str) -> Iterator[None]:
    """Notes why a form fails: too little memory, no capture, or whatever a compiler raises."""
    try:
        yield
    except Exception as error:
        lines = (line for line in str(error).splitlines() if not line.endswith("raised:"))
        failed[form] = next(lines, "") or type(error).__name__
        print(f"{form}: {failed[form]}")


def measure(edge_index: Tensor, num_nodes: int, precision: str) -> dict[str, Any]:
    steps: dict[str, Callable[[], None]] = {}
    memory: dict[str, int] = {}
    failed: dict[str, str] = {}
    torch.compiler.reset()  # code for one size, not for any
    for form in FORMS:
        with noting(failed, str(form)):
            step = Step(form, edge_index, num_nodes, precision)
            if form.model in ("SAGE", "BuNN") and not (form.captured or form.sparse):
                memory[str(form)] = peak_bytes(step)
            for _ in range(3):
                step()
            steps[str(form)] = captured(step) if form.captured else step
    for name, ready in steps.items():  # beside the memory of all that are captured
        with noting(failed, name):
            ready()
    steps = {name: ready for name, ready in steps.items() if name not in failed}
    taken = medians(steps, repeats=9, budget_ms=30.0)
    kinds = by_kind(steps["BuNN, captured"]) if "BuNN, captured" in steps else {}
    return {"milliseconds": taken, "peak_bytes": memory, "kinds": kinds, "failed": failed}


def main() -> None:
    torch.set_float32_matmul_precision("high")
    torch._dynamo.config.recompile_limit = 64  # all models are one code with other layers
    rows = unfinished("gpu_layers", len(graphs_of_the_table()) * len(PRECISIONS))
    there = {(row["graph"], row["precision"]) for row in rows}
    side_by_side(warm, (job for job in jobs() if job[:2] not in there))
    for name, (edge_index, num_nodes) in graphs_of_the_table().items():
        for precision in PRECISIONS:
            if (name, precision) in there:
                continue
            row = measure(edge_index, num_nodes, precision)
            taken = row["milliseconds"]
            sage = taken.get("SAGE, eager")
            over = {form: ms / sage for form, ms in taken.items()} if sage else {}
            rows.append(
                {
                    "graph": name,
                    "nodes": num_nodes,
                    "entries": edge_index.size(1),
                    "precision": precision,
                    "commit": about()["git_commit"],
                    **row,
                    "over_eager_sage": over,
                }
            )
            print(name, precision, {form: round(ratio, 2) for form, ratio in over.items()})
            save_measured("gpu_layers", rows, __doc__, channels=CHANNELS, layers=LAYERS)


if __name__ == "__main__":
    main()
