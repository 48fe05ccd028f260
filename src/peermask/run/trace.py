"""Traces: in each round of each agent, which message of each neighbour it used, in asynchronous runs.

The simulator makes a trace of the agents' speeds and plays it; it also plays one that a fleet recorded. A round has two
halves: an agent learns and publishes its message, then it fuses those it has. Two agents may use each other's message
of the same round. What one uses was published before, so all halves of all rounds have an order, and a trace in which
they have none was never recorded.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from peermask.compute.device import check_room
from peermask.config.experiment import ExperimentConfig
from peermask.config.file import read_config
from peermask.config.sections import SpeedDraw
from peermask.errors import ConfigError, RunError
from peermask.graph.links import Integers, Links
from peermask.run.build import Experiment
from peermask.run.manifest import find_recorded_plugins
from peermask.store.folder import RunFolder, read_manifest
from peermask.store.table import append_rows, read_rows
from peermask.streams import stream

# Shapes: N agents, R rounds, E links

LEARN, FUSE = 0, 1
Event = tuple[int, int]  # an agent and its round, 1 being the first
Half = tuple[int, int, int]  # an agent, its round, and which half of it


@dataclass(frozen=True, eq=False)
class Trace:
    links: Links  # of all agents
    heard: NDArray[np.int32]  # [R, E]: by the receiver's round, the round of the sender's message; 0: none

    @property
    def rounds(self) -> int:
        return len(self.heard)

    def messages_used(self, event: Event) -> dict[int, int]:
        """Neighbour -> the round of its message that an agent used in a round; neighbours that were not heard are left
        out."""
        agent, number = event
        span = slice(int(self.links.starts[agent]), int(self.links.starts[agent + 1]))
        rounds = self.heard[number - 1, span].tolist() if number else [0] * (span.stop - span.start)
        return {j: used for j, used in zip(self.links.senders[span].tolist(), rounds, strict=True) if used}

    @cached_property
    def order(self) -> list[Half]:
        """The halves of all N R rounds, so that every message is made before it is used.

        Sorted by how many halves must have been played before one at least, one after the other: agents advance
        as they did in the trace, and the order depends on nothing else.
        """
        levels = self._levels()  # [N, R, 2]
        agents, rounds, halves = (index.ravel() for index in np.indices(levels.shape))
        ranked = np.lexsort((agents, levels.ravel()))
        columns = (agents[ranked], rounds[ranked] + 1, halves[ranked])
        return list(zip(*(column.tolist() for column in columns), strict=True))

    @cached_property
    def last_uses(self) -> Integers:
        """[N, R]: the place in the order where each message is used for the last time, by its own agent at least."""
        places = np.empty((len(self.links), self.rounds, 2), np.int64)
        for place, (agent, number, half) in enumerate(self.order):
            places[agent, number - 1, half] = place
        fused = places[:, :, FUSE]
        last = np.concatenate([np.zeros((len(self.links), 1), np.int64), fused], axis=1)  # [N, R + 1]
        for link, (i, j) in enumerate(zip(self.links.receivers.tolist(), self.links.senders.tolist(), strict=True)):
            np.maximum.at(last[j], self.heard[:, link], fused[i])
        return last[:, 1:]

    def _levels(self) -> Integers:
        """[N, R, 2]: 1 + the highest level of what a half builds on, the agent's half before and messages."""
        agents, starts = len(self.links), self.links.starts
        levels = np.zeros((agents, self.rounds + 1, 2), np.int64)
        learned, done = np.zeros(agents, np.int64), np.zeros(agents, np.int64)  # rounds: their first half, both
        waiting: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)  # sender -> round, agents that wait for it
        ready = list(range(agents))
        while ready:
            i = ready.pop()
            span = slice(starts[i], starts[i + 1])
            senders = self.links.senders[span]
            while done[i] < self.rounds:
                wanted, number = self.heard[done[i], span], done[i] + 1
                if learned[i] < number:
                    learned[i] = number
                    levels[i, number, LEARN] = levels[i, number - 1, FUSE] + 1
                    waiters = waiting.pop(i, [])
                    ready += [agent for due, agent in waiters if due <= number]
                    waiting[i] += [(due, agent) for due, agent in waiters if due > number]
                if (late := np.flatnonzero(wanted > learned[senders])).size:
                    waiting[int(senders[late[0]])].append((int(wanted[late[0]]), i))
                    break
                levels[i, number, FUSE] = levels[senders, wanted, LEARN].max(initial=levels[i, number, LEARN]) + 1
                done[i] = number
        for i in np.flatnonzero(done < self.rounds)[:1].tolist():
            j, number = next((j, number) for j, waiters in waiting.items() for number, k in waiters if k == i)
            raise RunError(
                f"in this trace agent {i} uses round {number} of agent {j} in its round {done[i] + 1}, which builds on "
                "that round in turn; it was not recorded like this"
            )
        return levels[:, 1:]


