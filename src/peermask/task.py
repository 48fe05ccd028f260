"""Tasks, the figures of each, and readouts: words of configs and manifests, which need no torch."""

from __future__ import annotations

from typing import Literal, TypeAlias

Task: TypeAlias = Literal["classification", "multi-label", "regression"]
Readout: TypeAlias = Literal["all", "own"]  # the labels that an agent's answer is chosen among

# Of each task; the first counts: runs are stopped and compared by it.
FIGURES: dict[Task, tuple[str, ...]] = {
    "classification": ("accuracy", "accuracy_all", "accuracy_own", "accuracy_weighted", "macro_f1"),
    "multi-label": ("f1", "average_precision"),
    "regression": ("r2", "mae"),
}
