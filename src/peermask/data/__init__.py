"""Datasets, and how their samples are shared out among agents. Importing registers every dataset."""

from peermask.data import digits
from peermask.data.batches import batch_indices
from peermask.data.dataset import Dataset, Split, datasets
from peermask.data.local import LocalSamples, share_out
from peermask.data.partition import partitions

__all__ = [
    "Dataset",
    "LocalSamples",
    "Split",
    "batch_indices",
    "datasets",
    "digits",
    "partitions",
    "share_out",
]
