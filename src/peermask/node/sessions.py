"""The links of an agent, by the names in certificates: every neighbour should have one session.

Any device with a certificate of the fleet can make a link. Access control drops messages of devices that are no
neighbours, and this file logs them. Two sessions with the same name are two devices with the same key: both are
ignored while both are connected, since it is unknown which one is genuine.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping

from peermask.node.credentials import common_name
from peermask.node.lines import Line
from peermask.node.time_source import SYSTEM_TIME, TimeSource

GRACE = 5.0  # seconds two sessions of one name may overlap: a lost link takes a few leases to end


class Sessions:
    """Thread-safe: zenoh's threads report links, the agent's and the answering thread read them."""

    def __init__(
        self,
        own: str,
        neighbours: Mapping[int, str],
        say: Callable[[str], None],
        time: TimeSource = SYSTEM_TIME,
    ) -> None:
        """`own`: the name in this agent's certificate; `neighbours`: those in theirs, by number."""
        self.own, self.neighbours, self.say, self.time = own, neighbours, say, time
        self._links: Counter[tuple[str, str]] = Counter()  # by name and session: a session may have several
        self._doubled: dict[str, float] = {}  # name -> since when it has had two sessions
        self._said: set[str] = set()
        self._lock = threading.Lock()

    def changed(self, name: str, session: str, *, made: bool) -> None:
        with self._lock:
            self._links[name, session] += 1 if made else -1
            self._links = +self._links
            if sum(held == name for held, _ in self._links) < 2:
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
            ripe = {name for name, since in self._doubled.items() if self.time.monotonic() - since > GRACE}
        found = {agent: name for agent, name in self.neighbours.items() if name in ripe}
        for agent, name in found.items():
            text = f"two devices run as agent {agent}, with the same key; neither is served until one stops"
            self._say_once(name, Line(text, "doubled", "warning", neighbour=agent))
        return frozenset(found)

    def _why(self, name: str) -> str:
        if name == self.own:
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
