"""Datasets by name, the paper's synthetic tasks among them."""

from bunn.data.dataset import DatasetSpec, GraphCollection, GraphDataset, GraphList, Split, Task
from bunn.data.encoders import AtomEncoder, KeyValueEncoder
from bunn.data.minesweeper import BoardOptions
from bunn.data.neighborsmatch import TreeOptions
from bunn.data.options import NoOptions
from bunn.data.registry import DATASETS, dataset_spec, load_dataset
from bunn.data.root import MissingDataError, data_root
from bunn.data.synthetic import ClusterOptions, constant_baselines

__all__ = [
    "DATASETS",
    "AtomEncoder",
    "BoardOptions",
    "ClusterOptions",
    "DatasetSpec",
    "GraphCollection",
    "GraphDataset",
    "GraphList",
    "KeyValueEncoder",
    "MissingDataError",
    "NoOptions",
    "Split",
    "Task",
    "TreeOptions",
    "constant_baselines",
    "data_root",
    "dataset_spec",
    "load_dataset",
]
