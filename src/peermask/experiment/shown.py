"""Figures as people read them: shares in percent, R² and errors as numbers."""

from __future__ import annotations

from math import isnan

from peermask.engine.evaluate import Score

NAMES = {"f1": "F1", "macro_f1": "macro F1", "average_precision": "average precision", "r2": "R²", "mae": "MAE"}
SHARES = ("accuracy", "f1", "macro_f1", "average_precision", "density")


def name_of(figure: str) -> str:
    """In words: `test_accuracy` and `accuracy` are one."""
    plain = figure.removeprefix("test_")
    return NAMES.get(plain, plain.replace("_", " "))


def shown(figure: str, value: float) -> str:
    if isnan(value):
        return "-"
    is_share = figure.removeprefix("test_").startswith(SHARES)
    return f"{100 * value:.1f} %" if is_share else f"{value:.4g}"


def headline(score: Score) -> str:
    """`accuracy 93.1 %`: the mean over agents of the figure that counts."""
    main = next(iter(score.figures))
    return f"{name_of(main)} {shown(main, float(score.main.nanmean()))}"
