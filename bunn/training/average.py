"""A running mean of weights: what is evaluated in place of the last step's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from bunn.training.optimizer import is_time
from bunn.training.options import ConfigError


class Average:
    r"""The mean of a model's parameters over the steps so far, older ones fading:
    :math:`\bar w \leftarrow \beta \bar w + (1 - \beta) w`.

    Diffusion times are left alone: how many products they need is known for the last ones.

    Args:
        model: The model.
        decay: The factor :math:`\beta`; about :math:`1 / (1 - \beta)` steps count.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules()):
            raise ConfigError(
                f"training.average={decay}, but the model has BatchNorm, whose statistics are "
                "those of the last weights; use model.norm=layer, or no average"
            )
        self._model, self._weight = model, 1 - decay
        self.values = {
            name: parameter.detach().clone()
            for name, parameter in model.named_parameters()
            if not is_time(name)
        }

    @torch.no_grad()
    def update(self) -> None:
        """Takes the parameters in as they are now; it can be recorded in a CUDA graph."""
        torch._foreach_lerp_([*self.values.values()], self._parameters(), self._weight)

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
        means, parameters = [*self.values.values()], self._parameters()
        last = [parameter.clone() for parameter in parameters]
        torch._foreach_copy_(parameters, means)
        torch._foreach_copy_(means, last)

    def _parameters(self) -> list[Tensor]:
        return [
            parameter.detach()
            for name, parameter in self._model.named_parameters()
            if name in self.values
        ]
