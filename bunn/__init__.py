"""Bundle Neural Networks: message diffusion on graphs, for PyTorch Geometric."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bunn.bundle import FlatBundle, num_map_params
    from bunn.diffusion import diffuse, heat_kernel
    from bunn.laplacian import Laplacian
    from bunn.nn import BuNN, BuNNConv

__version__ = "0.1.0"

__all__ = [
    "BuNN",
    "BuNNConv",
    "FlatBundle",
    "Laplacian",
    "diffuse",
    "heat_kernel",
    "num_map_params",
]

#: Where names are. They are loaded at their first use: torch and PyG take seconds, and much of the
#: command line needs neither.
_MODULES = {
    "BuNN": "nn",
    "BuNNConv": "nn",
    "FlatBundle": "bundle",
    "Laplacian": "laplacian",
    "diffuse": "diffusion",
    "heat_kernel": "diffusion",
    "num_map_params": "bundle",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        globals()[name] = found = getattr(import_module(f"bunn.{_MODULES[name]}"), name)
        return found
    if name in _MODULES.values():
        return import_module(f"bunn.{name}")
    raise AttributeError(f"module 'bunn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_MODULES.values()})
