"""The names that an author of an algorithm, dataset, model, topology, partition, loss or metric imports.

docs/adding.md and docs/data.md use no others, and docs/api.md says how they may change. Importing this module registers
everything that is built in, so that a name of your own that clashes is an error at once.
"""

from __future__ import annotations

from peermask.algorithms import algorithms
from peermask.algorithms.contract import Agents, Algorithm, Clock, LocalData, MaskCounts, Payload, Setting
from peermask.data import Dataset, Split, datasets, from_arrays, from_torch, partitions
from peermask.data.partition import Indices
from peermask.engine.measures import Metric, metrics
from peermask.errors import ConfigError, DataError, GraphError, ModelError
from peermask.graph import Graph, Mixing, topologies
from peermask.models.architectures import Shape, models
from peermask.models.losses import Loss, losses
from peermask.models.network import Batch
from peermask.models.readout import Readout
from peermask.registry import Options, Registry
from peermask.streams import Stream, stream

__all__ = [
    "Agents", "Algorithm", "Batch", "Clock", "ConfigError", "DataError", "Dataset", "Graph", "GraphError", "Indices",
    "LocalData", "Loss", "MaskCounts", "Metric", "Mixing", "ModelError", "Options", "Payload", "Readout", "Registry",
    "Setting", "Shape", "Split", "Stream", "algorithms", "datasets", "from_arrays", "from_torch", "losses", "metrics",
    "models", "partitions", "stream", "topologies",
]  # fmt: skip
