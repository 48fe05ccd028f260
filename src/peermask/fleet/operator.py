"""Operators and agents: what an operator asks, from any machine that reaches an agent's port, and what answers it.

Mutual TLS, one request per connection, apart from the network of the masks. The gate forwards clients that ask for
OPERATOR_PROTOCOL. A client must have a certificate of the fleet's authority with the name of an operator,
`operator-NAME`. Agents do not have one, and operators are not neighbours: neither can act as the other.

    request    length (4, big-endian) | what it is, such as `status` | newline | body
    answer     length (4) | `+` and a body, or `-` and one line with the reason
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter

from peermask.errors import NodeError, PeermaskError
from peermask.fleet.credentials import OPERATOR, Credentials, name_of, tls_context
from peermask.fleet.environment import SYSTEM_TIME, TimeSource
from peermask.fleet.fleet import Fleet, split_address
from peermask.fleet.relay_client import open_relay_client
from peermask.fleet.roster import signed_roster
from peermask.fleet.sockets import Server
from peermask.fleet.status import AgentStatus

STATUS = TypeAdapter(AgentStatus)
ABSENCE = {"round", "neighbour", "why"}  # keys of `last_absence`
T = TypeVar("T")
LARGEST_BYTES = 2**20  # bytes of a request or an answer
SERVER_SECONDS = 10.0
MOST_CONNECTIONS = 8
LENGTH = struct.Struct(">I")
CLIENT_SECONDS = 5.0  # to connect, and again for an answer
PARALLEL_AGENTS = 16  # agents

# Takes the operator's name and the body; the text of a PeermaskError is the answer. It must not block.
Answer = Callable[[str, bytes], bytes]


class OperatorServer:
    """Everything runs in the thread of the gate's event loop."""

    def __init__(
        self, credentials: Credentials, answers: Mapping[str, Answer], revoked: Callable[[], Collection[str]] = tuple
    ) -> None:
        """`answers`: by kind of request; `revoked`: names of operators whose certificates were revoked."""
        self.credentials, self.answers, self.revoked = credentials, answers, revoked
        self._server = Server(self._serve)
        self._open: dict[asyncio.StreamWriter, None] = {}

    async def open(self) -> tuple[str, int]:
        """Listen on loopback, and return the address."""
        context = tls_context(ssl.PROTOCOL_TLS_SERVER, self.credentials)
        return await self._server.open("127.0.0.1", 0, LARGEST_BYTES, context, SERVER_SECONDS)

    async def close(self) -> None:
        await self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = None
        if len(self._open) > MOST_CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        try:
            async with asyncio.timeout(SERVER_SECONDS):
                answer = await self._answer(name_of(writer.get_extra_info("peercert")), reader)
                writer.write(LENGTH.pack(len(answer)) + answer)
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, OSError):
            writer.transport.abort()
        finally:
            self._open.pop(writer, None)
            writer.close()

    async def _answer(self, operator: str, reader: asyncio.StreamReader) -> bytes:
        if not OPERATOR.fullmatch(operator):
            return f"-{operator} is not an operator".encode()
        if operator.removeprefix("operator-") in self.revoked():
            return f"-the certificate of {operator} was revoked".encode()
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        if length > LARGEST_BYTES:
            return f"-the request has {length} bytes, allowed: {LARGEST_BYTES}".encode()
        what, _, body = (await reader.readexactly(length)).partition(b"\n")
        answer = self.answers.get(what.decode("ascii", "replace"))
        if answer is None:
            return f"-operators may ask for {', '.join(self.answers)}".encode()
        try:
            return b"+" + answer(operator, body)
        except PeermaskError as error:
            return f"-{error}".encode()


class Unreachable(NodeError):
    """An agent that did not answer; the message is the reason."""


class Refused(Unreachable):
    """An agent that answered, and refused this operator."""


