"""Tasks, the figures of each, readouts and arms: words of configs and manifests, which need no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

Task: TypeAlias = Literal["classification", "multi-label", "regression"]
Readout: TypeAlias = Literal["all", "own"]  # the labels that an agent's answer is chosen among

# Of each task; the first counts: runs are stopped and compared by it.
FIGURES: dict[Task, tuple[str, ...]] = {
    "classification": ("accuracy", "accuracy_all", "accuracy_own", "accuracy_weighted", "macro_f1"),
    "multi-label": ("f1", "average_precision"),
    "regression": ("r2", "mae"),
}


def arm_names(algorithms: Iterable[str]) -> list[str]:
    """Name the arms of a comparison: two of one algorithm are `mce-pl` and `mce-pl-2`."""
    names: list[str] = []
    for algorithm in algorithms:
        name, count = algorithm, 2
        while name in names:
            name, count = f"{algorithm}-{count}", count + 1
        names.append(name)
    return names


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """`{"graph": {"p": 0.5}}` as `{"graph.p": "0.5"}`."""
    flat: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = str(value)
    return flat
