"""The neighbours of an agent: which are connected, which are refused or silent, and which round they have reached.

Nothing here waits longer than its limit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from peermask.errors import NodeError, NotYetError, WireError
from peermask.fleet.environment import SYSTEM_TIME, TimeSource, Transport
from peermask.fleet.fleet import Fleet
from peermask.fleet.messages import NOTHING, Answer, Greeting, Ready, decode_answer
from peermask.fleet.responder import Responder
from peermask.wire.mailbox import KEPT_ROUNDS

REQUEST_SECONDS = 1.0  # that a request may take; it is repeated until the deadline, so that a stop is noticed
MOST_STRIKES = 6  # limits in a row that a neighbour used up, after which its rests get no longer: 62 limits
REFUSED_FRAMES = 3  # refused frames of a neighbour after which a round continues without it


class Neighbourhood:
    def __init__(
        self,
        transport: Transport,
        responder: Responder,
        neighbours: tuple[int, ...],
        fleet: Fleet,
        should_stop: Callable[[], bool] = lambda: False,
        founders: int = NOTHING,
        time: TimeSource = SYSTEM_TIME,
    ) -> None:
        """`fleet` has the limits of every wait. Agents from number `founders` on were added later: nobody waits for one
        that has not appeared yet."""
        self.transport, self.responder, self.neighbours = transport, responder, neighbours
        self.fleet, self.should_stop, self.founders = fleet, should_stop, founders
        self.time = time
        self.present: frozenset[int] = frozenset()  # connected at the last check
        self.refused: set[int] = set()
        self.newest: dict[int, int] = {}  # the last round that each neighbour has published, as it said; of those met
        self.silent: dict[int, float] = {}  # neighbours that did not answer for a whole limit; not asked until then
        self.strikes: dict[int, int] = {}  # limits in a row that a neighbour used up although it was there
        self.bad: dict[int, list[str]] = {}  # why messages of a neighbour were refused in this round

    def follow(self, neighbours: tuple[int, ...], forgotten: Collection[int] = ()) -> None:
        """Use these neighbours from now on; forget all others, and what is known of `forgotten`."""
        self.neighbours = neighbours
        remaining = frozenset(neighbours) - frozenset(forgotten)
        self.newest = {j: newest for j, newest in self.newest.items() if j in remaining}
        self.silent = {j: until for j, until in self.silent.items() if j in remaining}
        self.strikes = {j: count for j, count in self.strikes.items() if j in remaining}
        self.refused &= remaining

    def expected(self) -> frozenset[int]:
        """Neighbours to wait for: all but those that have left, and added ones that have not appeared yet."""
        met = self.responder.met
        return frozenset(j for j in self.neighbours if j < self.founders or j in met) & self.responder.neighbours

    def meet(self) -> frozenset[int]:
        """Greet newly connected neighbours; returns those that are connected and run the same experiment."""
        alive = self.transport.alive() & frozenset(self.neighbours)
        self.ask_again(alive - self.present)
        self.present = alive
        self.refused &= alive
        self.newest = {j: newest for j, newest in self.newest.items() if j in alive}
        unknown = alive - self.newest.keys() - self.refused - self.silent.keys()
        if unknown:
            greeting = self.responder.greeting().encode()
            for j, answer in self.ask(dict.fromkeys(unknown, greeting), REQUEST_SECONDS).items():
                if isinstance(answer, Greeting) and not self.responder.refuses(j, answer.experiment_id):
                    self.newest[j] = answer.newest
                else:
                    self.refused.add(j)
        return frozenset(self.newest)

    def gather(self, limit: float) -> set[int]:
        """Wait until all neighbours have appeared once, at most `limit` seconds; returns those that have not.

        A restarted agent whose neighbour is rounds ahead waits at most a second for the others: the fleet continues
        without them, and waits for this agent in its round.
        """
        end = self.time.monotonic() + limit
        while True:
            self.meet()
            if self._is_behind():
                end = min(end, self.time.monotonic() + min(REQUEST_SECONDS, self.fleet.round_limit))
            lacking = set(self.neighbours) & self.responder.neighbours
            lacking -= self.responder.met | self.responder.incompatible
            left = end - self.time.monotonic()
            if not lacking or left <= 0 or self.should_stop():
                return lacking
            self.transport.await_change(min(left, 0.1))

    def _is_behind(self) -> bool:
        played = self.responder.newest
        return played > 0 and self.fleet.missing != "wait" and max(self.newest.values(), default=0) > played + 1

    def check_not_alone(self) -> None:
        """An agent that every neighbour refuses was given the wrong files."""
        if self.neighbours and self.responder.incompatible >= set(self.neighbours):
            raise NodeError(
                "no neighbour runs the same experiment (the lines above say how they differ); "
                "give every device the same fleet file, version, and images of the same size"
            )

    def check_somebody_came(self) -> None:
        """A fleet does not start with a single agent."""
        if self.neighbours and not self.responder.met | self.responder.incompatible and not self.should_stop():
            raise NotYetError(
                f"none of agents {', '.join(map(str, self.neighbours))} has appeared; start them, check addresses and "
                "ports (RUST_LOG=warn shows more), then start this one again"
            )

    def common_round(self, *, joining: bool = False) -> int:
        """The round that most connected neighbours have reached, or this agent's if that is later.

        It is the lower median of what neighbours say, including those that have published nothing: of two or more, a
        single one cannot move it. An agent with one connected neighbour has nobody else to ask, and believes it. An
        agent that has published nothing yet counts itself too, unless it joins a fleet that has begun.
        """
        played = self.responder.newest
        rounds = sorted([*self.newest.values(), *([] if joining or played else [0])])
        return max(played, rounds[(len(rounds) - 1) // 2]) if rounds else played

    def latest_useful(self, round: int) -> int:
        """The last round of which a message is of use in `round`: neighbours keep so many rounds."""
        return max(round, self.common_round()) + KEPT_ROUNDS

    def begin_round(self, round: int) -> None:
        """Ask those again that have come back, and nobody whose messages are of rounds too far ahead.

        With `wait` such a neighbour is asked: it goes back to the round that it no longer keeps."""
        self.ask_again(self.responder.take_active())
        latest = NOTHING if self.fleet.missing == "wait" else self.latest_useful(round)
        self.bad = {j: ["ahead"] for j, newest in self.newest.items() if newest > latest}

    def begin_together(self, steps: int, limit: float) -> None:
        """In asynchronous runs: wait until all agents have found their neighbours, at most `limit` seconds.

        Each agent tells its neighbours that it is ready, then that all of its neighbours are, and so on: after every
        step, this holds for agents one link further away. A fleet that has begun already is not waited for."""
        end = self.time.monotonic() + limit
        for step in range(1, steps + 2):
            others = self.meet()
            if any(self.newest.values()):
                return
            self.ask(
                dict.fromkeys(others, Ready(self.responder.experiment_id.identity, step).encode()), REQUEST_SECONDS
            )
            while step <= steps and any(not self.responder.is_ready(j, step) for j in others & self.meet()):
                if self.time.monotonic() > end or self.should_stop():
                    return
                self.transport.await_change(0.01)

    def wait_while(self, needed: Callable[[int], bool], limit: float) -> None:
        """Wait while any connected neighbour needs this agent, at most `limit` seconds."""
        end = self.time.monotonic() + limit
        while any(needed(j) for j in self.meet()):
            if self.time.monotonic() > end or self.should_stop():
                break
            self.transport.await_change(0.02)

    def ask(self, requests: Mapping[int, bytes], patience: float) -> dict[int, Greeting | Answer]:
        """Send requests; returns the valid answers. Others are logged and counted."""
        understood = {}
        for j, data in self.transport.ask(requests, patience).items():
            try:
                understood[j] = decode_answer(data)
            except WireError as error:
                self.refuse(j, error, "refuses this device" if error.why == "double" else "sent a bad answer")
        return understood

    def refuse(self, neighbour: int, error: WireError, what: str) -> None:
        """Log and count a refused message."""
        self.bad.setdefault(neighbour, []).append(error.why)
        self.responder.refusals.note(neighbour, error.why, f"agent {neighbour} {what}: {error}")

    def may_come(self, wanted: set[int]) -> bool:
        """Whether to keep waiting for some of these: for connected ones, or with `wait` for all."""
        awaited = wanted if self.fleet.missing == "wait" else wanted & self.transport.alive()
        return bool(awaited - self.refused - self.silent.keys() - self.hopeless())

    def hopeless(self) -> set[int]:
        """Neighbours whose messages were refused too often in this round, or that claim a round far ahead."""
        return {j for j, reasons in self.bad.items() if len(reasons) >= REFUSED_FRAMES or "ahead" in reasons}

    def ignore(self, silent: Collection[int], seconds: float) -> None:
        """Do not ask these neighbours for some time, unless they connect again or send a request."""
        self.silent = dict.fromkeys(silent, self.time.monotonic() + seconds) | self.silent

    def back_off(self, neighbours: Collection[int], limit: float) -> None:
        """Do not ask neighbours that send requests, but gave no valid answer for a whole limit.

        The first time they are asked again at once; then they rest for 2, 6, 14, ... limits, whatever they send.
        """
        for j in neighbours:
            strikes = self.strikes[j] = min(self.strikes.get(j, 0) + 1, MOST_STRIKES)
            if strikes > 1:
                self.silent[j] = self.time.monotonic() + (2**strikes - 2) * limit

    def ask_again(self, active: frozenset[int]) -> None:
        """Ask neighbours again that have connected or sent a request, and those that were ignored long enough."""
        now, resting = self.time.monotonic(), {j for j, strikes in self.strikes.items() if strikes > 1}
        asked = active - resting
        self.silent = {j: until for j, until in self.silent.items() if j not in asked and now < until}
