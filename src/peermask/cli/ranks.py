"""The ranks of `peermask run`: one of torchrun's, or this process and those it starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from peermask.errors import ConfigError, RunError
from peermask.ranks.place import Place, rank_from_env

if TYPE_CHECKING:
    from peermask.ranks.group import Backend, Ranks


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
    from peermask.ranks.group import join_ranks, own_device
    from peermask.ranks.launch import launch, parent_fate
    from peermask.ranks.rendezvous import Waiting, listen

    with ExitStack() as stack:
        fate: Callable[[int], str | None] = parent_fate
        listener = None
        if place is None:
            listener = stack.enter_context(listen("127.0.0.1"))
            place = Place(0, processes, 0, processes, "127.0.0.1", listener.getsockname()[1])
            own_device(device, place)  # a wrong one is said once
            fate = stack.enter_context(launch(place, _run_command, arguments))
        waiting = Waiting(limit_s, should_stop, fate)
        yield stack.enter_context(join_ranks(place, device, backend=backend, waiting=waiting, listener=listener))


def _run_command(arguments: Sequence[str]) -> None:
    from peermask.cli.main import main

    main(list(arguments))


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
