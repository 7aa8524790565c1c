"""Training: one loop for every dataset and every model."""

from bunn.training.checkpoint import CheckpointError
from bunn.training.config import Config, Encoding, Optimizer, Schedule, Training
from bunn.training.divergence import NonFiniteLossError
from bunn.training.drive import CompileError
from bunn.training.models import MODELS, BuNNOptions
from bunn.training.options import ConfigError
from bunn.training.record import RunFolderError
from bunn.training.run import Evaluation, Run
from bunn.training.train import InterruptedRunError, Outcome, train
from bunn.training.watch import LiveDisplay, Progressed

__all__ = [
    "MODELS",
    "BuNNOptions",
    "CheckpointError",
    "CompileError",
    "Config",
    "ConfigError",
    "Encoding",
    "Evaluation",
    "InterruptedRunError",
    "LiveDisplay",
    "NonFiniteLossError",
    "Optimizer",
    "Outcome",
    "Progressed",
    "Run",
    "RunFolderError",
    "Schedule",
    "Training",
    "train",
]
