"""What a session allows: the links of the graph, and of each neighbour its own part of the conversation."""

from __future__ import annotations

from pathlib import Path

from fleet_cases import tiny

from peermask.fleet.credentials import Credentials
from peermask.fleet.fleet_file import new_fleet
from peermask.fleet.sessions import access_control, session_settings

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
