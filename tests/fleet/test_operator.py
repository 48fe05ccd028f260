"""Operators ask real agents over mutual TLS; who is none gets no answer, and who is one gets nothing but status."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import ssl
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial

import pytest
import zenoh
from fleet_cases import refused, tiny, tiny_fleet, written
from fleet_process import ProcessFleet
from test_intruders import answers, session
from test_status import samples

from peermask.errors import NodeError
from peermask.fleet.certificates import make_certificates, make_operator
from peermask.fleet.credentials import Credentials, find_operator, tls_context
from peermask.fleet.fleet import load_fleet
from peermask.fleet.gate import open_gate
from peermask.fleet.operator import (
    LARGEST_BYTES,
    LENGTH,
    MOST_CONNECTIONS,
    OperatorServer,
    Refused,
    Unreachable,
    ask,
    ask_status,
)
from peermask.fleet.roster import signed_roster
from peermask.fleet.sessions import alive_key, ask_key
from waiting import PATIENCE, until


@contextmanager
def started(folder):
    """Three agents on a path that wait for each other; agents 0 and 1 serve metrics."""
    held = tiny_fleet(tiny(agents=3, rounds=100_000, graph={"name": "path"}), missing="wait", wait_limit=600.0)
    flags = {agent: ["--metrics", "0", "--stalled-after", "2"] for agent in (0, 1)}
    with ProcessFleet(written(folder, held), held, flags=flags) as made:
        make_operator(folder / "certs", "ann", 30)
        made.start()
        for agent in (0, 1, 2):
            made.until_round(agent, 5)
        yield made


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """For tests that leave the fleet as it is."""
    with started(tmp_path_factory.mktemp("watched")) as made:
        yield made


def get(running, agent, path):
    (line,) = (line for line in running.said(agent) if "metrics: http://" in line)
    port = int(line.rpartition(":")[2].removesuffix("/metrics"))
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    link.request("GET", path)
    answer = link.getresponse()
    return answer.status, answer.read().decode()


def test_metrics_of_a_real_agent(running):
    _, text = get(running, 1, "/metrics")
    found = samples(text)
    assert found["peermask_round"] >= 5
    assert found["peermask_rounds"] == 100_000
    for name in ("sent_messages_total", "received_messages_total"):
        assert all(found[f"peermask_{name}{{neighbour={j}}}"] >= 4 for j in (0, 2))
    assert found["peermask_received_bytes_total"] > 0
    assert found["peermask_sent_bytes_total"] > 0
    assert found["peermask_round_seconds_count"] >= 3
    assert found["peermask_neighbours_alive"] == found["peermask_neighbours_heard"] == 2
    assert found["peermask_checkpoint_age_seconds"] >= 0
    assert found["peermask_certificate_expiry_timestamp_seconds"] > time.time() + 300 * 86_400
    assert found["peermask_loss"] > 0
    assert found["peermask_roster"] == 0
    assert any(name.startswith("peermask_build_info{agent=1,") for name in found)
    until(lambda: get(running, 1, "/healthz") == (200, "ok\n"))


def test_masks_and_checkpoints_are_readable_by_their_owner_alone(running):
    modes = {}
    for path in running.out(0).rglob("*"):
        with suppress(FileNotFoundError):  # the agent plays on, and deletes old checkpoints
            modes[path] = path.stat().st_mode
    files = {path: mode for path, mode in modes.items() if stat.S_ISREG(mode)}
    assert {path.parent.name for path in files} >= {"checkpoints", "agent-0"}
    assert [path for path, mode in files.items() if mode & 0o077] == []


def all_well(told):
    """On a busy machine a round may take long."""
    return told if told[0] == 0 else None


def test_an_operator_sees_every_agent(running, call):
    path = running.path
    code, out, err = until(lambda: all_well(call("fleet", "status", path, "--json")))
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert [one["agent"] for one in told] == [0, 1, 2]
    assert all(one["status"]["round"] >= 5 and one["trouble"] is None for one in told)
    _, out, _ = until(lambda: all_well(call("fleet", "status", path)))
    assert all(running.fleet.member(agent).address in out for agent in range(3))
    assert "2 of 2" in out  # heard by agent 1
    assert "/100000" in out


def test_who_is_no_operator_gets_one_line(running, call, tmp_path):
    fleet, certs = running.fleet, running.path.parent / "certs"
    elsewhere = tmp_path / "fleet.toml"
    shutil.copy(running.path, elsewhere)
    (tmp_path / "certs").mkdir()
    assert "holds no certificate of an operator; make one with" in refused(call("fleet", "status", elsewhere))
    assert "ca.key does not exist" in refused(call("fleet", "operator", elsewhere, "bob"))
    assert "operator 'B b': a name has" in refused(call("fleet", "operator", running.path, "B b"))
    assert "no certificate of operator bob" in refused(call("fleet", "status", running.path, "--operator", "bob"))

    other = tmp_path / "other"
    make_certificates(tiny_fleet(), other)  # another fleet's, with an operator
    make_operator(other, "eve", 30)
    for name in ("ca.pem", "operator-eve.pem", "operator-eve.key"):
        shutil.copy(other / name, tmp_path / "certs")
    (tmp_path / "certs" / "operator-eve.key").chmod(0o600)
    said = refused(call("fleet", "status", elsewhere))  # another fleet's operator, whole with its authority
    assert "all agents of the fleet refuse: its certificate is not of this fleet" in said
    shutil.copy(certs / "ca.pem", tmp_path / "certs")
    assert "is of another fleet" in refused(call("fleet", "status", elsewhere))
    eve = Credentials(certs / "ca.pem", other / "operator-eve.pem", other / "operator-eve.key")
    with pytest.raises(
        NodeError, match=r"all agents of the fleet refuse: it closed the connection: it does not accept this operator's"
    ):
        ask_status(fleet, eve)
    with pytest.raises(Refused, match=r"agent-1 is not an operator"):
        ask(fleet, Credentials.of(certs, 1), 0, "status")


def alone(listening):
    """A fleet of one agent, at the address of a socket."""
    held = tiny_fleet(tiny(agents=1, graph={"name": "complete"}))
    there = held.agents[0].model_copy(update={"address": "{}:{}".format(*listening.getsockname())})
    return held.model_copy(update={"agents": (there,)})


@contextmanager
def device(listening, files, answer):
    """Something at an agent's address that gives one answer to whoever comes; by TLS if it has certificates."""

    def serve():
        link, _ = listening.accept()
        with link if files is None else tls_context(ssl.PROTOCOL_TLS_SERVER, files).wrap_socket(link, True) as opened:
            opened.recv(2**16)
            opened.sendall(answer)

    with ThreadPoolExecutor(1) as pool:
        served = pool.submit(serve)
        yield
        served.result(PATIENCE)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 400 Bad Request", "it does not answer with an agent's TLS"),
        (LENGTH.pack(2**20 + 1), "its answer has 1048577 bytes, allowed: 1048576"),
        (LENGTH.pack(3) + b"+{", "its answer was cut off"),
        (LENGTH.pack(3) + b"+{}", "its answer is not a status"),
        (LENGTH.pack(3) + b"+{a", "its answer is not a status"),
    ],
)
def test_a_device_that_is_no_agent_is_said_to_be_none(answer, words, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        held = alone(listening)
        make_certificates(held, tmp_path)
        files = None if answer.startswith(b"HTTP") else Credentials.of(tmp_path, 0)
        with device(listening, files, answer):
            (told,) = ask_status(held, make_operator(tmp_path, "ann", 30), PATIENCE)
    assert told.status is None
    assert told.trouble.startswith(words)


def test_a_device_that_says_nothing_is_not_waited_for(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        held = alone(listening)
        make_certificates(held, tmp_path)
        (told,) = ask_status(held, make_operator(tmp_path, "ann", 30), 0.2)
    assert told.trouble == "no answer within 0.2 s"


def test_an_operator_may_ask_for_status_and_nothing_else(running):
    fleet, files = running.fleet, find_operator(running.path.parent / "certs")
    with pytest.raises(Refused, match=r"operators may ask for status"):
        ask(fleet, files, 0, "pull", b"mask")
    with pytest.raises(NodeError, match=r"the request has 1048583 bytes, allowed: 1048576"):
        ask(fleet, files, 0, "status", bytes(2**20))
    with session(fleet, files, 2) as opened:
        for owner in (0, 1):
            for asker in (0, 1, 2, "operator-ann"):
                assert answers(opened, owner, asker) == []
        asked = []
        forged = opened.declare_queryable(
            ask_key(1, "*"), lambda query: asked.append(query), allowed_origin=zenoh.Locality.REMOTE
        )
        token = opened.liveliness().declare_token(alive_key(1))
        running.until_round(0, running.reports(0)[-1]["round"] + 5)  # in each of them agent 1 is asked
        assert asked == []
        token.undeclare()
        forged.undeclare()


def test_an_operator_and_a_fleet_that_changes(call, tmp_path):
    folders = [tmp_path / name for name in ("fleet", "revoked", "pushed")]
    for folder in folders:
        folder.mkdir()
    with started(folders[0]) as running:
        see_a_dead_agent(running, call)
        take_a_certificate_back(running, call, folders[1])
        push_a_roster(running, call, folders[2])


def see_a_dead_agent(running, call):
    """By status, and by its neighbour's health."""
    running.kill(2)
    code, out, _ = call("fleet", "status", running.path, "--json")
    told = json.loads(out)
    assert code == 1
    assert (told[2]["status"], told[2]["trouble"]) == (None, "Connection refused")
    assert told[0]["status"]["round"] >= 5
    until(lambda: get(running, 1, "/healthz")[0] == 503)
    status, why = get(running, 1, "/healthz")
    assert (status, "no round has ended for" in why) == (503, True)
    code, out, _ = call("fleet", "status", running.path)
    assert code == 1
    assert "Connection refused" in " ".join(out.split())


def take_a_certificate_back(running, call, tmp_path):
    """The operator is refused by all: the roster is given to one agent, and reaches the other by itself."""
    make_operator(running.path.parent / "certs", "bob", 30)
    shutil.copytree(running.path.parent / "certs", tmp_path / "certs")
    path, bob = tmp_path / "fleet.toml", find_operator(tmp_path / "certs", "bob")
    shutil.copy(running.path, path)
    assert json.loads(ask(running.fleet, bob, 1, "status"))["agent"] == 1
    assert "no agent and no operator is given" in refused(call("fleet", "revoke", path))
    assert "operator 'B b': a name has" in refused(call("fleet", "revoke", path, "--operator", "B b"))
    code, out, _ = call("fleet", "revoke", path, "--operator", "bob")
    assert (code, "roster 1, 3 agents" in out, "misspelt" in out) == (0, True, False)
    assert "operator bob is revoked already" in refused(call("fleet", "revoke", path, "--operator", "bob"))
    assert "operator bob was revoked" in refused(call("fleet", "operator", path, "bob"))
    ask(running.fleet, find_operator(tmp_path / "certs", "ann"), 0, "roster", signed_roster(load_fleet(path)))

    def refuses(agent):
        try:
            ask(running.fleet, bob, agent, "status")
        except Refused as error:
            return "the certificate of operator-bob was revoked" in str(error)
        return False

    for agent in (0, 1):
        until(partial(refuses, agent))
    assert json.loads(ask(running.fleet, find_operator(tmp_path / "certs", "ann"), 1, "status"))["agent"] == 1
    shutil.copy(path, running.path)  # what follows goes on from this roster
    (running.path.parent / "certs" / "operator-bob.pem").unlink()


def push_a_roster(running, call, tmp_path):
    """From here on agents 0 and 2 are neighbours."""
    shutil.copytree(running.path.parent / "certs", tmp_path / "certs")
    path = tmp_path / "fleet.toml"
    shutil.copy(running.path, path)
    assert call("fleet", "link", path, "0", "2")[0] == 0
    code, out, _ = call("fleet", "push", path)
    *answers, third = out.splitlines()  # one of the first two may have heard of it from the other; agent 2 is dead
    taken, known = ([f"agent {agent}: {said}" for agent in (0, 1)] for said in ("taken", "known already"))
    assert (code, third.startswith("agent 2: ")) == (0, True)
    assert answers in (taken, [taken[0], known[1]], [known[0], taken[1]])
    until(lambda: call("fleet", "push", path)[1].splitlines()[:2] == known)  # agent 0 opens another session first
    bare = written(tmp_path / "certs", tiny_fleet())
    assert refused(call("fleet", "push", bare)).startswith(f"peermask: {bare} has no signed roster")


# The server behind a gate, in this process: operators, and who is none.


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
        link.sendall(LENGTH.pack(LARGEST_BYTES + 1))
        (length,) = LENGTH.unpack(link.recv(LENGTH.size))
        assert link.recv(length) == f"-the request has {LARGEST_BYTES + 1} bytes, allowed: {LARGEST_BYTES}".encode()


def test_operators_that_say_nothing_make_room_for_the_next(opened):
    fleet, _, ann, _ = opened
    idle = [connect(fleet, ann) for _ in range(3)]
    try:
        assert ask(fleet, ann, 0, "echo", b"x", seconds=60) == b"operator-ann: x"
    finally:
        for link in idle:
            link.close()
    assert len(idle) < MOST_CONNECTIONS
