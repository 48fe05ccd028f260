"""From the speeds of agents to a trace: who would have used which message, had they played at that pace.

An agent learns for the length of its round and publishes. It then uses the newest message of each neighbour that is
there; one whose message of the round before was at most one round behind, and who has not come to this round yet, has
a moment more: the share `grace` of the agent's own round. So agents that are about as fast as each other stay in step,
and whoever is much slower is waited for in two rounds at most. A node goes by the same rule (`node/puller.py`).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from peermask.engine.trace import Trace
from peermask.graph.links import Links
from peermask.streams import stream

# Shapes: N agents, R rounds, E links

Times = NDArray[np.float64]

ARRIVES, PUBLISHES, GOES_ON = range(3)


def round_lengths(speeds: Sequence[float], rounds: int, jitter: float, seed: int) -> Times:
    """[N, R]: how long each agent learns in each of its rounds; one of speed 1 takes 1, within ± jitter."""
    drawn = [stream(seed, "pace", agent).uniform(rounds) for agent in range(len(speeds))]
    lengths: Times = (1.0 + jitter * (2.0 * np.stack(drawn) - 1.0)) / np.array(speeds)[:, None]
    return lengths


def may_come(round: int, heard: int) -> bool:
    """Whether a neighbour's message of a round is waited for a moment, by the one of it that was used in the round
    before: who was at most one round behind may be about to publish, others are slower."""
    return heard >= round - 2


def paced(links: Links, lengths: Times, latency: float = 0.0, grace: float = 0.0) -> tuple[Trace, Times]:
    """The trace of agents that learn so long [N, R], and when each ended its rounds [N, R].

    A message is there `latency` after it was published. What happens at the same time happens in the order of agents.
    """
    agents, rounds = lengths.shape
    heard = np.zeros((rounds, len(links.senders)), np.int32)  # [R, E]
    ends = np.zeros((agents, rounds))  # [N, R]
    arrived = np.zeros(agents, np.int32)  # [N]: the newest message of each that is there
    playing = [1] * agents
    awaited: list[set[int]] = [set() for _ in range(agents)]
    spans = [slice(int(links.starts[i]), int(links.starts[i + 1])) for i in range(agents)]
    hearers: list[list[int]] = [[] for _ in range(agents)]
    for i, j in zip(links.receivers.tolist(), links.senders.tolist(), strict=True):
        hearers[j].append(i)
    events = [(float(lengths[i, 0]), i, PUBLISHES, 1) for i in range(agents)]
    heapq.heapify(events)

    def go_on(i: int, now: float) -> None:
        number = playing[i]
        heard[number - 1, spans[i]] = arrived[links.senders[spans[i]]]
        ends[i, number - 1] = now
        awaited[i].clear()
        playing[i] += 1
        if number < rounds:
            heapq.heappush(events, (now + float(lengths[i, number]), i, PUBLISHES, number + 1))

    def arrive(j: int, number: int, now: float) -> None:
        arrived[j] = number
        for i in hearers[j]:
            if j in awaited[i] and number >= playing[i]:
                awaited[i].discard(j)
                if not awaited[i]:
                    go_on(i, now)

    while events:
        now, i, what, number = heapq.heappop(events)
        if what == ARRIVES:
            arrive(i, number, now)
        elif what == PUBLISHES:
            if latency:
                heapq.heappush(events, (now + latency, i, ARRIVES, number))
            else:
                arrive(i, number, now)
            senders = links.senders[spans[i]].tolist()
            before = heard[number - 2, spans[i]].tolist() if number > 1 else [0] * len(senders)
            late = (
                j for j, used in zip(senders, before, strict=True) if arrived[j] < number and may_come(number, used)
            )
            if grace:
                awaited[i].update(late)
            if awaited[i]:
                heapq.heappush(events, (now + grace * float(lengths[i, number - 1]), i, GOES_ON, number))
            else:
                go_on(i, now)
        elif playing[i] == number and awaited[i]:
            go_on(i, now)
    return Trace(links, heard), ends
