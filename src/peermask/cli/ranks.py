"""The ranks that `peermask run` is computed by: one of torchrun's, or this process and those it starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from peermask.errors import ConfigError, RunError
from peermask.ranks.place import Place

if TYPE_CHECKING:
    from peermask.ranks.group import Backend, Ranks


@contextmanager
def ranks_of(
    place: Place | None,
    processes: int,
    arguments: Sequence[str],
    device: str,
    backend: Backend,
    limit: float,
    should_stop: Callable[[], bool],
) -> Iterator[Ranks | None]:
    """None where this process computes all agents."""
    if (processes if place is None else place.size) == 1:
        yield None
        return
    import torch.distributed as dist

    if not dist.is_available():
        raise RunError("this PyTorch was built without torch.distributed, which several processes need")
    if place is None:
        from peermask.ranks.children import children
        from peermask.ranks.group import joined, own_device
        from peermask.ranks.rendezvous import listen_here

        where = own_device(device, Place(0, processes, 0, processes, "127.0.0.1", 0))
        listener, port = listen_here()
        place = Place(0, processes, 0, processes, "127.0.0.1", port)
        with (
            children(place, arguments) as others,
            joined(
                place, where, backend=backend, limit=limit, should_stop=should_stop, fate=others.fate, listener=listener
            ) as ranks,
        ):
            yield ranks
    else:
        from peermask.ranks.group import joined, own_device

        with joined(place, own_device(device, place), backend=backend, limit=limit, should_stop=should_stop) as ranks:
            yield ranks


def told_place(processes: int | None) -> Place | None:
    """Where torchrun or a batch system put this process; its number of processes is then theirs to give."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # before torch is imported: it logs pages about a lost rank
    place = Place.told()
    if place is not None and processes is not None:
        raise ConfigError(
            f"--processes {processes}: this is rank {place.rank} of {place.size} already, started by torchrun or such; "
            "leave --processes out"
        )
    return place
