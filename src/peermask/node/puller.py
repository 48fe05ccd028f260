"""The asking side of an agent: meets its neighbours, and pulls one round from each before a deadline.

Who is not there is not waited for, unless the policy is to wait. Nothing here waits longer than its limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass

from peermask.engine.exchange import Abandoned
from peermask.engine.paces import may_come
from peermask.errors import NodeError, NotYetError, WireError
from peermask.node.fleet import Missing
from peermask.node.messages import NOTHING, Answer, Greeting, Pull, Ready, decode_answer
from peermask.node.responder import Responder
from peermask.node.transport import Transport
from peermask.wire import FrameHeader, Inbox, Schema
from peermask.wire.mailbox import KEPT_ROUNDS
from peermask.wire.schema import MessageRow

SLICE = 1.0  # seconds one question may take; asked again until the deadline, so that a stop is noticed
PAUSES = (0.02, 0.5)  # seconds before asking again those who are there and brought nothing new: at first, at most
RECALL = 10  # limits until one who was mute is asked again: after a short cut, both ends may take each other for mute
TRIES = 3  # frames of one neighbour that are refused before a round goes on without it
REST = 20 * SLICE  # seconds a mute one is not asked where nobody waits: it costs a twentieth of the time at most
LEAVE_WITHIN = 5.0  # seconds a round still waits once the agent was told to stop


@dataclass(frozen=True)
class Patience:
    """How long an agent waits, in seconds, and what it does then."""

    missing: Missing
    round_deadline: float
    wait_limit: float
    start_limit: float

    @property
    def round_limit(self) -> float:
        return self.wait_limit if self.missing == "wait" else self.round_deadline


@dataclass(frozen=True)
class Absence:
    """A neighbour that was not heard in a round."""

    round: int
    neighbour: int
    why: str  # gone, silent, refused, or refused (...) with the word of what it sent
    used: int | None  # the round of its last known message that took the place; None: it was left out


@dataclass(frozen=True)
class Heard:
    payloads: dict[int, MessageRow]
    absent: list[Absence]
    behind: int | None  # the round to jump to, where neighbours no longer keep this one
    rounds: dict[int, int]  # of the payloads


class Puller:
    def __init__(
        self,
        transport: Transport,
        responder: Responder,
        neighbours: tuple[int, ...],
        patience: Patience,
        should_stop: Callable[[], bool] = lambda: False,
        admit: Callable[[int, MessageRow], None] = lambda _sender, _payload: None,
        rounds: int = NOTHING,
        founders: int = NOTHING,
    ) -> None:
        """`admit` raises a WireError for a payload its sender cannot mean; `rounds` is the last there will be.

        Agents from number `founders` on were added: nobody waits for one that has not appeared yet.
        """
        self.transport, self.responder, self.neighbours = transport, responder, neighbours
        self.patience, self.should_stop, self.admit, self.rounds = patience, should_stop, admit, rounds
        self.founders = founders
        self.present: frozenset[int] = frozenset()  # who was there at the last look
        self.refused: set[int] = set()
        self.newest: dict[int, int] = {}  # the last round published by each neighbour, as it said; of those met
        self.mute: dict[int, float] = {}  # who has used up a whole limit without a word, and until when it is not asked
        self.inbox: Inbox | None = None
        self.bad: dict[int, list[str]] = {}  # why frames of a neighbour were refused in this round
        self.latest = rounds  # the highest round that is believed

    def follow(self, neighbours: tuple[int, ...], forgotten: Collection[int] = ()) -> None:
        """Hear these from now on; forget all others, and what was heard of `forgotten` so far."""
        self.neighbours = neighbours
        kept = frozenset(neighbours) - frozenset(forgotten)
        self.newest = {j: newest for j, newest in self.newest.items() if j in kept}
        self.mute = {j: until for j, until in self.mute.items() if j in kept}
        self.refused &= kept
        if self.inbox is not None:
            self.inbox.follow(neighbours, forgotten)

    def expected(self) -> frozenset[int]:
        """Neighbours to wait for: all but those who have left meanwhile, and those who are yet to come."""
        met = self.responder.met
        return frozenset(j for j in self.neighbours if j < self.founders or j in met) & self.responder.neighbours

    def meet(self) -> frozenset[int]:
        """Greet those who are new, and give those who are there and run the same experiment."""
        alive = self.transport.alive() & frozenset(self.neighbours)
        self._listen_to(alive - self.present)
        self.present = alive
        self.refused &= alive
        self.newest = {j: newest for j, newest in self.newest.items() if j in alive}
        strangers = alive - self.newest.keys() - self.refused - self.mute.keys()
        if strangers:
            greeting = self.responder.greeting().encode()
            answers = self._ask(dict.fromkeys(strangers, greeting), SLICE)
            for j, answer in answers.items():
                if isinstance(answer, Greeting) and not self.responder.refuses(j, answer.card):
                    self.newest[j] = answer.newest
                else:
                    self.refused.add(j)
        return frozenset(self.newest)

    def gather(self, limit: float) -> set[int]:
        """Wait until all neighbours have appeared once, `limit` seconds at most; gives those who have not.

        An agent that was away, and finds a neighbour rounds ahead, waits for the others no longer than for a round: the
        fleet goes on without them.
        """
        end = time.monotonic() + limit
        while True:
            self.meet()
            if self._was_away():
                end = min(end, time.monotonic() + self.patience.round_limit)
            lacking = set(self.neighbours) & self.responder.neighbours
            lacking -= self.responder.met | self.responder.turned_away
            left = end - time.monotonic()
            if not lacking or left <= 0 or self.should_stop():
                return lacking
            self.transport.await_change(min(left, 0.1))

    def _was_away(self) -> bool:
        played = self.responder.newest
        return played > 0 and self.patience.missing != "wait" and max(self.newest.values(), default=0) > played + 1

    def check_not_alone(self) -> None:
        """An agent that every neighbour refuses was given the wrong files."""
        if self.neighbours and self.responder.turned_away >= set(self.neighbours):
            raise NodeError(
                "no neighbour runs the same experiment (the lines above say how they differ); "
                "give every device the same fleet file, version, and images of the same size"
            )

    def check_somebody_came(self) -> None:
        """A fleet does not begin with one."""
        if self.neighbours and not self.responder.met | self.responder.turned_away and not self.should_stop():
            raise NotYetError(
                f"none of agents {', '.join(map(str, self.neighbours))} has appeared; start them, check addresses and "
                "ports (RUST_LOG=warn shows more), then start this one again"
            )

    def catch_up(self, *, joining: bool = False) -> int:
        """The round that more than half of the neighbourhood has reached: this agent and all neighbours met, those
        included that have published nothing. No single peer moves it, whatever round it claims. One that joins has no
        round of its own yet, and takes the lower median of the others'."""
        voices = sorted(self.newest.values() if joining else [self.responder.newest, *self.newest.values()])
        return voices[(len(voices) - 1) // 2] if voices else 0

    def newest_messages(self, round: int, schema: Schema, opening: Callable[[int], MessageRow | None]) -> Heard:
        """What those who are there have published by a round, or last."""
        self._open_inbox(schema, opening)
        self._pull_once(self.meet(), round, 0.0)
        return self._heard(round, set(), None)

    def pull(
        self,
        round: int,
        schema: Schema,
        opening: Callable[[int], MessageRow | None] = lambda _agent: None,
        senders: Collection[int] | None = None,
    ) -> Heard:
        """Every neighbour's message of a round, or that of some, as far as it comes in time."""
        limit = self.patience.round_limit
        if self._open_inbox(schema, opening):
            limit = max(limit, self.patience.start_limit)  # a neighbour may still be waiting for its own
        self._listen_to(self.responder.take_heard_from())
        self.bad = {}
        expected = self.expected()
        wanted, behind = self._lacking(expected if senders is None else expected & set(senders), round), None
        end = time.monotonic() + limit
        stopping, pause = False, PAUSES[0]
        while wanted:
            if self.should_stop() and not stopping:
                stopping, end = True, min(end, time.monotonic() + LEAVE_WITHIN)
            left = end - time.monotonic()
            wanted &= self.responder.neighbours  # who has left meanwhile is not waited for
            there = (self.meet() & wanted) - self.mute.keys() - self._hopeless()
            if left <= 0:
                self._take_what_there_is(wanted, there, round)
                wanted = self._lacking(wanted, round)
                break
            if there:
                answers = self._pull_once(there, round, min(left, SLICE))
                if any(self._holds(j, round + 1) for j in answers):
                    behind = max(round, self.catch_up())  # somebody no longer keeps this round
                lacking = self._lacking(wanted, round)
                if lacking == wanted and there - self._hopeless():  # whoever answers at once sets no pace
                    time.sleep(min(pause, left))
                    pause = min(2 * pause, PAUSES[1])
                wanted = lacking
            elif self._may_come(wanted):
                self.transport.await_change(min(left, 0.1))
            else:
                break
        if wanted and stopping and self.patience.missing == "wait":
            raise Abandoned  # with `wait` no round is played without everybody
        return self._heard(round, wanted, behind)

    def take(
        self,
        round: int,
        schema: Schema,
        opening: Callable[[int], MessageRow | None] = lambda _agent: None,
        grace: float = 0.0,
    ) -> Heard:
        """The newest message of every neighbour, as far as it answers at once. Who was at most one round behind when it
        was last asked has `grace` seconds to come to this round."""
        self._open_inbox(schema, opening)
        self.bad = {}
        self._listen_to(frozenset())
        there = self.meet() - self.mute.keys()
        self.latest = self.rounds  # anybody may be anywhere
        near = {j for j in there if grace and may_come(round, self.newest[j]) and not self._holds(j, round)}
        # Their side gives up a little earlier, so that no answer comes when it is no longer waited for.
        expiring = {j: self._question(j, round, 0.8 * grace).encode() for j in near}
        came = self._answers(expiring, grace).keys() if near else set()
        asked = {j: self._question(j, self.rounds, 0.0).encode() for j in there - came}
        answered = self._answers(asked, SLICE).keys() | came | self.bad.keys()
        silent = (self.present - self.refused) - answered  # of strangers, too
        self.mute = dict.fromkeys(silent, time.monotonic() + REST) | self.mute
        lacking = (self.expected() - self.transport.alive()) | self.refused | silent | self.bad.keys()
        ended = {j for j in self.neighbours if self._holds(j, self.rounds)}  # they have nothing more to say
        return self._heard(round, lacking - ended, None, missing="last")

    def begin_together(self, steps: int, limit: float) -> None:
        """Where nobody waits: begin when everybody has found its neighbours, `limit` seconds from now at most.

        Neighbours tell each other that they are ready, then that all of theirs are, and so on: after a step, that is
        true of everybody one link further away. A fleet that has begun is not waited for."""
        end = time.monotonic() + limit
        for step in range(1, steps + 2):
            others = self.meet()
            if any(self.newest.values()):
                return
            self._ask(dict.fromkeys(others, Ready(self.responder.card.identity, step).encode()), SLICE)
            while step <= steps and any(not self.responder.is_ready(j, step) for j in others & self.meet()):
                if time.monotonic() > end or self.should_stop():
                    return
                self.transport.await_change(0.01)

    def part(self, round: int) -> None:
        """Where nobody waits: stay until everybody who is there has this agent's last message, or for a deadline."""
        end = time.monotonic() + self.patience.round_deadline
        while self.responder.newest and any(not self.responder.was_given(j, round) for j in self.meet()):
            if time.monotonic() > end or self.should_stop():
                break
            self.transport.await_change(0.02)

    def _open_inbox(self, schema: Schema, opening: Callable[[int], MessageRow | None]) -> bool:
        """Whether this is the first time."""
        first = self.inbox is None
        if first:
            self.inbox = Inbox(self.responder.card.identity, schema, self.neighbours, opening, self._admit)
        return first

    def farewell(self, round: int) -> None:
        """Say that nothing up to `round` is needed any more, then stay until no neighbour needs anything either."""
        if not self.responder.newest:  # nothing was ever sent
            return
        self._pull_once(self.meet(), round + 1, 0.0)
        end = time.monotonic() + self.patience.round_limit
        while any(not self.responder.moved_past(j, round) for j in self.meet()):
            if time.monotonic() > end or self.should_stop():
                break
            self.transport.await_change(0.02)

    def _may_come(self, wanted: set[int]) -> bool:
        """Whether to go on waiting for some of these: those who are there, or with `wait` anybody."""
        awaited = wanted if self.patience.missing == "wait" else wanted & self.transport.alive()
        return bool(awaited - self.refused - self.mute.keys() - self._hopeless())

    def _hopeless(self) -> set[int]:
        """Whose frames were refused so often in this round, or for being far ahead, that no more is asked for."""
        return {j for j, reasons in self.bad.items() if len(reasons) >= TRIES or "ahead" in reasons}

    def _take_what_there_is(self, wanted: set[int], there: frozenset[int] | set[int], round: int) -> None:
        """The time is over: take older messages, and wait no more for who does not say a word."""
        silent = wanted - self.bad.keys() - self._pull_once(there, round, 0.0).keys()
        self.mute = dict.fromkeys(silent, time.monotonic() + RECALL * self.patience.round_limit) | self.mute

    def _listen_to(self, heard: frozenset[int] | set[int]) -> None:
        """Ask those again who have come or spoken, and those who were mute for long."""
        now = time.monotonic()
        self.mute = {j: until for j, until in self.mute.items() if j not in heard and now < until}

    def _lacking(self, neighbours: Iterable[int], round: int) -> set[int]:
        return {j for j in neighbours if not self._holds(j, round)}

    def _holds(self, neighbour: int, round: int) -> bool:
        assert self.inbox is not None
        held = self.inbox.held(neighbour)
        return held is not None and held >= round

    def _pull_once(self, there: frozenset[int] | set[int], round: int, patience: float) -> dict[int, Answer]:
        """Ask some neighbours once."""
        requests = {j: self._question(j, round, patience).encode() for j in there}
        # Once all are heard, it is clear how far the neighbourhood is.
        return self._answers(
            requests, patience or SLICE, lambda: min(max(round, self.catch_up()) + KEPT_ROUNDS, self.rounds)
        )

    def _answers(
        self, requests: Mapping[int, bytes], patience: float, latest: Callable[[], int] | None = None
    ) -> dict[int, Answer]:
        """To questions. A frame that is bad or old is said and forgotten; its sender is asked again."""
        answers = {}
        for j, answer in self._ask(requests, patience).items():
            if isinstance(answer, Greeting):  # another experiment since it was met
                self.newest.pop(j, None)
            else:
                self.newest[j] = max(answer.newest, self.newest.get(j, 0))
                answers[j] = answer
        if latest is not None:
            self.latest = latest()
        return {j: answer for j, answer in answers.items() if answer.frame is None or self._accepted(j, answer)}

    def _question(self, neighbour: int, round: int, patience: float) -> Pull:
        history = self.inbox.history(neighbour) if self.inbox is not None else None
        return Pull(self.responder.card.identity, round, history, patience)

    def _accepted(self, neighbour: int, answer: Answer) -> bool:
        if self.inbox is None or answer.frame is None:
            return False
        try:
            self.inbox.accept(answer.frame, neighbour)
        except WireError as error:
            self.bad.setdefault(neighbour, []).append(error.why)
            self.responder.refusals.note(neighbour, error.why, f"agent {neighbour} sent a bad frame: {error}")
            return False
        self.responder.received.add(neighbour, len(answer.frame))
        return True

    def _admit(self, header: FrameHeader, payload: MessageRow) -> None:
        if header.round > self.latest:
            raise WireError(f"its frame is of round {header.round}, here nobody is beyond {self.latest}", "ahead")
        self.admit(header.sender, payload)

    def _ask(self, requests: Mapping[int, bytes], patience: float) -> dict[int, Greeting | Answer]:
        understood = {}
        for j, data in self.transport.ask(requests, patience).items():
            try:
                understood[j] = decode_answer(data)
            except WireError as error:
                self.bad.setdefault(j, []).append(error.why)
                told = "refuses this device" if error.why == "double" else "sent a bad answer"
                self.responder.refusals.note(j, error.why, f"agent {j} {told}: {error}")
        return understood

    def _heard(self, round: int, wanted: Set[int], behind: int | None, missing: Missing | None = None) -> Heard:
        """All that is held, but for those who are wanted still and are left out where they are missing."""
        assert self.inbox is not None
        alive, here = self.transport.alive(), self.responder.neighbours
        absent = []
        for j in sorted(wanted & here):
            why = "refused" if j in self.refused else "silent" if j in alive else "gone"
            if self.bad.get(j):
                why = f"refused ({self.bad[j][-1]})"
            used = None if (missing or self.patience.missing) == "skip" else self.inbox.held(j)
            absent.append(Absence(round, j, why, used))
        left_out = {absence.neighbour for absence in absent if absence.used is None}
        held = {
            j: self.inbox.newest[j]
            for j in self.neighbours
            if j not in left_out and j in here and j in self.inbox.newest
        }
        payloads = {j: payload for j, (_, payload) in held.items()}
        return Heard(payloads, absent, behind, {j: number for j, (number, _) in held.items()})
