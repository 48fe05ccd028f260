"""The first message of a TLS client, as far as the gate parses it: that it is one, and which protocol it asks for."""

from __future__ import annotations

RECORD, CLIENT_HELLO, LARGEST_HELLO = 22, 1, 2**14
ALPN = 16  # number of the extension


def hello_length(data: bytes) -> int | None:
    """Bytes of the record with the ClientHello, or as many as are needed to know that; None if it is not one.

    22 3 minor | length (2) | 1 | ...
    """
    expected = ((RECORD,), (3,), (1, 2, 3))
    if any(byte not in allowed for byte, allowed in zip(data, expected, strict=False)):
        return None
    if len(data) < 6:
        return 6
    length = int.from_bytes(data[3:5], "big")
    return 5 + length if data[5] == CLIENT_HELLO and 4 < length <= LARGEST_HELLO else None


def protocols(hello: bytes) -> list[bytes]:
    """The ALPN protocols of a ClientHello; none if it is malformed.

    record (5) | 1 length (3) | version (2) random (32) | session id, ciphers, compressions | length (2) | extensions
    """
    at = 5 + 4 + 2 + 32
    for width in (1, 2, 1):
        at += width + int.from_bytes(hello[at : at + width], "big")
    at += 2
    while at + 4 <= len(hello):
        kind, length = (int.from_bytes(hello[at + i : at + i + 2], "big") for i in (0, 2))
        if kind == ALPN:
            names, found = hello[at + 6 : at + 4 + length], []
            while names:
                found.append(names[1 : 1 + names[0]])
                names = names[1 + names[0] :]
            return found
        at += 4 + length
    return []