def ask(
    fleet: Fleet,
    credentials: Credentials,
    agent: int,
    what: str,
    body: bytes = b"",
    seconds: float = CLIENT_SECONDS,
    time: TimeSource = SYSTEM_TIME,
) -> bytes:
    """An agent's answer to one request; raises `Unreachable` if there is none."""
    member = fleet.member(agent)
    host = member.host
    question = what.encode() + b"\n" + body
    through: Mapping[int, tuple[str, int]] = {}
    relay_lines: list[str] = []  # why the relay cannot be reached
    if len(question) > LARGEST_BYTES:
        raise NodeError(f"the request has {len(question)} bytes, allowed: {LARGEST_BYTES}")
    try:
        with (
            open_relay_client(fleet, credentials, [agent], say=relay_lines.append) as through,
            socket.create_connection(through.get(agent) or split_address(member.address), seconds) as plain,
            tls_context(ssl.PROTOCOL_TLS_CLIENT, credentials).wrap_socket(plain, server_hostname=host) as link,
        ):
            name = name_of(link.getpeercert())
            if name != member.name:
                raise Refused(f"the device at this address has the certificate of {name}, not of {member.name}")
            answer = _answer(link, question, time.monotonic() + seconds, time)
    except ssl.SSLCertVerificationError as error:
        raise Refused(f"its certificate is not of this fleet, or not valid now ({error.verify_message})") from None
    except TimeoutError:
        raise Unreachable(f"no answer within {seconds:g} s") from None
    except OSError as error:
        if agent in through:  # the relay closes what it cannot join
            said = relay_lines[0].partition(";")[0] if relay_lines else f"it is not connected to relay {fleet.relay}"
        elif isinstance(error, ssl.SSLError):
            said = f"it does not answer with an agent's TLS ({error.reason or error})"
        else:
            said = error.strerror or str(error)
        raise Unreachable(said) from None
    if answer[:1] != b"+":
        raise Refused(answer[1:].decode("utf-8", "replace") or "it gave no reason")
    return answer[1:]


def _answer(link: ssl.SSLSocket, question: bytes, until: float, time: TimeSource) -> bytes:
    """With TLS 1.3 the client's handshake ends before the server has checked its certificate and disconnects."""
    try:
        link.sendall(LENGTH.pack(len(question)) + question)
        (length,) = LENGTH.unpack(_exactly(link, LENGTH.size, until, time))
    except (EOFError, ConnectionError, ssl.SSLError):
        raise Refused(
            "it closed the connection: it does not accept this operator's certificate, or is an older version"
        ) from None
    if length > LARGEST_BYTES:
        raise Unreachable(f"its answer has {length} bytes, allowed: {LARGEST_BYTES}")
    try:
        return _exactly(link, length, until, time)
    except EOFError:
        raise Unreachable("its answer was cut off") from None


def _exactly(link: ssl.SSLSocket, length: int, until: float, time: TimeSource) -> bytes:
    data = bytearray()
    while len(data) < length:
        if time.monotonic() > until:
            raise TimeoutError
        part = link.recv(min(length - len(data), 2**16))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


@dataclass(frozen=True)
class AgentAnswer:
    """The status of one agent, or why it is not known."""

    agent: int
    address: str
    status: dict[str, Any] | None
    trouble: str | None  # why it is unreachable or not ok
    state: str = "unreachable"  # or a `State`


def ask_status(fleet: Fleet, credentials: Credentials, seconds: float = CLIENT_SECONDS) -> Sequence[AgentAnswer]:
    """Ask all agents for their status, in parallel. If all refuse for the same reason, that is an error."""

    def one(agent: int) -> AgentAnswer | Refused:
        address = fleet.member(agent).address
        try:
            status = json.loads(ask(fleet, credentials, agent, "status", seconds=seconds))
            # Checked as a whole: one agent that lies, or has another version, must not hide all others.
            checked = STATUS.validate_python(status)
            absence = checked.last_absence
            if checked.agent != agent or (absence is not None and not absence.keys() >= ABSENCE):
                raise ValueError
            return AgentAnswer(agent, address, status, status.get("trouble"), status["state"])
        except Refused as error:
            return error
        except ValueError:
            return AgentAnswer(agent, address, None, "its answer is not a status")
        except Unreachable as error:
            return AgentAnswer(agent, address, None, str(error))

    answers = _ask_all(fleet, one)
    refusals = [str(one) for one in answers.values() if isinstance(one, Refused)]
    if len(refusals) == len(answers) and len(set(refusals)) == 1:
        raise NodeError(f"all agents of the fleet refuse: {refusals[0]}; check {credentials.certificate}")
    return [
        AgentAnswer(agent, fleet.member(agent).address, None, str(answer)) if isinstance(answer, Refused) else answer
        for agent, answer in answers.items()
    ]


def _ask_all(fleet: Fleet, one: Callable[[int], T]) -> dict[int, T]:
    agents = [member.agent for member in fleet.agents]
    with ThreadPoolExecutor(PARALLEL_AGENTS) as pool:
        return dict(zip(agents, pool.map(one, agents), strict=True))


def push_roster(fleet: Fleet, credentials: Credentials, seconds: float = CLIENT_SECONDS) -> dict[int, str]:
    """Send the signed roster to all agents, in parallel; returns each answer, or why there is none."""

    def one(agent: int) -> str:
        try:
            answer = ask(fleet, credentials, agent, "roster", signed_roster(fleet), seconds=seconds)
            return answer.decode("utf-8", "replace")
        except (Refused, Unreachable) as error:
            return str(error)

    return _ask_all(fleet, one)
