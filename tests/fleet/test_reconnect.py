"""Sessions that are opened anew while they are used, and links that are lost and come back."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager

import pytest
from cable import Cable
from fleet_cases import PATIENT, free_ports, tiny, written
from fleet_process import ProcessFleet
from memory_network import MemoryNetwork
from moved_time import MovedTime

from peermask.errors import NodeError
from peermask.fleet.certificates import make_certificates
from peermask.fleet.credentials import check_credentials
from peermask.fleet.environment import ReconnectingTransport
from peermask.fleet.fleet import certificates_of, new_fleet
from peermask.fleet.sessions import Sessions, session_settings
from peermask.fleet.zenoh_transport import open_zenoh
from waiting import until


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


# Two agents have a link each way. Lost one after the other, at different times at the two ends, they come back.


@pytest.fixture
def two(tmp_path):
    """A fleet of two agents, and the cables that lead to them."""
    port = free_ports(4)
    fleet = new_fleet(tiny(agents=2, rounds=100_000, graph={"name": "complete"}), ["127.0.0.1"], port=port)
    members = tuple(
        member.model_copy(update={"listen": f"127.0.0.1:{port + 2 + i}"}) for i, member in enumerate(fleet.agents)
    )
    limits = {**PATIENT, "round_deadline": 1.0, "missing": "last"}
    fleet = fleet.model_copy(update={"agents": members, **limits})
    with Cable(port, port + 2) as to_zero, Cable(port + 1, port + 3) as to_one:
        yield fleet, written(tmp_path, fleet), to_zero, to_one


def lose(to_zero, to_one, noticed):
    """Both links, the one to agent 0 at its own end alone: agent 1 believes in that until its lease is over."""
    to_one.cut()
    until(lambda: to_one.refused, "agent 0 dials again")
    to_zero.cut(caller=False)
    noticed()
    to_one.mend()


def test_a_neighbour_that_has_not_noticed_the_loss_is_there_or_needs_another_session(two):
    fleet, path, to_zero, to_one = two
    folder = certificates_of(path, fleet)
    make_certificates(fleet, folder)
    with ExitStack() as stack:
        transports = []
        for i, member in enumerate(fleet.agents):
            settings = session_settings(fleet, i, check_credentials(fleet, folder, i), 2**20)
            sessions = Sessions(member.name, {1 - i: fleet.member(1 - i).name}, print)
            transports.append(stack.enter_context(open_zenoh(settings, i, lambda *_: None, sessions)))
        zero, one = transports
        until(lambda: all(len(list(each.session.info.links())) == 2 for each in transports), "a link each way")
        assert zero.stale_links() == one.stale_links() == frozenset()
        lose(to_zero, to_one, lambda: until(lambda: 1 not in zero.alive(), "the loss"))
        until(lambda: 1 in zero.alive() or zero.stale_links() == {1}, "agent 1")


@pytest.mark.long
def test_agents_hear_each_other_again_whoever_notices_a_loss_first(two):
    fleet, path, to_zero, to_one = two
    with ProcessFleet(path, fleet) as made:
        made.start()
        made.until_round(0, 30)
        begun = {agent: len(made.reports(agent)) for agent in (0, 1)}
        lose(to_zero, to_one, lambda: made.until(0, lambda report: report["absent"], "the loss", begun[0]))
        for agent, since in begun.items():
            made.until(agent, lambda report: report["absent"], "the loss", since)
            lost = next(i for i, report in enumerate(made.reports(agent)) if i >= since and report["absent"])
            made.until(agent, lambda report: not report["absent"], "the other again", lost)
