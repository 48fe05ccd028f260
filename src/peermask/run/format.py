"""Figures as people read them: shares in percent, R² and errors as numbers."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from peermask.run.evaluate import Score  # which needs torch


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


def format_headline(score: Score) -> str:
    """`accuracy 93.1 %`: the mean over agents of the figure that counts."""
    main = next(iter(score.figures))
    return f"{figure_name(main)} {format_figure(main, float(score.main.nanmean()))}"
