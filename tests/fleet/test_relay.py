"""Agents that cannot dial each other meet at a relay, which lets in nobody else and learns nothing but sizes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import shutil
import socket
import ssl

import pytest
from fleet_cases import free_ports, refused, simulated, tiny, tiny_fleet, written
from fleet_process import ProcessFleet, relay_process
from test_status import fetch, samples

from peermask.errors import NodeError
from peermask.fleet.certificates import make_certificates, make_operator
from peermask.fleet.credentials import Credentials, find_operator, find_relay, name_of, tls_context
from peermask.fleet.fleet import check, load_fleet, split_address
from peermask.fleet.metrics import RelayMetrics, serve_metrics
from peermask.fleet.operator import Unreachable, ask
from peermask.fleet.relay import (
    AGENT,
    DIAL,
    GO,
    NOBODY,
    PROTOCOL,
    READY,
    WAIT,
    Relay,
    RelayLimits,
    open_relay,
)
from peermask.fleet.relay_client import open_relay_client
from peermask.fleet.status import Health
from waiting import PATIENCE


def relayed_fleet(config, relayed, **keys):
    """Agents of which some cannot be dialled: their neighbours are told of no address that leads to them."""
    held = tiny_fleet(config, relay=f"127.0.0.1:{free_ports(1)}", **keys)
    members = [member.model_copy(update={"relayed": member.agent in relayed}) for member in held.agents]
    return held.model_copy(update={"agents": tuple(members)})


def test_agents_behind_routers_learn_as_if_they_had_none(tmp_path):
    """0 and 1 both cannot be dialled, nor 2 and 3 of which only 3 cannot: the ring has links of every kind."""
    config = tiny(rounds=15)
    held = relayed_fleet(config, {0, 1, 3}, missing="wait")
    path = written(tmp_path, held)
    assert load_fleet(path) == held
    with ProcessFleet(path, held) as made, relay_process(made):
        make_operator(tmp_path / "certs", "ann", 30)
        made.hold(2)
        made.start()
        made.until_round(0, 2)
        told = json.loads(ask(held, find_operator(tmp_path / "certs"), 0, "status"))  # through the relay
        assert (told["agent"], told["neighbours"]) == (0, 2)
        made.release()
        assert made.join() == [0] * 4
        assert made.collect().hash == simulated(config, tmp_path / "sim").hash


@pytest.mark.long
def test_a_relay_that_is_gone_is_said_and_found_again(tmp_path):
    held = relayed_fleet(tiny(agents=2, rounds=60, graph={"name": "path"}), {0, 1}, missing="wait")
    with ProcessFleet(written(tmp_path, held), held) as made:
        made.hold(5)
        with relay_process(made):
            made.start()
            made.until_round(0, 5)
        made.until_said(0, "cannot be reached", playing=False)
        with relay_process(made):
            made.release()
            assert made.join() == [0, 0]
    assert any("can be reached again" in line for line in made.said(0))


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A relay in this process, for four agents on a ring, and their certificates."""
    folder = tmp_path_factory.mktemp("relay") / "certs"
    held = relayed_fleet(tiny(), {0, 1, 2, 3})
    make_certificates(held, folder)
    make_operator(folder, "ann", 30)
    with open_relay(held, find_relay(folder), "127.0.0.1", 0) as opened:
        yield at(held, opened), folder


def at(held, opened):
    return held.model_copy(update={"relay": f"127.0.0.1:{opened.address[1]}"})


async def come(held, files, wish):
    context = tls_context(ssl.PROTOCOL_TLS_CLIENT, files, PROTOCOL)
    host, port = split_address(held.relay)
    reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=host)
    assert name_of(writer.get_extra_info("peercert")) == "relay"
    try:
        assert await reader.readexactly(1) == READY
    except (OSError, asyncio.IncompleteReadError):
        await leave(writer)
        raise
    writer.write(wish)
    return reader, writer


async def leave(*writers):
    for writer in writers:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def dial(agent):
    return DIAL + AGENT.pack(agent)


