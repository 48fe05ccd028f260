"""Traces: in each round of each agent, which message of each neighbour it used, in asynchronous runs.

The simulator makes a trace of the agents' speeds and plays it; a fleet records one, which the simulator plays as well.
Agents publish a message after they have learned and looked for the newest ones, so what they use was published before:
all rounds of all agents have an order, and a trace in which they have none was never recorded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from peermask.errors import RunError
from peermask.graph.links import Integers, Links
from peermask.streams import stream

# Shapes: N agents, R rounds, E links

Event = tuple[int, int]  # an agent and its round, 1 being the first


@dataclass(frozen=True, eq=False)
class Trace:
    links: Links  # of all agents
    heard: NDArray[np.int32]  # [R, E]: by the receiver's round, the round of the sender's message; 0: none

    @property
    def rounds(self) -> int:
        return len(self.heard)

    def used(self, event: Event) -> dict[int, int]:
        """Neighbour -> the round of its message that an agent used in a round; neighbours that were not heard are left
        out."""
        agent, number = event
        span = slice(int(self.links.starts[agent]), int(self.links.starts[agent + 1]))
        rounds = self.heard[number - 1, span].tolist() if number else [0] * (span.stop - span.start)
        return {j: used for j, used in zip(self.links.senders[span].tolist(), rounds, strict=True) if used}

    @cached_property
    def order(self) -> list[Event]:
        """All N R rounds, so that every message is made before it is used.

        Sorted by how many rounds must have been played before one at least, one after the other: agents advance
        as they did in the trace, and the order depends on nothing else.
        """
        levels = self._levels()  # [N, R]
        agents, rounds = np.indices(levels.shape)
        ranked = np.lexsort((agents.ravel(), levels.ravel()))
        return list(zip(agents.ravel()[ranked].tolist(), (rounds.ravel()[ranked] + 1).tolist(), strict=True))

    @cached_property
    def last_uses(self) -> Integers:
        """[N, R]: the place in the order where each message is used for the last time; -1: never."""
        agents, rounds = np.array(self.order, np.int64).reshape(-1, 2).T
        places = np.empty((len(self.links), self.rounds), np.int64)
        places[agents, rounds - 1] = np.arange(len(agents))
        last = np.full((len(self.links), self.rounds + 1), -1)
        for link, (i, j) in enumerate(zip(self.links.receivers.tolist(), self.links.senders.tolist(), strict=True)):
            np.maximum.at(last[j], self.heard[:, link], places[i])
        return last[:, 1:]

    def _levels(self) -> Integers:
        """[N, R]: 1 + the highest level of what a round builds on, the agent's round before and messages."""
        agents, starts = len(self.links), self.links.starts
        levels = np.zeros((agents, self.rounds + 1), np.int64)
        done = np.zeros(agents, np.int64)
        waiting: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)  # sender -> round, agents that wait for it
        ready = list(range(agents))
        while ready:
            i = ready.pop()
            span = slice(starts[i], starts[i + 1])
            senders = self.links.senders[span]
            while done[i] < self.rounds:
                wanted = self.heard[done[i], span]
                if (late := np.flatnonzero(wanted > done[senders])).size:
                    waiting[int(senders[late[0]])].append((int(wanted[late[0]]), i))
                    break
                before = levels[senders, wanted].max(initial=levels[i, done[i]])
                done[i] += 1
                levels[i, done[i]] = before + 1
            awake = [k for number, k in waiting[i] if number <= done[i]]
            waiting[i] = [(number, k) for number, k in waiting[i] if number > done[i]]
            ready += awake
        for i in np.flatnonzero(done < self.rounds)[:1].tolist():
            j, number = next((j, number) for j, held in waiting.items() for number, k in held if k == i)
            raise RunError(
                f"in this trace agent {i} uses round {number} of agent {j} in its round {done[i] + 1}, which builds on "
                "that round in turn; it was not recorded like this"
            )
        return levels[:, 1:]


def waves(events: Sequence[Event]) -> Iterator[list[Event]]:
    """Cut an order into the longest parts in which no agent is twice: each can be computed side by side."""
    wave: dict[int, int] = {}
    for agent, number in events:
        if agent in wave:
            yield list(wave.items())
            wave = {}
        wave[agent] = number
    if wave:
        yield list(wave.items())


def round_ends(speeds: Sequence[float], rounds: int, jitter: float, seed: int) -> NDArray[np.float64]:
    """[N, R]: when each agent ends each of its rounds; one of an agent of speed 1 takes 1, within ± jitter."""
    drawn = [stream(seed, "pace", agent).uniform(rounds) for agent in range(len(speeds))]
    paces = 1.0 + jitter * (2.0 * np.stack(drawn) - 1.0)  # [N, R]
    return np.cumsum(paces / np.array(speeds)[:, None], axis=1)


def trace_of(links: Links, ends: NDArray[np.float64], latency: float = 0.0) -> Trace:
    """Which messages agents use, if they end their rounds at these times [N, R] and a message is there `latency` later.

    Of two agents that end a round at the same time the one with the lower number is first.
    """
    heard = np.zeros((ends.shape[1], len(links.senders)), np.int32)
    for link, (i, j) in enumerate(zip(links.receivers.tolist(), links.senders.tolist(), strict=True)):
        heard[:, link] = np.searchsorted(ends[j] + latency, ends[i], side="right" if j < i else "left")
    return Trace(links, heard)
