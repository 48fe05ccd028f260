"""The ranks of `peermask run`: one of torchrun's, or with `--processes N` this process, and torch starts the others.

No rank outlives this process: until the ranks have met, each asks whether its parent is alive; then its connection with
rank 0 tells.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING

from peermask.errors import ConfigError, RunError
from peermask.run.rendezvous import Place, rank_from_env

if TYPE_CHECKING:
    from peermask.run.rank_group import Backend, Ranks

EXIT_LIMIT_S = 10.0  # for the other ranks, once rank 0 has ended


@contextmanager
def open_ranks(
    place: Place | None,
    processes: int,
    arguments: Sequence[str],
    device: str,
    backend: Backend,
    limit_s: float,
    should_stop: Callable[[], bool],
) -> Iterator[Ranks | None]:
    """Yield None where this process computes all agents."""
    if (processes if place is None else place.size) == 1:
        yield None
        return
    import torch.distributed as dist

    if not dist.is_available():
        raise RunError("this PyTorch was built without torch.distributed, which several processes need")
    from peermask.run.rank_group import join_ranks, own_device
    from peermask.run.rendezvous import Waiting, listen

    with ExitStack() as stack:
        fate: Callable[[int], str | None] = parent_fate
        listener = None
        if place is None:
            listener = stack.enter_context(listen("127.0.0.1"))
            place = Place(0, processes, 0, processes, "127.0.0.1", listener.getsockname()[1])
            own_device(device, place)  # a wrong one is said once
            fate = stack.enter_context(launch(place, arguments))
        waiting = Waiting(limit_s, should_stop, fate)
        yield stack.enter_context(join_ranks(place, device, backend=backend, waiting=waiting, listener=listener))


def rank_of_command(processes: int | None) -> Place | None:
    """The rank that torchrun or a batch system made of this process; they then set the number of processes."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # before torch is imported: it logs pages about a lost rank
    place = rank_from_env()
    if place is not None and processes is not None:
        raise ConfigError(
            f"--processes {processes}: this is rank {place.rank} of {place.size} already, started by torchrun or such; "
            "leave --processes out"
        )
    return place


def stop_with_torchrun(place: Place | None, requested: Callable[[], bool]) -> Callable[[], bool]:
    """Stop on request, or because the torchrun that started this rank has died."""
    parent = os.getppid()
    if place is None or place.store_owner != "torchrun":
        return requested
    return lambda: requested() or os.getppid() != parent


@contextmanager
def launch(place: Place, arguments: Sequence[str]) -> Iterator[Callable[[int], str | None]]:
    """Start ranks 1 and up with `peermask` and these arguments, and end them with this block.

    Yields a function that says how a rank ended, as the rest of a sentence, and None while it is alive.
    """
    from torch.multiprocessing.spawn import start_processes

    resource_tracker.ensure_running()  # it unblocks signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # ranks inherit it: Ctrl-C is for rank 0
    try:
        started = start_processes(_run_rank, (place, arguments), place.size - 1, join=False)
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


def _run_rank(index: int, place: Place, arguments: Sequence[str]) -> None:
    from peermask.cli.main import main

    os.environ.update(replace(place, rank=index + 1, local_rank=index + 1).environment())
    main(list(arguments))


def parent_fate(rank: int) -> str | None:
    """Say how rank 0 ended, to a rank that it launched."""
    parent = multiprocessing.parent_process()
    return "died" if rank == 0 and parent is not None and not parent.is_alive() else None
