"""The names that an author of an algorithm, dataset, model, topology, partition, loss or metric imports.

docs/adding.md and docs/data.md use no others, and docs/api.md says how they may change. Importing this module registers
everything that is built in, so that a name of your own that clashes is an error at once.
"""

from __future__ import annotations

from peermask.algorithms import algorithms
from peermask.algorithms.contract import Agents, Algorithm, Clock, LocalData, MaskCounts, Setting
from peermask.compute.network import Batch
from peermask.data import Dataset, Split, datasets, from_arrays, from_torch, partitions
from peermask.data.measures import Metric, metrics
from peermask.data.partition import Indices
from peermask.errors import ConfigError, DataError, GraphError, ModelError
from peermask.graph import Graph, Mixing, topologies
from peermask.models.architectures import Shape, models
from peermask.models.outputs import Loss, Readout, losses
from peermask.registry import Options, Registry
from peermask.streams import Stream, stream
from peermask.wire.schema import Payload

__all__ = [
    "Agents", "Algorithm", "Batch", "Clock", "ConfigError", "DataError", "Dataset", "Graph", "GraphError", "Indices",
    "LocalData", "Loss", "MaskCounts", "Metric", "Mixing", "ModelError", "Options", "Payload", "Readout", "Registry",
    "Setting", "Shape", "Split", "Stream", "algorithms", "datasets", "from_arrays", "from_torch", "losses", "metrics",
    "models", "partitions", "stream", "topologies",
]  # fmt: skip
