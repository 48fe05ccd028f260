"""Both ends of the pull protocol: an inbox names its history, an outbox answers with a frame that builds on it.

No separate resynchronisation is needed: a receiver with no history, or with one that the outbox did not send it, gets a
keyframe, which begins a new history. Receivers of the same frames share one. If both ends can compute an opening, a
message of round 0 that is never sent, every receiver begins with its history.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from peermask.errors import WireError
from peermask.wire.frame import (
    Expectation,
    FrameHeader,
    decode_frame,
    encode_frame,
    history_after,
    name_after,
    read_header,
)
from peermask.wire.history import History
from peermask.wire.schema import MessageRow, Schema

KEPT_ROUNDS = 8  # payloads in an outbox, for receivers that are behind
SHARED_ROUNDS = 2  # whose frames are stored for further receivers: neighbours are seldom farther apart


def history_of_opening(run_id: bytes, sender: int, schema: Schema, opening: MessageRow) -> History:
    """Return the history that an opening begins, as a keyframe of round 0 would."""
    frame = encode_frame(FrameHeader(run_id, sender, 0), opening, schema)
    return History.begin(opening, schema, 0, name_after(frame))


class Outbox:
    """The last payloads of one agent, and the histories that each of its receivers may have.

    These are the one that a receiver named last and the one it was sent then, as an answer can get lost. A frame leads
    straight to the payload, over all rounds that the receiver missed.
    """

    def __init__(
        self, run_id: bytes, sender: int, schema: Schema, kept: int = KEPT_ROUNDS, opening: MessageRow | None = None
    ) -> None:
        self.run_id, self.sender, self.schema, self.kept = run_id, sender, schema, kept
        self.payloads: dict[int, MessageRow] = {}  # by round
        self.histories: dict[int, tuple[History, ...]] = {}  # by receiver
        self.opening = () if opening is None else (history_of_opening(run_id, sender, schema, opening),)
        self.frames: dict[tuple[int | None, int], tuple[bytes, History]] = {}  # by name of a history, and round

    @property
    def newest(self) -> int | None:
        return max(self.payloads, default=None)

    def publish(self, round: int, payload: MessageRow) -> None:
        """Make `payload` the answer from now on; the arrays must not change afterwards."""
        if self.newest is not None and round <= self.newest:
            raise WireError(f"round {round} is not newer than round {self.newest}, published before")
        self.schema.check(payload)
        self.payloads[round] = payload
        rounds = sorted(self.payloads)
        for old in rounds[: -self.kept]:
            del self.payloads[old]
        shared = rounds[-min(self.kept, SHARED_ROUNDS) :]
        self.frames = {key: frame for key, frame in self.frames.items() if key[1] in shared}

    def answer(self, receiver: int, name: int | None, round: int | None = None) -> bytes | None:
        """Return the frame that leads from the history called `name` (None: from nothing) to `round`, or to the newest.

        None if that round is not available, or is the one that the history ends with.
        """
        wanted = self.newest if round is None else round
        if wanted is None or wanted not in self.payloads:
            return None
        histories = (*self.histories.get(receiver, ()), *self.opening)
        history = next((each for each in histories if each.name == name), None)
        if history is not None and history.round == wanted:
            return None
        if history is not None and history.round > wanted:
            history = None
        key = (None if history is None else history.name, wanted)
        if key not in self.frames:
            self.frames[key] = self._encode(wanted, history)
        frame, after = self.frames[key]
        self.histories[receiver] = (after,) if history is None else (history, after)
        return frame

    def _encode(self, round: int, history: History | None) -> tuple[bytes, History]:
        """A frame, and the history after it."""
        payload = self.payloads[round]
        header = FrameHeader(self.run_id, self.sender, round, None if history is None else history.name)
        frame = encode_frame(header, payload, self.schema, history)
        return frame, history_after(frame, round, payload, self.schema, history)


class Inbox:
    """The newest payload of every sender; a frame that is bad, old, or from a stranger changes nothing."""

    def __init__(
        self,
        run_id: bytes,
        schema: Schema,
        senders: Collection[int],
        opening: Callable[[int], MessageRow | None] = lambda _sender: None,
        admit: Callable[[FrameHeader, MessageRow], None] = lambda _header, _payload: None,
    ) -> None:
        """`admit` raises a WireError for what its sender cannot mean."""
        self.expected, self.admit, self.opening = Expectation(run_id, schema), admit, opening
        self.senders: frozenset[int] = frozenset()
        self.newest: dict[int, tuple[int, MessageRow]] = {}
        self.histories: dict[int, History] = {}
        self.follow(senders)

    def follow(self, senders: Collection[int], forgotten: Collection[int] = ()) -> None:
        """Accept frames only from these from now on; other senders are forgotten, and `forgotten` as well."""
        for sender in self.senders - (frozenset(senders) - frozenset(forgotten)):
            self.newest.pop(sender, None)
            self.histories.pop(sender, None)
        new = frozenset(senders) - (self.senders - frozenset(forgotten))
        self.senders = frozenset(senders)
        for sender in new:
            opening = self.opening(sender)
            if opening is not None:
                self.histories[sender] = history_of_opening(self.expected.run_id, sender, self.expected.schema, opening)

    def newest_round(self, sender: int) -> int | None:
        """The newest round held of `sender`."""
        return self.newest[sender][0] if sender in self.newest else None

    def history(self, sender: int) -> int | None:
        """The history to name when asking `sender`."""
        return self.histories[sender].name if sender in self.histories else None

    def accept(self, data: bytes, sender: int | None = None) -> tuple[FrameHeader, MessageRow]:
        """Decode and store what an outbox answered, or raise WireError; `sender` is who was asked, if anybody."""
        header = self.check_sender(data)
        if sender is not None and header.sender != sender:
            raise WireError(f"frame is from agent {header.sender}, expected {sender}")
        history = self.histories.get(header.sender)
        header, payload = decode_frame(data, self.expected, history)
        after = history_after(data, header.round, payload, self.expected.schema, history)
        self.admit(header, payload)
        self.newest[header.sender], self.histories[header.sender] = (header.round, payload), after
        return header, payload

    def check_sender(self, frame: bytes) -> FrameHeader:
        """The header of a frame worth decoding."""
        header = read_header(frame, self.expected)
        if header.sender not in self.senders:
            raise WireError(f"frame is from agent {header.sender}, which is no neighbour")
        held = self.newest_round(header.sender)
        if held is not None and header.round <= held:
            raise WireError(f"frame of agent {header.sender} is of round {header.round}, round {held} is held", "old")
        return header
