"""The interface between a run and its environment: how the agents of this process receive messages of all others.

One loop of rounds (`experiment/loop.py`) is given an exchange and does not know which:

    Concatenation   experiment/concatenation.py   all agents are here; bytes are what the codec would send
    Unsynchronised  experiment/unsynchronised.py  the same, each agent in its own round
    Ranked          experiment/ranked.py          some agents are here, the others in other processes of the run
    NodeExchange    node/exchange.py              one agent is here; bytes are what was actually sent
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from peermask.algorithms.contract import Clock, Payload
from peermask.engine.simulator import Simulator


class Abandoned(Exception):
    """Raised by an exchange that was stopped while it waited for others: the round is not played."""


class Exchange(Protocol):
    """Of A agents in this process, whose rows are written with those of N: of all agents, or only of its own."""

    @property
    def messages(self) -> Payload:
        """What the agents here sent last [A, ...]; empty where nothing was."""
        ...

    def proceed(self, round: int) -> int:
        """The round to play after `round`, of which everything is done: the next, or one that the others reached."""
        ...

    def play(self, simulator: Simulator, clock: Clock) -> Tensor:
        """A round of the agents here, with what came from the others; their losses [A]."""
        ...

    def count(self, round: int) -> None:
        """Note what the messages of a round cost. No round waits for a device here."""
        ...

    def sent_bytes(self) -> Tensor:
        """[N] float64 on the CPU: so far, over all links."""
        ...

    def flush(self) -> None:
        """Write the rows of traffic.csv that are known by now."""
        ...

    def state(self) -> Payload:
        """What a resumed run must know of messages, on the CPU; it is part of a checkpoint."""
        ...

    def all_gather(self, rows: Tensor) -> Tensor:
        """[A, ...] of the agents here -> [N, ...] of all whose rows are written together; for a few numbers each."""
        ...

    def gather(self, rows: Tensor) -> Tensor:
        """[A, ...] on the CPU -> [N, ...] in the process that writes the run; elsewhere it is not used."""
        ...

    def conclude(self, save: Callable[[], None]) -> None:
        """After the last round: save it, and stay for neighbours that still need its messages."""
        ...
