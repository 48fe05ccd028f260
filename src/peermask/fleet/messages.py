"""The messages between neighbours: a greeting, "send your round k, I hold history h", and the answers.

The first byte says what a message is; sizes are limited, and anything else is a WireError.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import asdict, dataclass

from peermask.errors import WireError

VERSION = 2
NOTHING = 2**32 - 1
MAX_GREETING_BYTES = 1024

GREETING = b"G"
PULL = b"P"
READY = b"B"  # to begin
FRAME = b"F"  # the requested round, or the newest if that is no longer kept or not published yet
NO_NEWS = b"N"  # nothing newer than what the asker holds
DOUBLED = b"D"  # two devices use the same key
SERIAL = b"S"  # serial number and digest of the sender's roster
ROSTER = b"R"  # a whole roster, signed

_PULL = struct.Struct("<B8sIII")  # version, identity, round, history, patience in ms
_READY = struct.Struct("<B8sI")  # version, identity, step
_ANSWER = struct.Struct("<I")  # newest
_SERIAL = struct.Struct("<I8s")


@dataclass(frozen=True)
class ExperimentId:
    """What two peers must have in common before they accept each other's messages."""

    run: str
    config_hash: str
    frozen_checksum: str
    data: str = ""  # shape of inputs and number of outputs, since each device may have its own data
    rules: str = ""  # on missing neighbours, by the fleet file: if one agent waits and the other does not, both stop

    @property
    def identity(self) -> bytes:
        """Eight bytes that represent it in every frame."""
        text = "/".join((self.run, self.config_hash, self.frozen_checksum, self.data, self.rules))
        return hashlib.blake2b(text.encode(), digest_size=8).digest()

    def difference(self, other: ExperimentId) -> str | None:
        """`its config hash is 1a2b, here it is 3c4d`, or None."""
        words = {
            "run": "run id",
            "config_hash": "config hash",
            "data": "data",
            "rules": "fleet file",
            "frozen_checksum": "frozen-weight checksum",
        }
        if self.data != other.data:
            del words["frozen_checksum"]  # weights differ if images do
        pairs = {name: (getattr(other, name), getattr(self, name)) for name in words}
        differences = [
            f"its {words[name]} is {theirs[:80]!r}, here it is {ours[:80]!r}"
            for name, (theirs, ours) in pairs.items()
            if theirs != ours
        ]
        return "; ".join(differences) or None


@dataclass(frozen=True)
class Greeting:
    experiment_id: ExperimentId
    newest: int  # the last round published; 0 before the first

    def encode(self) -> bytes:
        return GREETING + json.dumps({"version": VERSION, "newest": self.newest, **asdict(self.experiment_id)}).encode()


@dataclass(frozen=True)
class Pull:
    """A request for round `round`, from a receiver that holds `history` and waits up to `patience` seconds.

    A history is identified by a checksum over all that made it: a restarted sender may publish the same rounds with
    other bits, and a history from before its restart must not be mistaken for one from after it.
    """

    identity: bytes
    round: int
    history: int | None
    patience: float

    def encode(self) -> bytes:
        history = NOTHING if self.history is None else self.history
        patience = min(round(1000 * self.patience), NOTHING)
        return PULL + _PULL.pack(VERSION, self.identity, self.round, history, patience)


@dataclass(frozen=True)
class Ready:
    """Says that all agents up to `step` - 1 links away have found their neighbours; the answer has no frame."""

    identity: bytes
    step: int

    def encode(self) -> bytes:
        return READY + _READY.pack(VERSION, self.identity, self.step)


@dataclass(frozen=True)
class Answer:
    newest: int
    frame: bytes | None  # None if there is nothing newer than what the asker holds

    def encode(self) -> bytes:
        head = _ANSWER.pack(self.newest)
        return NO_NEWS + head if self.frame is None else FRAME + head + self.frame


@dataclass(frozen=True)
class RosterMessage:
    """Which roster the sender has, or a later one than the receiver's; both a request and an answer."""

    serial: int = 0
    digest: bytes = bytes(8)  # two rosters with the same number are a mistake, which only this shows
    roster: bytes = b""  # signed; if there is one, `serial` and `digest` are not used

    def encode(self) -> bytes:
        return ROSTER + self.roster if self.roster else SERIAL + _SERIAL.pack(self.serial, self.digest)


def is_roster_message(data: bytes) -> bool:
    return data[:1] in (SERIAL, ROSTER)


def decode_roster_message(data: bytes) -> RosterMessage:
    if data[:1] == ROSTER:
        return RosterMessage(roster=data[1:])
    if data[:1] != SERIAL or len(data) != 1 + _SERIAL.size:
        raise WireError(f"message of {len(data)} bytes has no roster number")
    return RosterMessage(*_SERIAL.unpack_from(data, 1))


def decode_request(data: bytes) -> Greeting | Pull | Ready:
    if data[:1] == GREETING:
        return _greeting(data)
    if data[:1] in (PULL, READY) and len(data) > 1:
        _check_version(data[1])
    if data[:1] == READY and len(data) == 1 + _READY.size:
        _, identity, step = _READY.unpack_from(data, 1)
        return Ready(identity, step)
    if data[:1] != PULL or len(data) != 1 + _PULL.size:
        raise WireError(f"request of {len(data)} bytes starts with {data[:1].hex() or 'nothing'}: not a request")
    _, identity, round_, history, patience = _PULL.unpack_from(data, 1)
    return Pull(identity, round_, None if history == NOTHING else history, patience / 1000)


def decode_answer(data: bytes) -> Greeting | Answer:
    if data == DOUBLED:
        raise WireError(
            "another device runs with the same key as this one; neither is served until one stops", "double"
        )
    if data[:1] == GREETING:
        return _greeting(data)
    if data[:1] not in (FRAME, NO_NEWS) or len(data) < 1 + _ANSWER.size:
        raise WireError(f"answer of {len(data)} bytes starts with {data[:1].hex() or 'nothing'}: not an answer")
    (newest,) = _ANSWER.unpack_from(data, 1)
    return Answer(newest, data[1 + _ANSWER.size :] if data[:1] == FRAME else None)


def _greeting(data: bytes) -> Greeting:
    if len(data) > MAX_GREETING_BYTES:
        raise WireError(f"greeting has {len(data)} bytes, allowed: {MAX_GREETING_BYTES}")
    try:
        values = json.loads(data[1:])
        version, newest = values.pop("version"), values.pop("newest")
        experiment_id = ExperimentId(**values)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise WireError("greeting has the wrong format") from error
    _check_version(version)
    if type(newest) is not int or not 0 <= newest < NOTHING or any(type(v) is not str for v in values.values()):
        raise WireError("greeting has values of the wrong type")
    return Greeting(experiment_id, newest)


def _check_version(version: object) -> None:
    if version != VERSION:
        raise WireError(f"peer has version {version!r:.20}, this device {VERSION}; update the older of the two")
