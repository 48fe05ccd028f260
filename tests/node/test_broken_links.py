"""Two agents have a link each way. Lost one after the other, at different times at the two ends, they come back."""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest
from cable import Cable
from fleet_cases import free_ports, tiny, written

from peermask.node.certificates import check_credentials, make_certificates
from peermask.node.fleet import new_fleet
from peermask.node.sessions import Sessions
from peermask.node.start import certificates_of
from peermask.node.zenoh_settings import session_settings
from peermask.node.zenoh_transport import open_zenoh


def until(happened, what):
    end = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < end, what
        time.sleep(0.02)


@pytest.fixture
def joined(tmp_path):
    """The transports of agents 0 and 1, and the cables that lead to them."""
    port = free_ports(4)
    fleet = new_fleet(tiny(agents=2, graph={"name": "complete"}), ["127.0.0.1"], port=port)
    members = tuple(
        member.model_copy(update={"listen": f"127.0.0.1:{port + 2 + i}"}) for i, member in enumerate(fleet.agents)
    )
    fleet = fleet.model_copy(update={"agents": members})
    path = written(tmp_path, fleet)
    folder = certificates_of(path, fleet)
    make_certificates(fleet, folder)
    with ExitStack() as stack:
        cables = [stack.enter_context(Cable(port + i, port + 2 + i)) for i in range(2)]
        transports = []
        for i, member in enumerate(fleet.agents):
            settings = session_settings(fleet, i, check_credentials(fleet, folder, i), 2**20)
            sessions = Sessions(member.name, {1 - i: fleet.member(1 - i).name}, print)
            opened = open_zenoh(settings, i, lambda _asker, _request, reply: reply(b"here"), sessions)
            transports.append(stack.enter_context(opened))
        until(lambda: all(links(one) == 2 for one in transports), "a link each way")
        yield transports, cables


def links(transport):
    return len(list(transport.session.info.links()))


def test_an_agent_hears_a_neighbour_that_has_not_noticed_that_it_was_lost(joined):
    (zero, one), (to_zero, to_one) = joined
    to_one.cut()
    until(lambda: links(zero) == links(one) == 1, "one link")
    to_zero.cut(caller=False)  # agent 1 believes in that one until its lease ends
    until(lambda: 1 not in zero.alive(), "the loss")
    to_one.mend()
    for own, other in ((zero, 1), (one, 0)):
        until(lambda own=own, other=other: own.ask({other: b"there?"}, 1.0), f"an answer of agent {other}")
        until(lambda own=own, other=other: other in own.alive(), f"agent {other}")
