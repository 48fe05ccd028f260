"""How an agent stands: counts worked by hand, trouble, expiry; the endpoint, its limits and its mistakes."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from datetime import UTC, datetime, timedelta

import pytest
from fleet_cases import Notes, tiny_fleet
from moved_time import MovedTime
from prometheus_client.parser import text_string_to_metric_families

from peermask.cli.node import JsonLines, Lines, metrics_address
from peermask.errors import NodeError, NotYetError
from peermask.fleet.environment import Line
from peermask.fleet.health import Health
from peermask.fleet.metrics import AgentMetrics, serve_metrics
from peermask.fleet.puller import Absence
from peermask.fleet.status import Report, StatusMonitor
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
    now = kept.standing()
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
    assert kept.health().trouble == "no round has ended for 31 s, since its start; neighbours connected: 0 of 2"
    kept.round(report(2))
    assert kept.health().trouble is None
    time.sleep(31)
    assert kept.health().trouble == "no round has ended for 31 s, after round 2 of 6; neighbours connected: 2 of 2"
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
    assert StatusMonitor(Notes(), tiny_fleet(), 1, lambda: end).standing().certificate_ends == end.timestamp()


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
