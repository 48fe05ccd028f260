"""Which of how many ranks this process is, as given by torchrun, a batch system or `--processes`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from peermask.errors import RunError

AGENTS_STORE = "TORCHELASTIC_USE_AGENT_STORE"  # "True": torchrun itself keeps the store where ranks meet


@dataclass(frozen=True)
class Place:
    rank: int
    size: int
    local_rank: int  # among the ranks of this host
    local_size: int
    address: str  # where the ranks meet
    port: int
    keeper: str = "rank 0"  # the process that has the rendezvous store
    restarts: int = 0  # how often torchrun has started the ranks again
    most_restarts: int = 0  # how often it would

    @property
    def keeps_store(self) -> bool:
        return self.rank == 0 and self.keeper == "rank 0"

    @classmethod
    def told(cls, environment: Mapping[str, str] = os.environ) -> Place | None:
        """None for a process that is not a rank."""
        if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= set(environment):
            return None

        def number(name: str, otherwise: int | None = None) -> int:
            text = environment.get(name, str(otherwise))
            if not text.isdecimal():
                raise RunError(f"the environment has {name} = {text!r}; it must be a whole number, as torchrun sets it")
            return int(text)

        rank, size, local_rank = number("RANK"), number("WORLD_SIZE"), number("LOCAL_RANK", 0)
        if rank >= size:
            raise RunError(
                f"the environment has RANK = {rank} and WORLD_SIZE = {size}; ranks count from 0 to {size - 1}"
            )
        return cls(
            rank,
            size,
            local_rank,
            number("LOCAL_WORLD_SIZE", 1),
            environment["MASTER_ADDR"],
            number("MASTER_PORT"),
            "torchrun" if environment.get(AGENTS_STORE) == "True" else "rank 0",
            number("TORCHELASTIC_RESTART_COUNT", 0),
            number("TORCHELASTIC_MAX_RESTARTS", 0),
        )

    def environment(self, rank: int) -> dict[str, str]:
        """The environment of another rank, if all are on this host."""
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(self.size),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
        }
