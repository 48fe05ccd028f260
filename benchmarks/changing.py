"""A fleet that changes while it runs: how soon a key taken back is refused, and how soon one who joins is as good.

    python -m benchmarks.changing [--trials 3] [revoke join]

Eight agents in eight processes over mutual TLS on this machine, each with files of its own.

    revoke   on a ring; `peermask fleet revoke 4`, and the new fleet file is given to one agent alone: a neighbour
             of 4, or agent 0, four links away. Agent 4 goes on with its old key and heeds no roster. Seconds from the
             command to the last message of it that any agent took.
    join     the default experiment, with MCE-PL and accord; a ninth agent is added with three links in the middle of
             the run. Rounds it plays, and bytes it is sent, until its accuracy is within a point of its
             neighbours' mean over ten rounds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

import peermask.cli.node
from benchmarks.fleet import free_ports
from peermask.cli.main import main as peermask_command
from peermask.config.experiment import ExperimentConfig
from peermask.config.file import load_config, make_config
from peermask.fleet.certificates import make_certificates
from peermask.fleet.fleet import Fleet, load_fleet, new_fleet, save_fleet
from peermask.fleet.roster_gossip import RosterGossip
from peermask.fleet.status import Report
from peermask.store.folder import RunFolder
from peermask.store.table import read_rows
from peermask.wire import Inbox

CONTEXT = multiprocessing.get_context("forkserver")
AGENTS, THIEF, PATIENCE = 8, 4, 300.0
TAIL = 10  # rounds of neighbours' accuracies: a single one wavers


def agent_process(arguments: list[str], log: str, pace: float, deaf: bool) -> None:
    """`peermask node ...`, which logs every message it takes; `deaf` to rosters, as one who stole a key would be."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    at_once, accept = peermask.cli.node.Events.round, Inbox.accept

    def paced(self: peermask.cli.node.Events, report: Report) -> None:
        at_once(self, report)
        time.sleep(pace)

    def noted(self: Inbox, data: bytes, sender: int | None = None) -> Any:
        taken = accept(self, data, sender)
        print(json.dumps({"of": sender, "bytes": len(data), "at": time.time(), "number": taken[0].round}), flush=True)
        return taken

    peermask.cli.node.Events.round = paced  # type: ignore[method-assign]
    Inbox.accept = noted  # type: ignore[method-assign]

    def ignored(self: RosterGossip, later: Fleet) -> bool:  # noqa: ARG001
        return False

    if deaf:
        RosterGossip.take = ignored  # type: ignore[method-assign]
    peermask_command(arguments)


