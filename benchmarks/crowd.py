"""How many agents this machine carries: a swarm of 8 to 64 processes over mutual TLS.

    python -m benchmarks.crowd [--agents 8 16 32 64] [--rounds 100] [--graph ring]

Printed are seconds from start to the first round of all, seconds a round from there to the last, the memory of all
processes together and of one (what they share is divided among them), open files, and whether the run ends in the hash
that the simulator gives.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.fleet import free_ports, small_config, write_fleet
from peermask.fleet.fleet import new_fleet
from peermask.fleet.swarm import SwarmProcess, run_swarm
from peermask.run.runner import run_experiment


class Watch:
    """Looks at the processes of a swarm while they run."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.begun = rounds, time.monotonic()
        self.first = self.last = 0.0  # when all had ended their first round, and their last
        self.played = 0  # rounds by then
        self.memory: list[float] = []  # MB of each process, when all were past half of the rounds
        self.files = 0

    def __call__(self, members: Sequence[SwarmProcess]) -> None:
        played = min(member.report.get("round", 0) for member in members)
        now = time.monotonic() - self.begun
        if played >= 1 and not self.first:
            self.first, self.played = now, played
        if played >= self.rounds // 2 and not self.memory:
            self.memory = [private(member.process.pid) for member in members]
            self.files = max(len(list(Path(f"/proc/{member.process.pid}/fd").iterdir())) for member in members)
        if played >= self.rounds and not self.last:
            self.last = now

    @property
    def seconds_a_round(self) -> float:
        return (self.last - self.first) / (self.rounds - self.played)


def private(pid: int) -> float:
    """MB of a process, with its part of what it shares."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1000
    return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, nargs="+", default=[8, 16, 32, 64])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--graph", default="ring")
    options = parser.parse_args()
    print(f"{options.graph}, {options.rounds} rounds; {platform.machine()}, {os.cpu_count()} cores")
    print("agents  first round s  s a round  memory MB, of one  open files  hash", flush=True)
    for agents in options.agents:
        with tempfile.TemporaryDirectory() as folder:
            print(run(agents, options.rounds, options.graph, Path(folder)), flush=True)


def run(agents: int, rounds: int, graph: str, folder: Path) -> str:
    config = small_config(agents, rounds, rounds, graph={"name": graph})
    fleet = new_fleet(config, port=free_ports(agents)).model_copy(
        update={"missing": "wait", "start_limit": 600.0, "wait_limit": 120.0}
    )
    path = write_fleet(folder, fleet)
    watch = Watch(rounds)
    result = run_swarm(path, folder / "swarm", show=watch)
    if result.run is None or result.failed:
        return f"{agents:6d}  failed: {result.failed}"
    same = result.run.hash == run_experiment(config, folder / "simulated").hash
    if watch.played >= rounds or not watch.memory:
        return f"{agents:6d}  ended before it was looked at; give more --rounds"
    return (
        f"{agents:6d}  {watch.first:13.1f}  {watch.seconds_a_round:9.3f}  {sum(watch.memory):9.0f}, "
        f"{max(watch.memory, default=0.0):6.0f}  {watch.files:10d}  {'the same' if same else 'another'}"
    )


if __name__ == "__main__":
    main()
