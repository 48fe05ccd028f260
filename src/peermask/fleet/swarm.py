"""A whole fleet on this machine: one process per agent, started, stopped and collected together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peermask.errors import NodeError
from peermask.files import hold_lock, writing
from peermask.fleet.collect import collect_run, finished
from peermask.fleet.environment import SYSTEM_TIME, TimeSource
from peermask.fleet.fleet import Fleet, certificates_of, load_fleet
from peermask.fleet.start import agent_out, default_out
from peermask.run.result import RunResult
from peermask.store.folder import RunFolder

POLL_SECONDS = 0.2  # seconds between checks of the processes
STOP_SECONDS = 60.0  # seconds an agent has to finish its round and save once it was asked to stop


@dataclass
class SwarmProcess:
    """One agent's process and its last report."""

    agent: int
    folder: Path
    process: subprocess.Popen[str]
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def state(self) -> str:
        code = self.process.poll()
        if code is None:
            return "running" if self.report else "starting"
        return "finished" if code == 0 else "stopped" if code == 128 + signal.SIGTERM else "failed"

    @property
    def log(self) -> Path:
        return self.folder.with_suffix(".log")

    def failure(self) -> str:
        """Why it failed, as the rest of a sentence that begins with the agent."""
        if self.process.returncode < 0:  # it could not log anything
            return f"was killed by signal {-self.process.returncode}; start the same command again to go on"
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        words = lines[-1].removeprefix("peermask: ") if lines else f"exit code {self.process.returncode}"
        return f"failed: {words}"


@dataclass(frozen=True)
class SwarmResult:
    run: RunResult | None  # None if there is nothing to collect
    failed: dict[int, str]  # agent -> why
    interrupted: bool


def run_swarm(
    path: Path,
    out: Path | None = None,
    *,
    insecure: bool = False,
    show: Callable[[Sequence[SwarmProcess]], None] = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
    metrics: int | None = None,
    time: TimeSource = SYSTEM_TIME,
) -> SwarmResult:
    """Run all agents of a fleet until they end, then merge their folders to one run in `out`.

    `metrics`: the port of agent 0; agent i has this port plus i.
    """
    fleet = load_fleet(path)
    if not insecure:
        from peermask.fleet.credentials import check_credentials

        for member in fleet.agents:
            check_credentials(fleet, certificates_of(path, fleet), member.agent)
    out = out if out is not None else default_out(fleet)
    _check(out)
    busy = f"{out} is being run by another swarm; wait for its end, or stop it with Ctrl-C and start this one again"
    with hold_lock(out / "agents" / ".swarm.lock", NodeError(busy)):
        with _processes(path, fleet, out, insecure, metrics) as members:
            told = _watch(members, show, should_stop, time)
        failed = {member.agent: member.failure() for member in members if member.state == "failed"}
        folders = [member.folder for member in members]
        run = collect_run(fleet, folders, out) if all(RunFolder(folder).is_run for folder in folders) else None
    return SwarmResult(run, failed, told and not all(map(finished, folders)))


def _check(out: Path) -> None:
    if RunFolder(out).result.is_file():
        raise NodeError(f"{out} holds the finished run of this fleet; look at it with `peermask show {out}`")
    if out.exists() and not (out / "agents").is_dir() and (not out.is_dir() or any(out.iterdir())):
        raise NodeError(f"{out} exists and is not a run of this fleet; give another --out")


@contextmanager
def _processes(
    path: Path, fleet: Fleet, out: Path, insecure: bool, metrics: int | None
) -> Iterator[list[SwarmProcess]]:
    """The agents' processes, all of which have ended when the block is left, even by an error."""
    members: list[SwarmProcess] = []
    try:
        flags = ["--insecure"] * insecure
        for name in fleet.experiment.imports or ():
            flags += ["--import", name]
        for agent in (member.agent for member in fleet.agents):
            options = [] if metrics is None else ["--metrics", str(metrics + agent)]
            members.append(_start(path, agent, agent_out(out, agent), flags + options))
        yield members
    finally:
        for member in members:
            if member.process.poll() is None:
                member.process.kill()
            member.process.wait()


def _start(path: Path, agent: int, folder: Path, flags: list[str]) -> SwarmProcess:
    command = [sys.executable, "-m", "peermask", "node", str(path)]
    command += ["--agent", str(agent), "--out", str(folder), "--events"]
    with writing(folder.parent), folder.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(
            command + flags,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C goes only to the swarm, which stops its agents
        )
    member = SwarmProcess(agent, folder, process)
    threading.Thread(target=_listen, args=(member,), daemon=True).start()
    return member


def _listen(member: SwarmProcess) -> None:
    assert member.process.stdout is not None
    with member.process.stdout as lines:
        for line in lines:
            with suppress(ValueError):  # incomplete if the agent was killed
                member.report = json.loads(line)


def _watch(
    members: Sequence[SwarmProcess],
    show: Callable[[Sequence[SwarmProcess]], None],
    should_stop: Callable[[], bool],
    time: TimeSource,
) -> bool:
    """Wait for all; returns whether they were asked to stop."""
    until: float | None = None
    while any(member.process.poll() is None for member in members):
        if should_stop() and until is None:
            until = time.monotonic() + STOP_SECONDS
            for member in members:
                member.process.terminate()
        if until is not None and time.monotonic() > until:
            break
        show(members)
        time.sleep(POLL_SECONDS)
    show(members)
    return until is not None
