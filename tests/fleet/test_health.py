"""The states of an agent, worked by hand, with a clock that the tests move."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from fleet_cases import MemoryFleet, Notes, tiny, tiny_fleet
from moved_time import MovedTime
from pulling_peers import CARD
from test_status import report, samples

from peermask.cli import operate
from peermask.fleet import operator
from peermask.fleet.health import Health, assess
from peermask.fleet.metrics import AgentMetrics, status_pages
from peermask.fleet.operator import Answered, ask_status
from peermask.fleet.responder import Responder
from peermask.fleet.status import StatusMonitor

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
        ({"heard": 1, "stalled": "no round"}, "failing", "no round; hears 1 of 4 neighbours"),
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
    shown = dict(zip(operate.HEADINGS[2:-1], operate._row(asdict(kept.standing())), strict=True))
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
    [
        (["ok", "ok"], 0),
        (["ok", "degraded"], 3),
        (["degraded", "failing"], 1),
        (["unreachable", "ok"], 1),
    ],
)
def test_the_exit_code_of_status_follows_the_worst(states, code):
    answers = [Answered(i, "", None, None, state) for i, state in enumerate(states)]
    assert operate.exit_code_of(answers) == code


def test_a_state_that_does_not_exist_is_no_status(monkeypatch):
    fleet = tiny_fleet()
    said = (
        {"agent": 0, "trouble": None},  # of an older version
        {"agent": 1, "trouble": "stuck"},
        {"agent": 2, "trouble": "late", "state": "degraded"},
        {"agent": 3, "trouble": None, "state": ["ok"]},
    )
    monkeypatch.setattr(operator, "ask", lambda _fleet, _files, agent, *_, **__: json.dumps(said[agent]).encode())
    answers = ask_status(fleet, None)
    assert [one.state for one in answers] == ["ok", "failing", "degraded", "unreachable"]
    assert answers[3].trouble == "its answer is not a status"


def test_who_has_not_appeared_is_a_warning_and_rounds_behind_are_reported(tmp_path):
    time = MovedTime()
    made = MemoryFleet(tiny_fleet(tiny(rounds=2)), tmp_path, time)
    for agent in (0, 1, 2):
        made.start(agent)
    made.join()
    (line,) = (line for line in made.notes[0].lines if "has not appeared" in line)
    assert (line.level, line.event, line.fields) == ("warning", "unseen", {"neighbour": 3})
    assert {one.behind for one in made.notes[0].reports} <= {0, 1, 2}
