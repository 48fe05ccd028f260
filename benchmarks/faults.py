"""Whole runs of a fleet in which something breaks: how many end as they should.

    python -m benchmarks.faults [--trials 10] [--first 0] [--keep FOLDER] [kill ...]

Every trial is a run of its own: four agents in four processes, on a ring over mutual TLS on this machine, `missing =
"last"`, a checkpoint a round. At a random round

    kill         one agent is killed (-9) and started again
    two          two at once
    checkpoint   one is killed while it writes a checkpoint
    stopped      one is frozen (SIGSTOP) for longer than the deadline of a round
    power        all are killed, and started again
    disk         the disk of one is full; it is started again once there is room (needs root, for a disk of its own)
    cut          the cable of one is cut for three deadlines (needs root; devices are network namespaces)
    loss         a fifth of all packets is lost at every device, from the start (needs root)
    death        one of the ten agents of the default experiment is killed after round 4, and never returns: the others
                 lose at most a point of accuracy against the simulator without it

A trial counts if all four end with exit code 0, who was lost plays again before the end, and all files are whole: what
the agents wrote is collected as one finished run. After a cut, everybody must hear everybody again. However slow a
machine is, a trial fails only if no agent ends a round for PATIENCE seconds; with `--keep` its folder stays, with the
agents' logs (RUST_LOG=warn adds zenoh's lines to them).
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import peermask.cli.node
from benchmarks.cables import cabled, cut, enter, host, lose, mend
from benchmarks.deaths import others_accuracy
from benchmarks.fleet import free_ports
from peermask.cli.main import main as peermask_command
from peermask.config.experiment import ExperimentConfig
from peermask.config.file import load_config, make_config
from peermask.errors import PeermaskError
from peermask.files import read_json
from peermask.fleet.certificates import make_certificates
from peermask.fleet.collect import collect_run
from peermask.fleet.fleet import Fleet
from peermask.fleet.fleet_file import new_fleet, save_fleet
from peermask.fleet.start import certificates_of
from peermask.fleet.status import Report
from peermask.run.build import build

CONTEXT = multiprocessing.get_context("forkserver")  # importing torch takes longer than a trial
AGENTS, DEADLINE = 4, 1.0
PATIENCE = 180.0  # seconds in which nothing happens
ROUNDS, PACE = 120, 0.03
CUT_ROUNDS, CUT_PACE = 400, 0.05  # enough that the run is still on when a cable is mended
LOSS = 20  # percent
DEATH_AGENTS, DEATH_ROUNDS, DEATH_ROUND = 10, 60, 4


class Failed(Exception):
    """What did not happen."""


class Stamped(io.TextIOWrapper):
    """With the time before every line."""

    def write(self, text: str, /) -> int:
        return super().write(text if text == "\n" else f"{time.time():.3f} {text}")


def agent_process(arguments: list[str], log: str, pace: float, namespace: str | None) -> None:
    """`peermask node ...`, at most one round every `pace` seconds, in a network namespace if one is named."""
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


def death_config() -> ExperimentConfig:
    """The default experiment with accord."""
    every = {"every": DEATH_ROUNDS}
    table = {"algorithm": "accord", "compare": [], "rounds": DEATH_ROUNDS, "evaluation": every}
    return make_config(load_config().table() | table)


class Trial:
    def __init__(self, folder: Path, kind: str, namespaces: Sequence[str]) -> None:
        self.folder, self.namespaces = folder, namespaces
        self.rounds, self.pace = (CUT_ROUNDS, CUT_PACE) if kind == "cut" else (ROUNDS, PACE)
        self.agents = DEATH_AGENTS if kind == "death" else AGENTS
        config = (
            death_config()
            if kind == "death"
            else make_config(
                {
                    "agents": AGENTS,
                    "rounds": self.rounds,
                    "batch_size": 8,
                    "retention": 0.3,
                    "graph": {"name": "ring"},
                    "data": {"fraction": 0.1},
                    "model": {"name": "mlp", "hidden": [12]},
                    "evaluation": {"every": self.rounds},
                    "checkpoint": {"every": 1},
                }
            )
        )
        limits = {"start_limit": 60.0} if kind == "death" else {"round_deadline": DEADLINE, "start_limit": 60.0}
        fleet = new_fleet(config, [host(i) for i in range(AGENTS)]) if namespaces else None
        self.fleet: Fleet = (fleet or new_fleet(config, port=free_ports(self.agents))).model_copy(update=limits)
        self.path = folder / "fleet.toml"
        save_fleet(self.path, self.fleet)
        make_certificates(self.fleet, certificates_of(self.path, self.fleet))
        self.processes: dict[int, ForkServerProcess] = {}

    def start(self, *agents: int) -> None:
        for agent in agents:
            arguments = ["node", str(self.path), "--agent", str(agent), "--out", str(self.out(agent)), "--events"]
            namespace = self.namespaces[agent] if self.namespaces else None
            process = CONTEXT.Process(
                target=agent_process, args=(arguments, str(self.log(agent)), self.pace, namespace)
            )
            process.start()
            self.processes[agent] = process

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
        """Of the agent, over all its lives; or those in the `last` bytes of its log."""
        lines = []
        with suppress(FileNotFoundError), self.log(agent).open("rb") as log:
            begin = log.seek(max(0, log.seek(0, os.SEEK_END) - last))
            lines = log.read().decode().splitlines()[begin > 0 :]  # the first may not be whole
        said = [line.partition(" ")[2] for line in lines]
        return [json.loads(line) for line in said if line.startswith("{") and line.endswith("}")]

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
            time.sleep(0.004)

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

    def end(self, lost: list[int], before: dict[int, int]) -> None:
        """All end well, and who was lost has played since."""
        for agent in self.processes:
            self.until_end(agent)
            if self.processes[agent].exitcode != 0:
                raise self.ended(agent)
        for agent in lost:
            since = self.reports(agent)[before[agent] :]
            if not since:
                raise Failed(f"agent {agent} did not play again")
            if self.rounds == CUT_ROUNDS and all(report["absent"] for report in since):
                raise Failed(f"agent {agent} does not hear everybody again")
        try:
            run = collect_run(self.fleet, [self.out(agent) for agent in range(AGENTS)], self.folder / "run")
        except PeermaskError as error:
            raise Failed(f"files are not whole: {error}") from error
        if run.status != "finished":
            raise Failed(f"the run is {run.status}")


def play_death(trial: Trial, dead: int) -> None:
    others = [agent for agent in range(trial.agents) if agent != dead]
    trial.start(*range(trial.agents))
    trial.until_round(dead, DEATH_ROUND)
    trial.kill(dead)
    for agent in others:
        trial.until_end(agent)
        if trial.processes[agent].exitcode != 0:
            raise trial.ended(agent)
    found = [float(read_json(trial.out(agent) / "result.json")["test_accuracy"]) for agent in others]
    mean = sum(found) / len(found)
    without = others_accuracy(build(trial.fleet.experiment), [dead], 0, DEATH_ROUNDS + 1, None)
    print(f"agent {dead} died: the others reach {100 * mean:.1f} %, without it {100 * without:.1f} %", flush=True)
    if mean < without - 0.01:
        raise Failed(f"the others reach {100 * mean:.1f} %, without agent {dead} {100 * without:.1f} %")


def play(kind: str, trial: Trial, draw: random.Random) -> None:
    if kind == "death":
        play_death(trial, draw.randrange(trial.agents))
        return
    lost = draw.sample(range(AGENTS), {"two": 2, "power": AGENTS}.get(kind, 1))
    one = lost[0]
    if kind == "loss":
        for namespace in trial.namespaces:
            lose(namespace, LOSS)
    trial.start(*range(AGENTS))
    if kind == "loss":
        trial.end([], {})
        return
    trial.until_round(one, draw.randrange(3, ROUNDS // 3))
    if kind == "stopped":
        trial.send(one, signal.SIGSTOP)
        time.sleep(2 * DEADLINE)
    elif kind == "cut":
        cut(trial.namespaces[one])
        time.sleep(3 * DEADLINE)
    elif kind == "disk":
        with suppress(OSError), (trial.out(one) / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(512))
        trial.until_end(one)
        if trial.processes[one].exitcode != 75:
            raise Failed(f"a full disk ended agent {one} with {trial.processes[one].exitcode}")
        (trial.out(one) / "filler").unlink()
    else:
        if kind == "checkpoint":
            writing = trial.out(one) / "checkpoints"
            trial.until(lambda: any(writing.glob(".*.part")), "no checkpoint was seen being written")
        trial.kill(*lost)
    before = {agent: len(trial.reports(agent)) for agent in range(AGENTS)}
    if kind == "stopped":
        trial.send(one, signal.SIGCONT)
    elif kind == "cut":
        mend(trial.namespaces[one])
        lost = list(range(AGENTS))
    else:
        trial.start(*lost)
    trial.end(lost, before)


@contextmanager
def small_disks(folder: Path, wanted: bool) -> Iterator[None]:
    """A disk of one megabyte for every agent, in memory."""
    mounted = []
    try:
        for agent in range(AGENTS if wanted else 0):
            place = folder / f"agent-{agent}"
            place.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], check=True)
            mounted.append(place)
        yield
    finally:
        for place in mounted:
            subprocess.run(["umount", place], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = ("kill", "two", "checkpoint", "stopped", "power", "disk", "cut", "loss", "death")
    parser.add_argument("kinds", nargs="*", default=kinds, metavar="kind", help=", ".join(kinds))
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, metavar="TRIAL", help="begin with this one")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where the folders of failed trials are copied")
    options = parser.parse_args()
    if unknown := set(options.kinds) - set(kinds):
        parser.error(f"unknown kind {min(unknown)!r}; known: {', '.join(kinds)}")
    CONTEXT.set_forkserver_preload(
        ["benchmarks.fleet", "peermask.fleet.collect", "peermask.fleet.start", "peermask.cli.main"]
    )
    print(f"{AGENTS} agents, {ROUNDS} rounds; {platform.machine()}, {os.cpu_count()} cores", flush=True)
    for kind in options.kinds:
        problems, begun = [], time.monotonic()
        for number in range(options.first, options.first + options.trials):
            with (
                tempfile.TemporaryDirectory() as folder,
                small_disks(Path(folder), kind == "disk"),
                cabled(AGENTS if kind in ("cut", "loss") else 0) as namespaces,
            ):
                trial = Trial(Path(folder), kind, namespaces)
                try:
                    play(kind, trial, random.Random(f"{kind} {number}"))
                except Failed as problem:
                    problems.append(f"  trial {number}: {problem}")
                finally:
                    for process in trial.processes.values():
                        process.kill()
                        process.join()
                failed = bool(problems) and problems[-1].startswith(f"  trial {number}:")
                print(f"{kind} {number}: {'failed' if failed else 'as it should'}", flush=True)
                if options.keep is not None and failed:
                    shutil.copytree(folder, options.keep / f"{kind}-{number}", dirs_exist_ok=True)
        done = f"{kind}: {options.trials - len(problems)} of {options.trials}, {time.monotonic() - begun:.0f} s"
        print(done, *problems, sep="\n", flush=True)


if __name__ == "__main__":
    main()
