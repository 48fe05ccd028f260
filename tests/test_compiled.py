"""Where compiled loops are used, and where there is no folder to keep them in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from peermask import compiled


def test_small_work_does_not_load_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "have_numba", lambda: True)
    assert not compiled.by_loops(compiled.LEAST - 1)
    assert compiled.by_loops(compiled.LEAST)
    monkeypatch.setattr(compiled, "have_numba", lambda: False)
    assert not compiled.by_loops(compiled.LEAST)


def test_a_loop_that_cannot_be_kept_is_compiled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    numba = pytest.importorskip("numba")
    compile_ = numba.njit

    def njit(cache: bool = False, **options: Any) -> Callable[..., Any]:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        made: Callable[..., Any] = compile_(**options)
        return made

    def doubled(x: int) -> int:
        return 2 * x

    with monkeypatch.context() as patch:
        patch.setattr(numba, "njit", njit)
        made_without = compiled.compiled(doubled)
    assert made_without(21) == 42
