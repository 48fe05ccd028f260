"""Tasks, the figures of each and how they are printed, readouts and arms; it needs no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isnan
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


# Figures as people read them: shares in percent, R² and errors as numbers.


def format_bytes(count: float) -> str:
    """`12.3 MB`: powers of 1000, as networks count."""
    for unit in ("B", "kB", "MB"):
        if abs(count) < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


NAMES = {"f1": "F1", "macro_f1": "macro F1", "average_precision": "average precision", "r2": "R²", "mae": "MAE"}
SHARES = ("accuracy", "f1", "macro_f1", "average_precision", "density")


def figure_name(figure: str) -> str:
    """Name a figure in words: `test_accuracy` and `accuracy` are one."""
    plain = figure.removeprefix("test_")
    return NAMES.get(plain, plain.replace("_", " "))


def format_figure(figure: str, value: float) -> str:
    if isnan(value):
        return "-"
    is_share = figure.removeprefix("test_").startswith(SHARES)
    return f"{100 * value:.1f} %" if is_share else f"{value:.4g}"
