"""Names for the curves of a comparison: the algorithm, and the keys in which runs differ."""

from __future__ import annotations

from collections.abc import Sequence

from peermask.experiment.config import ExperimentConfig
from peermask.experiment.toml_values import flatten

_SILENT = ("seed", "name", "imports", "algorithm.name")
_MOST = 3  # differences named; more would not be read


def labels_of(configs: Sequence[ExperimentConfig]) -> list[str]:
    """`mce-pl`, or `mce-pl, graph.p 0.3` where that is what differs among runs of mce-pl."""
    flat = [flatten(config.table()) for config in configs]
    labels = []
    for config, own in zip(configs, flat, strict=True):
        same = [other for other in flat if other["algorithm.name"] == own["algorithm.name"]]
        differing = [key for key in own if key not in _SILENT and any(other.get(key) != own[key] for other in same)]
        parts = [f"{key} {own[key]}" for key in differing[:_MOST]]
        labels.append(", ".join([config.algorithm.name, *parts]))
    return labels
