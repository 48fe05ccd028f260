"""The config of a zenoh session: exactly the links of the graph, mutual TLS, and access control for each neighbour.

    peermask/ask/J/I    requests of agent I to agent J, and the answers to them
    peermask/alive/I    agent I is alive

A neighbour is identified by the name in its certificate. It may send requests, answers and its liveliness token under
its own number only; zenoh drops everything else before it reaches the agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from peermask.node.address import split_address
from peermask.node.credentials import Credentials
from peermask.node.fleet import Fleet

LEASE_MS = 2000  # a frozen or disconnected neighbour is noticed within a few of these
CLOSE_US = (
    500_000  # a send that blocks this long closes the link; less than the lease, or healthy peers would look dead
)


def ask_key(owner: int | str, asker: int | str) -> str:
    return f"peermask/ask/{owner}/{asker}"


def alive_key(agent: int | str) -> str:
    return f"peermask/alive/{agent}"


def session_settings(
    fleet: Fleet,
    agent: int,
    credentials: Credentials | None,
    max_message: int,
    through: Mapping[int, tuple[str, int]] | None = None,
) -> dict[str, Any]:
    """Keys and values of the session's config; without credentials anyone who reaches the port can connect.

    `through`: addresses at which relayed neighbours are dialled; without it they dial this agent.
    """
    me = fleet.member(agent)
    scheme = "tcp" if credentials is None else "tls"
    neighbours = fleet.neighbours(agent)
    direct = [j for j in neighbours if credentials is None or not fleet.member(j).relayed]
    settings: dict[str, Any] = {
        "mode": "peer",
        "listen/endpoints": [f"{scheme}/{me.listen or me.address}"],
        # Both sides dial, and the first connection makes the link, so that one open port of the two is enough.
        # Without a time limit, since a neighbour may start late or return.
        "connect/endpoints": [
            *(_dialled(scheme, fleet.member(j).address) for j in direct),
            # The host is this device; access control checks the certificate's name.
            *(f"tls/{host}:{port}#verify_name_on_connect=false" for host, port in (through or {}).values()),
        ],
        "connect/timeout_ms": -1,
        "connect/exit_on_failure": False,
        "connect/retry": {"period_init_ms": 100, "period_max_ms": 1000, "period_increase_factor": 2},
        # With either of these, a ring would become a full mesh.
        "scouting/multicast/enabled": False,
        "scouting/gossip/enabled": False,
        "transport/shared_memory/enabled": False,
        "transport/link/protocols": [scheme],
        "transport/link/tx/lease": LEASE_MS,
        "transport/link/tx/queue/congestion_control/block/wait_before_close": CLOSE_US,
        "transport/link/rx/max_message_size": max_message,
    }
    if credentials is not None:
        settings |= {f"transport/link/tls/{key}": value for key, value in tls(credentials).items()}
        settings["access_control"] = access_control(agent, {j: fleet.member(j).name for j in neighbours})
    return settings


def _dialled(scheme: str, address: str) -> str:
    """An IPv6 address without brackets: TLS would treat them as part of the name to verify."""
    host, port = split_address(address)
    return f"{scheme}/{host}:{port}" if scheme == "tls" else f"{scheme}/{address}"


def tls(credentials: Credentials) -> dict[str, Any]:
    certificate, key = str(credentials.certificate.resolve()), str(credentials.key.resolve())
    return {
        "root_ca_certificate": str(credentials.ca.resolve()),
        "enable_mtls": True,
        "listen_certificate": certificate,
        "listen_private_key": key,
        "connect_certificate": certificate,
        "connect_private_key": key,
        "verify_name_on_connect": True,
        "close_link_on_expiration": True,
    }


def access_control(agent: int, neighbours: Mapping[int, str]) -> dict[str, Any]:
    """Deny everything, then allow each neighbour, by the name in its certificate, its own requests and answers."""
    rules: list[dict[str, Any]] = []
    for j in neighbours:
        rules += [_rule(j, "ingress", number, *rule) for number, rule in enumerate(_speaks(j, agent))]
        rules += [_rule(j, "egress", number, *rule) for number, rule in enumerate(_speaks(agent, j))]
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": rules,
        "subjects": [{"id": name, "cert_common_names": [name]} for name in neighbours.values()],
        "policies": [
            {"subjects": [name], "rules": [rule["id"] for rule in rules if rule["id"].startswith(f"{j}-")]}
            for j, name in neighbours.items()
        ],
    }


def _speaks(speaker: int, listener: int) -> list[tuple[list[str], str]]:
    """What `speaker` may send to `listener`: kinds of messages and the key they must be on."""
    return [
        (["query"], ask_key(listener, speaker)),
        (["reply"], ask_key(speaker, listener)),
        (["declare_queryable"], ask_key(speaker, "*")),
        (["liveliness_token"], alive_key(speaker)),
        (["liveliness_query", "declare_liveliness_subscriber"], alive_key("*")),
    ]


def _rule(neighbour: int, flow: str, number: int, messages: list[str], key: str) -> dict[str, Any]:
    return {
        "id": f"{neighbour}-{flow}-{number}",
        "permission": "allow",
        "flows": [flow],
        "messages": messages,
        "key_exprs": [key],
    }
