"""An agent that is many rounds behind: how long it takes to be back, and whether it slows its neighbours.

    python -m benchmarks.rejoin [--agents 2 4] [--behind 100 1000 10000] [--trials 3] [--apart]

One process an agent, on a path or a ring over mutual TLS, `missing = "last"`, a small network. All play, and are killed
(-9). The checkpoints of all agents but one are moved ahead by so many rounds, and these agents play on without it. Then
it is started. Printed are, for the slowest trial, seconds until it has played a round with every neighbour: from its
start, and from the line in which it says that it continues (before that, Python and its checkpoint are loaded).
Rounds per second are those of its neighbours, in the slowest `WINDOW` rounds in a row: normally, with all agents; while
the agent loads, which takes time of the cores that all share here; and from its first line until `AFTER` rounds after
it is back. The control is measured before the agent is started: the same neighbours, while an unrelated process imports
torch. With `--apart` the agent has the first core of the machine for itself, the unrelated process too, and the others
share the rest: like devices of their own.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from math import nan
from pathlib import Path

from benchmarks.fleet import small_config
from benchmarks.trial import Failed, Trial
from peermask.run.build import build
from peermask.store.checkpoint import list_checkpoints, load_checkpoint, save_checkpoint

WINDOW = 20  # rounds over which a speed is measured
NORMAL, ALONE, AFTER = 150, 40, 100  # rounds played with all agents, without the late one, and after it is back
EVERY = 10  # rounds between checkpoints


def move_ahead(trial: Trial, agent: int, rounds: int) -> None:
    """Let the checkpoint of an agent be that of a later round."""
    config, folder = trial.fleet.experiment, trial.out(agent) / "checkpoints"
    *earlier, last = list_checkpoints(folder)
    checkpoint = load_checkpoint(last, [config.hash], build(config).frozen.checksum)
    number = checkpoint.progress.round + rounds
    save_checkpoint(folder, replace(checkpoint, progress=replace(checkpoint.progress, round=number)))
    for path in (*earlier, last):
        path.unlink(missing_ok=True)


def slowest(times: list[float]) -> float:
    """Rounds per second in the slowest WINDOW rounds in a row."""
    return min((WINDOW / (last - first) for first, last in zip(times, times[WINDOW:], strict=False)), default=nan)


def measure(trial: Trial, behind: int) -> tuple[float, float, float, float, float, float]:
    """Seconds until agent 0 is back, from its start and from its first line; its neighbours' speed, normal and then."""
    late, others = 0, list(range(1, trial.agents))
    neighbours = trial.fleet.neighbours(late)

    def times(agent: int, since: float, until: float = float("inf")) -> list[float]:
        return [report["time"] for report in trial.reports(agent) if since <= report["time"] <= until]

    def last_round(agent: int) -> int:
        return max((report["round"] for report in trial.reports(agent, last=4000)), default=0)

    trial.start(late, *others)
    trial.until_round(late, EVERY)
    begun = time.time()
    trial.until(lambda: len(times(late, begun)) > NORMAL, "agents do not play")
    normal = min(slowest(times(j, begun)) for j in neighbours)
    trial.kill(late, *others)
    for agent in others:
        move_ahead(trial, agent, behind)
    trial.start(*others)
    alone = time.time()
    trial.until(lambda: all(len(times(j, alone)) > ALONE for j in others), "the others do not play on")
    unrelated, cores = time.time(), trial.cores.get(late)
    import_torch = [
        sys.executable,
        "-c",
        f"import os; os.sched_setaffinity(0, {cores or os.sched_getaffinity(0)}); import torch",
    ]
    subprocess.run(import_torch, check=True)
    trial.until(lambda: all(len(times(j, unrelated)) > WINDOW for j in others), "the others do not play on")
    control = min(slowest(times(j, unrelated)) for j in neighbours)
    started = time.time()
    trial.start(late)

    def back() -> float | None:
        """When the late agent first ended a round in which nobody was absent, in the round of its neighbours."""
        ahead = min(last_round(j) for j in neighbours) - 2
        whole = (report for report in trial.reports(late) if report["time"] >= started and not report["absent"])
        return next((report["time"] for report in whole if ahead - report["round"] < AFTER), None)

    trial.until(lambda: back() is not None, "the late agent does not come back")
    done = back()
    assert done is not None
    trial.until(lambda: len(times(late, done)) > AFTER, "agents do not play after it is back")
    end = times(late, done)[AFTER]
    lines = (line.partition(" ") for line in trial.log(late).read_text().splitlines())
    ready = max(float(when) for when, _, line in lines if "continuing after" in line)
    loading = min(slowest(times(j, started, ready)) for j in neighbours)
    speed = min(slowest(times(j, ready, end)) for j in neighbours)
    return done - started, done - ready, normal, control, loading, speed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--behind", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--apart", action="store_true", help="the late agent has a core of its own")
    options = parser.parse_args()
    first, *rest = sorted(os.sched_getaffinity(0))
    if options.apart and not rest:
        parser.error("--apart needs two cores or more; this machine has one")
    where = ", the late agent on its own" if options.apart else ""
    print(f"{options.trials} trials each; {platform.machine()}, {os.cpu_count()} cores{where}", flush=True)
    print(
        "agents  rounds behind  s from its start  s from its first line  rounds/s: normal, control, loading, then",
        flush=True,
    )
    for agents in options.agents:
        for behind in options.behind:
            found = []
            for _ in range(options.trials):
                with tempfile.TemporaryDirectory() as folder:
                    limits = {"start_limit": 2.0}
                    trial = Trial(Path(folder), small_config(agents, 10_000_000, EVERY), limits)
                    trial.poll = 0.2
                    if options.apart:
                        trial.cores = {agent: set(rest) if agent else {first} for agent in range(agents)}
                    try:
                        found.append(measure(trial, behind))
                    except Failed as problem:
                        print(f"failed: {problem}", flush=True)
                    finally:
                        trial.end_processes()
            if found:
                start, ready = (max(column) for column in list(zip(*found, strict=True))[:2])
                *_, normal, control, loading, speed = min(found, key=lambda each: each[5] / each[2])
                speeds = f"{normal:16.1f}, {control:7.1f}, {loading:7.1f}, {speed:4.1f}"
                print(f"{agents:6d}  {behind:13,d}  {start:16.1f}  {ready:21.1f}  {speeds}", flush=True)


if __name__ == "__main__":
    main()
