"""Real agents: one process each, over the loopback interface or in network namespaces.

The server that forks them never opens a session itself: a session does not survive a fork.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import peermask.cli.node
import peermask.fleet.watch
from machine import enter_namespace, forkserver
from peermask.cli.main import main
from peermask.fleet.certificates import make_certificates
from peermask.fleet.collect import collect_run
from peermask.fleet.fleet import certificates_of, split_address
from peermask.store.folder import RunFolder
from waiting import PATIENCE, until

CHECK_SECONDS = 0.1  # between an agent's checks of its files: a tenth of the real one, which tests with a clock cover


def command_process(arguments, outputs, turns, limit=math.inf, namespace=None, folder=None):
    """`peermask ...`, inside a network namespace or folder if one is named.

    `outputs`: for stdout and stderr. After round `limit` an agent waits for a higher limit from `turns`.
    """
    for number, output in zip((1, 2), outputs, strict=True):
        os.dup2(output.fileno(), number)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    if folder:
        os.chdir(folder)
    if namespace:
        enter_namespace(namespace)
    peermask.fleet.watch.CHECK_SECONDS = CHECK_SECONDS
    at_once = peermask.cli.node.Events.round

    def in_turn(self, report):
        nonlocal limit
        at_once(self, report)
        while report.round >= limit:
            try:
                limit = turns.recv()
            except EOFError:  # the test is over
                limit = math.inf

    peermask.cli.node.Events.round = in_turn  # type: ignore[method-assign]
    main(arguments)


class CommandProcess:
    """A command of peermask as a process; `changed` is notified of every line it prints, and of its end."""

    def __init__(self, arguments, changed=None, **options):
        self.lines, self.reports, self.changed = [], [], changed or threading.Condition()
        self._output, output = forkserver().Pipe(duplex=False)
        turns, self._turns = forkserver().Pipe(duplex=False)
        whole = [str(argument) for argument in arguments], (output, output), turns
        self.process = forkserver().Process(target=command_process, args=whole, kwargs=options)
        self.process.start()
        output.close()
        turns.close()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        with os.fdopen(os.dup(self._output.fileno()), errors="replace") as lines:
            for line in lines:
                with self.changed:
                    self._take(line.rstrip("\n"))
                    self.changed.notify_all()
        with self.changed:
            self.changed.notify_all()

    def _take(self, line):
        self.lines.append(line)
        if line.startswith("{"):
            with suppress(ValueError):  # incomplete if it was killed
                self.reports.append(json.loads(line))

    @property
    def exitcode(self):
        """None while it runs; otherwise all its lines are there."""
        if self._reader.is_alive():
            return None
        self.process.join()
        return self.process.exitcode

    def allow(self, limit):
        with suppress(OSError):  # it has ended
            self._turns.send(limit)

    def until(self, condition, what):
        until(condition, lambda: f"{what}: {self.lines[-5:]}", changed=self.changed, progress=lambda: len(self.lines))

    def until_said(self, words):
        self.until(lambda: any(words in line for line in self.lines), repr(words))

    def kill(self):
        self.process.kill()
        self._reader.join()
        self.process.join()
        for one in (self._turns, self._output):
            one.close()


@contextmanager
def relay_process(made, namespace=None):
    """`peermask relay`, as a process of its own."""
    relay = CommandProcess(["relay", made.path], namespace=namespace)
    try:
        relay.until_said("relay at")
        yield relay
        relay.process.terminate()
        relay.process.join(PATIENCE)
        assert relay.process.exitcode == 128 + signal.SIGTERM
    finally:
        relay.kill()


class ProcessFleet:
    """The agents of a fleet as processes. Use as a context manager: none outlives it.

    An agent plays on until the round that `hold` names, and waits there for the test; without one it never waits.
    """

    def __init__(self, path: Path, fleet, *, insecure=False, namespaces=(), folders=(), flags=None):
        self.path, self.fleet, self.insecure = path, fleet, insecure
        self.namespaces, self.folders = namespaces, folders
        self.flags = flags or {}  # agent -> more of its command line
        self.processes = {}
        self.before = {}  # agent -> its processes that were replaced
        self.limits = {}  # agent -> the round after which it waits
        self.changed = threading.Condition()
        self.all_gather = range(len(fleet.agents))
        if not insecure:
            make_certificates(fleet, certificates_of(path, fleet))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            process.kill()

    def out(self, agent):
        return self.path.parent / f"agent-{agent}"

    def start(self, *agents, path=None):
        for agent in agents or self.all_gather:
            arguments = ["node", path or self.path, "--agent", agent, "--out", self.out(agent), "--events"]
            arguments += ["--insecure"] * self.insecure
            arguments += self.flags.get(agent, [])
            if agent in self.processes:
                self.before.setdefault(agent, []).append(self.processes[agent])
                self._allow_one_more(self.limits.get(agent, math.inf))  # it goes on with the round after its last
            self.processes[agent] = CommandProcess(
                arguments,
                self.changed,
                limit=self.limits.get(agent, math.inf),
                namespace=self.namespaces[agent] if self.namespaces else None,
                folder=self.folders[agent] if self.folders else None,
            )

    def hold(self, round, *agents):
        """Let these agents, or all, play until a round, and wait there."""
        for agent in agents or {*self.all_gather, *self.processes}:
            self.limits[agent] = round
            if agent in self.processes:
                self.processes[agent].allow(round)

    def release(self, *agents):
        self.hold(math.inf, *agents)

    def send(self, agent, number):
        os.kill(self.processes[agent].process.pid, number)

    def kill(self, agent):
        self.processes[agent].kill()

    def _lives(self, agent):
        return [*self.before.get(agent, ()), *([self.processes[agent]] if agent in self.processes else ())]

    def lines(self, agent):
        return [line for life in self._lives(agent) for line in life.lines]

    def reports(self, agent):
        """What the agent reported after each round, over all its lives."""
        return [report for life in self._lives(agent) for report in life.reports]

    def said(self, agent):
        return [line for line in self.lines(agent) if not line.startswith("{")]

    def until_true(self, condition, what, playing=None):
        """Wait for a condition; when agent `playing` waits for the test, all that do may play one more round."""

        def holds():
            if condition():
                return True
            if playing is not None:
                self._play_on(playing, what)
            return False

        until(
            holds,
            lambda: f"{what}: {[self.lines(agent)[-5:] for agent in self.processes]}",
            changed=self.changed,
            progress=lambda: sum(len(self.lines(agent)) for agent in self.processes),
        )

    def _play_on(self, agent, what):
        process, limit = self.processes[agent], self.limits.get(agent, math.inf)
        assert process.exitcode is None, f"agent {agent} ended before {what}: {self.lines(agent)[-5:]}"
        if process.reports and process.reports[-1]["round"] >= limit:
            self._allow_one_more(limit)

    def _allow_one_more(self, limit):
        for agent, held in tuple(self.limits.items()):
            self.hold(max(held, limit + 1), agent)

    def until(self, agent, wanted, what="what was waited for", since=0):
        """Play on until a report of the agent fits, not counting the first `since`."""
        self.until_true(lambda: any(map(wanted, self.reports(agent)[since:])), f"agent {agent}: {what}", agent)

    def until_round(self, agent, number):
        if self.limits.get(agent, number) < number:
            self.hold(number)
        self.until(agent, lambda report: report["round"] >= number, f"round {number}")

    def until_said(self, agent, words, *, playing=True):
        """Play on until the agent has said these words."""
        said = f"agent {agent}: {words!r}"
        self.until_true(lambda: any(words in line for line in self.said(agent)), said, agent if playing else None)

    def until_listening(self, agent):
        def listens():
            with socket.socket() as probe:
                return probe.connect_ex(split_address(self.fleet.member(agent).address)) == 0

        self.until_true(listens, f"the port of agent {agent}")

    def join(self, *agents):
        """Exit codes, once all have ended."""
        awaited = [self.processes[agent] for agent in agents or self.processes]
        self.until_true(lambda: all(process.exitcode is not None for process in awaited), "the end")
        return [process.exitcode for process in awaited]

    def result(self, agent):
        return json.loads(RunFolder(self.out(agent)).result.read_text())

    def collect(self, **options):
        folders = [self.out(agent) for agent in self.all_gather]
        return collect_run(self.fleet, folders, self.path.parent / "run", **options)
