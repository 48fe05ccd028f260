"""The answering side of an agent: greets, and hands out the rounds it has published.

A neighbour that asks for a round not published yet is kept waiting, so that it has the answer as soon as there is
one. At most one question of each neighbour waits, and each may ask for so much a minute, whatever it sends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from peermask.errors import WireError
from peermask.node.allowance import Allowance
from peermask.node.messages import Answer, Card, Greeting, Pull, Ready, decode_request, is_standing
from peermask.node.refusals import Refusals
from peermask.node.tally import Tally
from peermask.node.transport import Handler, Reply
from peermask.wire import Outbox, Schema, bitmap_size
from peermask.wire.direct import DirectOutbox
from peermask.wire.frame import is_keyframe
from peermask.wire.schema import MessageRow

# What a neighbour may ask for: in any minute, and in addition for every round published. An honest one asks once or
# twice a round, and every second while it waits.
QUESTIONS = (1200, 16)
QUESTIONS_ANY_TIME = (12_000, 16)  # where nobody waits, fast ones ask a slow one in every round of theirs
MESSAGES = (64, 4)  # worth of bytes, each of a message with one bit per mask weight and four bytes per value


@dataclass(frozen=True)
class Waiting:
    question: Pull
    until: float
    reply: Reply


@dataclass(frozen=True)
class Sent:
    """Frames of one round that were handed out."""

    frames: int = 0
    bytes: int = 0
    keyframes: int = 0  # of them

    def one_more(self, size: int, keyframe: bool) -> Sent:
        return Sent(self.frames + 1, self.bytes + size, self.keyframes + keyframe)

    @property
    def kind(self) -> str:
        """As in the table of traffic: neighbours may have got different ones."""
        if not self.frames:
            return ""
        return "delta" if not self.keyframes else "keyframe" if self.keyframes == self.frames else "both"


class Responder:
    """Thread-safe: questions come from the transport's thread, rounds from the agent's.

    It owns all it holds: everything behind an underscore is touched under the lock alone, and what others ask for are
    copies.
    """

    def __init__(
        self,
        agent: int,
        neighbours: Collection[int],
        card: Card,
        say: Callable[[str], None],
        *,
        newest_only: bool = False,
    ) -> None:
        """With `newest_only` the newest round is the answer to everything, as rounds are nobody's in common."""
        self.agent, self.card = agent, card
        self.say, self.refusals, self.newest_only = say, Refusals(say), newest_only
        self.sent, self.received = Tally(), Tally()  # by neighbour
        self._outbox: Outbox | DirectOutbox | None = None
        self._handed: dict[int, int] = {}  # the newest round each neighbour was given, or has
        self._asked: dict[int, int] = {}  # the highest round each neighbour has asked for
        self._ready: dict[int, int] = {}  # at which step of the beginning each neighbour is
        self._met: set[int] = set()  # who ever came with the same card
        self._turned_away: set[int] = set()  # who ever came with another
        self._heard_from: set[int] = set()  # who has asked for anything since that was last taken
        self._sent: dict[int, Sent] = {}  # by round
        self._sent_bytes = 0
        self._waiting: dict[int, Waiting] = {}
        self._questions: dict[int, Allowance] = {}
        self._bytes: dict[int, Allowance] = {}
        self._whole = 0  # bytes of a message, known from the first on
        self._lock = threading.RLock()
        self.rosters: Handler = lambda _asker, _request, _reply: None  # answers what is said of rosters
        self.follow(neighbours)

    def follow(self, neighbours: Collection[int]) -> None:
        """From now on, answer these and nobody else; who is no longer among them is forgotten."""
        with self._lock:
            self.neighbours = frozenset(neighbours)
            for known in (self._asked, self._ready, self._handed, self._waiting, self._questions, self._bytes):
                for j in known.keys() - self.neighbours:
                    del known[j]
            self._met &= self.neighbours
            self._turned_away &= self.neighbours
            for j in self.neighbours - self._questions.keys():
                self._questions[j] = Allowance(*(QUESTIONS_ANY_TIME if self.newest_only else QUESTIONS))
            self._allow_bytes()

    def _allow_bytes(self) -> None:
        for j in self.neighbours - self._bytes.keys() if self._whole else ():
            self._bytes[j] = Allowance(*(self._whole * many for many in MESSAGES))

    @property
    def newest(self) -> int:
        """The last round published; 0 before the first."""
        with self._lock:
            return (self._outbox.newest or 0) if self._outbox is not None else 0

    @property
    def met(self) -> frozenset[int]:
        """Neighbours that ever came with the same card."""
        with self._lock:
            return frozenset(self._met)

    @property
    def turned_away(self) -> frozenset[int]:
        """Neighbours that ever came with another."""
        with self._lock:
            return frozenset(self._turned_away)

    @property
    def sent_bytes(self) -> int:
        """All that was handed out."""
        with self._lock:
            return self._sent_bytes

    def take_sent(self, before: int) -> dict[int, Sent]:
        """What was handed out of the rounds below `before`, which is forgotten here."""
        with self._lock:
            return {round_: self._sent.pop(round_) for round_ in sorted(self._sent) if round_ < before}

    def take_heard_from(self) -> frozenset[int]:
        """Who has asked for anything since this was last called."""
        with self._lock:
            heard, self._heard_from = self._heard_from, set()
            return frozenset(heard)

    def greeting(self) -> Greeting:
        return Greeting(self.card, self.newest)

    def publish(
        self,
        round: int,
        payload: MessageRow,
        schema: Schema,
        opening: Callable[[int], MessageRow | None] = lambda _agent: None,
    ) -> None:
        """Hand out `payload` from now on, first to those who wait for it."""
        with self._lock:
            if self._outbox is None:
                made = DirectOutbox if self.newest_only else Outbox
                self._outbox = made(self.card.identity, self.agent, schema, opening=opening(self.agent))
                self._whole = bitmap_size(schema)
                self._allow_bytes()
            self._outbox.publish(round, payload)
            for allowance in (*self._questions.values(), *self._bytes.values()):
                allowance.new_round()
            ready = [asker for asker, waiting in self._waiting.items() if waiting.question.round <= round]
            now, answers = time.monotonic(), []
            for asker in ready:
                waiting = self._waiting.pop(asker)
                if now < waiting.until:
                    answers.append((waiting.reply, self._answer(asker, waiting.question)))
        for reply, answer in answers:
            if answer is not None:
                reply(answer)  # not under the lock: a neighbour that is stuck can make it wait

    def __call__(self, asker: int, request: bytes, reply: Reply) -> None:
        """Answer a neighbour; a stranger, or what is no request, gets no answer."""
        with self._lock:
            allowance = self._questions.get(asker)
            if allowance is None:
                return
            allowed = allowance.spend(1)
        if not allowed:
            self.refusals.note(asker, "flood", f"agent {asker} asks too often; some questions get no answer")
            return
        with self._lock:
            self._heard_from.add(asker)
        if is_standing(request):
            self.rosters(asker, request, reply)
            return
        try:
            question = decode_request(request)
        except WireError as error:
            self.refusals.note(asker, error.why, f"agent {asker} was refused: {error}")
            return
        if isinstance(question, Greeting):
            self.refuses(asker, question.card)
            reply(self.greeting().encode())
        elif question.identity != self.card.identity:
            reply(self.greeting().encode())
        elif isinstance(question, Ready):
            with self._lock:
                self._ready[asker] = max(question.step, self._ready.get(asker, 0))
            reply(Answer(self.newest, None).encode())
        else:
            self._pulled(asker, question, reply)

    def refuses(self, asker: int, card: Card) -> bool:
        """Whether a peer's card differs from this agent's, which is said once."""
        difference = self.card.difference(card)
        with self._lock:
            (self._met if difference is None else self._turned_away).add(asker)
        if difference is not None:
            self.refusals.note(asker, "card", f"agent {asker} was refused: {difference}")
        return difference is not None

    def moved_past(self, neighbour: int, round: int) -> bool:
        """Whether a neighbour needs nothing of `round` or before any more."""
        with self._lock:
            return self._asked.get(neighbour, 0) > round

    def is_ready(self, neighbour: int, step: int) -> bool:
        """Whether a neighbour has come to a step of the beginning, or has begun."""
        with self._lock:
            return neighbour in self._asked or self._ready.get(neighbour, 0) >= step

    def was_given(self, neighbour: int, round: int) -> bool:
        """Whether a neighbour has a round, or one after it."""
        with self._lock:
            return self._handed.get(neighbour, 0) >= round

    def _pulled(self, asker: int, question: Pull, reply: Reply) -> None:
        with self._lock:
            if asker not in self.neighbours:
                return
            self._asked[asker] = max(question.round, self._asked.get(asker, 0))
            if question.round > self.newest and question.patience:
                self._waiting[asker] = Waiting(question, time.monotonic() + question.patience, reply)
                return
            answer = self._answer(asker, question)
        if answer is not None:
            reply(answer)

    def _answer(self, asker: int, question: Pull) -> bytes | None:
        """The round asked for, or the newest where that is no longer kept or still to come; None: it had too much."""
        frame, number = None, self.newest
        if isinstance(self._outbox, DirectOutbox):
            frame = self._outbox.answer(asker, question.history)
        elif self._outbox is not None:
            number = question.round if question.round in self._outbox.payloads else number
            frame = self._outbox.answer(question.history, number)
        if frame is not None:
            if not self._bytes[asker].spend(len(frame)):
                self.refusals.note(asker, "flood", f"agent {asker} asks for too many bytes; some get no answer")
                return None
            sent = self._sent.get(number, Sent())
            self._sent[number] = sent.one_more(len(frame), is_keyframe(frame))
            self._sent_bytes += len(frame)
            self.sent.add(asker, len(frame))
        self._handed[asker] = max(number, self._handed.get(asker, 0))
        return Answer(self.newest, frame).encode()
