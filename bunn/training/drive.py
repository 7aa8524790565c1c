r"""How the requests of a run are answered: by its model alone, or for many runs at once.

Runs that differ in nothing but their seed (or in the split of the same graph) have models of the
same shape. A :class:`Stack` holds their parameters and answers all of them with one call under
:func:`torch.func.vmap`: :math:`R` products of a small matrix become one batched product. With
batches of one small graph, where a step is mostly overhead, this trains :math:`R` seeds in the
time of a few. Each run keeps its own optimiser, schedule, best epoch and checkpoint, and sees the
numbers it would see alone, up to rounding; only dropout draws others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from lightning.fabric.plugins import Precision
from torch import Tensor, nn
from torch.func import functional_call, vmap

from bunn.training.feed import Inputs
from bunn.training.run import Epoch, Gradients, Output, Run

Model = Callable[..., Tensor]

#: Batches of at most this many hidden values are worth stacking: beyond, products fill a core.
SMALL = 2**15


class CompileError(RuntimeError):
    """:func:`torch.compile` failed, for want of a C++ compiler or of Triton perhaps."""


class Driver:
    """Trains runs an epoch at a time, in step.

    Args:
        runs: One, or several that can be trained together.
        compile: Whether the model of a run that is trained alone is compiled. (default:
            :obj:`False`)
    """

    def __init__(self, runs: Sequence[Run], compile: bool = False) -> None:
        self._runs = list(runs)
        self._stack: Stack | None = None
        self._compile = compile
        self._compiled: Model | None = None

    def train_epoch(self) -> None:
        """One epoch of every run that is not finished."""
        active = [run for run in self._runs if not run.finished]
        if active != self._runs or (len(active) > 1 and self._stack is None):
            self._runs = active
            self._stack = Stack([run.model for run in active]) if len(active) > 1 else None
            if self._stack is None:
                _leave_stack(active[0].model)
        epochs = [run.next_epoch() for run in active]
        requests = [next(epoch) for epoch in epochs]
        while requests:
            if self._stack is None:
                replies = [self._alone(active[0], requests[0])]
            else:
                replies = _together(active[0].precision, self._stack, requests)
            requests = [request for request in map(_go_on, epochs, replies) if request is not None]

    def _alone(self, run: Run, request: Output | Gradients) -> Any:
        if isinstance(request, Gradients):
            run.optimizer.zero_grad()
            run.precision.backward(request.loss, run.model)
            return None
        model: Model = run.model
        if self._compile:
            model = self._compiled = self._compiled or compiled(run.model)
        with run.precision.forward_context(), torch.set_grad_enabled(request.training):
            return model(*request.inputs)


def compiled(model: nn.Module) -> Model:
    """The model through :func:`torch.compile`, with a word on what to do where that fails."""
    from torch._dynamo.exc import TorchDynamoException  # noqa: PLC0415  (seconds to import)

    faster: Model = torch.compile(model)

    def call(*arguments: Any) -> Tensor:
        try:
            return faster(*arguments)
        except TorchDynamoException as error:
            reason = str(error).strip().partition("\n")[0]
            raise CompileError(
                f"the model cannot be compiled here: {reason}; train without compile"
            ) from error

    return call


def _go_on(epoch: Epoch, reply: Any) -> Output | Gradients | None:
    """The next request of an epoch, :obj:`None` when it is over."""
    try:
        return epoch.send(reply)
    except StopIteration:
        return None


def can_be_stacked(run: Run) -> bool:
    """Whether a run can be trained together with others like it.

    Its model must keep no running averages, which :func:`torch.func.vmap` would lose, and have no
    parameter in two places. A loss scale, which float16 needs, belongs to one run.
    """
    modules = list(run.model.modules())
    places = sum(len([*module.parameters(recurse=False)]) for module in modules)
    return (
        run.config.training.precision != "16-mixed"
        and not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in modules)
        and places == len([*run.model.parameters()])
    )


def in_step(runs: Sequence[Run]) -> bool:
    """Whether batch after batch of all runs has the same edges."""
    return all(run.feed.in_step_with(runs[0].feed) for run in runs[1:])


def is_small(run: Run) -> bool:
    """Whether a training step is mostly overhead."""
    graph = run.feed.parts["train"][0]
    nodes = int(graph.num_nodes or 0) * run.feed.batch_size
    return nodes * int(run.config.model.hidden_channels) <= SMALL


def _together(
    precision: Precision, stack: Stack, requests: Sequence[Output | Gradients]
) -> list[Any]:
    losses = [request.loss for request in requests if isinstance(request, Gradients)]
    if losses:  # runs are in step: all of them ask for the same thing
        stack.zero_grad()
        precision.backward(torch.stack(losses).sum(), None)
        return [None] * len(requests)
    asked = [request for request in requests if isinstance(request, Output)]
    with precision.forward_context(), torch.set_grad_enabled(asked[0].training):
        return list(stack([request.inputs for request in asked]).unbind(0))


class Stack:
    """Models of the same shape, whose parameters and gradients lie in common tensors.

    A parameter of a model becomes a view of its row, and so does its gradient: nothing is copied
    between the stack and the models, and an optimiser of one model moves its row.

    Args:
        models: The models, ``R`` of them.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self.model = models[0]
        self.parameters: dict[str, Tensor] = {}
        self._gradients: list[Tensor] = []
        states = [dict(model.named_parameters()) for model in models]
        for name in states[0]:
            rows = [state[name] for state in states]
            stacked = torch.stack([row.detach() for row in rows]).requires_grad_()
            stacked.grad = gradient = torch.zeros_like(stacked)
            for row, value, grad in zip(rows, stacked.detach(), gradient, strict=True):
                row.data, row.grad = value, grad
            self.parameters[name] = stacked
            self._gradients.append(gradient)

    def zero_grad(self) -> None:
        torch._foreach_zero_(self._gradients)

    def __call__(self, inputs: Sequence[Inputs]) -> Tensor:
        """``(R, rows, outputs)``: every model on its own inputs, on edges that all share."""
        x, x_dim = _shared_or_stacked([entry.x for entry in inputs])
        pe, pe_dim = _shared_or_stacked([entry.pe for entry in inputs])
        _, edge_index, edge_weight, _, batch, size = inputs[0]

        def call(parameters: dict[str, Tensor], x: Tensor | None, pe: Tensor | None) -> Tensor:
            arguments = (x, edge_index, edge_weight, pe, batch, size)
            # A module in two places has its parameters once; tying would tie them to each other.
            output: Tensor = functional_call(self.model, parameters, arguments, tie_weights=False)
            return output

        dims = (dict.fromkeys(self.parameters, 0), x_dim, pe_dim)
        output: Tensor = vmap(call, in_dims=dims, randomness="different")(self.parameters, x, pe)
        return output


def _leave_stack(model: nn.Module) -> None:
    """Gives parameters memory of their own, laid out as after a resume: products round by it."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def _shared_or_stacked(values: Sequence[Tensor | None]) -> tuple[Tensor | None, int | None]:
    """The tensor that all share, with no batch dimension; or a stack, with dimension 0."""
    first = values[0]
    if all(value is first for value in values):
        return first, None
    return torch.stack([value for value in values if value is not None]), 0
