"""Datasets, and how their samples are shared out among agents. Importing registers every dataset."""

from peermask.data import cifar10, digits, fashion_mnist, folders, npz, table
from peermask.data.arrays import from_arrays
from peermask.data.batches import Augmentation
from peermask.data.dataset import Dataset, Split, datasets
from peermask.data.local import LocalSamples, share_out
from peermask.data.partition import partitions
from peermask.data.table import from_dataframe
from peermask.data.torch_dataset import from_torch

__all__ = [
    "Augmentation", "Dataset", "LocalSamples", "Split", "cifar10", "datasets", "digits", "fashion_mnist", "folders",
    "from_arrays", "from_dataframe", "from_torch", "npz", "partitions", "share_out", "table",
]  # fmt: skip
