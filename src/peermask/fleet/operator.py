"""The operator's side: queries agents of a fleet over mutual TLS, from any machine that can connect to their ports.

`ask` is a whole session: it connects to an agent, verifies its certificate, sends one request, and disconnects.
"""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from peermask.errors import NodeError
from peermask.fleet.credentials import Credentials
from peermask.fleet.environment import SYSTEM_TIME, TimeSource
from peermask.fleet.fleet import Fleet, split_address
from peermask.fleet.health import STATES
from peermask.fleet.operator_server import LARGEST, LENGTH, name_of, tls_context
from peermask.fleet.relayed import open_relayed
from peermask.fleet.roster import signed_roster

SECONDS = 5.0  # to connect, and again for an answer
AT_ONCE = 16  # agents


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
    seconds: float = SECONDS,
    time: TimeSource = SYSTEM_TIME,
) -> bytes:
    """An agent's answer to one request; raises `Unreachable` if there is none."""
    member = fleet.member(agent)
    host = member.host
    question = what.encode() + b"\n" + body
    if len(question) > LARGEST:
        raise NodeError(f"the request has {len(question)} bytes, allowed: {LARGEST}")
    try:
        with (
            open_relayed(fleet, credentials, [agent]) as through,
            socket.create_connection(through.get(agent) or split_address(member.address), seconds) as plain,
            tls_context(ssl.PROTOCOL_TLS_CLIENT, credentials).wrap_socket(plain, server_hostname=host) as link,
        ):
            found = name_of(link.getpeercert())
            if found != member.name:
                raise Refused(f"the device at this address has the certificate of {found}, not of {member.name}")
            answer = _answer(link, question, time.monotonic() + seconds, time)
    except ssl.SSLCertVerificationError as error:
        raise Refused(f"its certificate is not of this fleet, or not valid now ({error.verify_message})") from None
    except ssl.SSLError as error:
        raise Unreachable(f"it does not answer with an agent's TLS ({error.reason or error})") from None
    except TimeoutError:
        raise Unreachable(f"no answer within {seconds:g} s") from None
    except OSError as error:
        raise Unreachable(error.strerror or str(error)) from None
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
    if length > LARGEST:
        raise Unreachable(f"its answer has {length} bytes, allowed: {LARGEST}")
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
class Answered:
    """The status of one agent, or why it is not known."""

    agent: int
    address: str
    standing: dict[str, Any] | None
    trouble: str | None  # why it is unreachable or not ok
    state: str = "unreachable"  # or a `State`


def ask_status(fleet: Fleet, credentials: Credentials, seconds: float = SECONDS) -> Sequence[Answered]:
    """Ask all agents for their status, in parallel. If all refuse for the same reason, that is an error."""

    def one(agent: int) -> Answered | Refused:
        address = fleet.member(agent).address
        try:
            standing = json.loads(ask(fleet, credentials, agent, "status", seconds=seconds))
            if not isinstance(standing, dict) or standing.get("agent") != agent or "trouble" not in standing:
                raise Unreachable("its answer is not a status")
            state = standing.get("state", "ok" if standing["trouble"] is None else "failing")  # older ones have none
            if not isinstance(state, str) or state not in STATES:
                raise Unreachable("its answer is not a status")
            return Answered(agent, address, standing, standing["trouble"], state)
        except Refused as error:
            return error
        except ValueError:
            return Answered(agent, address, None, "its answer is not a status")
        except Unreachable as error:
            return Answered(agent, address, None, str(error))

    agents = [member.agent for member in fleet.agents]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(one, agents))
    refusals = [str(one) for one in found if isinstance(one, Refused)]
    if len(refusals) == len(found) and len(set(refusals)) == 1:
        raise NodeError(f"all agents of the fleet refuse: {refusals[0]}; check {credentials.certificate}")
    return [
        Answered(agent, fleet.member(agent).address, None, str(said)) if isinstance(said, Refused) else said
        for agent, said in zip(agents, found, strict=True)
    ]


def push_roster(fleet: Fleet, credentials: Credentials, seconds: float = SECONDS) -> dict[int, str]:
    """Send the signed roster to all agents, in parallel; returns each answer, or why there is none."""

    def one(agent: int) -> str:
        try:
            return ask(fleet, credentials, agent, "roster", signed_roster(fleet), seconds=seconds).decode(
                "utf-8", "replace"
            )
        except (Refused, Unreachable) as error:
            return str(error)

    agents = [member.agent for member in fleet.agents]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(agents, pool.map(one, agents), strict=True))
