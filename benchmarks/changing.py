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
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.fleet import small_config
from benchmarks.trial import CONTEXT, Trial
from peermask.cli.main import main as peermask_command
from peermask.config.experiment import ExperimentConfig
from peermask.config.file import load_config, make_config
from peermask.fleet.fleet import Fleet, load_fleet
from peermask.fleet.roster_gossip import RosterGossip
from peermask.store.folder import RunFolder
from peermask.store.table import read_rows
from peermask.wire import Inbox

AGENTS, THIEF = 8, 4
TAIL = 10  # rounds of neighbours' accuracies: a single one wavers


def note_messages() -> None:
    """Let the agent of this process log every message that it takes."""
    accept = Inbox.accept

    def noted(self: Inbox, data: bytes, sender: int | None = None) -> Any:
        taken = accept(self, data, sender)
        print(json.dumps({"of": sender, "bytes": len(data), "number": taken[0].round}), flush=True)
        return taken

    Inbox.accept = noted  # type: ignore[method-assign]


def ignore_rosters() -> None:
    """Let it heed no roster besides, as one who stole a key would."""
    note_messages()

    def ignored(self: RosterGossip, later: Fleet) -> bool:  # noqa: ARG001
        return False

    RosterGossip.take = ignored  # type: ignore[method-assign]


class Devices(Trial):
    """Agents with files of their own; `folder` has the authority's key."""

    def fleet_file(self, agent: int) -> Path:
        return self.give(agent)

    def give(self, agent: int, *, certificate: bool = True) -> Path:
        device = self.folder / f"device-{agent}"
        (device / "certs").mkdir(parents=True, exist_ok=True)
        for name in ("ca.pem", f"agent-{agent}.pem", f"agent-{agent}.key") if certificate else ():
            shutil.copy2(self.folder / "certs" / name, device / "certs" / name)
        shutil.copy2(self.path, device / "fleet.toml")
        return device / "fleet.toml"

    def taken(self, agent: int) -> list[dict[str, Any]]:
        """The messages that an agent took, with their times."""
        return [line for line in self.lines(agent) if "of" in line]

    def command(self, *arguments: object) -> None:
        process = CONTEXT.Process(target=quiet_command, args=([str(argument) for argument in arguments],))
        process.start()
        process.join()


def quiet_command(arguments: list[str]) -> None:
    sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
    peermask_command(arguments)


@contextmanager
def devices(config: ExperimentConfig, pace: float) -> Iterator[Devices]:
    with tempfile.TemporaryDirectory() as folder:
        made = Devices(Path(folder), config, {"round_deadline": 5.0}, pace)
        try:
            yield made
        finally:
            made.end_processes()


def revoke(trials: int) -> None:
    config = small_config(AGENTS, 1_000_000, checkpoint_every=1000)
    print(f"revoke: {AGENTS} agents on a ring; seconds from the command to the last message taken of the revoked")
    for given, words in ((THIEF - 1, "given to a neighbour"), (0, "given to one four links away")):
        seconds = []
        for _ in range(trials):
            with devices(config, 0.1) as made:
                for agent in range(AGENTS):
                    made.start(agent, prepare=ignore_rosters if agent == THIEF else note_messages)
                for agent in range(AGENTS):
                    made.until_round(agent, 5)
                begun = time.time()
                made.command("fleet", "revoke", made.path, THIEF)
                made.give(given, certificate=False)
                time.sleep(20)
                around = (line for agent in (THIEF - 1, THIEF + 1) for line in made.taken(agent))
                taken = [line["time"] for line in around if line["of"] == THIEF]
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
                made.start(*range(AGENTS), prepare=note_messages)
                made.until_round(0, 60)
                made.command("fleet", "add", made.path, "--host", "127.0.0.1", *("--link", 0, "--link", 3, "--link", 5))
                made.give(0, certificate=False)
                made.start(AGENTS, prepare=note_messages)
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
    taken = sum(line["bytes"] for line in made.taken(AGENTS) if line["number"] <= reached)
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
    print(f"{platform.machine()}, {os.cpu_count()} cores", flush=True)
    for kind in options.kinds:
        {"revoke": revoke, "join": join}[kind](options.trials)


if __name__ == "__main__":
    main()