def test_it_joins_neighbours_and_operators_and_nobody_else(served):
    held, folder = served

    async def play():
        waiting = await come(held, Credentials.of(folder, 0), WAIT)
        stranger = await come(held, Credentials.of(folder, 2), dial(0))  # no neighbour of 0's on the ring
        assert await stranger[0].read() == b""
        nobody = await come(held, Credentials.of(folder, 0), dial(1))
        assert await nobody[0].read() == NOBODY
        beyond = await come(held, Credentials.of(folder, 0), dial(4_000_000_000))
        assert await beyond[0].read() == b""
        neighbour = await come(held, Credentials.of(folder, 1), dial(0))
        for reader, _ in (neighbour, waiting):
            assert await reader.readexactly(1) == GO
        many = bytes(range(256)) * 4096  # more than any buffer
        neighbour[1].write(many)
        waiting[1].write(b"and back")
        assert await waiting[0].readexactly(len(many)) == many
        assert await neighbour[0].readexactly(8) == b"and back"
        await leave(neighbour[1])
        assert await waiting[0].read() == b""
        operator = await come(held, find_operator(folder), dial(0))
        assert await operator[0].read() == NOBODY
        waits = await come(held, find_operator(folder), WAIT)  # it is no agent
        assert await waits[0].read() == b""
        await leave(*(writer for _, writer in (waiting, stranger, nobody, beyond, operator, waits)))

    asyncio.run(play())


def test_its_status_counts_who_waits_who_was_joined_and_who_was_refused(served):
    _, folder = served
    fleet = relayed_fleet(tiny(), {0, 1, 2, 3})
    with open_relay(fleet, find_relay(folder), "127.0.0.1", 0) as opened:

        async def play(held):
            first = await come(held, Credentials.of(folder, 0), WAIT)
            await until_so(lambda: opened.status().waiting_agents == 1)
            stranger = await come(held, Credentials.of(folder, 2), dial(0))
            assert await stranger[0].read() == b""
            neighbour = await come(held, Credentials.of(folder, 1), dial(0))
            assert await neighbour[0].readexactly(1) == GO
            now = opened.status()
            assert (now.clients >= 2, now.connections >= 2) == (True, True)
            assert (now.waiting_agents, now.joined, now.refused, now.roster) == (0, 1, 1, 0)
            await leave(*(writer for _, writer in (first, stranger, neighbour)))

        asyncio.run(play(at(fleet, opened)))
        with serve_metrics("127.0.0.1", 0, RelayMetrics(opened.status), Health, print) as port:
            assert fetch(port, "/healthz") == (200, b"ok\n")
            found = samples(fetch(port)[1].decode())
    assert (found["peermask_relay_joined_total"], found["peermask_relay_refused_total"]) == (1, 1)
    assert found["peermask_relay_roster"] == 0
    assert found["peermask_relay_certificate_expiry_timestamp_seconds"] > 0


async def until_so(holds):
    async with asyncio.timeout(PATIENCE):
        while not await asyncio.to_thread(holds):
            await asyncio.sleep(0)


@pytest.mark.parametrize("relay_runs", [True, False])
def test_an_operator_hears_why_the_relay_leads_nowhere(served, relay_runs):
    held, folder = served
    if not relay_runs:
        held = held.model_copy(update={"relay": f"127.0.0.1:{free_ports(1)}"})
    why = "it is not connected to relay" if relay_runs else "^relay .* cannot be reached"
    with pytest.raises(Unreachable, match=why):
        ask(held, find_operator(folder), 3, "status", seconds=PATIENCE)


def test_without_a_certificate_of_the_fleet_there_is_no_way_in(served, tmp_path):
    held, folder = served
    make_certificates(tiny_fleet(), tmp_path / "other")
    foreign = Credentials.of(tmp_path / "other", 0)
    eve = Credentials(folder / "ca.pem", foreign.certificate, foreign.key)

    async def play(files):
        await asyncio.wait_for(come(held, files, WAIT), PATIENCE)

    with pytest.raises((OSError, asyncio.IncompleteReadError)):
        asyncio.run(play(eve))
    with pytest.raises((OSError, asyncio.IncompleteReadError)):
        asyncio.run(play(find_relay(folder)))  # the relay itself is no agent, and its certificate no client's


