"""A ticket: everything that makes a personal model, in a few kilobytes.

    PMTICKET | version 3 | u32 bytes of the header | header, JSON | mask, a keyframe of the wire codec | sha256

The seed and the architecture give the frozen weights, the mask says which of them are kept. Nothing in a ticket is
executed: the header is data of a fixed form, and a model is built only from names this package knows.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from peermask.data.dataset import Task
from peermask.data.normalisation import Range, Statistics
from peermask.errors import ExportError, WireError
from peermask.models.frozen import BiasInit
from peermask.models.outputs import Readout
from peermask.wire import Expectation, FrameHeader, Leaf, Schema, decode_frame, encode_frame

MAGIC = b"PMTICKET"
VERSION = 3
HEAD = struct.Struct("<8sBI")
DIGEST_BYTES = 32
MAX_HEADER_BYTES = 1 << 20
MAX_TICKET_BYTES = 1 << 26
MAX_INPUT = 1 << 26  # numbers

Text = Annotated[str, Field(max_length=200)]
Side = Annotated[int, Field(ge=1, le=1 << 20)]
Count = Annotated[int, Field(ge=0, lt=2**32 - 1)]
Share = Annotated[float, Field(ge=0, le=1)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=False)


class Architecture(_Part):
    """A model by name, or one the user has to bring along."""

    name: Text | None = None
    options: dict[Text, Any] = Field({}, max_length=32)
    shape: tuple[Side, ...] = Field(min_length=1, max_length=5)  # C, H, W of an image; F features; T tokens
    layers: tuple[Text, ...] = Field(max_length=256)  # patterns of the layers that are masked

    @model_validator(mode="after")
    def _bounded(self) -> Architecture:
        if math.prod(self.shape) > MAX_INPUT:
            raise ValueError(f"takes inputs of {self.shape}; at most {MAX_INPUT:,} numbers are")
        return self


class Frozen(_Part):
    init: Text
    bias_init: BiasInit
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    checksum: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    source: Annotated[str, Field(max_length=4096)] | None = None  # of given weights: a file, or "module"
    drawn: tuple[Text, ...] = Field((), max_length=256)  # patterns of those that were drawn all the same


class Inputs(_Part):
    """Inputs and outputs of a model, in raw units."""

    dtype: Literal["uint8", "float32", "int64"]
    normalisation: Range | Statistics | None
    target_scale: Statistics | None = None
    task: Task = "classification"
    vocabulary: Annotated[int, Field(ge=1, le=1 << 24)] | None = None  # tokens are below it

    def check(self, channels: int, outputs: int) -> None:
        """Check that there are as many means as features, channels or outputs, or one for all."""
        of_inputs = self.normalisation if isinstance(self.normalisation, Statistics) else None
        for scale, most in ((of_inputs, channels), (self.target_scale, outputs)):
            if scale is not None and len(scale.mean) not in (1, most):
                raise ValueError(f"has {len(scale.mean)} means for {most} features, channels or outputs")


class About(_Part):
    """Origin of a ticket; only `labels` matter to the model, if it answers among them."""

    agent: Count
    round: Count
    config_hash: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    algorithm: Text
    dataset: Text
    labels: tuple[Count, ...] = Field(max_length=65536)
    retention: Share
    density: Share
    test_accuracy: Share | None = None


class Header(_Part):
    architecture: Architecture
    classes: tuple[Text, ...] = Field(min_length=1, max_length=65536)
    frozen: Frozen
    rescale: bool
    keep: tuple[Annotated[int, Field(ge=1, lt=2**32)], ...] = Field(min_length=1, max_length=4096)  # K_l
    readout: Readout
    inputs: Inputs
    about: About

    @model_validator(mode="after")
    def _answers_among_labels(self) -> Header:
        if self.readout == "own" and not 0 <= max(self.about.labels, default=-1) < len(self.classes):
            raise ValueError(f"answers among labels {self.about.labels[:10]} of {len(self.classes)} classes")
        self.inputs.check(self.architecture.shape[0], len(self.classes))
        return self


@dataclass(frozen=True)
class Ticket:
    header: Header
    frame: bytes  # the coded mask; read with the layer sizes of the model, which the header alone does not fix

    @classmethod
    def of(cls, header: Header, mask: NDArray[np.bool_], sizes: tuple[int, ...]) -> Ticket:
        about = header.about
        frame = FrameHeader(bytes.fromhex(about.config_hash), about.agent, about.round)
        return cls(header, encode_frame(frame, {"mask": mask}, _schema(sizes)))

    def mask(self, sizes: tuple[int, ...]) -> NDArray[np.bool_]:
        """[P_w]"""
        about = self.header.about
        expected = Expectation(bytes.fromhex(about.config_hash), _schema(sizes), about.agent)
        _, payload = decode_frame(self.frame, expected)
        return payload["mask"]

    def encode(self) -> bytes:
        header = self.header.model_dump_json().encode()
        if len(header) > MAX_HEADER_BYTES:
            raise ExportError(f"the ticket's header has {len(header)} bytes, allowed: {MAX_HEADER_BYTES}")
        content = HEAD.pack(MAGIC, VERSION, len(header)) + header + self.frame
        return content + hashlib.sha256(content).digest()


def _schema(sizes: tuple[int, ...]) -> Schema:
    return Schema((Leaf("mask", True, sizes),))


def decode_ticket(data: bytes, name: str = "ticket") -> Ticket:
    """Read a ticket without trust: sizes, then the checksum, then the header's form."""
    if len(data) < HEAD.size + DIGEST_BYTES or not data.startswith(MAGIC):
        raise ExportError(f"{name} is not a ticket: it does not start with {MAGIC.decode()}")
    _, version, length = HEAD.unpack_from(data)
    if version != VERSION:
        raise ExportError(f"{name} is a ticket of version {version}; this program reads {VERSION}: export it again")
    if len(data) > MAX_TICKET_BYTES or length > MAX_HEADER_BYTES:
        raise ExportError(f"{name} has {len(data)} bytes, {length} of them header; that is too much for a ticket")
    content, digest = data[:-DIGEST_BYTES], data[-DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != digest:
        raise ExportError(f"{name} is damaged: its checksum does not match; copy it again")
    if HEAD.size + length > len(content):
        raise ExportError(f"{name} is damaged: its header would reach past its end")
    try:
        header = Header.model_validate(json.loads(content[HEAD.size : HEAD.size + length]))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ExportError(f"{name} has a header that is not valid: {where}: {first['msg']}") from None
    except (ValueError, RecursionError):
        raise ExportError(f"{name} has a header that is not JSON") from None
    return Ticket(header, content[HEAD.size + length :])


def read_ticket(path: Path | str) -> Ticket:
    path = Path(path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_TICKET_BYTES + 1)
    except OSError as error:
        raise ExportError(f"ticket {path} cannot be read: {error.strerror}") from None
    return decode_ticket(data, str(path))


def masked_layers(ticket: Ticket, sizes: tuple[int, ...], name: str) -> NDArray[np.bool_]:
    """The mask [P_w], after the counts kept have been checked against the layers of the model."""
    keep = ticket.header.keep
    if len(keep) != len(sizes) or any(k > n for k, n in zip(keep, sizes, strict=False)):
        raise ExportError(f"{name} keeps {list(keep)} weights of layers that have {list(sizes)}")
    try:
        return ticket.mask(sizes)
    except WireError as error:
        raise ExportError(f"{name} holds a mask that cannot be read: {error}") from error
