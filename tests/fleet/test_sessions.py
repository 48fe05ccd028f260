"""Whose certificates are linked: strangers and doubles are said, and two devices with one key are refused."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from fleet_cases import free_ports, simulated, tiny, tiny_fleet, written
from fleet_process import ProcessFleet
from moved_time import MovedTime
from test_intruders import answers, session

from peermask.errors import WireError
from peermask.fleet.authority import sign
from peermask.fleet.certificates import make_certificates
from peermask.fleet.credentials import Credentials
from peermask.fleet.fleet import new_fleet, save_fleet
from peermask.fleet.messages import DOUBLED, decode_answer
from peermask.fleet.roster import encode_roster, revoke_certificates
from peermask.fleet.sessions import OVERLAP_SECONDS, Sessions, access_control, session_settings
from waiting import PATIENCE


@pytest.fixture
def held():
    said: list[str] = []
    return Sessions("agent-0", {1: "agent-1", 3: "agent-3-2"}, said.append, MovedTime()), said


def test_a_session_may_have_several_links_and_come_back(held):
    made, said = held
    for made_ in (True, True, False, True, False, False, True):
        made.changed("agent-1", "a", made=made_)
        made.time.sleep(2 * OVERLAP_SECONDS)
        assert made.doubled() == frozenset()
    assert said == []


def test_two_sessions_with_one_name_are_two_devices_until_one_is_gone(held):
    made, said = held
    made.changed("agent-3-2", "a", made=True)
    made.changed("agent-3-2", "b", made=True)
    assert made.doubled() == frozenset()  # it may be a restart whose old link is still there
    made.time.sleep(OVERLAP_SECONDS)
    assert made.doubled() == frozenset()
    made.time.sleep(0.1)
    assert made.doubled() == made.doubled() == {3}
    assert said == ["two devices run as agent 3, with the same key; neither is served until one stops"]
    made.changed("agent-3-2", "a", made=False)
    assert made.doubled() == frozenset()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("agent-3", "agent 3 is agent-3-2 in the fleet file of this device; it was revoked, or this file is old"),
        ("agent-3-1", "agent 3 is agent-3-2 in the fleet file of this device; it was revoked, or this file is old"),
        ("agent-0", "this device has the same one; stop one of the two"),
        ("agent-33", "it is not a neighbour; its fleet file is another one, or that of this device is old"),
    ],
)
def test_who_is_no_neighbour_is_said_once(held, name, why):
    made, said = held
    for number in range(3):
        made.changed(name, str(number), made=True)
    assert said == [f"a device with the certificate of {name} is ignored: {why}"]


def test_who_is_refused_as_double_is_told_why():
    with pytest.raises(WireError, match="another device runs with the same key") as refused:
        decode_answer(DOUBLED)
    assert refused.value.why == "double"


@pytest.mark.long
def test_two_devices_with_one_key_are_refused_on_both_sides_and_one_alone_is_heard_again(tmp_path):
    fleet = tiny_fleet(tiny(rounds=100_000), missing="last", round_deadline=0.5)
    path = written(tmp_path, fleet)
    twin = fleet.agents[3].model_copy(update={"listen": f"127.0.0.1:{free_ports(1)}"})
    with ProcessFleet(path, fleet) as made:
        made.start()
        made.until_round(0, 5)
        (tmp_path / "twin").mkdir()
        shutil.copytree(tmp_path / "certs", tmp_path / "twin" / "certs")
        copied = tmp_path / "twin" / "fleet.toml"
        save_fleet(copied, fleet.model_copy(update={"agents": (*fleet.agents[:3], twin)}))
        with ProcessFleet(copied, fleet) as second:
            second.start(3)
            made.until(0, lambda report: 3 in [a["neighbour"] for a in report["absent"]], "the absence of 3")
            made.until(3, lambda report: len(report["absent"]) == 2, "being refused")
        seen = made.reports(0)[-1]["round"]
        made.until(0, lambda report: report["round"] > seen and not report["absent"], "everybody")
        for agent in range(4):
            made.send(agent, signal.SIGTERM)
        assert made.join() == [128 + signal.SIGTERM] * 4
    line = "two devices run as agent 3, with the same key; neither is served until one stops"
    assert any(line in said for said in made.said(0))
    refusal = (
        "refuses this device: another device runs with the same key as this one; neither is served until one stops"
    )
    assert any(refusal in said for said in made.said(3))
    assert any(refusal in said for said in second.said(3))
    assert made.collect(partial=True).status == "unfinished"


def test_a_revoked_certificate_is_refused_over_real_sockets_and_said(tmp_path):
    before = tiny_fleet(tiny(rounds=8), missing="wait")
    make_certificates(before, tmp_path / "certs")
    shutil.copytree(tmp_path / "certs", tmp_path / "stolen")
    fleet = revoke_certificates(before, [3])
    make_certificates(fleet, tmp_path / "certs", renew=(3,))
    fleet = fleet.model_copy(update={"signature": sign(tmp_path / "certs", encode_roster(fleet))})
    with ProcessFleet(written(tmp_path, fleet), fleet) as made:
        made.start(0, 1, 2)
        for agent in (0, 1, 2):
            made.until_listening(agent)
        with session(fleet, Credentials.of(tmp_path / "stolen", 3)) as opened:
            assert [owner for owner in (0, 1, 2) if answers(opened, owner, 3)] == []
        with session(fleet, Credentials.of(tmp_path / "certs", 3)) as opened:
            made.until_true(lambda: all(answers(opened, owner, 3, PATIENCE) for owner in (0, 2)), "answers")
            assert answers(opened, 1, 3) == []
        made.start(3)
        assert made.join() == [0] * 4
        assert made.collect().hash == simulated(fleet.experiment, tmp_path / "sim").hash
    line = "a device with the certificate of agent-3 is ignored: agent 3 is agent-3-1 in the fleet file of this device"
    assert any(line in said for said in made.said(0))
    assert any("a device with the certificate of agent-3 is ignored: it is not a neighbour" in s for s in made.said(1))


# What a session allows: the links of the graph, and of each neighbour its own part of the conversation.


FLEET = new_fleet(tiny(agents=5), port=9000)
FILES = Credentials.of(Path("certs"), 3)


def allowed(rules, neighbour, flow):
    return {
        (message, key)
        for rule in rules
        if rule["id"].startswith(f"{neighbour}-") and rule["flows"] == [flow]
        for message in rule["messages"]
        for key in rule["key_exprs"]
    }


def test_only_links_of_the_graph_are_dialled_each_by_both_ends():
    settings = {agent: session_settings(FLEET, agent, FILES, 1000) for agent in range(5)}
    dialled = {agent: settings[agent]["connect/endpoints"] for agent in settings}
    assert dialled[0] == ["tls/127.0.0.1:9001", "tls/127.0.0.1:9004"]
    assert dialled[4] == ["tls/127.0.0.1:9000", "tls/127.0.0.1:9003"]
    assert settings[3]["listen/endpoints"] == ["tls/127.0.0.1:9003"]
    assert not settings[3]["scouting/multicast/enabled"]
    assert not settings[3]["scouting/gossip/enabled"]


def test_an_ipv6_address_is_dialled_without_brackets_where_tls_verifies_it():
    fleet = new_fleet(tiny(agents=2, graph={"name": "path"}), ["[::1]"], port=9000)
    assert session_settings(fleet, 1, FILES, 1000)["connect/endpoints"] == ["tls/::1:9000"]
    assert session_settings(fleet, 1, None, 1000)["connect/endpoints"] == ["tcp/[::1]:9000"]
    assert session_settings(fleet, 1, None, 1000)["listen/endpoints"] == ["tcp/[::1]:9001"]


def test_a_neighbour_asks_answers_and_lives_as_itself_alone():
    control = access_control(3, {2: "agent-2", 4: "agent-4"})
    assert control["default_permission"] == "deny"
    assert allowed(control["rules"], 4, "ingress") == {
        ("query", "peermask/ask/3/4"),
        ("reply", "peermask/ask/4/3"),
        ("declare_queryable", "peermask/ask/4/*"),
        ("liveliness_token", "peermask/alive/4"),
        ("liveliness_query", "peermask/alive/*"),
        ("declare_liveliness_subscriber", "peermask/alive/*"),
    }
    assert control["subjects"] == [
        {"id": "agent-2", "cert_common_names": ["agent-2"]},
        {"id": "agent-4", "cert_common_names": ["agent-4"]},
    ]


def test_what_one_end_may_send_the_other_may_receive():
    there, here = access_control(3, {4: "agent-4"})["rules"], access_control(4, {3: "agent-3"})["rules"]
    assert allowed(there, 4, "egress") == allowed(here, 3, "ingress")
    assert allowed(there, 4, "ingress") == allowed(here, 3, "egress")


def test_rules_of_agent_1_are_not_those_of_agent_11():
    policies = access_control(0, {1: "agent-1", 11: "agent-11"})["policies"]
    assert all(rule.startswith("1-") for rule in policies[0]["rules"])
    assert all(rule.startswith("11-") for rule in policies[1]["rules"])


def test_without_credentials_it_is_plain_tcp():
    settings = session_settings(FLEET, 3, None, 1000)
    assert settings["listen/endpoints"] == ["tcp/127.0.0.1:9003"]
    assert "access_control" not in settings


def test_an_agent_may_bind_elsewhere_than_it_is_found():
    member = FLEET.agents[3].model_copy(update={"listen": "0.0.0.0:7450"})
    moved = FLEET.model_copy(update={"agents": (*FLEET.agents[:3], member, FLEET.agents[4])})
    assert session_settings(moved, 3, None, 1000)["listen/endpoints"] == ["tcp/0.0.0.0:7450"]
    assert "tls/127.0.0.1:9003" in session_settings(moved, 4, FILES, 1000)["connect/endpoints"]


def test_a_relayed_neighbour_is_dialled_through_a_door_or_left_to_dial():
    member = FLEET.agents[4].model_copy(update={"relayed": True})
    moved = FLEET.model_copy(update={"agents": (*FLEET.agents[:4], member), "relay": "10.0.0.9:7440"})
    assert session_settings(moved, 3, FILES, 1000)["connect/endpoints"] == ["tls/127.0.0.1:9002"]
    door = session_settings(moved, 3, FILES, 1000, {4: ("127.0.0.1", 5000)})["connect/endpoints"][-1]
    assert door == "tls/127.0.0.1:5000#verify_name_on_connect=false"
    assert session_settings(moved, 3, None, 1000)["connect/endpoints"][-1] == "tcp/127.0.0.1:9004"
