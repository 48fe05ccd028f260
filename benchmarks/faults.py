"""Whole runs of a fleet in which something breaks: how many end as they should.

    python -m benchmarks.faults [--trials 10] [--first 0] [--keep FOLDER] [kill ...]

Every trial is a run of its own: four agents in four processes, on a ring over mutual TLS on this machine, `missing =
"last"`, a checkpoint a round. At a random round

    kill         one agent is killed (-9) and started again
    two          two at once
    checkpoint   one is killed while it writes a checkpoint
    stopped      one is frozen (SIGSTOP) for longer than the deadline of a round
    power        all are killed, and started again
    uneven       the same with `missing = "wait"`, and one lacks its last checkpoint: the result is the simulator's
    disk         the disk of one is full; it is started again once there is room (needs root, for a disk of its own)
    cut          the cable of one is cut for three deadlines (needs root; devices are network namespaces)
    loss         a fifth of all packets is lost at every device, from the start (needs root)
    death        one of the ten agents of the default experiment is killed after round 4, and never returns: the others
                 lose at most RUIN points of accuracy against the simulator without it (benchmarks.deaths has means)
    replay       one of those ten repeats its first frame for ever: the same

A trial counts if all four end with exit code 0, who was lost plays again before the end, and all files are whole: what
the agents wrote is collected as one finished run. After a cut, everybody must hear everybody again. However slow a
machine is, a trial fails only if no agent ends a round for PATIENCE seconds; with `--keep` its folder stays, with the
agents' logs (RUST_LOG=warn adds zenoh's lines to them).
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

import numpy as np

from benchmarks.cables import cabled, cut, lose, mend
from benchmarks.deaths import accuracies, config_of
from benchmarks.fleet import small_config
from benchmarks.trial import Failed, Trial, repeat_first_frame
from peermask.errors import PeermaskError
from peermask.files import read_json
from peermask.fleet.collect import collect_run
from peermask.run.execution import Execution
from peermask.run.runner import run_experiment
from peermask.store.checkpoint import list_checkpoints

AGENTS, DEADLINE = 4, 1.0
ROUNDS, PACE = 120, 0.03
CUT_ROUNDS, CUT_PACE = 400, 0.05  # enough that the run is still on when a cable is mended
LOSS = 20  # percent
UNEVEN_EVERY = 4  # rounds between checkpoints
TEN, TEN_ROUNDS = 10, 60  # agents and rounds of the default experiment
LAST_ROUNDS = {"death": 4, "replay": 1}  # of the agent whose messages end
NEEDED = {"disk": ("mount",), "cut": ("ip",), "loss": ("ip", "nft")}  # commands, which root runs
RUIN = 3.0  # points of accuracy: about three standard deviations of a single run (benchmarks/deaths.py)


def trial_of(kind: str, number: int, folder: Path, namespaces: list[str]) -> Trial:
    if kind in LAST_ROUNDS:
        config = config_of("accord", TEN_ROUNDS, number)
        once = config.evaluation.model_copy(update={"every": TEN_ROUNDS})  # else the result is a mean of several
        return Trial(folder, config.model_copy(update={"evaluation": once}), {"start_limit": 60.0})
    rounds, pace = (CUT_ROUNDS, CUT_PACE) if kind == "cut" else (ROUNDS, PACE)
    limits = {"round_deadline": DEADLINE, "start_limit": 60.0, "missing": "wait" if kind == "uneven" else "last"}
    every = UNEVEN_EVERY if kind == "uneven" else 1
    return Trial(folder, small_config(AGENTS, rounds, checkpoint_every=every), limits, pace, namespaces)


def check_end(trial: Trial, lost: list[int], before: dict[int, int]) -> None:
    """All end well, and who was lost has played since."""
    for agent in trial.processes:
        trial.until_end(agent)
        if trial.processes[agent].exitcode != 0:
            raise trial.ended(agent)
    for agent in lost:
        since = trial.reports(agent)[before[agent] :]
        if not since:
            raise Failed(f"agent {agent} did not play again")
        if trial.fleet.experiment.rounds == CUT_ROUNDS and all(report["absent"] for report in since):
            raise Failed(f"agent {agent} does not hear everybody again")
    try:
        run = collect_run(trial.fleet, [trial.out(agent) for agent in range(AGENTS)], trial.folder / "run")
    except PeermaskError as error:
        raise Failed(f"files are not whole: {error}") from error
    if run.status != "finished":
        raise Failed(f"the run is {run.status}")
    if trial.fleet.missing == "wait":
        simulated = run_experiment(
            trial.fleet.experiment, trial.folder / "simulated", execution=Execution(device="cpu")
        )
        if run.hash != simulated.hash:
            raise Failed(f"its hash is {run.hash}, that of the simulator {simulated.hash}")


def play_ten(kind: str, trial: Trial, bad: int) -> None:
    others = [agent for agent in range(TEN) if agent != bad]
    trial.start(*others)
    trial.start(bad, prepare=repeat_first_frame if kind == "replay" else None)
    if kind == "death":
        trial.until_round(bad, LAST_ROUNDS[kind])
        trial.kill(bad)
    for agent in others:
        trial.until_end(agent)
        if trial.processes[agent].exitcode != 0:
            raise trial.ended(agent)
    found = [float(read_json(trial.out(agent) / "result.json")["test_accuracy"]) for agent in others]
    seed, reached = trial.fleet.experiment.seed, 100 * np.mean(found)
    without, simulated = (
        100 * np.delete(accuracies(config_of("accord", TEN_ROUNDS, seed, bad, after)), bad).mean()
        for after in (0, LAST_ROUNDS[kind])
    )
    line = f"the others reach {reached:.1f} %, in the simulator {simulated:.1f} %, without agent {bad} {without:.1f} %"
    print(f"{kind}: {line}", flush=True)
    if reached < without - RUIN:
        raise Failed(line)


def play(kind: str, trial: Trial, draw: random.Random) -> None:
    if kind in LAST_ROUNDS:
        play_ten(kind, trial, draw.randrange(TEN))
        return
    lost = draw.sample(range(AGENTS), {"two": 2, "power": AGENTS, "uneven": AGENTS}.get(kind, 1))
    one = lost[0]
    if kind == "loss":
        for namespace in trial.namespaces:
            lose(namespace, LOSS)
    trial.start(*range(AGENTS))
    if kind == "loss":
        check_end(trial, [], {})
        return
    trial.until_round(one, draw.randrange(3 * UNEVEN_EVERY if kind == "uneven" else 3, ROUNDS // 3))
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
        if kind == "uneven":
            list_checkpoints(trial.out(one) / "checkpoints")[-1].unlink()
    before = {agent: len(trial.reports(agent)) for agent in range(AGENTS)}
    if kind == "stopped":
        trial.send(one, signal.SIGCONT)
    elif kind == "cut":
        mend(trial.namespaces[one])
        lost = list(range(AGENTS))
    else:
        trial.start(*lost)
    check_end(trial, lost, before)


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
    kinds = ("kill", "two", "checkpoint", "stopped", "power", "uneven", "disk", "cut", "loss", "death", "replay")
    parser.add_argument("kinds", nargs="*", default=kinds, metavar="kind", help=", ".join(kinds))
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, metavar="TRIAL", help="begin with this one")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where the folders of failed trials are copied")
    options = parser.parse_args()
    if unknown := set(options.kinds) - set(kinds):
        parser.error(f"unknown kind {min(unknown)!r}; known: {', '.join(kinds)}")
    print(f"{AGENTS} agents, {ROUNDS} rounds; {platform.machine()}, {os.cpu_count()} cores", flush=True)
    for kind in options.kinds:
        if kind in NEEDED and (os.geteuid() or not all(map(shutil.which, NEEDED[kind]))):
            print(f"{kind}: not tried; it needs root, and {' and '.join(NEEDED[kind])}", flush=True)
            continue
        problems, begun = [], time.monotonic()
        for number in range(options.first, options.first + options.trials):
            cables: AbstractContextManager[list[str]] = cabled(AGENTS) if kind in ("cut", "loss") else nullcontext([])
            with (
                tempfile.TemporaryDirectory() as folder,
                small_disks(Path(folder), kind == "disk"),
                cables as namespaces,
            ):
                trial = trial_of(kind, number, Path(folder), namespaces)
                try:
                    play(kind, trial, random.Random(f"{kind} {number}"))
                except Failed as problem:
                    problems.append(f"  trial {number}: {problem}")
                finally:
                    trial.end_processes()
                failed = bool(problems) and problems[-1].startswith(f"  trial {number}:")
                print(f"{kind} {number}: {'failed' if failed else 'as it should'}", flush=True)
                if options.keep is not None and failed:
                    shutil.copytree(folder, options.keep / f"{kind}-{number}", dirs_exist_ok=True)
        done = f"{kind}: {options.trials - len(problems)} of {options.trials}, {time.monotonic() - begun:.0f} s"
        print(done, *problems, sep="\n", flush=True)


if __name__ == "__main__":
    main()
