"""The answering side of an agent: greets, and hands out the rounds it has published.

A neighbour that asks for a round not published yet is kept waiting, so that it has the answer as soon as there is
one. At most one question of each neighbour waits, whatever it sends.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass

from peermask.errors import WireError
from peermask.node.messages import Answer, Card, Greeting, Pull, decode_request
from peermask.node.transport import Reply
from peermask.wire import Outbox, Schema
from peermask.wire.frame import is_keyframe
from peermask.wire.schema import Payload


@dataclass(frozen=True)
class Waiting:
    question: Pull
    until: float
    reply: Reply


@dataclass
class Sent:
    """Frames of one round that were handed out."""

    frames: int = 0
    bytes: int = 0
    keyframes: int = 0  # of them

    @property
    def kind(self) -> str:
        """As in the table of traffic: neighbours may have got different ones."""
        if not self.frames:
            return ""
        return "delta" if not self.keyframes else "keyframe" if self.keyframes == self.frames else "both"


class Responder:
    """Thread-safe: questions come from the transport's thread, rounds from the agent's."""

    def __init__(self, agent: int, neighbours: Collection[int], card: Card, say: Callable[[str], None]) -> None:
        self.agent, self.neighbours, self.card, self.say = agent, frozenset(neighbours), card, say
        self.outbox: Outbox | None = None
        self.asked: dict[int, int] = {}  # the highest round each neighbour has asked for
        self.met: set[int] = set()  # who ever came with the same card
        self.turned_away: set[int] = set()  # who ever came with another
        self.heard_from: set[int] = set()  # who has asked for anything since it was last emptied
        self.sent: dict[int, Sent] = defaultdict(Sent)  # by round, of rounds whose row is not written yet
        self.sent_bytes = 0  # of all rounds
        self._waiting: dict[int, Waiting] = {}
        self._said: set[str] = set()
        self._lock = threading.Lock()

    @property
    def newest(self) -> int:
        """The last round published; 0 before the first."""
        return (self.outbox.newest or 0) if self.outbox is not None else 0

    def greeting(self) -> Greeting:
        return Greeting(self.card, self.newest)

    def publish(
        self,
        round: int,
        payload: Payload,
        schema: Schema,
        opening: Callable[[int], Payload | None] = lambda _agent: None,
    ) -> None:
        """Hand out `payload` from now on, first to those who wait for it."""
        with self._lock:
            if self.outbox is None:
                self.outbox = Outbox(self.card.identity, self.agent, schema, opening=opening(self.agent))
            self.outbox.publish(round, payload)
            ready = [asker for asker, waiting in self._waiting.items() if waiting.question.round <= round]
            for asker in ready:
                waiting = self._waiting.pop(asker)
                if time.monotonic() < waiting.until:
                    waiting.reply(self._answer(waiting.question).encode())

    def __call__(self, asker: int, request: bytes, reply: Reply) -> None:
        """Answer a neighbour; a stranger, or what is no request, gets no answer."""
        if asker not in self.neighbours:
            return
        try:
            question = decode_request(request)
        except WireError as error:
            self.say_once(f"agent {asker} was refused: {error}")
            return
        self.heard_from.add(asker)
        if isinstance(question, Greeting):
            self.refuses(asker, question.card)
            reply(self.greeting().encode())
        elif question.identity != self.card.identity:
            reply(self.greeting().encode())
        else:
            self._pulled(asker, question, reply)

    def refuses(self, asker: int, card: Card) -> bool:
        """Whether a peer's card differs from this agent's, which is said once."""
        difference = self.card.difference(card)
        if difference is None:
            self.met.add(asker)
            return False
        self.turned_away.add(asker)
        self.say_once(f"agent {asker} was refused: {difference}")
        return True

    def moved_past(self, neighbour: int, round: int) -> bool:
        """Whether a neighbour needs nothing of `round` or before any more."""
        return self.asked.get(neighbour, 0) > round

    def _pulled(self, asker: int, question: Pull, reply: Reply) -> None:
        with self._lock:
            self.asked[asker] = max(question.round, self.asked.get(asker, 0))
            if question.round <= self.newest or question.patience == 0:
                reply(self._answer(question).encode())
            else:
                self._waiting[asker] = Waiting(question, time.monotonic() + question.patience, reply)

    def _answer(self, question: Pull) -> Answer:
        """The round asked for, or the newest where that is no longer kept or still to come."""
        if self.outbox is None:
            return Answer(0, None)
        number = question.round if question.round in self.outbox.payloads else self.newest
        frame = self.outbox.answer(question.history, number)
        if frame is not None:
            self.sent[number].frames += 1
            self.sent[number].bytes += len(frame)
            self.sent_bytes += len(frame)
            self.sent[number].keyframes += is_keyframe(frame)
        return Answer(self.newest, frame)

    def say_once(self, line: str) -> None:
        if line not in self._said and len(self._said) < 100:
            self._said.add(line)
            self.say(line)
