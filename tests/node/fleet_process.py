"""Real agents: one process each, over the loopback interface or in network namespaces.

Processes are forked from a server that has imported everything once, since importing torch takes longer than a test.
It never opens a session itself: a session does not survive a fork.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import socket
import sys
import time
from pathlib import Path

import peermask.cli.node
from peermask.cli.main import main
from peermask.experiment.folder import RunFolder
from peermask.node.address import split_address
from peermask.node.certificates import make_certificates
from peermask.node.collect import collect_run
from peermask.node.start import certificates_of

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["fleet_process", "peermask.node.zenoh_transport"])
CLONE_NEWNET = 0x40000000
PATIENCE = 120.0  # seconds in which no agent of the fleet ends a round: a test that needs them fails


def agent_process(arguments, log, pace, namespace, folder):
    """`peermask node ...`, at most one round every `pace` seconds, inside a network namespace or folder if one is
    named."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    if folder:
        os.chdir(folder)
    if namespace:
        with Path(f"/run/netns/{namespace}").open() as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
    at_once = peermask.cli.node.Events.round

    def paced(self, report):
        at_once(self, report)
        time.sleep(pace)

    peermask.cli.node.Events.round = paced  # type: ignore[method-assign]
    main(arguments)


class Progress:
    """Of a fleet: a busy machine is slow, and nothing hangs as long as anybody gets on."""

    def __init__(self, fleet):
        self.fleet, self.rounds, self.since, self.looked = fleet, -1, time.monotonic(), 0.0

    def check(self, what):
        if time.monotonic() < self.looked + 1:
            return
        self.looked = time.monotonic()
        rounds = sum(len(self.fleet.reports(agent)) for agent in self.fleet.everyone)
        if rounds != self.rounds:
            self.rounds, self.since = rounds, self.looked
        assert self.looked < self.since + PATIENCE, what()


class ProcessFleet:
    """The agents of a fleet as processes. Use as a context manager: none outlives it. `pace` is that of all, or of some
    by number."""

    def __init__(self, path: Path, fleet, *, pace=0.0, insecure=False, namespaces=(), folders=(), flags=None):
        self.path, self.fleet, self.pace, self.insecure = path, fleet, pace, insecure
        self.namespaces, self.folders = namespaces, folders
        self.flags = flags or {}  # agent -> more of its command line
        self.processes = {}
        self.everyone = range(len(fleet.agents))
        if not insecure:
            make_certificates(fleet, certificates_of(path, fleet))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            process.kill()
            process.join(10)

    def out(self, agent):
        return self.path.parent / f"agent-{agent}"

    def log(self, agent):
        return self.path.parent / f"agent-{agent}.log"

    def start(self, *agents, path=None):
        for agent in agents or self.everyone:
            arguments = [
                "node",
                str(path or self.path),
                "--agent",
                str(agent),
                "--out",
                str(self.out(agent)),
                "--events",
            ]
            namespace = self.namespaces[agent] if self.namespaces else None
            folder = self.folders[agent] if self.folders else None
            arguments += ["--insecure"] * self.insecure
            arguments += self.flags.get(agent, [])
            pace = self.pace.get(agent, 0.0) if isinstance(self.pace, dict) else self.pace
            process = CONTEXT.Process(
                target=agent_process, args=(arguments, str(self.log(agent)), pace, namespace, folder)
            )
            process.start()
            self.processes[agent] = process

    def send(self, agent, number):
        os.kill(self.processes[agent].pid, number)

    def kill(self, agent):
        self.send(agent, signal.SIGKILL)
        self.processes[agent].join(10)

    def lines(self, agent):
        return self.log(agent).read_text().splitlines() if self.log(agent).exists() else []

    def reports(self, agent):
        """What the agent reported after each round, over all its lives."""
        return [json.loads(line) for line in self.lines(agent) if line.startswith("{") and line.endswith("}")]

    def said(self, agent):
        return [line for line in self.lines(agent) if not line.startswith("{")]

    def until(self, agent, wanted, what="what was waited for"):
        """Wait until a report of the agent fits."""
        progress = Progress(self)
        while not any(map(wanted, self.reports(agent))):
            progress.check(lambda: f"agent {agent}: {what} never came: {self.lines(agent)[-5:]}")
            time.sleep(0.02)

    def until_listening(self, agent):
        end = time.monotonic() + PATIENCE
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(split_address(self.fleet.member(agent).address)) == 0:
                    return
            assert time.monotonic() < end, f"agent {agent} does not listen: {self.lines(agent)[-5:]}"
            time.sleep(0.02)

    def until_round(self, agent, number):
        self.until(agent, lambda report: report["round"] >= number, f"round {number}")

    def join(self, *agents):
        """Exit codes, once all have ended."""
        progress = Progress(self)
        for agent in agents or tuple(self.processes):
            while self.processes[agent].exitcode is None:
                self.processes[agent].join(0.5)
                progress.check(lambda agent=agent: f"agent {agent} does not end: {self.lines(agent)[-5:]}")
        return [self.processes[agent].exitcode for agent in agents or tuple(self.processes)]

    def result(self, agent):
        return json.loads(RunFolder(self.out(agent)).result.read_text())

    def collect(self):
        return collect_run(self.fleet, [self.out(agent) for agent in self.everyone], self.path.parent / "run")
