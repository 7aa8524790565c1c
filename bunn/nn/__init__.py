"""The BuNN layer, the networks that compute bundles, and the model."""

from bunn.nn.block import BuNNBlock
from bunn.nn.conv import BuNNConv
from bunn.nn.encoders import EigenvectorEncoder, PositionalEncoder, RandomWalkEncoder
from bunn.nn.model import BuNN
from bunn.nn.phi import MLPPhi, PhiNetwork, ResidualSumPhi, SAGEPhi, SumGNNPhi
from bunn.nn.time import DiffusionTime, log_spaced_times, refresh_times
from bunn.nn.update import UPDATES, Update

__all__ = [
    "UPDATES",
    "BuNN",
    "BuNNBlock",
    "BuNNConv",
    "DiffusionTime",
    "EigenvectorEncoder",
    "MLPPhi",
    "PhiNetwork",
    "PositionalEncoder",
    "RandomWalkEncoder",
    "ResidualSumPhi",
    "SAGEPhi",
    "SumGNNPhi",
    "Update",
    "log_spaced_times",
    "refresh_times",
]
