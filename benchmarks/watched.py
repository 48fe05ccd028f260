"""What watching an agent costs: a real fleet, whose agent 0 is watched in every second block of rounds.

    python -m benchmarks.watched [--agents 4] [--blocks 60] [--rounds 20] [--every 1.0] [--model cnn]

Watched means: reports are counted, and `/metrics` is read every `--every` seconds by a thread of the same process
(Prometheus asks every 15 or 60). Blocks take turns in one run, so that whatever else the machine does meets both alike.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import tempfile
import threading
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from benchmarks.fleet import free_ports, start, write_fleet
from peermask.config.file import make_config
from peermask.fleet.agent import NodeAgent
from peermask.fleet.credentials import check_credentials
from peermask.fleet.fleet import Fleet, certificates_of, new_fleet, split_address
from peermask.fleet.metrics import AgentMetrics, serve_metrics
from peermask.fleet.sessions import Sessions, session_settings
from peermask.fleet.status import Report, StatusMonitor
from peermask.fleet.zenoh_transport import open_zenoh
from peermask.run.build import build

WARM_UP = 40  # rounds


class Nobody:
    def say(self, line: str) -> None: ...
    def round(self, report: Report) -> None: ...


class Turns(Nobody):
    """Notes how long each round took, and passes reports on to `watched` in every second block."""

    def __init__(self, rounds: int, watched: StatusMonitor) -> None:
        self.rounds, self.watched = rounds, watched
        self.seconds: dict[bool, list[float]] = {True: [], False: []}
        self.spent: list[float] = []  # inside the watching itself
        self.before = 0.0
        self.on = threading.Event()

    def round(self, report: Report) -> None:
        now = time.perf_counter()
        if report.round > WARM_UP:
            self.seconds[self.on.is_set()].append(now - self.before)
        if self.on.is_set():
            self.watched.round(report)
            self.spent.append(time.perf_counter() - now)
        (self.on.set if report.round // self.rounds % 2 else self.on.clear)()
        self.before = now


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=20, help="of a block")
    parser.add_argument("--every", type=float, default=1.0)
    parser.add_argument("--model", default="cnn")
    options = parser.parse_args()
    rounds = WARM_UP + options.blocks * options.rounds
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    print(f"{options.agents} agents on a ring, {options.model}, {rounds} rounds; {machine}")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as leaving:
        never = {"every": rounds}
        config = make_config(
            {"agents": options.agents, "rounds": rounds, "graph": {"name": "ring"}, "retention": 0.3,
             "model": options.model, "algorithm": "mce-pl", "evaluation": never, "checkpoint": never}
        )  # fmt: skip
        fleet = new_fleet(config, port=free_ports(options.agents + 1), missing="wait")
        path = write_fleet(Path(folder), fleet)
        for agent in range(1, options.agents):
            arguments = ("node", path, "--agent", agent, "--out", Path(folder) / f"agent-{agent}")
            start(leaving, "peermask", *arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        turns, scrapes, size = measured(path, fleet, options)
    print_figures(turns, scrapes, size)


def measured(path: Path, fleet: Fleet, options: argparse.Namespace) -> tuple[Turns, list[float], int]:
    """Agent 0 in this process; the times of its rounds, of the scrapes, and how large one is."""
    watched = StatusMonitor(Nobody(), fleet, 0)
    turns, port = Turns(options.rounds, watched), split_address(fleet.member(0).address)[1] + options.agents
    experiment = build(fleet.experiment)
    node = NodeAgent(fleet, experiment, 0, path.parent / "agent-0", turns)
    node.restore()
    watched.follow(node.responder, path.parent / "agent-0")
    credentials = check_credentials(fleet, certificates_of(path, fleet), 0)
    settings = session_settings(fleet, 0, credentials, 2**24)
    sessions = Sessions("agent-0", {j: fleet.member(j).name for j in fleet.neighbours(0)}, print)
    over, scrapes, sizes = threading.Event(), [], [0]

    def scrape() -> None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while not over.wait(options.every):
            if turns.on.is_set():
                begun = time.perf_counter()
                sizes[0] = len(opener.open(f"http://127.0.0.1:{port}/metrics", timeout=10).read())
                scrapes.append(time.perf_counter() - begun)

    reader = threading.Thread(target=scrape)
    serving = serve_metrics("127.0.0.1", port, AgentMetrics(watched), watched.health, watched.say)
    with serving, open_zenoh(settings, 0, node.responder, sessions) as transport:
        reader.start()
        node.run(transport)
        over.set()
        reader.join()
    return turns, scrapes, sizes[0]


def print_figures(turns: Turns, scrapes: list[float], size: int) -> None:
    on, off = (np.array(turns.seconds[watched]) * 1000 for watched in (True, False))
    print(f"round, watched:     median {np.median(on):.2f} ms, mean {on.mean():.2f} ms ({len(on)} rounds)")
    print(f"round, not watched: median {np.median(off):.2f} ms, mean {off.mean():.2f} ms ({len(off)} rounds)")
    print(f"ratio of the medians {np.median(on) / np.median(off):.4f}, of the means {on.mean() / off.mean():.4f}")
    report, scrape = np.median(turns.spent) * 1000, np.median(scrapes) * 1000
    print(f"a report costs {1000 * report:.0f} us, {100 * report / np.median(off):.4f} % of a round")
    print(f"a scrape of {size} bytes takes {scrape:.1f} ms; there were {len(scrapes)}")


if __name__ == "__main__":
    main()
