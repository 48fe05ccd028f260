"""The gate before an agent's port: what is no handshake goes nowhere, and a handshake is not kept waiting by it."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import ssl
import threading
import time
from contextlib import ExitStack, contextmanager, suppress

import pytest
from fleet_cases import tiny

from peermask.errors import NodeError
from peermask.node import gate
from peermask.node.certificates import make_certificates
from peermask.node.client_hello import hello_length, protocols
from peermask.node.credentials import Credentials, check_credentials
from peermask.node.event_loop import cancel_others, loop_in_thread, run_in
from peermask.node.fleet_file import new_fleet
from peermask.node.gate import open_gate
from peermask.node.zenoh_settings import session_settings
from peermask.node.zenoh_transport import open_zenoh

LOOPBACK = "127.0.0.1"


def free_port():
    with socket.socket() as one:
        one.bind((LOOPBACK, 0))
        return one.getsockname()[1]


def client_hello(*protocols):
    sent = ssl.MemoryBIO()
    context = ssl.create_default_context()
    if protocols:
        context.set_alpn_protocols(protocols)
    client = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname=LOOPBACK)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


HELLO = client_hello()


def test_who_asks_for_another_protocol_is_found_in_any_hello():
    assert protocols(HELLO) == []
    asking = client_hello("h2", "peermask-operator/1")
    assert protocols(asking) == [b"h2", b"peermask-operator/1"]
    for length in range(len(asking)):
        assert isinstance(protocols(asking[:length]), list)
    for place in range(len(asking)):  # a length that lies
        assert isinstance(protocols(asking[:place] + b"\xff" + asking[place + 1 :]), list)


@contextmanager
def leading(port, inside):
    with open_gate(LOOPBACK, port) as made:
        made.lead_to(inside)
        yield


def closed_within(one, seconds):
    one.settimeout(seconds)
    try:
        return one.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_the_length_of_a_hello_is_read_off_its_first_six_bytes():
    assert hello_length(HELLO[:6]) == len(HELLO)
    assert hello_length(bytes([22, 3, 1, 2, 0, 1])) == 5 + 512
    assert hello_length(b"") == hello_length(bytes([22])) == hello_length(bytes([22, 3, 3, 0, 9])) == 6


@pytest.mark.parametrize(
    "data",
    [
        b"GET / ",
        bytes([23, 3, 1, 2, 0, 1]),  # application data
        bytes([22, 2]),
        bytes([22, 3, 4]),
        bytes([22, 3, 1, 2, 0, 2]),  # a server's hello
        bytes([22, 3, 1, 0, 4, 1]),  # no more than a header
        bytes([22, 3, 1, 64, 1, 1]),  # longer than a record may be
    ],
)
def test_what_is_no_hello_is_known_by_its_first_bytes(data):
    assert hello_length(data) is None


@pytest.fixture
def certified(tmp_path):
    fleet = new_fleet(tiny(agents=2, graph={"name": "path"}), port=free_port())
    make_certificates(fleet, tmp_path)
    return fleet, tmp_path


@contextmanager
def echo(folder):
    """A TLS server that asks for a certificate and sends back what it gets; also: how many connections it saw."""
    files = Credentials.of(folder, 0)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(files.ca))
    context.load_cert_chain(files.certificate, files.key)
    context.verify_mode = ssl.CERT_REQUIRED
    seen = []

    async def answer(reader, writer):
        seen.append(writer)
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
        writer.close()

    with loop_in_thread("echo") as loop:
        server = run_in(loop, asyncio.start_server(answer, LOOPBACK, 0, ssl=context))

        async def end():
            server.close()
            await asyncio.sleep(0.05)
            await cancel_others()

        try:
            yield server.sockets[0].getsockname()[1], seen
        finally:
            run_in(loop, end())


def client(port, folder):
    files = Credentials.of(folder, 1)
    context = ssl.create_default_context(cafile=str(files.ca))
    context.load_cert_chain(files.certificate, files.key)
    return context.wrap_socket(socket.create_connection((LOOPBACK, port), 10), server_hostname=LOOPBACK)


def test_a_link_carries_more_than_fits_any_buffer_both_ways(certified):
    _, folder = certified
    data, port = os.urandom(5_000_000), free_port()
    with echo(folder) as (inside, _), leading(port, [(LOOPBACK, inside)] * 2), client(port, folder) as one:
        one.settimeout(0)  # one thread reads and writes: OpenSSL crashes where two use the same connection
        left, back = memoryview(data), bytearray()
        while len(back) < len(data):
            select.select([one], [one] if left else [], [], 30)
            with suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
                left = left[one.send(left[: 2**16]) :] if left else left
            with suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
                got = one.recv(2**16)
                assert got, "closed before all had come back"
                back += got
        assert back == data


def test_garbage_and_silence_never_reach_what_is_inside(monkeypatch):
    monkeypatch.setattr(gate, "HELLO", 0.3)
    port, reached = free_port(), []
    with socket.create_server((LOOPBACK, 0)) as inside, ExitStack() as held:
        inside.setblocking(False)
        held.enter_context(leading(port, [inside.getsockname()]))
        for words in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(1) + b"x" * 300, b"", HELLO[:100]):
            one = held.enter_context(socket.create_connection((LOOPBACK, port), 10))
            one.sendall(words)
            assert closed_within(one, 10), words
        with suppress(BlockingIOError):
            reached.append(inside.accept())
        assert reached == []


def test_a_hello_followed_by_nothing_is_let_go(monkeypatch):
    monkeypatch.setattr(gate, "HANDSHAKE", 0.3)
    port = free_port()
    with (
        socket.create_server((LOOPBACK, 0)) as inside,
        leading(port, [inside.getsockname()]),
        socket.create_connection((LOOPBACK, port), 10) as one,
    ):
        one.sendall(HELLO)
        joined, _ = inside.accept()
        with joined:
            assert joined.recv(2**16) == HELLO
            assert closed_within(one, 10)
            assert closed_within(joined, 10)


def test_a_link_that_has_shaken_hands_is_left_alone(certified, monkeypatch):
    monkeypatch.setattr(gate, "HANDSHAKE", 1.0)
    _, folder = certified
    port = free_port()
    with echo(folder) as (inside, _), leading(port, [(LOOPBACK, inside)] * 2), client(port, folder) as one:
        for words in (b"one", b"two"):  # the second comes after an answer
            one.sendall(words)
            assert one.recv(10) == words
        time.sleep(1.5)
        one.sendall(b"three")
        assert one.recv(10) == b"three"


@pytest.mark.parametrize("words", [b"", HELLO, HELLO + b"garbage" * 30])
def test_a_client_comes_through_however_many_strangers_there_are(certified, monkeypatch, words):
    monkeypatch.setattr(gate, "HELD", 40)
    monkeypatch.setattr(gate, "CONTESTED", 0.2)
    _, folder = certified
    port = free_port()
    with echo(folder) as (inside, _), leading(port, [(LOOPBACK, inside)] * 2), ExitStack() as held:
        for _ in range(100):
            one = held.enter_context(socket.create_connection((LOOPBACK, port), 10))
            with suppress(OSError):  # it may be closed already
                one.sendall(words)
        neighbour = held.enter_context(client(port, folder))
        neighbour.sendall(b"here")
        assert neighbour.recv(10) == b"here"


def test_who_comes_before_there_is_anything_inside_waits(certified):
    _, folder = certified
    port, answered = free_port(), []

    def come():
        with client(port, folder) as one:
            one.sendall(b"early")
            answered.append(one.recv(10))

    with echo(folder) as (inside, _), open_gate(LOOPBACK, port) as made:
        early = threading.Thread(target=come)
        early.start()
        time.sleep(0.2)
        assert answered == []
        made.lead_to([(LOOPBACK, inside)])
        early.join(10)
        assert answered == [b"early"]


class Waiting(gate._Outside):
    """A connection of which only the address matters."""

    def __init__(self, held, address):
        super().__init__(held)
        self.address = address

    def limit(self, seconds):
        self.seconds = seconds

    def close(self):
        self.gate.left(self)


def test_a_lonely_address_comes_first_and_then_the_newest(monkeypatch):
    monkeypatch.setattr(gate, "HELD", 6)
    loop = asyncio.new_event_loop()
    monkeypatch.setattr(loop, "create_task", lambda joining: joining.close() or asyncio.Future(loop=loop))
    held = gate.Gate(loop)
    held.links.free.append((LOOPBACK, 1))
    crowd = [Waiting(held, "10.0.0.1") for _ in range(5)]
    lonely = Waiting(held, "10.0.0.2")
    for one in (crowd[0], crowd[1], lonely, *crowd[2:]):
        held.arrived(one)
        held.ready(one)
    order = []
    while held.links.tried:
        (tried,) = held.links.tried
        order.append(tried)
        assert isinstance(tried, Waiting)
        assert tried.seconds <= (gate.CONTESTED if held.links.ready else gate.HANDSHAKE)
        held.left(tried)
    assert order == [crowd[0], lonely, crowd[4], crowd[3], crowd[2], crowd[1]]
    for one in (crowd[0], lonely, *crowd[1:], Waiting(held, "10.0.0.3")):  # one too many
        held.arrived(one)
    assert list(held._held) == [lonely, *crowd[1:], *list(held._held)[-1:]]  # the oldest of the crowd is gone
    loop.close()


def test_two_agents_link_through_their_gates_and_a_taken_port_is_said(certified):
    fleet, folder = certified
    settings = [session_settings(fleet, agent, check_credentials(fleet, folder, agent), 2**20) for agent in (0, 1)]
    with open_zenoh(settings[0], 0, lambda *_: None) as first, open_zenoh(settings[1], 1, lambda *_: None):
        end = time.monotonic() + 30
        while 1 not in first.alive() and time.monotonic() < end:
            first.await_change(0.1)
        assert 1 in first.alive()
        taken = pytest.raises(NodeError, match=r"cannot listen on 127\.0\.0\.1:\d+; is another agent running there")
        with taken, open_zenoh(settings[1], 1, lambda *_: None):
            pass