def waves(halves: Sequence[Half]) -> Iterator[tuple[list[Event], list[Event]]]:
    """Cut an order into the longest parts that can be computed side by side: agents that learn, then agents that fuse.

    An agent that fuses in a wave may have learned in it, and so may those whose messages it uses."""
    learning: dict[int, int] = {}
    fusing: dict[int, int] = {}
    for agent, number, half in halves:
        if half == LEARN and (agent in learning or agent in fusing):
            yield list(learning.items()), list(fusing.items())
            learning, fusing = {}, {}
        (fusing if half == FUSE else learning)[agent] = number
    if learning or fusing:
        yield list(learning.items()), list(fusing.items())


def leave_out(trace: Trace, absent: Mapping[int, range]) -> Trace:
    """The trace if agents do not play some rounds: others use the messages from before, and these agents use none."""
    heard = trace.heard.copy()
    for agent, rounds in absent.items():
        sent = trace.links.senders == agent
        heard[(heard >= rounds.start) & (heard < rounds.stop) & sent] = rounds.start - 1
        heard[rounds.start - 1 : rounds.stop - 1, trace.links.receivers == agent] = 0
    return Trace(trace.links, heard)


# An agent learns for the length of its round and publishes. It then uses the newest message of each neighbour. A
# neighbour that was at most one round behind, and has not published this round, gets the share `grace` of the agent's
# round more. So agents of about the same speed stay in step, and an agent waits for a much slower one in two rounds at
# most. A node follows the same rule (`fleet/puller.py`).

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


def trace_of_speeds(links: Links, lengths: Times, latency: float = 0.0, grace: float = 0.0) -> tuple[Trace, Times]:
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
            if grace:
                both = zip(senders, before, strict=True)
                awaited[i].update(j for j, used in both if arrived[j] < number and may_come(number, used))
            if awaited[i]:
                heapq.heappush(events, (now + grace * float(lengths[i, number - 1]), i, GOES_ON, number))
            else:
                go_on(i, now)
        elif playing[i] == number and awaited[i]:
            go_on(i, now)
    return Trace(links, heard), ends


TRACE = ("round", "agent", "neighbour", "heard")


def trace_for(experiment: Experiment, folder: RunFolder) -> Trace:
    """The trace that a run plays: the one it began with, a fleet's, or what follows from speeds and deaths."""
    config, links = experiment.config, experiment.mixing.links
    options = config.asynchronous
    check_room(4 * config.rounds * len(links.senders), "a trace of all rounds and links takes", "use fewer of either")
    if options is None:  # agents wait for each other
        rounds = np.arange(1, config.rounds + 1, dtype=np.int32)[:, None]  # [R, 1]
        trace = Trace(links, np.repeat(rounds, len(links.senders), axis=1))
    elif options.trace is None:
        lengths = round_lengths(speeds_of(experiment), config.rounds, options.jitter, config.seed)
        trace, _ = trace_of_speeds(links, lengths, options.latency, options.grace)
    elif folder.trace.is_file():  # it uses the rows it began with, even if the original file has changed
        trace = read_trace(folder.trace, links, config.rounds)
    else:
        trace = read_trace(Path(options.trace), links, config.rounds)
        write_trace(folder.trace, trace)
    return leave_out(trace, absent_rounds(config))


