"""A network in memory: the double of the real one, for tests, with cables that can be cut."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from peermask.fleet.environment import SYSTEM_TIME, Handler


class MemoryNetwork:
    """Joins agents of one process; `cut` and `mend` take links away and give them back."""

    def __init__(self, links: Iterable[tuple[int, int]], time=SYSTEM_TIME) -> None:
        self.time = time
        self.links = {frozenset(link) for link in links}
        self.handlers: dict[int, Handler] = {}
        self.silent: set[int] = set()  # agents that are there and never answer
        self.changed = time.condition()

    def join(self, agent: int, handler: Handler) -> MemoryTransport:
        with self.changed:
            self.handlers[agent] = handler
            self.changed.notify_all()
        return MemoryTransport(self, agent)

    def leave(self, agent: int) -> None:
        with self.changed:
            self.handlers.pop(agent, None)
            self.changed.notify_all()

    def cut(self, i: int, j: int) -> None:
        with self.changed:
            self.links.discard(frozenset((i, j)))
            self.changed.notify_all()

    def mend(self, i: int, j: int) -> None:
        with self.changed:
            self.links.add(frozenset((i, j)))
            self.changed.notify_all()


class MemoryTransport:
    def __init__(self, network: MemoryNetwork, agent: int) -> None:
        self.network, self.agent = network, agent

    def alive(self) -> frozenset[int]:
        net = self.network
        with net.changed:
            return frozenset(j for j in net.handlers if frozenset((self.agent, j)) in net.links)

    def ask(self, requests: Mapping[int, bytes], patience: float) -> dict[int, bytes]:
        net, answers = self.network, dict[int, bytes]()
        reached = {j: net.handlers.get(j) for j in requests if j in self.alive()}
        for j, handler in reached.items():
            if handler is not None and j not in net.silent:
                handler(self.agent, requests[j], partial(self._answered, answers, j))
        end = net.time.monotonic() + patience
        with net.changed:
            while any(j not in answers and j in net.handlers for j in reached):
                left = end - net.time.monotonic()
                if left <= 0:
                    break
                net.changed.wait(left)
            return dict(answers)

    def stale_links(self) -> frozenset[int]:
        return frozenset()

    def await_change(self, seconds: float) -> None:
        with self.network.changed:
            self.network.changed.wait(seconds)

    def _answered(self, answers: dict[int, bytes], agent: int, answer: bytes) -> None:
        with self.network.changed:
            answers[agent] = answer
            self.network.changed.notify_all()
