"""The server behind a gate, in this process: operators, and who is none."""

from __future__ import annotations

import shutil
import socket
import ssl

import pytest
from fleet_cases import tiny_fleet

from peermask.errors import NodeError
from peermask.fleet.certificates import make_certificates, make_operator
from peermask.fleet.credentials import Credentials
from peermask.fleet.gate import open_gate
from peermask.fleet.operator import Refused, Unreachable, ask
from peermask.fleet.operator_server import CONNECTIONS, LARGEST, LENGTH, OperatorServer, tls_context


def broken(_operator, _body):
    raise NodeError("no such thing")


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Agent 0's server, and the certificates of all agents and of operators ann and bob, of whom bob is revoked."""
    fleet, certs = tiny_fleet(), tmp_path_factory.mktemp("desk") / "certs"
    make_certificates(fleet, certs)
    ann, bob = (make_operator(certs, name, 30) for name in ("ann", "bob"))
    answers = {"echo": lambda operator, body: f"{operator}: ".encode() + body, "broken": broken}
    server = OperatorServer(Credentials.of(certs, 0), answers, lambda: ("bob",))
    with open_gate("127.0.0.1", 0, server) as gate, socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        yield at(fleet, gate.address, nobody.getsockname()), certs, ann, bob


def at(fleet, first, other):
    """The fleet with agent 0 at one address, and all others at another."""
    ports = [first[1], *[other[1]] * (len(fleet.agents) - 1)]
    members = (
        member.model_copy(update={"address": f"127.0.0.1:{port}"})
        for member, port in zip(fleet.agents, ports, strict=True)
    )
    return fleet.model_copy(update={"agents": tuple(members)})


def test_an_operator_gets_an_answer_to_what_there_is(opened):
    fleet, _, ann, _ = opened
    assert ask(fleet, ann, 0, "echo", b"a\nb") == b"operator-ann: a\nb"
    with pytest.raises(Refused, match=r"^operators may ask for echo, broken$"):
        ask(fleet, ann, 0, "mask")
    with pytest.raises(Refused, match=r"^no such thing$"):
        ask(fleet, ann, 0, "broken")


def test_who_is_no_operator_any_more_or_never_was_one_is_told_so(opened):
    fleet, certs, _, bob = opened
    with pytest.raises(Refused, match=r"^the certificate of operator-bob was revoked$"):
        ask(fleet, bob, 0, "echo")
    with pytest.raises(Refused, match=r"^agent-2 is not an operator$"):
        ask(fleet, Credentials.of(certs, 2), 0, "echo")


def test_another_agents_port_and_a_port_without_agent_are_named(opened):
    fleet, certs, ann, _ = opened
    with pytest.raises(Unreachable, match="refused"):
        ask(fleet, ann, 1, "echo")  # nobody is there
    here = fleet.member(0).address
    moved = fleet.model_copy(update={"agents": tuple(one.model_copy(update={"address": here}) for one in fleet.agents)})
    with pytest.raises(Refused, match="has the certificate of agent-0, not of agent-3"):
        ask(moved, ann, 3, "echo")
    foreign = shutil.copytree(certs, certs.parent / "other", ignore=shutil.ignore_patterns("ca.*", "operator*"))
    for left in foreign.iterdir():
        left.unlink()
    make_certificates(fleet, foreign)
    with pytest.raises(Refused, match="its certificate is not of this fleet"):
        ask(fleet, make_operator(foreign, "eve", 30), 0, "echo")


def connect(fleet, files):
    host, _, port = fleet.member(0).address.rpartition(":")
    plain = socket.create_connection((host, int(port)), 60)
    return tls_context(ssl.PROTOCOL_TLS_CLIENT, files).wrap_socket(plain, server_hostname=host)


def test_a_request_that_is_too_long_is_refused_before_it_is_read(opened):
    fleet, _, ann, _ = opened
    with connect(fleet, ann) as link:
        link.sendall(LENGTH.pack(LARGEST + 1))
        (length,) = LENGTH.unpack(link.recv(LENGTH.size))
        assert link.recv(length) == f"-the request has {LARGEST + 1} bytes, allowed: {LARGEST}".encode()


def test_operators_that_say_nothing_make_room_for_the_next(opened):
    fleet, _, ann, _ = opened
    idle = [connect(fleet, ann) for _ in range(3)]
    try:
        assert ask(fleet, ann, 0, "echo", b"x", seconds=60) == b"operator-ann: x"
    finally:
        for link in idle:
            link.close()
    assert len(idle) < CONNECTIONS