def absent_rounds(config: ExperimentConfig) -> dict[int, range]:
    """The rounds that each dead agent does not play."""
    if (deaths := config.deaths) is None:
        return {}
    dead = deaths.agents or stream(config.seed, "deaths").permutation(config.agents)[: deaths.count].tolist()
    ends = [deaths.back or 0] * deaths.returning + [config.rounds + 1] * (len(dead) - deaths.returning)
    return {agent: range(deaths.after + 1, end) for agent, end in zip(dead, ends, strict=True)}


def replay_config(run: Path) -> ExperimentConfig:
    """The config that replays an asynchronous fleet whose run was collected into a folder."""
    folder = RunFolder(run)
    folder.check_run()
    find_recorded_plugins(run, quiet=True)  # plug-ins that its config names
    config = read_config(folder.config)
    if config.asynchronous is None:
        raise RunError(f"{run} is not asynchronous; run its config again instead")
    if not folder.trace.is_file():
        raise RunError(f"{run} has no trace.csv: only a fleet records one; run the config again instead")
    if roster := read_manifest(folder.manifest).get("roster"):
        raise RunError(
            f"{run}: agents or links changed while this fleet ran (roster {roster['serial']}), so it cannot be "
            "replayed: a config has one graph"
        )
    options = config.asynchronous.model_copy(update={"trace": str(folder.trace.resolve())})
    return config.model_copy(update={"asynchronous": options})


def speeds_of(experiment: Experiment) -> tuple[float, ...]:
    config = experiment.config
    speeds = None if config.asynchronous is None else config.asynchronous.speeds
    if isinstance(speeds, SpeedDraw):
        drawn = [stream(config.seed, "speed", agent).uniform(1)[0] for agent in range(config.agents)]
        return tuple(speeds.choices[int(share * len(speeds.choices))] for share in drawn)
    return speeds or (1.0,) * config.agents


def read_trace(path: Path, links: Links, rounds: int) -> Trace:
    """Read and check one: every agent has a row for each of its rounds and neighbours, and all can be played."""
    if not path.is_file():
        raise ConfigError(f"trace {path} does not exist; asynchronous.trace names the trace.csv of a collected fleet")
    ends = zip(links.receivers.tolist(), links.senders.tolist(), strict=True)
    places = {end: place for place, end in enumerate(ends)}
    heard = np.full((rounds, len(links.senders)), -1, np.int32)  # [R, E]
    for line, row in enumerate(read_rows(path), 2):
        number, agent, neighbour, used = (int(row[column]) for column in TRACE)
        place = places.get((agent, neighbour))
        if place is None:
            raise RunError(f"{path} line {line}: agent {agent} has no link to agent {neighbour} in this experiment")
        if not 1 <= number <= rounds or used > rounds:
            beyond = f"round {number}" if not 1 <= number <= rounds else f"round {used} of agent {neighbour}"
            raise RunError(f"{path} line {line}: {beyond} does not exist; the experiment has rounds 1 to {rounds}")
        if heard[number - 1, place] >= 0:
            raise RunError(f"{path} line {line}: agent {agent} has round {number} and agent {neighbour} twice")
        heard[number - 1, place] = used
    missing = np.argwhere(heard < 0)
    if len(missing):
        number, place = missing[0].tolist()
        raise RunError(
            f"{path} has no row of agent {links.receivers[place]} in round {number + 1} and its neighbour "
            f"{links.senders[place]}; copy it from its device again, or collect the fleet again"
        )
    trace = Trace(links, heard)
    try:
        trace.order  # noqa: B018 (which finds what is wrong)
    except RunError as error:
        raise RunError(f"{path}: {error}") from None
    return trace


def write_trace(path: Path, trace: Trace) -> None:
    """Write a trace in the order of rounds and agents."""
    shape = trace.heard.shape
    rounds = np.broadcast_to(np.arange(1, trace.rounds + 1)[:, None], shape)
    columns = (rounds, *(np.broadcast_to(ends, shape) for ends in (trace.links.receivers, trace.links.senders)))
    path.unlink(missing_ok=True)
    append_rows(path, TRACE, np.stack([*columns, trace.heard], 2).reshape(-1, len(TRACE)).tolist())
