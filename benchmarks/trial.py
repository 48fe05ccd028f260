"""A fleet as processes on this machine, over mutual TLS, for trials: agents are started, killed, frozen and read.

Agents may have network namespaces with cables between them (benchmarks/cables.py).
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import peermask.cli.node
from benchmarks.cables import enter, host
from benchmarks.fleet import free_ports, write_fleet
from peermask.cli.main import main as peermask_command
from peermask.config.experiment import ExperimentConfig
from peermask.fleet.fleet import Fleet, new_fleet
from peermask.fleet.messages import Answer, decode_answer
from peermask.fleet.responder import Responder
from peermask.fleet.status import Report

CONTEXT = multiprocessing.get_context("forkserver")  # importing torch takes longer than a trial
PRELOADED = ["benchmarks.fleet", "peermask.fleet.collect", "peermask.fleet.start", "peermask.cli.main"]
CONTEXT.set_forkserver_preload(PRELOADED)
PATIENCE = 180.0  # seconds in which nothing happens


class Failed(Exception):
    """What did not happen."""


class Stamped(io.TextIOWrapper):
    """With the time before every line."""

    def write(self, text: str, /) -> int:
        return super().write(text if text == "\n" else f"{time.time():.3f} {text}")


def repeat_first_frame() -> None:
    """Let the agent of this process answer every request with the first frame that it sent to that neighbour."""
    answered, first = Responder._answer, dict[int, bytes]()

    def repeated(self: Responder, asker: int, question: Any) -> bytes | None:
        data = answered(self, asker, question)
        answer = None if data is None else decode_answer(data)
        if not isinstance(answer, Answer) or answer.frame is None:
            return data
        return Answer(answer.newest, first.setdefault(asker, answer.frame)).encode()

    Responder._answer = repeated  # type: ignore[method-assign]


def agent_process(
    arguments: list[str],
    log: str,
    pace: float,
    namespace: str | None,
    prepare: Callable[[], None] | None,
    cores: set[int] | None,
) -> None:
    """`peermask node ...`, at most one round every `pace` seconds, in a network namespace or on cores if named."""
    if cores:
        os.sched_setaffinity(0, cores)
    if prepare is not None:
        prepare()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout, sys.stderr = (Stamped(os.fdopen(number, "wb")) for number in (1, 2))
    if namespace is not None:
        enter(namespace)
    at_once = peermask.cli.node.Events.round

    def paced(self: peermask.cli.node.Events, report: Report) -> None:
        at_once(self, report)
        time.sleep(pace)

    peermask.cli.node.Events.round = paced  # type: ignore[method-assign]
    peermask_command(arguments)


class Trial:
    def __init__(
        self,
        folder: Path,
        config: ExperimentConfig,
        limits: dict[str, Any],
        pace: float = 0.0,
        namespaces: Sequence[str] = (),
    ) -> None:
        """`limits` are keys of the fleet file."""
        self.folder, self.namespaces, self.pace, self.agents = folder, namespaces, pace, config.agents
        fleet = new_fleet(config, [host(i) for i in range(self.agents)]) if namespaces else None
        ports = self.agents + 1  # one for an agent that joins
        self.fleet: Fleet = (fleet or new_fleet(config, port=free_ports(ports))).model_copy(update=limits)
        self.path = write_fleet(folder, self.fleet)
        self.processes: dict[int, ForkServerProcess] = {}
        self.poll = 0.004  # seconds between two looks at the logs
        self.cores: dict[int, set[int]] = {}  # of agents that may not use all

    def start(self, *agents: int, prepare: Callable[[], None] | None = None) -> None:
        """Start agents; `prepare` is called in their processes before anything else."""
        for agent in agents:
            arguments = [
                "node",
                str(self.fleet_file(agent)),
                "--agent",
                str(agent),
                "--out",
                str(self.out(agent)),
                "--events",
            ]
            namespace = self.namespaces[agent] if self.namespaces else None
            told = (arguments, str(self.log(agent)), self.pace, namespace, prepare, self.cores.get(agent))
            process = CONTEXT.Process(target=agent_process, args=told)
            process.start()
            self.processes[agent] = process

    def fleet_file(self, agent: int) -> Path:  # noqa: ARG002 (other trials give each agent its own)
        return self.path

    def out(self, agent: int) -> Path:
        return self.folder / f"agent-{agent}"

    def log(self, agent: int) -> Path:
        return self.folder / f"agent-{agent}.log"

    def send(self, agent: int, number: int) -> None:
        pid = self.processes[agent].pid
        assert pid is not None
        os.kill(pid, number)

    def kill(self, *agents: int) -> None:
        for agent in agents:
            self.send(agent, signal.SIGKILL)
        for agent in agents:
            self.processes[agent].join()

    def reports(self, agent: int, last: int = 2**60) -> list[dict[str, Any]]:
        """Of the agent, over all its lives, with their times; or those in the `last` bytes of its log."""
        return [line for line in self.lines(agent, last) if "round" in line]

    def lines(self, agent: int, last: int = 2**60) -> list[dict[str, Any]]:
        """All lines of JSON in its log, likewise."""
        lines = []
        with suppress(FileNotFoundError), self.log(agent).open("rb") as log:
            begin = log.seek(max(0, log.seek(0, os.SEEK_END) - last))
            lines = log.read().decode().splitlines()[begin > 0 :]  # the first may not be whole
        said = [line.partition(" ") for line in lines]
        return [
            {**json.loads(line), "time": float(when)}
            for when, _, line in said
            if line.startswith("{") and line.endswith("}")
        ]

    def until(self, happened: Callable[[], bool], what: str) -> None:
        """For as long as anybody gets on: a busy machine is slow."""
        played, since, looks = -1, time.monotonic(), 0
        while not happened():
            looks += 1
            if looks % 256 == 0:  # which takes longer
                before, played = played, sum(len(self.reports(agent)) for agent in range(self.agents))
                since = since if played == before else time.monotonic()
                if time.monotonic() - since > PATIENCE:
                    raise Failed(f"{what}, and nobody got on for {PATIENCE:.0f} s")
            time.sleep(self.poll)

    def until_round(self, agent: int, number: int) -> None:
        def reached() -> bool:
            for other in self.processes:
                if self.processes[other].exitcode:
                    raise self.ended(other)
            return any(report["round"] >= number for report in self.reports(agent, last=2000))

        self.until(reached, f"agent {agent} did not reach {number}")

    def until_end(self, agent: int) -> None:
        self.until(lambda: self.processes[agent].exitcode is not None, f"agent {agent} did not end")

    def ended(self, agent: int) -> Failed:
        words = self.log(agent).read_text()[-200:]
        return Failed(f"agent {agent} ended with {self.processes[agent].exitcode}: {words}")

    def end_processes(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.join()
