"""The two ends of the pull protocol: "agent j, your round k; I hold history h" is answered with the frames that lead on
from there, or with a keyframe.

No separate resynchronisation is needed: a receiver that holds nothing, something else, or something too old gets a
keyframe, which begins a new history. Receivers of the same frames share one. If both ends can compute an opening, a
message of round 0 that is never sent, every receiver holds that at first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from peermask.errors import WireError
from peermask.wire.frame import (
    Expected,
    FrameHeader,
    decode_frame,
    encode_frame,
    history_after,
    name_after,
    read_header,
    split_frames,
)
from peermask.wire.history import History
from peermask.wire.schema import MessageRow, Schema

KEPT_ROUNDS = 8
KEPT_LINES = 4


def history_of_opening(run_id: bytes, sender: int, schema: Schema, opening: MessageRow) -> History:
    """The history that an opening begins: as a keyframe of round 0 would."""
    frame = encode_frame(FrameHeader(run_id, sender, 0), opening, schema)
    return History.begin(opening, schema, 0, name_after(frame))


@dataclass
class Line:
    """One history as it grows, with the last frames that made it."""

    history: History
    frames: dict[int, bytes] = field(default_factory=dict)  # by round
    ends: dict[int, int] = field(default_factory=dict)  # round -> the name of the history there

    def __post_init__(self) -> None:
        self.ends[self.history.round] = self.history.name

    def append(self, frame: bytes, history: History, kept: int) -> None:
        self.history = history
        self.frames[history.round], self.ends[history.round] = frame, history.name
        for rounds in (self.frames, self.ends):
            for old in sorted(rounds)[: -kept - 1]:
                del rounds[old]

    def leading(self, name: int, round: int) -> list[bytes]:
        """The frames from the history `name` to `round`; none where it is no longer there, or later than that."""
        held = next((number for number, end in self.ends.items() if end == name), round)
        return [self.frames[number] for number in sorted(self.frames) if held < number <= round]


class Outbox:
    """The last few payloads of one agent, and the frames made of them."""

    def __init__(
        self, run_id: bytes, sender: int, schema: Schema, kept: int = KEPT_ROUNDS, opening: MessageRow | None = None
    ) -> None:
        self.run_id, self.sender, self.schema, self.kept = run_id, sender, schema, kept
        self.payloads: dict[int, MessageRow] = {}
        self.lines: list[Line] = []  # the one asked for last is the last
        if opening is not None:
            self.lines.append(Line(history_of_opening(run_id, sender, schema, opening)))

    @property
    def newest(self) -> int | None:
        return max(self.payloads, default=None)

    def publish(self, round: int, payload: MessageRow) -> None:
        """Make `payload` the answer from now on; the arrays must not change afterwards."""
        if self.newest is not None and round <= self.newest:
            raise WireError(f"round {round} is not newer than round {self.newest}, published before")
        self.schema.check(payload)
        self.payloads[round] = payload
        for old in sorted(self.payloads)[: -self.kept]:
            del self.payloads[old]
            self.lines = [line for line in self.lines if line.history.round >= old]  # others cannot be continued

    def answer(self, held: int | None, round: int | None = None) -> bytes | None:
        """What leads to `round` (or the newest) from the history named `held` (or from nothing).

        None where that round is not kept, or is the one held.
        """
        wanted = self.newest if round is None else round
        if wanted is None or wanted not in self.payloads:
            return None
        line = next((line for line in self.lines if held in line.ends.values()), None)
        if line is None or held is None:
            return self._begin(wanted)
        if line.ends.get(wanted) == held:
            return None
        self._advance(line, wanted)
        chain = line.leading(held, wanted)
        if not chain or (len(chain) > 1 and sum(map(len, chain)) > len(self._keyframe(wanted))):
            return self._begin(wanted)
        self._use(line)
        return b"".join(chain)

    def _advance(self, line: Line, wanted: int) -> None:
        for number in sorted(self.payloads):
            if line.history.round < number <= wanted:
                header = FrameHeader(self.run_id, self.sender, number, line.history.name)
                frame = encode_frame(header, self.payloads[number], self.schema, line.history)
                header = read_header(frame, Expected(self.run_id, self.schema))  # it may name no history
                after = history_after(frame, header, self.payloads[number], self.schema, line.history)
                line.append(frame, after, self.kept)

    def _begin(self, round: int) -> bytes:
        """A keyframe, and the line that it begins."""
        for line in self.lines:
            if min(line.ends) == round and round in line.frames:
                self._use(line)
                return line.frames[round]
        frame = self._keyframe(round)
        line = Line(History.begin(self.payloads[round], self.schema, round, name_after(frame)), {round: frame})
        self.lines = [*self.lines, line][-KEPT_LINES:]
        return frame

    def _keyframe(self, round: int) -> bytes:
        return encode_frame(FrameHeader(self.run_id, self.sender, round), self.payloads[round], self.schema)

    def _use(self, line: Line) -> None:
        self.lines.sort(key=lambda other: other is line)


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
        self.expected, self.admit, self.opening = Expected(run_id, schema), admit, opening
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
            known = self.opening(sender)
            if known is not None:
                self.histories[sender] = history_of_opening(self.expected.run_id, sender, self.expected.schema, known)

    def held(self, sender: int) -> int | None:
        """The newest round held of `sender`."""
        return self.newest[sender][0] if sender in self.newest else None

    def history(self, sender: int) -> int | None:
        """The history to name when asking `sender`."""
        return self.histories[sender].name if sender in self.histories else None

    def accept(self, data: bytes, sender: int | None = None) -> tuple[FrameHeader, MessageRow]:
        """Decode and keep what an outbox answered, or raise WireError; all is from one sender, `sender` if given."""
        frames = split_frames(data)
        if not 1 <= len(frames) <= KEPT_ROUNDS:
            raise WireError(f"{len(frames)} frames at once, allowed: 1 to {KEPT_ROUNDS}")
        first = self.announced(frames[0])
        if sender is not None and first.sender != sender:
            raise WireError(f"frame is from agent {first.sender}, expected {sender}")
        history, expected = self.histories.get(first.sender), self.expected
        last = first.round - 1
        for frame in frames:
            header, payload = decode_frame(frame, expected, history)
            if header.sender != first.sender or header.round <= last:
                raise WireError(f"frame of agent {header.sender}, round {header.round} follows round {last}")
            after = history_after(frame, header, payload, expected.schema, history)
            history, last = after, header.round
        self.admit(header, payload)
        self.newest[first.sender], self.histories[first.sender] = (last, payload), after
        return header, payload

    def announced(self, frame: bytes) -> FrameHeader:
        """The header of a frame worth decoding."""
        header = read_header(frame, self.expected)
        if header.sender not in self.senders:
            raise WireError(f"frame is from agent {header.sender}, which is no neighbour")
        held = self.held(header.sender)
        if held is not None and header.round <= held:
            raise WireError(f"frame of agent {header.sender} is of round {header.round}, round {held} is held", "old")
        return header


# The answering end of the pull protocol where every receiver takes the newest message, whatever it holds.
#
# Receivers skip rounds, each at its own pace, so a frame leads straight from what one holds to the newest payload.
# What a
# receiver may hold is what it named last and what it was sent then, as an answer can get lost; a receiver that
# names anything else gets a keyframe. Receivers that hold the same share a history, and one frame.


class DirectOutbox:
    """The newest payload of one agent, and what each receiver may hold of those before."""

    def __init__(self, run_id: bytes, sender: int, schema: Schema, opening: MessageRow | None = None) -> None:
        self.run_id, self.sender, self.schema = run_id, sender, schema
        self.newest: int | None = None
        self.payload: MessageRow = {}
        self.opening = None if opening is None else history_of_opening(run_id, sender, schema, opening)
        self.held: dict[int, tuple[History, ...]] = {}  # by receiver
        self.frames: dict[int | None, tuple[bytes, History]] = {}  # to the newest, by the name of what is held

    def publish(self, round: int, payload: MessageRow) -> None:
        """Make `payload` the answer from now on; the arrays must not change afterwards."""
        if self.newest is not None and round <= self.newest:
            raise WireError(f"round {round} is not newer than round {self.newest}, published before")
        self.schema.check(payload)
        self.newest, self.payload, self.frames = round, payload, {}

    def answer(self, receiver: int, held: int | None) -> bytes | None:
        """What leads from the history named `held` to the newest payload; None where that is the one held."""
        if self.newest is None:
            return None
        known = [*self.held.get(receiver, ()), *([self.opening] if self.opening else [])]
        history = next((one for one in known if one.name == held), None)
        if history is not None and history.round == self.newest:
            return None
        name = None if history is None else history.name
        if name not in self.frames:
            self.frames[name] = self._frame(self.newest, history)
        frame, after = self.frames[name]
        self.held[receiver] = (after,) if history is None else (history, after)
        return frame

    def _frame(self, round: int, history: History | None) -> tuple[bytes, History]:
        if history is None:
            frame = encode_frame(FrameHeader(self.run_id, self.sender, round), self.payload, self.schema)
            return frame, History.begin(self.payload, self.schema, round, name_after(frame))
        header = FrameHeader(self.run_id, self.sender, round, history.name)
        frame = encode_frame(header, self.payload, self.schema, history)
        header = read_header(frame, Expected(self.run_id, self.schema))  # it may name no history
        return frame, history_after(frame, header, self.payload, self.schema, history)
