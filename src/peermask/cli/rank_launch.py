"""The ranks of `peermask run --processes N`: this process is rank 0, and torch starts the others.

No rank outlives this process: until the ranks have met, each asks whether its parent is alive; then its connection with
rank 0 tells.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import resource_tracker

from torch.multiprocessing.spawn import start_processes

from peermask.run.rank_control import Place

EXIT_LIMIT_S = 10.0  # for the other ranks, once rank 0 has ended


@contextmanager
def launch(
    place: Place, work: Callable[[Sequence[str]], None], arguments: Sequence[str]
) -> Iterator[Callable[[int], str | None]]:
    """Start ranks 1 and up with `work(arguments)`, and end them with this block.

    Yields a function that says how a rank ended, as the rest of a sentence, and None while it is alive.
    """
    resource_tracker.ensure_running()  # it unblocks signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # ranks inherit it: Ctrl-C is for rank 0
    try:
        started = start_processes(_run_rank, (place, work, arguments), place.size - 1, join=False)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    processes, limit_s = started.processes, EXIT_LIMIT_S

    def fate(rank: int) -> str | None:
        code = processes[rank - 1].exitcode if rank else None
        if code is None:
            return None
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    try:
        yield fate
    except KeyboardInterrupt:
        limit_s = 0.0
        raise
    finally:
        until = time.monotonic() + limit_s
        for process in processes:
            process.join(max(0.0, until - time.monotonic()))
            process.kill()
            process.join()


def _run_rank(index: int, place: Place, work: Callable[[Sequence[str]], None], arguments: Sequence[str]) -> None:
    os.environ.update(replace(place, rank=index + 1, local_rank=index + 1).environment())
    work(arguments)


def parent_fate(rank: int) -> str | None:
    """How rank 0 ended, asked by a rank that it launched."""
    parent = multiprocessing.parent_process()
    return "died" if rank == 0 and parent is not None and not parent.is_alive() else None
