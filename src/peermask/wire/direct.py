"""The answering end of the pull protocol where every receiver takes the newest message, whatever it holds.

Receivers skip rounds, each at its own pace, so a frame leads straight from what one holds to the newest payload. What a
receiver may hold is what it named last and what it was sent then, as an answer can get lost; a receiver that
names anything else gets a keyframe. Receivers that hold the same share a history, and one frame.
"""

from __future__ import annotations

from peermask.errors import WireError
from peermask.wire.frame import Expected, FrameHeader, encode_frame, history_after, name_after, read_header
from peermask.wire.history import History
from peermask.wire.mailbox import opened
from peermask.wire.schema import MessageRow, Schema


class DirectOutbox:
    """The newest payload of one agent, and what each receiver may hold of those before."""

    def __init__(self, run_id: bytes, sender: int, schema: Schema, opening: MessageRow | None = None) -> None:
        self.run_id, self.sender, self.schema = run_id, sender, schema
        self.newest: int | None = None
        self.payload: MessageRow = {}
        self.opening = None if opening is None else opened(run_id, sender, schema, opening)
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