class Devices:
    """Agents with files of their own; `home` has the authority's key."""

    def __init__(self, folder: Path, config: ExperimentConfig, pace: float) -> None:
        self.folder, self.home, self.pace = folder, folder / "home", pace
        self.path = self.home / "fleet.toml"
        self.home.mkdir()
        self.port = free_ports(config.agents + 1)
        fleet = new_fleet(config, port=self.port).model_copy(update={"round_deadline": 5.0})
        save_fleet(self.path, fleet)
        make_certificates(fleet, self.home / "certs")
        self.processes: dict[int, Any] = {}

    def give(self, agent: int, *, certificate: bool = True) -> Path:
        device = self.folder / f"device-{agent}"
        (device / "certs").mkdir(parents=True, exist_ok=True)
        for name in ("ca.pem", f"agent-{agent}.pem", f"agent-{agent}.key") if certificate else ():
            shutil.copy2(self.home / "certs" / name, device / "certs" / name)
        shutil.copy2(self.path, device / "fleet.toml")
        return device / "fleet.toml"

    def start(self, agent: int, *, deaf: bool = False) -> None:
        path, out = str(self.give(agent)), str(self.out(agent))
        arguments = ["node", path, "--agent", str(agent), "--out", out, "--events"]
        log = str(self.folder / f"agent-{agent}.log")
        process = CONTEXT.Process(target=agent_process, args=(arguments, log, self.pace, deaf))
        process.start()
        self.processes[agent] = process

    def out(self, agent: int) -> Path:
        return self.folder / f"agent-{agent}"

    def lines(self, agent: int, key: str) -> list[dict[str, Any]]:
        path = self.folder / f"agent-{agent}.log"
        lines = path.read_text().splitlines() if path.exists() else []
        held = (json.loads(line) for line in lines if line.startswith("{") and line.endswith("}"))
        return [line for line in held if key in line]

    def command(self, *arguments: object) -> None:
        process = CONTEXT.Process(target=quiet_command, args=([str(argument) for argument in arguments],))
        process.start()
        process.join()

    def until(self, happened: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not happened():
            if time.monotonic() > end:
                raise RuntimeError(f"{what}: not in {PATIENCE:.0f} s")
            time.sleep(0.02)

    def until_round(self, agent: int, number: int) -> None:
        self.until(lambda: any(r["round"] >= number for r in self.lines(agent, "rounds")[-1:]), f"round {number}")


def quiet_command(arguments: list[str]) -> None:
    sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
    peermask_command(arguments)


@contextmanager
def devices(config: ExperimentConfig, pace: float) -> Iterator[Devices]:
    with tempfile.TemporaryDirectory() as folder:
        made = Devices(Path(folder), config, pace)
        try:
            yield made
        finally:
            for process in made.processes.values():
                process.kill()
                process.join()


def revoke(trials: int) -> None:
    config = make_config(
        {
            "agents": AGENTS,
            "rounds": 1_000_000,
            "batch_size": 8,
            "retention": 0.3,
            "graph": {"name": "ring"},
            "data": {"fraction": 0.1},
            "model": {"name": "mlp", "hidden": [12]},
            "evaluation": {"every": 1_000_000},
            "checkpoint": {"every": 1000},
        }
    )
    print(f"revoke: {AGENTS} agents on a ring; seconds from the command to the last message taken of the revoked")
    for given, words in ((THIEF - 1, "given to a neighbour"), (0, "given to one four links away")):
        seconds = []
        for _ in range(trials):
            with devices(config, 0.1) as made:
                for agent in range(AGENTS):
                    made.start(agent, deaf=agent == THIEF)
                for agent in range(AGENTS):
                    made.until_round(agent, 5)
                begun = time.time()
                made.command("fleet", "revoke", made.path, THIEF)
                made.give(given, certificate=False)
                time.sleep(20)
                taken = [
                    line["at"]
                    for agent in (THIEF - 1, THIEF + 1)
                    for line in made.lines(agent, "of")
                    if line["of"] == THIEF
                ]
                seconds.append(max(taken) - begun)
        print(f"  {words}: {', '.join(f'{one:.1f}' for one in sorted(seconds))}", flush=True)


def join(trials: int) -> None:
    print(
        f"join: a ninth agent, three links, of {AGENTS} on the default experiment, 120 rounds; it begins after round 60"
    )
    for name in ("accord", "mce-pl"):
        for trial in range(trials):
            sets = [f"agents={AGENTS}", "retention=0.3", "rounds=120", "evaluation.every=1", f"seed={trial}"]
            table = load_config(None, sets).table() | {"compare": [], "algorithm": {"name": name}}
            with devices(make_config(table), 0.2) as made:
                for agent in range(AGENTS):
                    made.start(agent)
                made.until_round(0, 60)
                made.command("fleet", "add", made.path, "--host", "127.0.0.1", *("--link", 0, "--link", 3, "--link", 5))
                made.give(0, certificate=False)
                made.start(AGENTS)
                for agent in (0, 3, 5, AGENTS):
                    made.until_round(agent, 120)
                print(f"  {name}, seed {trial}: {joined(made)}", flush=True)


def joined(made: Devices) -> str:
    """What it took until the ninth was as good as its neighbours."""
    neighbours = load_fleet(made.path).neighbours(AGENTS)
    scores = {agent: accuracies(made, agent) for agent in (*neighbours, AGENTS)}
    own, first = scores[AGENTS], min(scores[AGENTS])
    rounds = [r for r in sorted(own) if all(r in scores[j] for j in neighbours)]
    means = {
        r: mean(scores[j][k] for j in neighbours for k in range(r - TAIL + 1, r + 1) if k in scores[j]) for r in rounds
    }
    reached = next((r for r in rounds if own[r] >= means[r] - 0.01), None)
    if reached is None:
        return f"began in round {first}, never within a point"
    taken = sum(line["bytes"] for line in made.lines(AGENTS, "of") if line["number"] <= reached)
    begun = f"began in round {first} with {own[first]:.3f} (neighbours {means[first]:.3f})"
    return f"{begun}, within a point in round {reached - first + 1} of its own, {taken:,} bytes taken"


def accuracies(made: Devices, agent: int) -> dict[int, float]:
    rows = read_rows(RunFolder(made.out(agent)).metrics)
    return {int(row["round"]): float(row["test_accuracy"]) for row in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=("revoke", "join"), metavar="kind", help="revoke, join")
    parser.add_argument("--trials", type=int, default=3)
    options = parser.parse_args()
    CONTEXT.set_forkserver_preload(["peermask.cli.main", "peermask.fleet.zenoh_transport"])
    print(f"{platform.machine()}, {os.cpu_count()} cores", flush=True)
    for kind in options.kinds:
        {"revoke": revoke, "join": join}[kind](options.trials)


if __name__ == "__main__":
    main()
