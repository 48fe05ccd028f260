"""The gate before an agent's port: what is no handshake goes nowhere, and a handshake is not kept waiting by it."""

from __future__ import annotations

import asyncio
import gc
import os
import select
import socket
import ssl
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import pytest
from fleet_cases import tiny
from moved_time import MovedLoop

from peermask.errors import NodeError, NotYetError
from peermask.fleet import gate
from peermask.fleet.certificates import make_certificates
from peermask.fleet.credentials import Credentials, check_credentials
from peermask.fleet.fleet import new_fleet
from peermask.fleet.gate import GateLimits, open_gate
from peermask.fleet.sessions import session_settings
from peermask.fleet.sockets import Server, hello_length, loop_in_thread, protocols, run_in
from peermask.fleet.zenoh_transport import open_zenoh
from waiting import PATIENCE, until

LOOPBACK = "127.0.0.1"
LIMITS = GateLimits()


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
def leading(inside, limits=LIMITS, loop=None):
    with open_gate(LOOPBACK, 0, limits=limits, loop=loop) as made:
        made.lead_to(inside)
        yield made


def is_closed(one):
    one.settimeout(PATIENCE)
    try:
        return one.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def in_loop(made, look):
    """What a function says when no connection changes meanwhile."""

    async def looked():
        return look()

    return run_in(made.loop, looked())


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
    fleet = new_fleet(tiny(agents=2, graph={"name": "path"}), port=7450)
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
        server = Server(answer)
        _, port = run_in(loop, server.open(LOOPBACK, 0, 2**16, context))
        try:
            yield port, seen
        finally:
            run_in(loop, server.close())


def client(made, folder):
    return tls(socket.create_connection(made.address, PATIENCE), folder)


def tls(plain, folder):
    files = Credentials.of(folder, 1)
    context = ssl.create_default_context(cafile=str(files.ca))
    context.load_cert_chain(files.certificate, files.key)
    return context.wrap_socket(plain, server_hostname=LOOPBACK)


def test_a_link_carries_more_than_fits_any_buffer_both_ways(certified):
    _, folder = certified
    data = os.urandom(5_000_000)
    with echo(folder) as (inside, _), leading([(LOOPBACK, inside)] * 2) as made, client(made, folder) as one:
        one.settimeout(0)  # one thread reads and writes: OpenSSL crashes where two use the same connection
        left, back = memoryview(data), bytearray()
        while len(back) < len(data):
            select.select([one], [one] if left else [], [], PATIENCE)
            with suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
                left = left[one.send(left[: 2**16]) :] if left else left
            with suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
                got = one.recv(2**16)
                assert got, "closed before all had come back"
                back += got
        assert back == data


def test_garbage_and_silence_never_reach_what_is_inside():
    reached, loop = [], MovedLoop()
    with socket.create_server((LOOPBACK, 0)) as inside, ExitStack() as held:
        inside.setblocking(False)
        made = held.enter_context(leading([inside.getsockname()], loop=loop))
        for words in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(1) + b"x" * 300, b"", HELLO[:100]):
            one = held.enter_context(socket.create_connection(made.address, PATIENCE))
            until(lambda: made.connections)
            one.sendall(words)
            loop.move(LIMITS.hello)
            assert is_closed(one), words
            until(lambda: not made.connections)
        with suppress(BlockingIOError):
            reached.append(inside.accept())
        assert reached == []


def test_a_hello_followed_by_nothing_is_let_go():
    loop = MovedLoop()
    with (
        socket.create_server((LOOPBACK, 0)) as inside,
        leading([inside.getsockname()], loop=loop) as made,
        socket.create_connection(made.address, PATIENCE) as one,
    ):
        one.sendall(HELLO)
        joined, _ = inside.accept()
        with joined:
            assert joined.recv(2**16) == HELLO
            loop.move(LIMITS.handshake)
            assert is_closed(one)
            assert is_closed(joined)


def test_a_link_that_has_shaken_hands_is_left_alone(certified):
    _, folder = certified
    ports, loop = echo(folder), MovedLoop()
    with ports as (inside, _), leading([(LOOPBACK, inside)] * 2, loop=loop) as made, client(made, folder) as one:
        for words in (b"one", b"two"):  # the second comes after an answer
            one.sendall(words)
            assert one.recv(10) == words
        loop.move(3600)
        one.sendall(b"three")
        assert one.recv(10) == b"three"


