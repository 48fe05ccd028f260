"""A place in bytes from outside that never reads past their end."""

from __future__ import annotations

import numpy as np

from peermask.errors import WireError
from peermask.wire.bits import Bits

MAX_VARINT_BYTES = 5


class Cursor:
    """Reads bytes, and single bits until `end_bits`; too few of either is a WireError."""

    def __init__(self, data: bytes) -> None:
        self.data = np.frombuffer(data, np.uint8)
        self.position = 0  # in bits

    def byte(self) -> int:
        return self.take_bytes(1)[0]

    def take_bytes(self, count: int) -> bytes:
        start = self.position // 8
        if count > self.data.size - start:
            raise WireError(f"frame ends early: {count} bytes wanted, {self.data.size - start} left")
        self.position += 8 * count
        return self.data[start : start + count].tobytes()

    def varint(self) -> int:
        """Seven bits per byte, lowest first; the top bit says that more follow."""
        value = 0
        for index in range(MAX_VARINT_BYTES):
            byte = self.byte()
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return value
        raise WireError(f"a number is longer than {MAX_VARINT_BYTES} bytes")

    def peek_bits(self, count: int) -> Bits:
        """Up to `count` bits, fewer at the end of the data."""
        first, skip = divmod(self.position, 8)
        chunk = np.unpackbits(self.data[first : (self.position + count + 7) // 8])
        return chunk[skip : skip + count]

    def take_bits(self, count: int) -> Bits:
        left = 8 * self.data.size - self.position
        if count > left:
            raise WireError(f"frame ends early: {count} bits wanted, {left} left")
        bits = self.peek_bits(count)
        self.position += count
        return bits

    def end_bits(self) -> None:
        """On to the next whole byte; what is skipped must be zero, so that no two frames mean the same."""
        if self.take_bits(-self.position % 8).any():
            raise WireError("bits after the last layer are not zero")

    @property
    def at_end(self) -> bool:
        return self.position == 8 * self.data.size


def varint(value: int) -> bytes:
    """The bytes that `Cursor.varint` reads."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
