"""A running mean of weights: what is evaluated in place of the last step's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from bunn.training.optimizer import is_time


class Average:
    r"""The mean of a model's parameters over the steps so far, older ones fading:
    :math:`\bar w \leftarrow \beta \bar w + (1 - \beta) w`.

    So are the running statistics of a BatchNorm. Diffusion times are left alone: how many products
    they need is known for the last ones.

    Args:
        model: The model.
        decay: The factor :math:`\beta`; about :math:`1 / (1 - \beta)` steps count.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._model, self._weight = model, 1 - decay
        self.values = {name: value.clone() for name, value in self._averaged().items()}

    @torch.no_grad()
    def update(self) -> None:
        """Takes the parameters in as they are now; it can be recorded in a CUDA graph."""
        latest = [*self._averaged().values()]
        torch._foreach_lerp_([*self.values.values()], latest, self._weight)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Meanwhile the model has the mean, in the memory of its parameters."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        means, parameters = [*self.values.values()], [*self._averaged().values()]
        last = [parameter.clone() for parameter in parameters]
        torch._foreach_copy_(parameters, means)
        torch._foreach_copy_(means, last)

    def _averaged(self) -> dict[str, Tensor]:
        """What there is a mean of, in the memory of the model."""
        statistics = {
            f"{place}.{name}": buffer
            for place, part in self._model.named_modules()
            if isinstance(part, nn.modules.batchnorm._BatchNorm)
            for name, buffer in part.named_buffers()
            if buffer.is_floating_point()
        }
        weights = self._model.named_parameters()
        return {name: w.detach() for name, w in weights if not is_time(name)} | statistics