@pytest.mark.parametrize("words", [b"", HELLO, HELLO + b"garbage" * 30], ids=["nothing", "hello", "garbage"])
def test_a_client_comes_through_however_many_strangers_there_are(certified, words):
    """Those that are tried are closed once others wait, and the newest comes next."""
    _, folder = certified
    limits, loop = GateLimits(hello=3600, handshake=3600, contested=1800, pending=40), MovedLoop()
    with echo(folder) as (inside, _), leading([(LOOPBACK, inside)] * 2, limits, loop) as made, ExitStack() as held:
        for _ in range(100):
            one = held.enter_context(socket.create_connection(made.address, PATIENCE))
            with suppress(OSError):  # it may be closed already
                one.sendall(words)
        until(lambda: in_loop(made, lambda: len(made.links.tried) == 2) if words == HELLO else True)
        plain = held.enter_context(socket.create_connection(made.address, PATIENCE))
        name = plain.getsockname()

        def come():
            with tls(plain, folder) as neighbour:
                neighbour.sendall(b"here")
                return neighbour.recv(10)

        def make_room():
            if any(one.transport.get_extra_info("peername") == name for one in made.links.ready):
                loop.ahead += limits.contested
                return True
            return answer.done()

        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(come)
            until(lambda: in_loop(made, make_room))
            assert answer.result(PATIENCE) == b"here"


def test_who_comes_before_there_is_anything_inside_waits(certified):
    _, folder = certified

    def come():
        with client(made, folder) as one:
            one.sendall(b"early")
            return one.recv(10)

    with echo(folder) as (inside, _), open_gate(LOOPBACK, 0) as made, ThreadPoolExecutor(1) as pool:
        early = pool.submit(come)
        until(lambda: in_loop(made, lambda: len(made.links.ready) == 1))
        assert not early.done()
        made.lead_to([(LOOPBACK, inside)])
        assert early.result(PATIENCE) == b"early"


class Waiting(gate._ClientSide):
    """A connection of which only the address matters."""

    def __init__(self, held, address):
        super().__init__(held)
        self.address = address

    def limit(self, seconds):
        self.seconds = seconds

    def close(self):
        self.gate.left(self)


def test_a_lonely_address_comes_first_and_then_the_newest(monkeypatch):
    loop = asyncio.new_event_loop()
    monkeypatch.setattr(loop, "create_task", lambda joining: joining.close() or asyncio.Future(loop=loop))
    held = gate.Gate(loop, GateLimits(pending=6))
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
        assert tried.seconds <= (LIMITS.contested if held.links.ready else LIMITS.handshake)
        held.left(tried)
    assert order == [crowd[0], lonely, crowd[4], crowd[3], crowd[2], crowd[1]]
    for one in (crowd[0], lonely, *crowd[1:], Waiting(held, "10.0.0.3")):  # one too many
        held.arrived(one)
    assert list(held._pending) == [lonely, *crowd[1:], *list(held._pending)[-1:]]  # the oldest of the crowd is gone
    loop.close()


@pytest.fixture
def opened(certified):
    """Opens sessions of agents behind gates, which dial these ports."""
    fleet, folder = certified

    def opened(agent, listens, *dials, handler=lambda *_: None):
        settings = session_settings(fleet, agent, check_credentials(fleet, folder, agent), 2**20)
        settings["listen/endpoints"] = [f"tls/{LOOPBACK}:{listens}"]
        settings["connect/endpoints"] = [f"tls/{LOOPBACK}:{port}" for port in dials]
        return open_zenoh(settings, agent, handler)

    return opened


def test_an_agent_whose_answers_fail_ends_with_the_reason(opened):
    def fails(*_):
        raise KeyError("history")

    with opened(0, 0, handler=fails) as first, opened(1, 0, first.gate.address[1]) as second:
        until(lambda: 0 in second.alive())
        assert second.ask({0: b"anything"}, 0.5) == {}
        line = r"answering neighbours failed \(KeyError: 'history'\); start it again: it resumes from its checkpoint"
        with pytest.raises(NotYetError, match=line):
            until(lambda: first.alive() and False)


def test_two_agents_link_through_their_gates_and_a_taken_port_is_said(opened):
    with opened(0, 0) as first, opened(1, 0, first.gate.address[1]) as second:
        until(lambda: 1 in first.alive() and 0 in second.alive())
        taken = pytest.raises(NodeError, match=r"cannot listen on 127\.0\.0\.1:\d+; is another agent running there")
        with taken, opened(1, second.gate.address[1]):
            pass


# A loop in a thread leaves no connection open.


MORE_THAN_BUFFERS_HOLD = b"x" * 2**25


def test_connections_that_nobody_reads_are_aborted() -> None:
    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(MORE_THAN_BUFFERS_HOLD)
        writer.close()  # which waits until all is sent

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with loop_in_thread("test") as loop:
            server = Server(serve)
            address = run_in(loop, server.open("127.0.0.1", 0, 2**16))
            with socket.create_connection(address, 60) as client:
                assert client.recv(1)
                late = socket.create_connection(address, 60)  # is just being accepted
                run_in(loop, server.close())
        late.close()
        gc.collect()
    assert not [str(one.message) for one in caught]
