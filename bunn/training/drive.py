r"""How the requests of a run are answered: by its model alone, or for many runs at once.

Runs that differ in nothing but their seed (or in the split of the same graph) have models of the
same shape. :class:`Together` stacks their parameters and answers all of them with one call under
:func:`torch.func.vmap`: :math:`R` products of a small matrix become one batched product. With
batches of one small graph, where a step is mostly overhead, this trains :math:`R` seeds in the
time of a few. Each run keeps its own optimiser, schedule, best epoch and checkpoint, and sees the
numbers it would see alone, up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from bunn.training.run import Epoch, Gradients, Output, Run

#: Batches of at most this many hidden values are worth stacking: beyond, products fill a core.
SMALL = 2**15


def train_epoch(runs: Sequence[Run]) -> None:
    """One epoch of every run, in step."""
    answer = _alone if len(runs) == 1 else _together
    epochs = [run.next_epoch() for run in runs]
    requests = [next(epoch) for epoch in epochs]
    while requests:
        replies = answer(runs, requests)
        requests = [request for request in map(_go_on, epochs, replies) if request is not None]


def _go_on(epoch: Epoch, reply: Any) -> Output | Gradients | None:
    """The next request of an epoch, :obj:`None` when it is over."""
    try:
        return epoch.send(reply)
    except StopIteration:
        return None


def can_be_stacked(run: Run) -> bool:
    """Whether a run's model works under :func:`torch.func.vmap`: it keeps no running averages."""
    return not any(
        isinstance(part, nn.modules.batchnorm._BatchNorm) for part in run.model.modules()
    )


def is_small(run: Run) -> bool:
    """Whether a training step is mostly overhead."""
    graph = run.feed.parts["train"][0]
    nodes = int(graph.num_nodes or 0) * run.feed.batch_size
    return nodes * int(run.config.model.hidden_channels) <= SMALL


def _alone(runs: Sequence[Run], requests: Sequence[Output | Gradients]) -> list[Any]:
    run, request = runs[0], requests[0]
    if isinstance(request, Gradients):
        run.precision.backward(request.loss, run.model)
        return [None]
    with run.precision.forward_context(), torch.set_grad_enabled(request.training):
        return [run.model(*request.inputs)]


def _together(runs: Sequence[Run], requests: Sequence[Output | Gradients]) -> list[Any]:
    precision = runs[0].precision
    losses = [request.loss for request in requests if isinstance(request, Gradients)]
    if losses:  # runs are in step: all of them ask for the same thing
        precision.backward(torch.stack(losses).sum(), None)
        return [None] * len(runs)
    asked = [request for request in requests if isinstance(request, Output)]
    with precision.forward_context(), torch.set_grad_enabled(asked[0].training):
        return list(_stacked_call([run.model for run in runs], asked).unbind(0))


def _stacked_call(models: Sequence[nn.Module], requests: Sequence[Output]) -> Tensor:
    """``(R, rows, outputs)``: every model on its own inputs, on edges that all of them share."""
    edge_index = requests[0].inputs.edge_index
    if any(request.inputs.edge_index is not edge_index for request in requests):
        raise ValueError("training together needs the same graph in every run; set together=false")
    states = [dict(model.named_parameters()) for model in models]
    parameters = {name: torch.stack([state[name] for state in states]) for name in states[0]}
    x, x_dim = _shared_or_stacked([request.inputs.x for request in requests])
    pe, pe_dim = _shared_or_stacked([request.inputs.pe for request in requests])
    _, _, edge_weight, _, batch, size = requests[0].inputs

    def call(parameters: dict[str, Tensor], x: Tensor | None, pe: Tensor | None) -> Tensor:
        inputs = (x, edge_index, edge_weight, pe, batch, size)
        output: Tensor = functional_call(models[0], parameters, inputs)
        return output

    dims = (dict.fromkeys(parameters, 0), x_dim, pe_dim)
    output: Tensor = vmap(call, in_dims=dims, randomness="different")(parameters, x, pe)
    return output


def _shared_or_stacked(values: Sequence[Tensor | None]) -> tuple[Tensor | None, int | None]:
    """The tensor that all share, with no batch dimension; or a stack, with dimension 0."""
    first = values[0]
    if all(value is first for value in values):
        return first, None
    return torch.stack([value for value in values if value is not None]), 0
