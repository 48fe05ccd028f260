"""The two ends of the pull protocol: "agent j, your round k; I hold round b" is answered with the smallest frame.

Nothing has to be resynchronised: who holds nothing, or a round too old, gets a keyframe.
"""

from __future__ import annotations

from collections.abc import Collection

from peermask.errors import WireError
from peermask.wire.frame import Expected, FrameHeader, decode_frame, encode_frame, read_header
from peermask.wire.schema import Payload, Schema

KEPT_ROUNDS = 8


class Outbox:
    """The last few payloads of one agent, and the frames already made of them."""

    def __init__(self, run_id: bytes, sender: int, schema: Schema, kept: int = KEPT_ROUNDS) -> None:
        self.run_id, self.sender, self.schema, self.kept = run_id, sender, schema, kept
        self.payloads: dict[int, Payload] = {}
        self.frames: dict[tuple[int, int | None], bytes] = {}  # by the round asked for and the round held

    @property
    def newest(self) -> int | None:
        return max(self.payloads, default=None)

    def publish(self, round: int, payload: Payload) -> None:
        """Make `payload` the answer from now on; the arrays must not change afterwards."""
        if self.newest is not None and round <= self.newest:
            raise WireError(f"round {round} is not newer than round {self.newest}, published before")
        self.schema.check(payload)
        self.payloads[round] = payload
        for old in sorted(self.payloads)[: -self.kept]:
            del self.payloads[old]
        self.frames = {key: frame for key, frame in self.frames.items() if key[0] in self.payloads}

    def answer(self, held: int | None, round: int | None = None) -> bytes | None:
        """The frame of `round` (or the newest) for one who holds round `held` (or nothing).

        None where that round is not kept, or is the one held.
        """
        wanted = self.newest if round is None else round
        if wanted is None or wanted not in self.payloads or held == wanted:
            return None
        known = held if held is not None and held < wanted and held in self.payloads else None
        if (wanted, known) not in self.frames:
            header = FrameHeader(self.run_id, self.sender, wanted, known)
            base = None if known is None else self.payloads[known]
            self.frames[wanted, known] = encode_frame(header, self.payloads[wanted], self.schema, base)
        return self.frames[wanted, known]


class Inbox:
    """The newest payload of every sender; a frame that is bad, old, or from a stranger changes nothing."""

    def __init__(self, run_id: bytes, schema: Schema, senders: Collection[int]) -> None:
        self.expected = Expected(run_id, schema)
        self.senders = frozenset(senders)
        self.newest: dict[int, tuple[int, Payload]] = {}

    def held(self, sender: int) -> int | None:
        """The round to name when asking `sender`."""
        return self.newest[sender][0] if sender in self.newest else None

    def accept(self, frame: bytes) -> tuple[FrameHeader, Payload]:
        """Decode and keep a frame, or raise WireError."""
        sender, round_ = self.announced(frame)
        header, payload = decode_frame(
            frame,
            self.expected,
            lambda base: self.newest[sender][1] if base == self.held(sender) else None,
        )
        self.newest[sender] = (round_, payload)
        return header, payload

    def announced(self, frame: bytes) -> tuple[int, int]:
        """Sender and round of a frame worth decoding."""
        header = read_header(frame, self.expected)
        if header.sender not in self.senders:
            raise WireError(f"frame is from agent {header.sender}, which is no neighbour")
        held = self.held(header.sender)
        if held is not None and header.round <= held:
            raise WireError(f"frame of agent {header.sender} is of round {header.round}, round {held} is held")
        return header.sender, header.round
