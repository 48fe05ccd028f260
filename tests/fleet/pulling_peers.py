"""Agents that ask and answer on a network in memory, without learning anything."""

from __future__ import annotations

import numpy as np
from fleet_cases import tiny_fleet
from memory_network import MemoryNetwork
from moved_time import MovedTime

from peermask.fleet.messages import ExperimentId
from peermask.fleet.neighbourhood import Neighbourhood
from peermask.fleet.puller import Puller
from peermask.fleet.responder import Responder
from peermask.streams import stream
from peermask.wire import Schema

CARD = ExperimentId("run", "config", "frozen")
WIDTH = 400


def message(agent, number):
    return {"mask": stream(0, "message", agent, number).uniform(WIDTH) < 0.3}


SCHEMA = Schema.of(message(0, 0), [WIDTH])


class Peer:
    """One that publishes and pulls."""

    def __init__(self, network, agent, neighbours, missing="last", card=CARD, deadline=0.3, **keys):
        """`keys`: more for its puller; one that knows the last round is of an asynchronous run."""
        self.lines = []
        self.agent, self.network = agent, network
        self.responder = Responder(
            agent, neighbours, card, self.lines.append, newest_only="rounds" in keys, time=network.time
        )
        self.transport = network.join(agent, self.responder)
        limits = tiny_fleet(missing=missing, round_deadline=deadline, wait_limit=deadline, start_limit=deadline)
        self.around = Neighbourhood(self.transport, self.responder, neighbours, limits, time=network.time)
        self.puller = Puller(self.around, **keys)

    def publish(self, *rounds):
        for number in rounds:
            self.responder.publish(number, message(self.agent, number), SCHEMA)

    def pull(self, number):
        return self.puller.pull(number, SCHEMA)

    def take(self, number, grace=0.0):
        return self.puller.take(number, SCHEMA, grace=grace)


def moved_network(*links):
    """A network whose clock moves when all wait."""
    return MemoryNetwork(links, MovedTime())


def pair(**keys):
    network = moved_network((0, 1))
    return Peer(network, 0, (1,), **keys), Peer(network, 1, (0,), **keys)


def same(payload, agent, number):
    return np.array_equal(payload["mask"], message(agent, number)["mask"])
