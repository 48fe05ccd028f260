"""Small data of every kind and task, which a few rounds learn something of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor, nn

import peermask
from peermask.data.dataset import Dataset

DRAW = np.random.Generator(np.random.Philox(7))
TABLE = DRAW.normal(size=(160, 5)) * [1, 50, 1e4, 1e-3, 2] + [0, 100, 0, 0, 5]
TOKENS = DRAW.integers(0, 20, (160, 9))
KIND = np.arange(160) % 3
SERIES = DRAW.normal(size=(160, 2, 16)) + np.sin(np.arange(16) * (KIND[:, None, None] + 1) / 3)
IMAGES = DRAW.integers(0, 60, (160, 6, 6)) + 60 * KIND[:, None, None]


def split(x: Any, y: Any, **options: Any) -> Dataset:
    return peermask.from_arrays(x[:120], y[:120], x[120:], y[120:], **options)


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 4)
        self.lstm = nn.LSTM(4, 6, batch_first=True)
        self.head = nn.Linear(6, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(tokens))
        return self.head(states[:, -1])  # type: ignore[no-any-return]


# What the data is, which model, and which figures it is measured by.
CASES: dict[str, tuple[Callable[[], Dataset], dict[str, Any], tuple[str, ...]]] = {
    "table": (
        lambda: split(TABLE, (TABLE[:, 1] > 100).astype(int), name="table"),
        {"model": {"name": "mlp", "hidden": [24]}},
        ("accuracy", "macro_f1"),
    ),
    "series": (lambda: split(SERIES, KIND, kind="features"), {"model": "cnn1d"}, ("accuracy", "macro_f1")),
    "images": (
        lambda: split(IMAGES, KIND, normalise="statistics"),
        {"model": {"name": "cnn", "channels": [4], "hidden": 8}, "readout": "own"},
        ("accuracy", "macro_f1"),
    ),
    "tokens": (
        lambda: split(TOKENS, (TOKENS[:, 0] > 9).astype(int), kind="tokens"),
        {"model": {"name": "text", "width": 6, "channels": 8}},
        ("accuracy", "macro_f1"),
    ),
    "multi-label": (
        lambda: split(TABLE, TABLE[:, :3] > [0, 100, 0], task="multi-label"),
        {"model": {"name": "mlp", "hidden": [24]}},
        ("f1", "average_precision"),
    ),
    "regression": (
        lambda: split(TABLE, 300 + 20 * TABLE[:, 0] + TABLE[:, 1], task="regression"),
        {"model": {"name": "mlp", "hidden": [24]}},
        ("r2", "mae"),
    ),
    "two-outputs": (
        lambda: split(TABLE, TABLE[:, :2], task="regression", classes=["a", "b"]),
        {"model": {"name": "mlp", "hidden": [24]}},
        ("r2", "mae"),
    ),
}


def config(**changes: Any) -> dict[str, Any]:
    return {
        "agents": 3,
        "rounds": 8,
        "batch_size": 16,
        "retention": 0.6,
        "graph": {"name": "ring"},
        "partition": {"name": "iid"},
        "evaluation": {"every": 4},
        "checkpoint": {"every": 3},
        **changes,
    }
