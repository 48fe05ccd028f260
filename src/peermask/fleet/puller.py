"""The asking side of an agent: pulls the message of a round from every neighbour before a deadline.

Neighbours that are not connected are not waited for, unless the policy is to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass

from peermask.errors import WireError
from peermask.fleet.admission import OUT_OF_STEP
from peermask.fleet.messages import NOTHING, Answer, Greeting, Pull
from peermask.fleet.neighbourhood import REQUEST_SECONDS, Neighbourhood
from peermask.graph.mixing import MISSING
from peermask.run.exchange import Abandoned
from peermask.run.trace import may_come
from peermask.wire import FrameHeader, Inbox, Schema
from peermask.wire.schema import MessageRow

RETRY_SECONDS = (0.02, 0.5)  # seconds before asking connected neighbours again that had nothing new: at first, at most
SILENT_LIMITS = 10  # limits until a silent neighbour is asked again: after a short cut, both ends may ignore each other
SILENT_SECONDS = 20 * REQUEST_SECONDS  # until it is, in asynchronous runs: it costs at most 5 % of the time
STOP_SECONDS = 5.0  # seconds a round may still wait once the agent was asked to stop


@dataclass(frozen=True)
class Absence:
    """A neighbour whose message of a round did not arrive."""

    round: int
    neighbour: int
    why: str  # gone, silent, refused, or refused (...) with the reason
    used: int | None  # the round of its last message, which counts by its age; None if it was left out


@dataclass(frozen=True)
class Received:
    """The messages of a round."""

    payloads: dict[int, MessageRow]
    absent: list[Absence]
    behind: int | None  # the round to jump to, if neighbours no longer keep this one
    rounds: dict[int, int]  # of the payloads


class RollBack(Exception):
    """A neighbour needs rounds that this agent no longer keeps: it must play on from the checkpoint of `round`."""

    def __init__(self, round: int) -> None:
        super().__init__(f"back to round {round}")
        self.round = round


def no_opening(_agent: int) -> MessageRow | None:
    return None


class Puller:
    def __init__(
        self,
        around: Neighbourhood,
        admit: Callable[[int, MessageRow], None] = lambda _sender, _payload: None,
        rounds: int = NOTHING,
    ) -> None:
        """`admit` raises a WireError for a payload that its sender cannot send; `rounds` is the last round."""
        self.around, self.admit, self.rounds = around, admit, rounds
        self.inbox: Inbox | None = None
        self.latest = rounds  # frames of later rounds are refused
        self.check_rollback: Callable[[], None] = lambda: None  # raises RollBack if a neighbour needs an earlier round

    def follow(self, neighbours: tuple[int, ...], forgotten: Collection[int] = ()) -> None:
        """Receive from these from now on; drop messages of all others, and earlier ones of `forgotten`."""
        self.around.follow(neighbours, forgotten)
        if self.inbox is not None:
            self.inbox.follow(neighbours, forgotten)

    def newest_messages(self, round: int, schema: Schema, opening: Callable[[int], MessageRow | None]) -> Received:
        """What connected neighbours have published up to a round, without waiting."""
        self._open_inbox(schema, opening)
        self._pull_once(self.around.meet(), round, 0.0)
        return self._received(round, set(), None)

    def pull(
        self,
        round: int,
        schema: Schema,
        opening: Callable[[int], MessageRow | None] = no_opening,
        senders: Collection[int] | None = None,
    ) -> Received:
        """The messages of a round from all neighbours, or from `senders`, that arrive before the deadline."""
        around, limit = self.around, self.around.fleet.round_limit
        if self._open_inbox(schema, opening):
            limit = max(limit, around.fleet.start_limit)  # a neighbour may still wait for its own neighbours
        around.begin_round(round)
        expected = around.expected()
        wanted, behind = self._lacking(expected if senders is None else expected & set(senders), round), None
        end = around.time.monotonic() + limit
        stopping, pause = False, RETRY_SECONDS[0]
        while wanted:
            self.check_rollback()
            if around.should_stop() and not stopping:
                stopping, end = True, min(end, around.time.monotonic() + STOP_SECONDS)
            left = end - around.time.monotonic()
            wanted &= around.responder.neighbours  # without those that have left meanwhile
            there = (around.meet() & wanted) - around.silent.keys() - around.hopeless()
            if left <= 0:
                self._take_older(wanted, there, round)
                wanted = self._lacking(wanted, round)
                break
            if there:
                answers = self._pull_once(there, round, min(left, REQUEST_SECONDS))
                if any(self._holds(j, round + 1) for j in answers):
                    behind = max(round, around.common_round())  # a neighbour no longer keeps this round
                lacking = self._lacking(wanted, round)
                if lacking == wanted and there - around.hopeless():  # a neighbour that answers quickly sets no pace
                    around.time.sleep(max(0.0, min(pause, end - around.time.monotonic())))
                    pause = min(2 * pause, RETRY_SECONDS[1])
                wanted = lacking
            elif around.may_come(wanted):
                around.transport.await_change(min(left, 0.1))
            else:
                break
        if wanted and stopping and around.fleet.missing == "wait":
            raise Abandoned  # with `wait` no round is played without all neighbours
        return self._received(round, wanted, behind)

    def take(
        self, round: int, schema: Schema, opening: Callable[[int], MessageRow | None] = no_opening, grace: float = 0.0
    ) -> Received:
        """The newest message of every neighbour that answers immediately. Those that were at most one round behind when
        they were last asked have `grace` seconds to publish this round."""
        around = self.around
        self._open_inbox(schema, opening)
        around.bad = {}
        around.ask_again(frozenset())
        there = around.meet() - around.silent.keys()
        self.latest = self.rounds  # neighbours may be in any round
        near = {j for j in there if grace and may_come(round, around.newest[j]) and not self._holds(j, round)}
        # The neighbour's side waits a little less, so that its answer does not arrive after this side has stopped.
        expiring = {j: self._request(j, round, 0.8 * grace).encode() for j in near}
        came = self._answers(expiring, grace).keys() if near else set()
        asked = {j: self._request(j, self.rounds, 0.0).encode() for j in there - came}
        answered = self._answers(asked, REQUEST_SECONDS).keys() | came | around.bad.keys()
        silent = (around.present - around.refused) - answered  # including those not met yet
        around.ignore(silent, SILENT_SECONDS)
        lacking = (around.expected() - around.transport.alive()) | around.refused | silent | around.bad.keys()
        ended = {j for j in around.neighbours if self._holds(j, self.rounds)}  # these have published their last message
        return self._received(round, lacking - ended, None, any_age=True)

    def wait_until_sent(self, round: int) -> None:
        """In asynchronous runs: stay until connected neighbours have this agent's last message, or for a deadline."""
        responder = self.around.responder
        if responder.newest:
            self.around.wait_while(lambda j: not responder.was_sent(j, round), self.around.fleet.round_deadline)

    def finish(self, round: int) -> None:
        """Tell neighbours that this agent needs no round up to `round` any more, and stay until they need none."""
        responder = self.around.responder
        if not responder.newest:  # nothing was ever sent
            return
        self._pull_once(self.around.meet(), round + 1, 0.0)
        self.around.wait_while(lambda j: not responder.moved_past(j, round), self.around.fleet.round_limit)

    def _open_inbox(self, schema: Schema, opening: Callable[[int], MessageRow | None]) -> bool:
        """Whether this is the first time."""
        first = self.inbox is None
        if first:
            identity = self.around.responder.experiment_id.identity
            self.inbox = Inbox(identity, schema, self.around.neighbours, opening, self._admit)
        return first

    def _take_older(self, wanted: set[int], there: Set[int], round: int) -> None:
        """The time is over: take older messages, and ignore neighbours that do not answer at all."""
        around, limit = self.around, self.around.fleet.round_limit
        silent = wanted - self._pull_once(there, round, 0.0).keys()
        costly = silent & around.responder.take_active()  # they are there, and use up the time
        around.back_off(costly, limit)
        around.ignore(silent - costly - around.bad.keys(), SILENT_LIMITS * limit)

    def _lacking(self, neighbours: Iterable[int], round: int) -> set[int]:
        return {j for j in neighbours if not self._holds(j, round)}

    def _holds(self, neighbour: int, round: int) -> bool:
        assert self.inbox is not None
        newest = self.inbox.newest_round(neighbour)
        return newest is not None and newest >= round

    def _pull_once(self, there: Set[int], round: int, patience: float) -> dict[int, Answer]:
        """Ask some neighbours once."""
        requests = {j: self._request(j, round, patience).encode() for j in there}
        # Once all have answered, it is known how far the neighbourhood is.
        return self._answers(
            requests,
            patience or REQUEST_SECONDS,
            lambda: min(self.around.latest_useful(round), self.rounds),
        )

    def _answers(
        self, requests: Mapping[int, bytes], patience: float, latest: Callable[[], int] | None = None
    ) -> dict[int, Answer]:
        """Send requests, and take the frames of the answers. Those with a bad frame are left out, and asked again."""
        answers, newest = {}, self.around.newest
        for j, answer in self.around.ask(requests, patience).items():
            if isinstance(answer, Greeting):  # it runs another experiment by now
                newest.pop(j, None)
            else:
                newest[j] = max(answer.newest, newest.get(j, 0))
                answers[j] = answer
        if latest is not None:
            self.latest = latest()
        valid = {j: answer for j, answer in answers.items() if answer.frame is None or self._accepted(j, answer.frame)}
        for j in valid:
            self.around.strikes.pop(j, None)
        return valid

    def _request(self, neighbour: int, round: int, patience: float) -> Pull:
        history = self.inbox.history(neighbour) if self.inbox is not None else None
        return Pull(self.around.responder.experiment_id.identity, round, history, patience)

    def _accepted(self, neighbour: int, frame: bytes) -> bool:
        if self.inbox is None:
            return False
        try:
            self.inbox.accept(frame, neighbour)
        except WireError as error:
            what = "a frame out of step" if error.why in OUT_OF_STEP else "a bad frame"
            self.around.refuse(neighbour, error, f"sent {what}")
            return False
        self.around.responder.received.add(neighbour, len(frame))
        return True

    def _admit(self, header: FrameHeader, payload: MessageRow) -> None:
        if header.round > self.latest:
            raise WireError(f"its frame is of round {header.round}, but no agent here is beyond {self.latest}", "ahead")
        self.admit(header.sender, payload)

    def _used_instead(self, neighbour: int, round: int, any_age: bool) -> int | None:
        """The round of the last message of a neighbour that is missing, unless it is left out or expired."""
        newest = self.inbox.newest_round(neighbour) if self.inbox is not None else None
        if newest is None or any_age:
            return newest
        expired = round - newest >= len(MISSING)
        return None if expired or self.around.fleet.missing == "skip" else newest

    def _received(self, round: int, wanted: Set[int], behind: int | None, *, any_age: bool = False) -> Received:
        """All messages held, without those of `wanted` neighbours that are left out or expired."""
        assert self.inbox is not None
        around = self.around
        alive, here = around.transport.alive(), around.responder.neighbours
        absent = []
        for j in sorted(wanted & here):
            why = "refused" if j in around.refused else "silent" if j in alive else "gone"
            if around.bad.get(j):
                why = f"refused ({around.bad[j][-1]})"
            absent.append(Absence(round, j, why, self._used_instead(j, round, any_age)))
        left_out = {absence.neighbour for absence in absent if absence.used is None}
        messages = {
            j: self.inbox.newest[j]
            for j in around.neighbours
            if j not in left_out and j in here and j in self.inbox.newest
        }
        payloads = {j: payload for j, (_, payload) in messages.items()}
        return Received(payloads, absent, behind, {j: number for j, (number, _) in messages.items()})
