"""The device and the precision of a training, through Lightning Fabric."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins import DoublePrecision, MixedPrecision
from lightning.fabric.plugins import Precision as FullPrecision
from torch import Tensor, nn

from bunn.sharing import forget_graphs
from bunn.training.checkpoint import Tensors

# Lightning advises on matrix precision whenever it sees a GPU; that is the user's to choose.
for _name in ("lightning.fabric", "lightning.pytorch"):
    logging.getLogger(_name).setLevel(logging.WARNING)

DEVICES = ("auto", "cpu", "cuda")


def free_memory() -> None:
    """Gives back what a training has left behind, so that the next one pays for the same: graphs,
    and what is known of them, hold each other until somebody looks."""
    forget_graphs()
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


class TF32Precision(FullPrecision):
    """float32, the factors of whose matrix products a GPU rounds to TF32, several times faster."""

    @contextmanager
    def forward_context(self) -> Iterator[None]:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)

    def backward(self, tensor: Tensor, model: nn.Module | None, *args: Any, **kwargs: Any) -> None:
        with self.forward_context():
            super().backward(tensor, model, *args, **kwargs)


def _precision(name: str, kind: str) -> FullPrecision:
    if name == "32" or (name == "tf32" and kind == "cpu"):
        return FullPrecision()
    if name == "tf32":
        return TF32Precision()
    if name == "64":
        return DoublePrecision()
    return MixedPrecision(name, kind)  # type: ignore[arg-type]


class Device:
    """Where a training runs and in which precision.

    Args:
        name: ``"cpu"``, ``"cuda"``, or ``"auto"`` for the best there is.
        precision: ``"32"``, ``"64"``, ``"tf32"``, ``"bf16-mixed"`` or ``"16-mixed"``.
    """

    def __init__(self, name: str, precision: str) -> None:
        if name not in DEVICES:
            raise ValueError(f"device={name!r}; use one of {list(DEVICES)}")
        if name == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                "device='cuda', but torch sees no CUDA device; use device='cpu' (--device cpu)"
            )
        kind = "cuda" if name != "cpu" and torch.cuda.is_available() else "cpu"
        self.precision = _precision(precision, kind)
        self.fabric = Fabric(accelerator=kind, devices=1, plugins=[self.precision])
        self.fabric.launch()
        self.device: torch.device = self.fabric.device
        self._fresh = self.precision_state()

    def start(self, seed: int) -> None:
        """Starts all random streams, and the loss scale of float16."""
        torch.manual_seed(seed)
        self.precision.load_state_dict(self._fresh)

    def random_state(self) -> Tensors:
        states = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self.device)
        return states

    def precision_state(self) -> dict[str, Any]:
        """The loss scale of float16."""
        return dict(self.precision.state_dict())

    def restore(self, random: Tensors, precision: dict[str, Any]) -> None:
        """Goes back to a state that was saved."""
        torch.set_rng_state(random["cpu"])
        if self.device.type == "cuda" and "cuda" in random:
            torch.cuda.set_rng_state(random["cuda"], self.device)
        self.precision.load_state_dict(precision)
