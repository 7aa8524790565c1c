r"""How the requests of a run are answered: by its model alone, for many runs at once, by replay.

Runs that differ in nothing but their seed (or in the split of the same graph) have models of the
same shape. A :class:`Stack` holds their parameters and answers all of them with one call under
:func:`torch.func.vmap`: :math:`R` products of a small matrix become one batched product. With
batches of one small graph, where a step is mostly overhead, this trains :math:`R` seeds in the
time of a few. Each run keeps its own optimiser, schedule, best epoch and checkpoint, and sees the
numbers it would see alone, up to rounding; only dropout draws others.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from bunn.nn import refresh_times
from bunn.nn.norm import counted_rows
from bunn.training.batch import Batch, Draft, Inputs
from bunn.training.capture import Recorder, can_be_recorded, learned_times
from bunn.training.run import Gradients, Output, Request, Run, Step

Model = Callable[..., Tensor]

#: Batches of at most this many hidden values are worth stacking: beyond, products fill a core, or a
#: GPU (``benchmarks/gpu_splits.py``).
SMALL = {"cpu": 2**15, "cuda": 2**21}


class CompileError(RuntimeError):
    """:func:`torch.compile` failed, for want of a C++ compiler or of Triton perhaps."""


class Driver:
    """Trains runs an epoch at a time, in step.

    On a GPU, steps and evaluations that do the same again and again are recorded and replayed.

    Args:
        runs: One, or several that can be trained together.
        compile: Whether the model of a run that is trained alone is compiled. (default:
            :obj:`False`)
        capture: Whether recordings are made at all. (default: :obj:`True`)
    """

    def __init__(self, runs: Sequence[Run], compile: bool = False, capture: bool = True) -> None:
        self._runs: list[Run] = []
        self._waiting = list(runs)
        self._stack: Stack | None = None
        self._recorder: Recorder | None = None
        self._compile, self._capture = compile, capture
        self._compiled: Model | None = None

    def train_epoch(self) -> None:
        """One epoch of every run that is not finished."""
        active = [run for run in self._waiting if not run.finished]
        if active != self._runs:
            self.make_ready(active)
        else:
            self._hand_out_drafts()
        self._drive([run.next_epoch() for run in active])

    def make_ready(self, runs: list[Run]) -> None:
        """What comes next is asked for by these runs."""
        before, self._runs, self._stack, self._recorder = self._stack, runs, None, None
        if len(runs) > 1:
            self._stack = Stack([run.model for run in runs])
        elif before is not None:
            _leave_stack(runs[0].model)
        models = [run.model for run in runs]
        for model in models:
            refresh_times(model)  # which may come from a checkpoint
        # Of several models under one call, only one would know the bounds of its times.
        bounded = len(runs) == 1 or not any(map(learned_times, models))
        if self._capture and bounded and all(map(can_be_recorded, runs)):
            self._recorder = Recorder([run.optimizer for run in runs], models)
        self._hand_out_drafts()

    def _hand_out_drafts(self) -> None:
        """Batches are filled up as long as steps on them can be recorded."""
        recorded = self._recorder is not None and not self._recorder.refuses("step")
        recorded &= not self._compile  # which looks into what kernels do with them
        for run in self._runs:
            run.feed.drafts = recorded

    @property
    def num_recordings(self) -> int:
        """How many kinds of steps and evaluations are replayed."""
        return 0 if self._recorder is None else self._recorder.num_recordings

    def _drive(self, routines: Sequence[Generator[Any, Any, Any]]) -> list[Any]:
        """Answers routines, one of each run, until they end; and returns what they return."""
        replies: list[Any] = [None] * len(routines)
        while True:
            requests, results = [], []
            for routine, reply in zip(routines, replies, strict=True):
                try:
                    requests.append(routine.send(reply))
                except StopIteration as end:
                    results.append(end.value)
            if results:
                return results
            replies = self.answer(requests)

    def answer(self, requests: Sequence[Request]) -> list[Any]:
        """A reply to each run; they are in step, and all of them ask for the same thing."""
        first = requests[0]
        if isinstance(first, Gradients):
            return self._differentiate([cast(Gradients, request).loss for request in requests])
        batches = [cast(Step | Output, request).batch for request in requests]
        if isinstance(first, Step):
            return self._perhaps_recorded("step", self._step, batches)
        if first.training:
            return self._outputs(batches, training=True)
        return self._perhaps_recorded("evaluation", self._outputs, batches)

    def _perhaps_recorded(
        self,
        name: str,
        call: Callable[[Sequence[Batch | Draft]], list[Tensor]],
        batches: Sequence[Batch | Draft],
    ) -> list[Tensor]:
        if self._recorder is None:
            return call(batches)
        return self._recorder(name, call, batches)

    def _step(self, batches: Sequence[Batch | Draft]) -> list[Tensor]:
        if self._compile and self._recorder is None:
            refresh_times(self._runs[0].model)  # which compiled code does not look at
        return self._drive(
            [run.take_step(batch) for run, batch in zip(self._runs, batches, strict=True)]
        )

    def _outputs(self, batches: Sequence[Batch | Draft], training: bool = False) -> list[Tensor]:
        read = [batch.read() for batch in batches]
        run, inputs, counts = self._runs[0], [batch.inputs for batch in read], read[0].counts
        context = run.precision.forward_context()
        with context, torch.set_grad_enabled(training), counted_rows(counts):
            if self._stack is not None:
                return list(self._stack(inputs).unbind(0))
            model: Model = run.model
            if self._compile:
                model = self._compiled = self._compiled or compiled(run.model)
            return [model(*inputs[0].arguments)]

    def _differentiate(self, losses: Sequence[Tensor]) -> list[None]:
        run = self._runs[0]
        if self._stack is None:
            run.optimizer.zero_grad()
            run.precision.backward(losses[0], run.model)
        else:
            self._stack.zero_grad()
            run.precision.backward(torch.stack(list(losses)).sum(), None)
        return [None] * len(losses)


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
    hidden = nodes * int(run.config.model.hidden_channels)
    return hidden <= SMALL.get(run.device.type, SMALL["cpu"])


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

        def call(parameters: dict[str, Tensor], x: Tensor | None, pe: Tensor | None) -> Tensor:
            arguments = inputs[0]._replace(x=cast(Tensor, x), pe=pe).arguments
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
