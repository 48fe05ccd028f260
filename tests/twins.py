"""Compiled loops and what they replace, side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar
from unittest.mock import patch

import pytest

from peermask import compiled

T = TypeVar("T")


def by_both(function: Callable[[], T]) -> tuple[T, T]:
    """What a function gives with compiled loops, of any size, and without them."""
    pytest.importorskip("numba")
    with patch.object(compiled, "LEAST", 1), patch.object(compiled, "have_numba", return_value=True) as asked:
        fast = function()
    assert asked.called  # or it would be compared with itself
    with patch.object(compiled, "have_numba", return_value=False):
        return fast, function()
