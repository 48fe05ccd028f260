"""Rank of this process among several, as torchrun, a batch system or `--processes` set it in the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from peermask.errors import RunError


@dataclass(frozen=True)
class Place:
    rank: int
    size: int
    local_rank: int  # among the ranks of this host
    local_size: int
    address: str  # of the rendezvous
    port: int
    store_owner: str = "rank 0"  # the process that serves the rendezvous store
    restarts: int = 0  # how often torchrun has restarted the ranks
    max_restarts: int = 0

    def environment(self) -> dict[str, str]:
        """The variables that `rank_from_env` reads."""
        numbers = {"RANK": self.rank, "WORLD_SIZE": self.size, "LOCAL_RANK": self.local_rank}
        numbers |= {"LOCAL_WORLD_SIZE": self.local_size, "MASTER_PORT": self.port}
        return {"MASTER_ADDR": self.address, **{name: str(value) for name, value in numbers.items()}}


def rank_from_env(environment: Mapping[str, str] = os.environ) -> Place | None:
    """Read the variables that torchrun sets; None for a process that is not a rank."""
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= set(environment):
        return None

    def number(name: str, default: int = 0) -> int:
        text = environment.get(name, str(default))
        if not text.isdecimal():
            raise RunError(f"the environment has {name} = {text!r}; it must be a whole number, as torchrun sets it")
        return int(text)

    rank, size = number("RANK"), number("WORLD_SIZE")
    if rank >= size:
        raise RunError(f"the environment has RANK = {rank} and WORLD_SIZE = {size}; ranks count from 0 to {size - 1}")
    return Place(
        rank,
        size,
        number("LOCAL_RANK"),
        number("LOCAL_WORLD_SIZE", 1),
        environment["MASTER_ADDR"].strip("[]"),  # an IPv6 address may be in brackets
        number("MASTER_PORT"),
        "torchrun" if environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else "rank 0",
        number("TORCHELASTIC_RESTART_COUNT"),
        number("TORCHELASTIC_MAX_RESTARTS"),
    )
