"""Loops over arrays, compiled for this CPU by Numba: `pip install 'peermask[cpu]'`.

Where Numba is missing, torch's or NumPy's operations compute the same, bit for bit. A file of such loops ends in
`_numba` and is imported only once there is work for it: Numba takes time to load, and memory.

A loop checks no bounds: what calls it has checked that shapes fit, and otherwise leaves the work, and the error, to the
library. One on disk is compiled again only if its own file changes, so that constants of other files are arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LEAST = 2**18  # entries from which a compiled loop is worth its import


@cache
def have_numba() -> bool:
    try:
        import numba  # noqa: F401
    except (ImportError, OSError):  # or one that cannot work with this NumPy, or without its library
        return False
    return True


def by_loops(entries: int) -> bool:
    """Whether compiled loops, and not the operations of a library, go over so many entries."""
    return entries >= LEAST and have_numba()


def compiled(function: Callable[P, T]) -> Callable[P, T]:
    """The function, compiled when first called and kept on disk; it runs without Python's lock."""
    from numba import njit

    # A division by zero gives infinity, as in NumPy: a loop that could raise an error is not vectorised.
    compiler = partial(njit, nogil=True, error_model="numpy")
    try:
        made: Callable[P, T] = compiler(cache=True)(function)
    except RuntimeError:  # there is no folder that this user may write to
        made = compiler()(function)
    return made
