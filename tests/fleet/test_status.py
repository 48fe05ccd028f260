"""The status of an agent, worked by hand: counts, states, expiry; the endpoint, its limits and its mistakes."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta

import pytest
from fleet_cases import MemoryFleet, Notes, tiny, tiny_fleet
from moved_time import MovedTime
from prometheus_client.parser import text_string_to_metric_families
from pulling_peers import CARD

from peermask.cli import operate
from peermask.cli.node import JsonLines, Lines, metrics_address
from peermask.errors import NodeError, NotYetError
from peermask.fleet import operator
from peermask.fleet.environment import Line
from peermask.fleet.metrics import AgentMetrics, serve_metrics, status_pages
from peermask.fleet.operator import AgentAnswer, ask_status
from peermask.fleet.puller import Absence
from peermask.fleet.responder import Responder
from peermask.fleet.status import Health, Report, StatusMonitor, assess
from peermask.page_server import CONNECTIONS, PageServer, serve_pages
from waiting import PATIENCE, until


def report(round, *absent, rounds=6, loss=0.5):
    absences = tuple(Absence(round, j, why, None) for j, why in absent)
    return Report(round, rounds, 0.75, round, 1000.0 * round, 2, 2, absences, "accuracy", loss)


def samples(text):
    found = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(one.labels.items()))
            found[f"{one.name}{{{labels}}}" if labels else one.name] = one.value
    return found


def test_rounds_absences_and_seconds_are_counted():
    notes, time = Notes(), MovedTime()
    kept = StatusMonitor(notes, tiny_fleet(), 1, time=time)
    for seconds, said in (
        (60.0, report(1)),  # waiting for the others, which is no round
        (0.2, report(2, (0, "silent"))),
        (0.2, report(2, (0, "silent"))),  # told twice, counted once
        (7.0, report(3, (0, "gone"), (2, "refused (damaged)"))),
    ):
        time.sleep(seconds)
        kept.round(said)
    now = kept.status()
    assert (now.round, now.rounds, now.loss, now.accuracy, now.sent_bytes) == (3, 6, 0.5, 0.75, 0)
    assert (now.neighbours, now.heard) == (2, 0)
    assert now.absences == {0: {"gone": 1, "silent": 1}, 2: {"refused": 1}}
    assert now.last_absence == {"round": 3, "neighbour": 2, "why": "refused (damaged)"}
    assert now.seconds == pytest.approx(7.4)  # round 2 ended when it was first told
    assert now.buckets == (0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0)  # 0.2 s and 7.2 s
    found = samples(AgentMetrics(kept).text().decode())
    assert found["peermask_round"] == 3
    assert found["peermask_absences_total{neighbour=0,why=silent}"] == 1
    assert found["peermask_round_seconds_bucket{le=0.3}"] == 1
    assert found["peermask_round_seconds_bucket{le=10.0}"] == found["peermask_round_seconds_count"] == 2
    assert len(notes.reports) == 4


def test_no_round_for_long_is_trouble_until_one_ends_or_all_are_over():
    time = MovedTime()
    kept = StatusMonitor(Notes(), tiny_fleet(), 1, stalled_after=30.0, time=time)
    time.sleep(31)
    assert kept.health().trouble == "no round has ended for 31 s, since its start; not heard since then: 0, 2"
    kept.round(report(2))
    assert kept.health().trouble is None
    time.sleep(31)
    assert kept.health().trouble == "no round has ended for 31 s, after round 2 of 6; not heard since then: 0, 2"
    assert samples(AgentMetrics(kept).text().decode())["peermask_healthy"] == 0
    kept.round(report(6))
    time.sleep(1000)
    assert kept.health().trouble is None


def test_by_default_trouble_begins_after_every_limit_of_the_fleet():
    assert StatusMonitor(Notes(), tiny_fleet(start_limit=60.0, round_deadline=100.0), 0).stalled_after == 230
    assert (
        StatusMonitor(Notes(), tiny_fleet(start_limit=60.0, wait_limit=600.0, missing="wait"), 0).stalled_after == 1230
    )


def test_the_end_of_a_certificate_is_part_of_how_it_stands():
    end = datetime.now(UTC) + timedelta(days=13)
    assert StatusMonitor(Notes(), tiny_fleet(), 1, lambda: end).status().certificate_ends == end.timestamp()


PAGES = {"/metrics": lambda: (200, "text/plain", b"m\n"), "/healthz": lambda: (503, "text/plain", b"stuck\n")}


def fetch(port, path="/metrics", method="GET", **headers):
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    link.request(method, path, headers=headers)
    answer = link.getresponse()
    return answer.status, answer.read()


def test_the_endpoint_is_read_only_and_answers_to_local_names():
    with serve_pages(PageServer("127.0.0.1", 0, PAGES)) as opened:
        assert fetch(opened.port) == (200, b"m\n")
        assert fetch(opened.port, "/healthz?full") == (503, b"stuck\n")
        assert fetch(opened.port, "/")[0] == 404
        assert fetch(opened.port, method="POST")[0] == 501
        assert fetch(opened.port, Host="evil.example")[0] == 403
        assert fetch(opened.port, Host="127.0.0.1.evil.example")[0] == 403
        for host in ("[::1]", "localhost:80", "127.0.0.2:80"):
            assert fetch(opened.port, Host=host)[0] == 200
        with socket.create_connection(("127.0.0.1", opened.port)) as rude:
            rude.sendall(b"\x16\x03\x01 not http\r\n\r\n")
            assert b"400" in rude.recv(1000)


def test_slow_clients_keep_nobody_out():
    with serve_pages(PageServer("127.0.0.1", 0, PAGES, step_seconds=600)) as opened:
        slow = [socket.create_connection(("127.0.0.1", opened.port)) for _ in range(3 * CONNECTIONS)]
        for one in slow:
            with contextlib.suppress(OSError):  # the first are closed already
                one.sendall(b"GET /metrics HT")
        assert fetch(opened.port)[0] == 200
        until(lambda: len(opened._open) == CONNECTIONS - 1)  # without the one that was answered
        for one in slow[: 2 * CONNECTIONS]:
            one.settimeout(PATIENCE)
            with contextlib.suppress(ConnectionResetError):
                assert one.recv(1) == b""
        for one in slow:
            one.close()


def test_a_client_that_sends_a_byte_at_times_is_closed_in_the_end():
    with serve_pages(PageServer("127.0.0.1", 0, PAGES, step_seconds=600)) as opened:
        with socket.create_connection(("127.0.0.1", opened.port), timeout=PATIENCE) as slow:
            slow.sendall(b"GET /metrics HT")
            until(lambda: opened._open)
            opened.limit_seconds = 0.0
            assert slow.recv(1) == b""
        until(lambda: not opened._open)


def test_a_port_in_use_is_one_line():
    metrics = AgentMetrics(StatusMonitor(Notes(), tiny_fleet(), 1))
    refused = pytest.raises(NodeError, match=r"on 127.0.0.1:\d+: .*in use.*; give another --metrics")
    with (
        serve_metrics("127.0.0.1", 0, metrics, Health, print) as port,
        refused,
        serve_metrics("127.0.0.1", port, metrics, Health, print),
    ):
        pass


def test_a_public_address_has_to_be_asked_for():
    assert metrics_address(None, None) is None
    assert metrics_address("9464", None) == ("127.0.0.1", 9464)
    assert metrics_address("[::1]:9464", None) == ("::1", 9464)
    assert metrics_address("9464", "0.0.0.0") == ("0.0.0.0", 9464)
    with pytest.raises(NodeError, match=r"to allow it, give --metrics 9464 --metrics-host 0.0.0.0"):
        metrics_address("0.0.0.0:9464", None)
    with pytest.raises(NodeError, match=r"is not a port"):
        metrics_address("many", None)
    with pytest.raises(NodeError, match=r"without --metrics"):
        metrics_address(None, "0.0.0.0")


def test_json_lines_say_what_the_text_lines_say(capsys):
    text, lines = Lines(1), JsonLines(1)
    for one in (text, lines):
        one.round(report(1))
        one.round(report(1))  # of the same evaluation
        one.say(Line("round 2: agent 0 is gone; it is left out", "absent", "warning", neighbour=0, why="gone"))
        one.say("plain")
    with pytest.raises(NotYetError), lines.failing():
        raise NotYetError("nobody\nthere")
    out, err = capsys.readouterr()
    printed = out.splitlines()
    assert printed[0].startswith("round 1/6  accuracy 75.0 %")
    assert len(err.splitlines()) == 2
    events = [json.loads(line) for line in printed[1:]]
    assert [event["event"] for event in events] == ["evaluation", "absent", "note", "failed"]
    assert all(event["agent"] == 1 and event["round"] == 1 and event["time"] for event in events)
    assert (events[0]["accuracy"], events[0]["loss"]) == (0.75, 0.5)
    assert (events[1]["level"], events[1]["neighbour"], events[1]["why"]) == ("warning", 0, "gone")
    assert events[1]["message"] == "round 2: agent 0 is gone; it is left out"
    assert (events[3]["level"], events[3]["message"], events[3]["exit"]) == ("error", "nobody there", 75)


# States, with a clock that the tests move.


WELL = {"neighbours": 4, "heard": 4, "refused": 0, "behind": 0, "costly": ()}


@pytest.mark.parametrize(
    ("changes", "state", "trouble"),
    [
        ({}, "ok", None),
        ({"neighbours": 0, "heard": 0}, "ok", None),  # linked to nobody
        ({"heard": 2}, "ok", None),  # exactly half
        ({"heard": 1}, "degraded", "hears 1 of 4 neighbours"),
        ({"heard": 0, "refused": 4}, "degraded", "refused by all 4 neighbours"),
        ({"heard": 0, "refused": 3}, "degraded", "hears 0 of 4 neighbours"),
        ({"behind": 8}, "ok", None),
        ({"behind": 9}, "degraded", "9 rounds behind its neighbours"),
        ({"costly": [5, 3]}, "degraded", "agent 3, 5 used up the time limit of 2 rounds or more"),
        ({"heard": 1, "behind": 9}, "degraded", "hears 1 of 4 neighbours; 9 rounds behind its neighbours"),
        ({"heard": 1, "idle": "no round", "failing": True}, "failing", "no round; hears 1 of 4 neighbours"),
        ({"idle": "no round"}, "degraded", "no round"),
    ],
)
def test_states_by_counts(changes, state, trouble):
    found = assess(**{**WELL, **changes})
    assert (found.state, found.trouble) == (state, trouble)
    assert str(found) == (state if trouble is None else f"{state}: {trouble}")


def test_an_agent_that_hears_nobody_is_degraded_until_it_hears_half():
    kept = StatusMonitor(Notes(), tiny_fleet(), 1, time=MovedTime())
    kept.round(report(1, (0, "gone"), (2, "gone")))
    assert str(kept.health()) == "degraded: hears 0 of 2 neighbours"
    kept.round(report(2, (0, "gone")))
    assert kept.health() == Health()
    kept.round(report(6, (0, "gone"), (2, "gone")))  # the last: it needs nobody any more
    assert kept.health() == Health()


def test_a_neighbour_that_uses_up_two_rounds_is_named_until_it_is_heard():
    time = MovedTime()
    kept = StatusMonitor(Notes(), tiny_fleet(round_deadline=5.0), 1, time=time)
    states = []
    for number, seconds, absent in (
        (1, 0, ()),
        (2, 5.0, [(0, "silent")]),
        (3, 0.1, [(0, "silent")]),  # not waited for
        (4, 5.0, [(0, "refused (size)")]),
        (5, 0.1, [(0, "silent")]),
    ):
        time.sleep(seconds)
        kept.round(report(number, *absent, rounds=9))
        states.append(kept.health().state)
    assert states == ["ok", "ok", "ok", "degraded", "degraded"]
    assert kept.health().trouble == "agent 0 used up the time limit of 2 rounds or more"
    kept.round(report(6, rounds=9))
    assert kept.health() == Health()


def test_neighbours_alive_are_those_of_now_not_of_the_last_round():
    kept = StatusMonitor(Notes(), tiny_fleet(), 1, time=MovedTime())
    kept.round(report(1))
    assert kept.status().alive == 2
    kept.connected = lambda: frozenset({0, 3})  # 3 is no neighbour
    assert samples(AgentMetrics(kept).text().decode())["peermask_neighbours_alive"] == 1


def test_before_its_first_round_an_agent_that_has_met_nobody_is_degraded(tmp_path):
    kept, responder = StatusMonitor(Notes(), tiny_fleet(), 1, time=MovedTime()), Responder(1, (0, 2), CARD, print)
    kept.follow(responder, tmp_path)
    assert str(kept.health()) == "degraded: hears 0 of 2 neighbours"
    responder.refuses(2, CARD)
    assert kept.health() == Health()


def test_a_fleet_that_waits_is_degraded_long_before_its_limit_and_names_who_is_missing(tmp_path):
    time = MovedTime()
    fleet = tiny_fleet(missing="wait", wait_limit=600.0, round_deadline=20.0, start_limit=60.0)
    kept, responder = StatusMonitor(Notes(), fleet, 1, time=time), Responder(1, (0, 2), CARD, print, time=time)
    kept.follow(responder, tmp_path)
    kept.round(report(2))
    time.sleep(100)
    responder.received.add(2, 100)
    time.sleep(50)
    assert kept.health() == Health()
    time.sleep(1)
    after = "after round 2 of 6; not heard since then: 0"
    assert str(kept.health()) == f"degraded: no round has ended for 151 s, {after}"
    time.sleep(1080)
    assert str(kept.health()) == f"failing: no round has ended for 1231 s, {after}"


def test_one_that_is_gone_costs_no_time():
    time = MovedTime()
    kept = StatusMonitor(Notes(), tiny_fleet(round_deadline=5.0), 1, time=time)
    for number in (1, 2, 3):
        time.sleep(60)  # the agent itself is slow
        kept.round(report(number, (0, "gone")))
    assert kept.health() == Health()


def test_an_agent_behind_is_degraded_unless_all_go_at_their_own_pace():
    for asynchronous, state in ((None, "degraded"), ({}, "ok")):
        fleet = tiny_fleet(tiny(asynchronous=asynchronous)) if asynchronous is not None else tiny_fleet()
        kept = StatusMonitor(Notes(), fleet, 1, time=MovedTime())
        kept.round(replace(report(1, rounds=60), behind=12))
        assert kept.health().state == state
        assert samples(AgentMetrics(kept).text().decode())["peermask_rounds_behind"] == 12


def test_refused_by_all_is_known_before_the_first_round(tmp_path):
    kept = StatusMonitor(Notes(), tiny_fleet(), 1, time=MovedTime())
    responder = Responder(1, (0, 2), CARD, print)
    kept.follow(responder, tmp_path)
    for neighbour in (0, 2):
        responder.refuses(neighbour, replace(CARD, run="another"))
    assert str(kept.health()) == "degraded: refused by all 2 neighbours"


def test_metrics_to_alert_on(tmp_path):
    time = MovedTime()
    kept = StatusMonitor(Notes(), tiny_fleet(), 1, time=time)
    responder = Responder(1, (0, 2), CARD, print, time=time)
    kept.follow(responder, tmp_path)
    kept.connections = lambda: 7
    time.sleep(10)
    responder.received.add(2, 100)
    for why in ("damaged", "old", "ahead"):
        responder.refusals.note(2, why, why)
    time.sleep(5)
    kept.round(report(1, (0, "gone"), (2, "gone")))
    found = samples(AgentMetrics(kept).text().decode())
    assert found["peermask_neighbour_heard_age_seconds{neighbour=0}"] == 15
    assert found["peermask_neighbour_heard_age_seconds{neighbour=2}"] == 5
    assert found["peermask_gate_connections"] == 7
    assert {name: value for name, value in found.items() if "neighbour=2,why" in name} == {
        "peermask_absences_total{neighbour=2,why=gone}": 1,
        "peermask_refusals_total{neighbour=2,why=damaged}": 1,
        "peermask_out_of_step_total{neighbour=2,why=ahead}": 1,
        "peermask_out_of_step_total{neighbour=2,why=old}": 1,
    }
    shown = dict(zip(operate.HEADINGS[2:-1], operate._row(asdict(kept.status())), strict=True))
    assert (shown["bad"], shown["out of step"]) == ("1", "2")
    assert found["peermask_disk_free_bytes"] > 0
    states = [found[f"peermask_state{{state={state}}}"] for state in ("ok", "degraded", "failing")]
    assert (states, found["peermask_healthy"]) == ([0, 1, 0], 1)


@pytest.mark.parametrize(
    ("health", "answer"),
    [
        (Health(), (200, b"ok\n")),
        (Health("degraded", ("late",)), (200, b"degraded: late\n")),
        (Health("failing", ("stuck",)), (503, b"failing: stuck\n")),
    ],
)
def test_healthz_follows_the_state(health, answer):
    status, _, body = status_pages(bytes, lambda: health)["/healthz"]()
    assert (status, body) == answer


@pytest.mark.parametrize(
    ("states", "code"),
    [(["ok", "ok"], 0), (["ok", "degraded"], 3), (["degraded", "failing"], 1), (["unreachable", "ok"], 1)],
)
def test_the_exit_code_of_status_follows_the_worst(states, code):
    answers = [AgentAnswer(i, "", None, None, state) for i, state in enumerate(states)]
    assert operate.exit_code_of(answers) == code


def test_a_state_that_does_not_exist_is_no_status(monkeypatch):
    fleet = tiny_fleet()
    whole = asdict(StatusMonitor(Notes(), fleet, 0).status())
    said = (
        {"agent": 0, "trouble": None},
        whole | {"agent": 1, "trouble": "stuck", "state": "failing"},
        whole | {"agent": 2, "trouble": "late", "state": "degraded"},
        whole | {"agent": 3, "trouble": None, "state": ["ok"]},
    )
    monkeypatch.setattr(operator, "ask", lambda _fleet, _files, agent, *_, **__: json.dumps(said[agent]).encode())
    answers = ask_status(fleet, None)
    assert [one.state for one in answers] == ["unreachable", "failing", "degraded", "unreachable"]
    assert answers[0].trouble == answers[3].trouble == "its answer is not a status"


@pytest.mark.parametrize("change", [{"roster_digest": 5}, {"round": "x"}, {"last_absence": {}}, {"version": None}])
def test_a_status_with_a_wrong_value_hides_no_other_agent(monkeypatch, change):
    fleet = tiny_fleet()
    whole = asdict(StatusMonitor(Notes(), fleet, 0).status())
    said = [whole | {"agent": agent} | (change if agent == 1 else {}) for agent in range(4)]
    monkeypatch.setattr(operator, "ask", lambda _fleet, _files, agent, *_, **__: json.dumps(said[agent]).encode())
    answers = ask_status(fleet, None)
    assert [one.trouble == "its answer is not a status" for one in answers] == [False, True, False, False]
    assert [one.status is None for one in answers] == [False, True, False, False]


def test_who_has_not_appeared_is_a_warning_and_rounds_behind_are_reported(tmp_path):
    time = MovedTime()
    made = MemoryFleet(tiny_fleet(tiny(rounds=2)), tmp_path, time)
    for agent in (0, 1, 2):
        made.start(agent)
    made.join()
    (line,) = (line for line in made.notes[0].lines if "has not appeared" in line)
    assert (line.level, line.event, line.fields) == ("warning", "unseen", {"neighbour": 3})
    assert {one.behind for one in made.notes[0].reports} <= {0, 1, 2}
