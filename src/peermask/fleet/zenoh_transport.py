"""The network of a fleet: zenoh in peer mode. Nothing is pushed; data is sent only in answer to a request.

If agents pushed their messages, a send to a frozen neighbour would block and delay all others.
"""

from __future__ import annotations

import errno
import json
import secrets
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

from peermask.errors import NodeError, NotYetError
from peermask.fleet.environment import Handler
from peermask.fleet.fleet import split_address
from peermask.fleet.gate import Gate, open_gate
from peermask.fleet.messages import DOUBLED
from peermask.fleet.operator import OperatorServer
from peermask.fleet.sessions import Sessions, alive_key, ask_key

try:
    import zenoh
except ImportError as error:
    raise NodeError("a fleet needs another package: pip install 'peermask[node]'") from error

QUEUED_REQUESTS = 16  # requests in the queue before zenoh blocks: each neighbour sends one at a time
LOOPBACK_PORTS = 8  # zenoh's ports behind a gate: handshakes that can be in progress at the same time
PORT_ATTEMPTS = 5  # to find free ports for them
THREAD_END_SECONDS = 30.0  # seconds for a thread to end: the one that answers, or that closes the session
TOKEN_SECONDS = 4.0  # seconds within which a neighbour that is linked again must have declared its liveliness token


class ZenohTransport:
    """Use `open_zenoh`: a process with an open session does not end."""

    def __init__(self, session: zenoh.Session, agent: int, sessions: Sessions) -> None:
        self.session, self.agent, self.sessions, self.time = session, agent, sessions, sessions.time
        self.gate: Gate | None = None  # where it listens; none without certificates
        self._alive: set[int] = set()
        self._known: set[int] = set()  # neighbours that have been alive
        self._silent: dict[int, float] = {}  # known neighbours that are linked without a token, and since when
        self._changed = self.time.condition()
        self._failure: Exception | None = None  # of the thread that answers

    def alive(self) -> frozenset[int]:
        with self._changed:
            alive, failure = frozenset(self._alive), self._failure
        if failure is not None:  # an agent that answers nobody must not go on
            what = f"{type(failure).__name__}: {failure}"
            raise NotYetError(f"answering neighbours failed ({what}); start it again: it resumes from its checkpoint")
        return alive - self.sessions.doubled()

    def connected(self) -> frozenset[int]:
        """All that are alive, for the status; never an error."""
        with self._changed:
            return frozenset(self._alive)

    def stale_links(self) -> frozenset[int]:
        """Neighbours that were alive and are linked again, but have not declared their liveliness token again.

        Two agents have a link in each direction. If both links are lost, and this end notices it before the other end
        notices the loss of the second, zenoh adds the new link to the other end's old session. That session does not
        repeat its declarations, and drops what it receives as duplicates: its sequence numbers continue, while those
        of this end have restarted. Only a new session, with a new id, helps.
        """
        now = self.time.monotonic()
        with self._changed:
            silent = (self.sessions.linked() & self._known) - self._alive
            self._silent = {j: self._silent.get(j, now) for j in silent}
            return frozenset(j for j, since in self._silent.items() if now - since > TOKEN_SECONDS)

    def ask(self, requests: Mapping[int, bytes], patience: float) -> dict[int, bytes]:
        asked = {
            j: self.session.get(
                ask_key(j, self.agent),
                payload=request,
                timeout=patience,
                consolidation=zenoh.ConsolidationMode.NONE,
                express=True,  # also for the answer: small messages are not delayed to fill a batch
            )
            for j, request in requests.items()
        }
        answers = {}
        for j, replies in asked.items():
            for reply in replies:
                if reply.ok is not None:
                    answers[j] = reply.ok.payload.to_bytes()
                    break
        return answers

    def serve(self, questions: zenoh.handlers.Handler[zenoh.Query], handler: Handler) -> None:
        """Pass requests to the handler until the session closes; two devices with the same key get an error."""
        try:
            _serve(questions, handler, self.sessions)
        except Exception as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def await_change(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait(seconds)

    def linked(self, event: zenoh.LinkEvent) -> None:
        name = event.link.auth_identifier  # without certificates there is none
        if name is not None:
            self.sessions.changed(name, str(event.link.zid), made=event.kind == zenoh.SampleKind.PUT)

    def liveliness_changed(self, sample: zenoh.Sample) -> None:
        """A neighbour connected or disconnected."""
        agent = _last_number(sample.key_expr)
        if agent is None:
            return
        with self._changed:
            if sample.kind == zenoh.SampleKind.PUT:
                self._alive.add(agent)
                self._known.add(agent)
            else:
                self._alive.discard(agent)
            self._changed.notify_all()


@contextmanager
def open_zenoh(
    settings: Mapping[str, Any],
    agent: int,
    handler: Handler,
    sessions: Sessions | None = None,
    operator_server: OperatorServer | None = None,
) -> Iterator[ZenohTransport]:
    """A session that answers requests with `handler`, and declares itself alive once it can."""
    sessions = sessions or Sessions("", {}, lambda _line: None)
    zenoh.init_log_from_env_or("error,zenoh::api::handlers=off")  # an answer after the timeout is no error
    with _open(settings, operator_server) as (session, gate), ExitStack() as leaving:
        transport = ZenohTransport(session, agent, sessions)
        transport.gate = gate
        session.info.declare_link_events_listener(
            zenoh.handlers.Callback(transport.linked, indirect=False), history=True
        )
        questions = session.declare_queryable(ask_key(agent, "*"), zenoh.handlers.FifoChannel(QUEUED_REQUESTS))
        worker = threading.Thread(
            target=transport.serve, args=(questions.handler, handler), name="answers", daemon=True
        )
        worker.start()
        # The process aborts if a thread is still inside zenoh when Python exits.
        leaving.callback(worker.join, THREAD_END_SECONDS)
        leaving.enter_context(questions)  # undeclaring it ends the worker
        watch = zenoh.handlers.Callback(transport.liveliness_changed, indirect=False)
        session.liveliness().declare_subscriber(alive_key("*"), watch, history=True)
        leaving.enter_context(session.liveliness().declare_token(alive_key(agent)))
        yield transport


@contextmanager
def _open(
    settings: Mapping[str, Any], operator_server: OperatorServer | None
) -> Iterator[tuple[zenoh.Session, Gate | None]]:
    """A session; with TLS it is behind a gate at an address, and closed before it: its last messages are forwarded."""
    scheme, _, address = settings["listen/endpoints"][0].partition("/")
    if scheme != "tls":
        with _closed_after(_session(settings)) as session:
            yield session, None
        return
    with ExitStack() as leaving:
        try:
            gate = leaving.enter_context(open_gate(*split_address(address, lowest=0), operator_server))
        except OSError as error:
            raise _cannot_listen(address, str(error), taken=error.errno == errno.EADDRINUSE) from error
        session, inside = _session_inside(settings)
        gate.lead_to(inside)
        yield leaving.enter_context(_closed_after(session)), gate


@contextmanager
def _closed_after(session: zenoh.Session) -> Iterator[zenoh.Session]:
    def close() -> None:
        # Closing waits for neighbours, and fails if one is behind a cut cable: no reason for an agent to fail.
        with suppress(zenoh.ZError):
            session.close()  # type: ignore[no-untyped-call]

    try:
        yield session
    finally:
        closing = threading.Thread(target=close, name="close", daemon=True)  # zenoh has no limit of its own
        closing.start()
        closing.join(THREAD_END_SECONDS)


def _session_inside(settings: Mapping[str, Any]) -> tuple[zenoh.Session, list[tuple[str, int]]]:
    """A session that listens only on loopback, and its addresses; tried again if another process took a port."""
    for _ in range(PORT_ATTEMPTS - 1):
        inside = _free_ports()
        with suppress(NodeError):
            return _session({**settings, "listen/endpoints": [f"tls/{host}:{port}" for host, port in inside]}), inside
    inside = _free_ports()
    return _session({**settings, "listen/endpoints": [f"tls/{host}:{port}" for host, port in inside]}), inside


def _free_ports() -> list[tuple[str, int]]:
    """Of the loopback interface, since zenoh cannot report ports that the system chose.

    On Linux all of 127/8 is loopback: each agent of a machine has its own address, so they cannot collide.
    """
    host = f"127.{64 + secrets.randbelow(64)}.{secrets.randbelow(256)}.1" if sys.platform == "linux" else "127.0.0.1"
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(LOOPBACK_PORTS)]
        for one in sockets:
            one.bind((host, 0))
        return [one.getsockname() for one in sockets]


