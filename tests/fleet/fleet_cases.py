"""Fleets small enough for tests: files with free ports, agents in memory, agents as processes."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path

from memory_network import MemoryNetwork

from peermask.config.file import make_config
from peermask.fleet.agent import NodeAgent
from peermask.fleet.environment import SYSTEM_TIME
from peermask.fleet.fleet import new_fleet, save_fleet
from peermask.run.build import build
from peermask.run.execution import Execution
from peermask.run.runner import run_experiment

TINY = {
    "agents": 4,
    "rounds": 6,
    "batch_size": 8,
    "retention": 0.3,
    "graph": {"name": "ring"},
    "data": {"fraction": 0.1},
    "model": {"name": "mlp", "hidden": [12]},
    "evaluation": {"every": 3},
    "checkpoint": {"every": 1},
}


# Limits that only bound a test that fails, in seconds; for fleets of processes, on any machine.
PATIENT = {"round_deadline": 60.0, "wait_limit": 300.0, "start_limit": 120.0}


def tiny(**changes):
    return make_config({**TINY, **changes})


def tiny_fleet(config=None, host="127.0.0.1", **keys):
    """A fleet file's content."""
    port, missing = free_ports(4 if config is None else config.agents), keys.get("missing", "last")
    fleet = new_fleet(config or tiny(), [host], port=port, missing=missing)
    return fleet.model_copy(update={**PATIENT, **keys})


class Ports:
    """A block of ports for this process alone, below those that the system gives to connections.

    The block belongs to whoever has bound its first port, so that tests that run side by side share no port.
    """

    def __init__(self, size=200, blocks=range(10_000, 32_000, 200)):
        self.lock = socket.socket()
        for first in blocks:
            with suppress(OSError):
                self.lock.bind(("127.0.0.1", first))
                break
        else:
            raise OSError(f"all {len(blocks)} blocks of ports are in use")
        self.block = range(first + 1, first + size)
        self.following = self.block.start

    def take(self, count):
        """The first of `count` ports in a row; a port comes again only after all others of the block."""
        for _ in self.block:
            if self.following + count > self.block.stop:
                self.following = self.block.start
            taken = range(self.following, self.following + count)
            self.following = taken.stop
            with suppress(OSError), ExitStack() as held:
                for port in taken:
                    held.enter_context(socket.socket()).bind(("127.0.0.1", port))
                return taken.start
        raise OSError(f"no {count} ports in a row are free among {self.block.start} to {self.block.stop - 1}")


@cache
def ports_of_this_process():
    return Ports()


def free_ports(count):
    return ports_of_this_process().take(count)


def written(folder: Path, fleet):
    path = folder / "fleet.toml"
    save_fleet(path, fleet)
    return path


class Notes:
    """An observer that remembers, and lets a test act on a round."""

    def __init__(self, on_round=lambda _: None):
        self.lines, self.reports, self.on_round = [], [], on_round

    def say(self, line):
        self.lines.append(line)

    def round(self, report):
        self.reports.append(report)
        self.on_round(report)


class MemoryFleet:
    """Agents of a fleet as threads of this process on a network in memory."""

    def __init__(self, fleet, folder: Path, time=None, **keys):
        """`time`: a `MovedTime`; `keys`: more for every agent."""
        self.fleet, self.folder, self.time = fleet, folder, time
        self.keys = {"time": time or SYSTEM_TIME, **keys}
        self.experiment = build(fleet.experiment)
        self.network = MemoryNetwork(fleet.links, self.keys["time"])
        self.notes, self.nodes, self.threads, self.results = {}, {}, {}, {}

    def out(self, agent):
        return self.folder / f"agent-{agent}"

    def start(self, agent, on_round=lambda _: None, should_stop=lambda: False):
        notes = self.notes[agent] = Notes(on_round)
        node = NodeAgent(self.fleet, self.experiment, agent, self.out(agent), notes, should_stop, **self.keys)
        node.restore()
        self.nodes[agent] = node
        if self.time is not None:
            self.threads[agent] = self.time.start(self._run, agent, node)
            return
        self.threads[agent] = threading.Thread(target=self._run, args=(agent, node))
        self.threads[agent].start()

    def _run(self, agent, node):
        try:
            self.results[agent] = node.run(self.network.join(agent, node.responder))
        except Killed:
            self.results.pop(agent, None)
        except Exception as error:
            self.results[agent] = error
        finally:
            self.network.leave(agent)

    def join(self, *agents):
        if self.time is not None:
            self.time.join(*(self.threads[agent] for agent in agents or tuple(self.threads)))
        for agent in agents or tuple(self.threads):
            self.threads[agent].join(300)
            assert not self.threads[agent].is_alive(), f"agent {agent} does not end"

    def run(self):
        for agent in range(len(self.fleet.agents)):
            self.start(agent)
        self.join()
        return self.results

    def state(self, agent):
        return self.nodes[agent].simulator.tensors()


class Killed(BaseException):
    """Ends an agent in the middle of everything, as a power cut does."""


def simulated(config, folder: Path):
    """The same config in the simulator, on the CPU."""
    return run_experiment(config, folder, execution=Execution(device="cpu"))


def refused(result):
    """The one line of a refusal."""
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.startswith("peermask: ")
    assert err.count("\n") == 1
    return err
