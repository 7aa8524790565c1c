"""Bundle Neural Networks: message diffusion on graphs, for PyTorch Geometric."""

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