def _session(settings: Mapping[str, Any]) -> zenoh.Session:
    config = zenoh.Config()
    for key, value in settings.items():
        config.insert_json5(key, json.dumps(value))
    try:
        return zenoh.open(config)
    except zenoh.ZError as error:
        reason = str(error).splitlines()[0].partition(" at /")[0]  # without the line in zenoh's source
        where = settings["listen/endpoints"][0].partition("/")[2]
        raise _cannot_listen(where, reason, taken="os error 98" in reason) from error


def _cannot_listen(where: str, reason: str, *, taken: bool) -> NodeError:
    if taken:
        return NodeError(f"cannot listen on {where}; is another agent running there? ({reason[:200]})")
    return NotYetError(f"cannot listen on {where}; is that this device's address, and its network up? ({reason[:200]})")


def _serve(questions: zenoh.handlers.Handler[zenoh.Query], handler: Handler, sessions: Sessions) -> None:
    while True:
        try:
            query = questions.recv()
        except zenoh.ZError:
            return
        asker, payload = _last_number(query.key_expr), query.payload
        if asker is not None and asker in sessions.doubled():
            _reply(query, DOUBLED)
        elif asker is not None and payload is not None:
            handler(asker, payload.to_bytes(), partial(_reply, query))


def _last_number(key: zenoh.KeyExpr) -> int | None:
    """The agent number at the end of a key; without access control the key may end with anything."""
    word = str(key).rpartition("/")[2]
    return int(word) if word.isdecimal() and len(word) < 10 else None


def _reply(query: zenoh.Query, answer: bytes) -> None:
    """Answer one query and drop it: zenoh tells the asker that it is complete only then."""
    with query, suppress(zenoh.ZError):  # the asker has disconnected
        query.reply(query.key_expr, answer)
