"""Where an agent answers operators: over mutual TLS, one request per connection, apart from the network of the masks.

The gate forwards clients that ask for PROTOCOL. A client must have a certificate of the fleet's authority with the name
of an operator, `operator-NAME`. Agents do not have one, and operators are not neighbours: neither can act as the other.

    request    length (4, big-endian) | what it is, such as `status` | newline | body
    answer     length (4) | `+` and a body, or `-` and one line with the reason
"""

from __future__ import annotations

import asyncio
import re
import ssl
import struct
from collections.abc import Callable, Collection, Mapping

from peermask.errors import PeermaskError
from peermask.fleet.credentials import Credentials
from peermask.fleet.fleet import OPERATOR_NAME
from peermask.fleet.sockets import Server

PROTOCOL = "peermask-operator/1"
LARGEST = 2**20  # bytes of a request or an answer
SECONDS = 10.0
CONNECTIONS = 8
LENGTH = struct.Struct(">I")
OPERATOR = re.compile(f"operator-{OPERATOR_NAME.pattern}")

# Takes the operator's name and the body; the text of a PeermaskError is the answer. It must not block.
Answer = Callable[[str, bytes], bytes]


class OperatorServer:
    """Everything runs in the thread of the gate's event loop."""

    def __init__(
        self, credentials: Credentials, answers: Mapping[str, Answer], revoked: Callable[[], Collection[str]] = tuple
    ) -> None:
        """`answers`: by kind of request; `revoked`: names of operators whose certificates were revoked."""
        self.credentials, self.answers, self.revoked = credentials, answers, revoked
        self._server = Server(self._visit)
        self._open: dict[asyncio.StreamWriter, None] = {}

    async def open(self) -> tuple[str, int]:
        """Listen on loopback, and return the address."""
        context = tls_context(ssl.PROTOCOL_TLS_SERVER, self.credentials)
        return await self._server.open("127.0.0.1", 0, LARGEST, context, SECONDS)

    async def close(self) -> None:
        await self._server.close()

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = None
        if len(self._open) > CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        try:
            async with asyncio.timeout(SECONDS):
                answer = await self._answer(name_of(writer.get_extra_info("peercert")), reader)
                writer.write(LENGTH.pack(len(answer)) + answer)
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, OSError):
            writer.transport.abort()
        finally:
            self._open.pop(writer, None)
            writer.close()

    async def _answer(self, visitor: str, reader: asyncio.StreamReader) -> bytes:
        if not OPERATOR.fullmatch(visitor):
            return f"-{visitor} is not an operator".encode()
        if visitor.removeprefix("operator-") in self.revoked():
            return f"-the certificate of {visitor} was revoked".encode()
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        if length > LARGEST:
            return f"-the request has {length} bytes, allowed: {LARGEST}".encode()
        what, _, body = (await reader.readexactly(length)).partition(b"\n")
        answer = self.answers.get(what.decode("ascii", "replace"))
        if answer is None:
            return f"-operators may ask for {', '.join(self.answers)}".encode()
        try:
            return b"+" + answer(visitor, body)
        except PeermaskError as error:
            return f"-{error}".encode()


def tls_context(side: int, credentials: Credentials, protocol: str = PROTOCOL) -> ssl.SSLContext:
    """Both ends must have a certificate of the fleet's authority."""
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(credentials.ca)
    context.load_cert_chain(credentials.certificate, credentials.key)
    context.set_alpn_protocols([protocol])
    return context


def name_of(certificate: Mapping[str, object] | None) -> str:
    """The common name, as the ssl module gives it."""
    subject = (certificate or {}).get("subject", ())
    assert isinstance(subject, tuple)
    return next((str(value) for ((key, value),) in subject if key == "commonName"), "nobody")
