"""zenoh sessions of an agent: their config, and which neighbours have one."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from peermask.fleet.credentials import Credentials, common_name
from peermask.fleet.environment import SYSTEM_TIME, Line, TimeSource
from peermask.fleet.fleet import Fleet, split_address

# The config of a zenoh session: exactly the links of the graph, mutual TLS, and access control for each neighbour.
#
#     peermask/ask/J/I    requests of agent I to agent J, and the answers to them
#     peermask/alive/I    agent I is alive
#
# A neighbour is identified by the name in its certificate. It may send requests, answers and its liveliness token under
# its own number only; zenoh drops everything else before it reaches the agent.

LEASE_MS = 2000  # a frozen or disconnected neighbour is noticed within a few of these
# A send that blocks this long closes the link; less than the lease, or healthy peers would look dead.
CLOSE_US = 500_000


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


# The links of an agent, by the names in certificates: every neighbour should have one session.
#
# Any device with a certificate of the fleet can make a link. Access control drops messages of devices that are no
# neighbours, and this file logs them. Two sessions with the same name are two devices with the same key: both are
# ignored while both are connected, since it is unknown which one is genuine.

OVERLAP_SECONDS = 5.0  # seconds two sessions of one name may overlap: a lost link takes a few leases to end


class Sessions:
    """Thread-safe: zenoh's threads report links, the agent's and the answering thread read them."""

    def __init__(
        self, own_name: str, neighbours: Mapping[int, str], say: Callable[[str], None], time: TimeSource = SYSTEM_TIME
    ) -> None:
        """`own_name`: the name in this agent's certificate; `neighbours`: those in theirs, by number."""
        self.own_name, self.neighbours, self.say, self.time = own_name, neighbours, say, time
        self._links: Counter[tuple[str, str]] = Counter()  # by name and session: a session may have several
        self._doubled: dict[str, float] = {}  # name -> since when it has had two sessions
        self._said: set[str] = set()
        self._lock = threading.Lock()

    def changed(self, name: str, session: str, *, made: bool) -> None:
        with self._lock:
            self._links[name, session] += 1 if made else -1
            self._links = +self._links
            if sum(other == name for other, _ in self._links) < 2:
                self._doubled.pop(name, None)
                self._said.discard(name)
            else:
                self._doubled.setdefault(name, self.time.monotonic())
        if made and name not in self.neighbours.values():
            text = f"a device with the certificate of {name} is ignored: {self._why(name)}"
            self._say_once(f"{name} stranger", Line(text, "stranger", "warning", name=name))

    def linked(self) -> frozenset[int]:
        """Neighbours that have a link."""
        with self._lock:
            names = {name for name, _ in self._links}
        return frozenset(agent for agent, name in self.neighbours.items() if name in names)

    def doubled(self) -> frozenset[int]:
        """Neighbours whose key is used by two devices."""
        with self._lock:
            ripe = {name for name, since in self._doubled.items() if self.time.monotonic() - since > OVERLAP_SECONDS}
        agents = {agent: name for agent, name in self.neighbours.items() if name in ripe}
        for agent, name in agents.items():
            text = f"two devices run as agent {agent}, with the same key; neither is served until one stops"
            self._say_once(name, Line(text, "doubled", "warning", neighbour=agent))
        return frozenset(agents)

    def _why(self, name: str) -> str:
        if name == self.own_name:
            return "this device has the same one; stop one of the two"
        for agent, meant in self.neighbours.items():
            if f"{name}-".startswith(f"{common_name(agent)}-"):
                return f"agent {agent} is {meant} in the fleet file of this device; it was revoked, or this file is old"
        return "it is not a neighbour; its fleet file is another one, or that of this device is old"

    def _say_once(self, key: str, line: str) -> None:
        with self._lock:
            if key in self._said:
                return
            self._said.add(key)
        self.say(line)
