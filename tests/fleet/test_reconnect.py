"""A transport whose session is opened anew while it is used: nobody asks a session that is closed."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest
from memory_network import MemoryNetwork
from moved_time import MovedTime

from peermask.errors import NodeError
from peermask.fleet.transport import ReconnectingTransport


class Session:
    """One that fails if it is used after its end."""

    def __init__(self, network):
        self.transport, self.open = network.join(0, lambda *_: None), True

    def ask(self, requests, patience):
        assert self.open
        answers = self.transport.ask(requests, patience)
        assert self.open
        return answers

    def alive(self):
        return self.transport.alive()

    def stale_links(self):
        return frozenset()

    def await_change(self, seconds):
        self.transport.await_change(seconds)


@contextmanager
def session(network, made, fails=False):
    if fails:
        raise NodeError("cannot listen")
    one = Session(network)
    made.append(one)
    yield one
    one.open = False


def answering(_asker, request, reply):
    reply(request)


def test_questions_go_through_however_often_it_is_reopened():
    network, made = MemoryNetwork([(0, 1)]), []
    network.join(1, answering)
    with ReconnectingTransport() as transport:
        transport.open(session(network, made), ())
        asked, problems, over = [], [], threading.Event()

        def ask():
            try:
                while not over.is_set():
                    asked.append(transport.ask({1: b"%d" % len(asked)}, 300.0) != {})
            except AssertionError as problem:
                problems.append(problem)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        while (len(made) < 50 or len(asked) < 200) and not problems:
            transport.open(session(network, made), (1,))
        over.set()
        for thread in threads:
            thread.join()
    assert problems == []
    assert all(asked)
    assert not any(one.open for one in made)


def test_one_that_cannot_be_opened_is_as_if_nobody_were_there():
    time = MovedTime()
    network, made = MemoryNetwork([(0, 1)], time), []
    network.join(1, answering)
    with ReconnectingTransport(time) as transport:
        transport.open(session(network, made), ())
        assert transport.alive() == {1}
        with pytest.raises(NodeError, match="cannot listen"):
            transport.open(session(network, made, fails=True), ())
        assert (transport.alive(), transport.ask({1: b"x"}, 1.0)) == (frozenset(), {})
        transport.await_change(1.0)
        assert time.monotonic() == 1001
        transport.open(session(network, made), ())
        assert transport.ask({1: b"x"}, 1.0) == {1: b"x"}
