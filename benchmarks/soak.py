"""A fleet left to itself: does it die, does it grow?

    python -m benchmarks.soak [--agents 4] [--minutes 10] [--algorithm mce-pl] [--every 5000] [--keep FOLDER]

One process an agent, on a ring over mutual TLS, with a small network and rare evaluations and checkpoints (`--every`),
so that rounds are many. Printed are rounds, memory and open files of every process, and who died. The slope of memory
is that of a line through all samples after the first fifth.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.fleet import free_ports, small_config, start, write_fleet
from peermask.fleet.fleet import new_fleet

EVERY = 1.0  # seconds between samples
EVALUATED = 5_000  # rounds between evaluations and checkpoints
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Watched:
    agent: int
    process: subprocess.Popen[bytes]
    events: Path
    log: Path
    samples: list[tuple[int, float, int]] = field(default_factory=list)  # round, MB, open files

    def sample(self) -> None:
        if self.process.poll() is not None or not (number := last_round(self.events)):
            return
        proc = Path("/proc") / str(self.process.pid)
        try:
            resident = int((proc / "statm").read_text().split()[1]) * PAGE / 1e6
            self.samples.append((number, resident, len(list((proc / "fd").iterdir()))))
        except OSError:  # it has just ended
            return

    @property
    def rounds(self) -> int:
        return last_round(self.events)


def last_round(events: Path) -> int:
    """From the end of the file that an agent writes its reports to."""
    with events.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 4096))
        whole = [line for line in file.read().split(b"\n")[:-1] if line.startswith(b"{")]
    return int(json.loads(whole[-1])["round"]) if whole else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--algorithm", default="mce-pl")
    parser.add_argument("--every", type=int, default=EVALUATED, help="rounds between evaluations and checkpoints")
    parser.add_argument("--keep", type=Path, help="where to leave the agents' folders; they are deleted otherwise")
    options = parser.parse_args()
    with ExitStack() as exit_:
        folder = options.keep or Path(exit_.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        watched = start_agents(folder, exit_, options.agents, options.algorithm, options.every)
        print(f"{options.agents} agents, {options.algorithm}, mutual TLS; {platform.machine()}, {os.cpu_count()} cores")
        end = time.monotonic() + 60 * options.minutes
        while time.monotonic() < end and any(one.process.poll() is None for one in watched):
            time.sleep(EVERY)
            for one in watched:
                one.sample()
        deaths = {one.agent: one.process.returncode for one in watched if one.process.poll() is not None}
        for one in watched:
            if one.process.poll() is None:
                one.process.send_signal(signal.SIGTERM)
        for one in watched:
            one.process.wait(90)
        show(watched, options.minutes, deaths)


def start_agents(
    folder: Path, exit_: ExitStack, agents: int, algorithm: str = "mce-pl", every: int = EVALUATED
) -> list[Watched]:
    config = small_config(agents, 10_000_000, every, algorithm={"name": algorithm}, evaluation={"every": every})
    fleet = new_fleet(config, port=free_ports(agents))
    path = write_fleet(folder, fleet)
    watched = []
    for member in fleet.agents:
        out = folder / f"agent-{member.agent}"
        events, log = out.with_suffix(".events"), out.with_suffix(".log")
        arguments = ("node", path, "--agent", member.agent, "--out", out, "--events")
        with events.open("ab") as stdout, log.open("ab") as stderr:
            process = start(exit_, "peermask", *arguments, stdout=stdout, stderr=stderr)
        watched.append(Watched(member.agent, process, events, log))
    return watched


def show(watched: list[Watched], minutes: float, deaths: dict[int, int]) -> None:
    print("agent   rounds  rounds/s  memory MB at first, at last  MB per 1,000 rounds  open files  exit")
    for one in watched:
        if len(one.samples) < 10:
            print(f"{one.agent:5d}  too few samples; its last words: {one.log.read_text()[-300:]!r}")
            continue
        late = np.array(one.samples[len(one.samples) // 5 :])  # [samples, 3]
        slope = np.polyfit(late[:, 0], late[:, 1], 1)[0] * 1000 if np.ptp(late[:, 0]) else 0.0
        files = f"{int(late[:, 2].min())} to {int(late[:, 2].max())}"
        pace, (first, last) = one.rounds / (60 * minutes), late[[0, -1], 1]
        print(
            f"{one.agent:5d}  {one.rounds:7d}  {pace:8.1f}  {first:13.1f}, {last:12.1f}  {slope:19.4f}  {files:>10}  "
            f"{one.process.returncode:4d}"
        )
    rounds = [one.rounds for one in watched]
    print(f"rounds: {min(rounds):,} to {max(rounds):,}; agent-rounds: {sum(rounds):,}; deaths: {len(deaths)}")
    for agent, code in deaths.items():
        print(f"agent {agent} ended with {code}: {watched[agent].log.read_text()[-300:]!r}")


if __name__ == "__main__":
    main()
