"""The answering side of an agent: answers greetings, and sends the rounds it has published to neighbours that ask.

A request for a round that is not published yet waits, so that it is answered as soon as the round is. At most one
request of each neighbour waits, and requests and bytes of each neighbour are limited.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass

from peermask.errors import WireError
from peermask.fleet.admission import Allowance, Refusals, Sent, Tally
from peermask.fleet.environment import SYSTEM_TIME, Handler, Reply, TimeSource
from peermask.fleet.messages import (
    NOTHING,
    Answer,
    ExperimentId,
    Greeting,
    Pull,
    Ready,
    decode_request,
    is_roster_message,
)
from peermask.wire import Outbox, Schema, bitmap_size
from peermask.wire.frame import is_keyframe
from peermask.wire.mailbox import KEPT_ROUNDS
from peermask.wire.schema import MessageRow


@dataclass(frozen=True)
class AnswerLimits:
    """What is answered to one neighbour: in any minute, and in addition for every published round.

    An honest neighbour sends one or two requests a round, and one every second while it waits.
    """

    requests: tuple[float, float] = (1200, 16)
    messages: tuple[float, float] = (64, 4)  # of one bit per mask weight and four bytes per value: a limit of bytes


ANY_TIME = AnswerLimits(requests=(12_000, 16))  # of asynchronous runs: fast agents ask a slow one in all their rounds


@dataclass(frozen=True)
class Waiting:
    question: Pull
    until: float
    reply: Reply


class Responder:
    """Thread-safe: requests come from the transport's thread, rounds from the agent's.

    Everything that begins with an underscore is used only under the lock, and properties return copies.
    """

    def __init__(
        self,
        agent: int,
        neighbours: Collection[int],
        experiment_id: ExperimentId,
        say: Callable[[str], None],
        *,
        newest_only: bool = False,
        exact: bool = False,
        limits: AnswerLimits | None = None,
        rounds: int = NOTHING,
        time: TimeSource = SYSTEM_TIME,
    ) -> None:
        """With `newest_only`, for asynchronous runs, the answer is always the newest round. With `exact`, for fleets
        that wait, the newest never replaces a round that is no longer kept: `needed` says that one was asked for.
        `rounds` is the last round: a neighbour that asks for a later one has ended, and needs no message."""
        self.agent, self.experiment_id, self.rounds = agent, experiment_id, rounds
        self.say, self.refusals, self.newest_only = say, Refusals(say), newest_only
        self.limits = limits or (ANY_TIME if newest_only else AnswerLimits())
        self.time = time
        self.sent, self.received = Tally(time), Tally(time)  # by neighbour
        self._outbox: Outbox | None = None
        self._delivered: dict[int, int] = {}  # the newest round that each neighbour was sent, or has
        self._asked: dict[int, int] = {}  # the highest round each neighbour has asked for
        self._ready: dict[int, int] = {}  # the step of the start that each neighbour has reached
        self._met: set[int] = set()  # neighbours that greeted with the same experiment
        self._incompatible: set[int] = set()  # neighbours that greeted with another experiment
        self._active: set[int] = set()  # neighbours that sent a request since `take_active`
        self._sent: dict[int, Sent] = {}  # by round
        self._sent_bytes = 0
        self._exact, self._needed = exact, 0
        self._waiting: dict[int, Waiting] = {}
        self._questions: dict[int, Allowance] = {}
        self._bytes: dict[int, Allowance] = {}
        self._whole = 0  # bytes of a message; 0 until the first is published
        self._lock = threading.RLock()
        self.rosters: Handler = lambda _asker, _request, _reply: None  # answers requests about rosters
        self.follow(neighbours)

    def follow(self, neighbours: Collection[int]) -> None:
        """Answer only these neighbours from now on, and drop what is known of others."""
        with self._lock:
            self.neighbours = frozenset(neighbours)
            for table in (self._asked, self._ready, self._delivered, self._waiting, self._questions, self._bytes):
                for j in table.keys() - self.neighbours:
                    del table[j]
            self._met &= self.neighbours
            self._incompatible &= self.neighbours
            for j in self.neighbours - self._questions.keys():
                self._questions[j] = Allowance(*self.limits.requests, self.time)
            self._allow_bytes()

    def _allow_bytes(self) -> None:
        for j in self.neighbours - self._bytes.keys() if self._whole else ():
            a_minute, a_round = self.limits.messages
            self._bytes[j] = Allowance(self._whole * a_minute, self._whole * a_round, self.time)

    @property
    def newest(self) -> int:
        """The last round published; 0 before the first."""
        with self._lock:
            return (self._outbox.newest or 0) if self._outbox is not None else 0

    @property
    def needed(self) -> int:
        """The earliest round that a neighbour has asked for and that is no longer kept; 0: none."""
        with self._lock:
            return self._needed

    def answer_newest(self) -> None:
        """Answer with the newest round from now on, where the one asked for is no longer kept."""
        with self._lock:
            self._exact, self._needed = False, 0

    def start_again(self) -> None:
        """Forget what was published: the agent has gone back to an earlier round."""
        with self._lock:
            self._outbox, self._needed, self._sent_bytes = None, 0, 0
            for table in (self._delivered, self._asked, self._sent):
                table.clear()

    @property
    def met(self) -> frozenset[int]:
        """Neighbours that greeted with the same experiment."""
        with self._lock:
            return frozenset(self._met)

    @property
    def incompatible(self) -> frozenset[int]:
        """Neighbours that greeted with another experiment."""
        with self._lock:
            return frozenset(self._incompatible)

    @property
    def sent_bytes(self) -> int:
        """Bytes of all frames that were sent."""
        with self._lock:
            return self._sent_bytes

    def take_sent(self, before: int) -> dict[int, Sent]:
        """Remove and return what was sent of the rounds below `before`."""
        with self._lock:
            return {round_: self._sent.pop(round_) for round_ in sorted(self._sent) if round_ < before}

    def take_active(self) -> frozenset[int]:
        """Neighbours that sent a request since this was last called."""
        with self._lock:
            active, self._active = self._active, set()
            return frozenset(active)

    def greeting(self) -> Greeting:
        return Greeting(self.experiment_id, self.newest)

    def publish(
        self,
        round: int,
        payload: MessageRow,
        schema: Schema,
        opening: Callable[[int], MessageRow | None] = lambda _agent: None,
    ) -> None:
        """Answer requests with `payload` from now on, first those that wait for it."""
        with self._lock:
            if self._outbox is None:
                window = 1 if self.newest_only else KEPT_ROUNDS
                self._outbox = Outbox(self.experiment_id.identity, self.agent, schema, window, opening(self.agent))
                self._whole = bitmap_size(schema)
                self._allow_bytes()
            self._outbox.publish(round, payload)
            for allowance in (*self._questions.values(), *self._bytes.values()):
                allowance.new_round()
            ready = [asker for asker, waiting in self._waiting.items() if waiting.question.round <= round]
            now, answers = self.time.monotonic(), []
            for asker in ready:
                waiting = self._waiting.pop(asker)
                if now < waiting.until:
                    answers.append((waiting.reply, self._answer(asker, waiting.question)))
        for reply, answer in answers:
            if answer is not None:
                reply(answer)  # not under the lock: this may block if the neighbour does not read

    def __call__(self, asker: int, request: bytes, reply: Reply) -> None:
        """Answer a request of a neighbour; other senders and malformed requests get no answer."""
        with self._lock:
            allowance = self._questions.get(asker)
            if allowance is None:
                return
            allowed = allowance.spend(1)
        if not allowed:
            self.refusals.note(asker, "flood", f"agent {asker} asks too often; some of its requests are not answered")
            return
        with self._lock:
            self._active.add(asker)
        if is_roster_message(request):
            self.rosters(asker, request, reply)
            return
        try:
            question = decode_request(request)
        except WireError as error:
            self.refusals.note(asker, error.why, f"agent {asker} was refused: {error}")
            return
        if isinstance(question, Greeting):
            self.refuses(asker, question.experiment_id)
            reply(self.greeting().encode())
        elif question.identity != self.experiment_id.identity:
            reply(self.greeting().encode())
        elif isinstance(question, Ready):
            with self._lock:
                self._ready[asker] = max(question.step, self._ready.get(asker, 0))
            reply(Answer(self.newest, None).encode())
        else:
            self._pulled(asker, question, reply)

    def refuses(self, asker: int, experiment_id: ExperimentId) -> bool:
        """Whether a peer runs another experiment, which is logged once."""
        difference = self.experiment_id.difference(experiment_id)
        with self._lock:
            (self._met if difference is None else self._incompatible).add(asker)
        if difference is not None:
            self.refusals.note(asker, "experiment", f"agent {asker} was refused: {difference}")
        return difference is not None

    def moved_past(self, neighbour: int, round: int) -> bool:
        """Whether a neighbour no longer needs `round` or earlier rounds."""
        with self._lock:
            return self._asked.get(neighbour, 0) > round

    def is_ready(self, neighbour: int, step: int) -> bool:
        """Whether a neighbour has reached a step of the start, or has begun its rounds."""
        with self._lock:
            return neighbour in self._asked or self._ready.get(neighbour, 0) >= step

    def was_sent(self, neighbour: int, round: int) -> bool:
        """Whether a neighbour has a round or a later one."""
        with self._lock:
            return self._delivered.get(neighbour, 0) >= round

    def _pulled(self, asker: int, question: Pull, reply: Reply) -> None:
        with self._lock:
            if asker not in self.neighbours:
                return
            self._asked[asker] = max(question.round, self._asked.get(asker, 0))
            if question.round > self.newest and question.patience:
                self._waiting[asker] = Waiting(question, self.time.monotonic() + question.patience, reply)
                return
            answer = self._answer(asker, question)
        if answer is not None:
            reply(answer)

    def _answer(self, asker: int, question: Pull) -> bytes | None:
        """The requested round, or the newest if that is not available; None if the neighbour is over its limit."""
        frame, number = None, self.newest
        if self._outbox is not None and question.round <= self.rounds:
            number = question.round if question.round in self._outbox.payloads else number
            if self._exact and question.round < min(self._outbox.payloads):
                self._needed = min(question.round, self._needed or question.round)
                return Answer(number, None).encode()
            frame = self._outbox.answer(asker, question.history, number)
        if frame is not None:
            if not self._bytes[asker].spend(len(frame)):
                self.refusals.note(
                    asker, "flood", f"agent {asker} asks for too many bytes; some of its requests are not answered"
                )
                return None
            sent = self._sent.get(number, Sent())
            self._sent[number] = sent.one_more(len(frame), is_keyframe(frame))
            self._sent_bytes += len(frame)
            self.sent.add(asker, len(frame))
        self._delivered[asker] = max(number, self._delivered.get(asker, 0))
        return Answer(self.newest, frame).encode()