def test_one_agent_holds_a_bounded_number_of_connections(served):
    _, folder = served
    fleet = relayed_fleet(tiny(), {0, 1, 2, 3})

    async def replaced(held):
        oldest, *others = [await come(held, Credentials.of(folder, 2), WAIT) for _ in range(3)]
        assert await oldest[0].read() == b""  # what the newest replaces
        await leave(*(writer for _, writer in (oldest, *others)))

    async def incompatible(held):
        waiting = [await come(held, Credentials.of(folder, 3), WAIT) for _ in range(3)]
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await come(held, Credentials.of(folder, 3), WAIT)
        await leave(*(writer for _, writer in waiting))

    for waiting, play in ((2, replaced), (10, incompatible)):
        limits = RelayLimits(connections=3, waiting=waiting)
        with open_relay(fleet, find_relay(folder), "127.0.0.1", 0, limits) as opened:
            asyncio.run(play(at(fleet, opened)))


def test_it_goes_by_later_rosters_that_are_signed_and_lets_out_who_is_revoked(call, tmp_path):
    """As a process, which looks at its fleet file: what is not signed or older changes nothing."""
    held = relayed_fleet(tiny(), {0, 1, 2, 3})
    path, certs = written(tmp_path, held), tmp_path / "certs"
    with ProcessFleet(path, held) as made, relay_process(made) as relay:

        async def out_at_once():
            reader, writer = await come(held, old, WAIT)
            assert call("fleet", "revoke", path, "2", "--operator", "ann")[0] == 0
            with contextlib.suppress(OSError):  # it is cut off, however its end notices
                assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
            await leave(writer)

        async def is_let_in(files):
            try:
                _, writer = await asyncio.wait_for(come(held, files, WAIT), PATIENCE)
            except (OSError, asyncio.IncompleteReadError):
                return False
            await leave(writer)
            return True

        ann = make_operator(certs, "ann", 30)
        assert asyncio.run(is_let_in(ann))
        shutil.copytree(certs, tmp_path / "old")
        old = Credentials.of(tmp_path / "old", 2)
        before = path.read_bytes()
        asyncio.run(out_at_once())
        relay.until_said("roster 1: 4 agents")
        assert not asyncio.run(is_let_in(old))
        assert not asyncio.run(is_let_in(ann))
        assert asyncio.run(is_let_in(Credentials.of(certs, 2)))  # with its new one
        first = path.read_bytes()
        path.write_bytes(first.replace(b"serial = 1", b"serial = 2"))
        relay.until_said("its roster is not signed by this fleet's authority")
        path.write_bytes(first)
        assert call("fleet", "unlink", path, "0", "1")[0] == 0
        relay.until_said("roster 2: 4 agents")
        path.write_bytes(first)
        relay.until_said("roster 1 is refused: it is older than 2, which is known here")
        assert before != first


def test_mistakes_in_a_fleet_with_a_relay(call, tmp_path):
    path = written(tmp_path, tiny_fleet())
    assert "names no relay; add `relay" in refused(call("relay", path))
    held = relayed_fleet(tiny(), {1})
    with pytest.raises(NodeError, match=r"agent 1 is relayed, and there is no relay"):
        check(held.model_copy(update={"relay": None}))
    with pytest.raises(NodeError, match=r"address 'nowhere' is not host:port"):
        check(held.model_copy(update={"relay": "nowhere"}))
    (tmp_path / "b").mkdir()
    assert "relay.pem does not exist" in refused(call("relay", written(tmp_path / "b", held)))


def test_a_door_that_closes_while_it_is_used_prints_nothing(served, caplog):
    """As `fleet status` does whose relay does not answer."""
    held, folder = served
    with socket.create_server(("127.0.0.1", 0)) as mute:
        mute.settimeout(PATIENCE)
        silent = held.model_copy(update={"relay": f"127.0.0.1:{mute.getsockname()[1]}"})
        with open_relay_client(silent, find_operator(folder), [0]) as doors:
            caller = socket.create_connection(doors[0], PATIENCE)
            dialled, _ = mute.accept()
        caller.close()
        dialled.close()
    gc.collect()
    assert [record.getMessage() for record in caplog.records] == []


def test_numbers_that_operators_dial_are_not_kept(served):
    held, folder = served
    relay = Relay(held, find_relay(folder))

    async def play():
        address = await relay.open()
        at_relay = held.model_copy(update={"relay": "{}:{}".format(*address)})
        for number in range(5, 10):
            reader, writer = await come(at_relay, find_operator(folder), dial(number))
            assert await reader.read() == NOBODY
            await leave(writer)
        await relay.close()

    asyncio.run(play())
    assert relay._waiting == {}
