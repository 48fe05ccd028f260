"""One agent ten times slower than the rest: what it costs the others where rounds are played together, and where nobody
waits.

    python -m benchmarks.asynchronous [--fleet] [--simulator] [--agents 10] [--rounds 60] [--seeds 3] [--grace 0 0.25]

The fleet has one process per agent over mutual TLS on this machine; every learning step sleeps, so that agents do not
compete for its cores, and the slow one's ten times as long. In the simulator a round of the slow agent takes ten units
of time; it prints accuracies by `asynchronous.grace` and `asynchronous.weights`, on validation samples for choosing
them. Both train as the default experiment does, on 14 images an agent; in the simulator all other training images an
agent has are held out. Seeds are those of the simulator, and runs of the fleet, each with a seed of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import peermask
from benchmarks.fleet import free_ports, start, write_fleet
from peermask.config.file import load_config, make_config
from peermask.fleet import start as node_start
from peermask.fleet.agent import NodeAgent
from peermask.fleet.environment import Transport
from peermask.fleet.fleet import Fleet, new_fleet
from peermask.fleet.start import run_node
from peermask.fleet.status import Report
from peermask.run.build import build
from peermask.run.trace import round_lengths, trace_of_speeds
from peermask.store.table import read_rows

SLOW = 10  # times
STEP = 0.02  # seconds that a learning step of a fleet sleeps, times its agents: they share the cores for the rest
WARM_UP = 5  # rounds left out of the figures
WAYS: dict[str, dict[str, Any] | None] = {"together": None, "asynchronous": {}}
WEIGHTS = [[32, 16, 8, 4, 2, 1]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleet", action="store_true", help="measure the fleet alone")
    parser.add_argument("--simulator", action="store_true", help="measure the simulator alone")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--algorithms", nargs="+", default=["accord", "mce-pl"], help="of the simulator")
    parser.add_argument("--weights", nargs="+", type=json.loads, default=WEIGHTS, help="of the simulator")
    parser.add_argument("--grace", nargs="+", type=float, default=[0.0, 0.25], help="of the simulator")
    parser.add_argument("--agents", type=int, default=10)
    parser.add_argument("--agent", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--step", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.agent is not None:
        print(json.dumps(one_agent(options.file, options.agent, options.step)))
        return
    print(f"{platform.machine()}, {os.cpu_count()} cores; agent 0 is {SLOW} x slower where one is slow")
    if not options.simulator:
        measure_fleet(options.agents, options.rounds, range(options.first_seed, options.first_seed + options.seeds))
    if not options.fleet:
        measure_simulator(options)


def measure_fleet(agents: int, rounds: int, seeds: range) -> None:
    print(
        f"fleet: {agents} agents over TLS, default experiment, accord, {rounds} rounds, {agents * STEP:g} s a step, "
        f"mean of {len(seeds)} runs (each)"
    )
    print("rounds        slow one  rounds/s of the others  s until they ended  accuracy of the others")
    together: tuple[float, ...] = ()
    for way, options in WAYS.items():
        for factor in (1, SLOW):
            few = seeds[:1] if options is None and factor > 1 else seeds  # messages are the same, whoever is slow
            runs = [figures(played_by_fleet(agents, rounds, options, factor, seed)) for seed in few]
            pace, ended, accuracy = zip(*runs, strict=True)
            together = together or accuracy
            shown = (with_each(each, places) for each, places in ((pace, 2), (ended, 1), (accuracy, 3)))
            print(f"{way:12}  {'no' if factor == 1 else 'yes':>8}  {'  '.join(shown)}", flush=True)
            if options is not None:
                print(f"  accuracy less than together: {with_error(together, accuracy)}", flush=True)


def with_each(values: Sequence[float], places: int) -> str:
    return f"{mean(values):.{places}f} ({' '.join(f'{value:.{places}f}' for value in values)})"


def with_error(before: Sequence[float], after: Sequence[float]) -> str:
    """Mean difference of pairs in points, and its standard error."""
    differences = [100 * (one - other) for one, other in zip(before, after, strict=True)]
    if len(differences) == 1:
        return f"{differences[0]:.1f} points"
    return f"{mean(differences):.1f} ± {stdev(differences) / len(differences) ** 0.5:.1f} points"


def figures(others: list[dict[str, Any]]) -> tuple[float, float, float]:
    """Rounds a second of the others, seconds from their first round to their last, their accuracy."""
    paces = [(len(one["times"]) - WARM_UP) / (one["times"][-1] - one["times"][WARM_UP - 1]) for one in others]
    ended = max(one["times"][-1] for one in others) - min(one["times"][0] for one in others)
    return median(paces), ended, mean(one["accuracy"] for one in others)


def played_by_fleet(
    agents: int, rounds: int, asynchronous: Mapping[str, Any] | None, factor: int, seed: int
) -> list[dict[str, Any]]:
    """What each agent but agent 0 reports: when it ended each round, and its accuracy. Agent 0 is then stopped."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as exit_:
        path = write_fleet(Path(folder), fleet_of(agents, rounds, asynchronous, seed))
        processes = []
        for agent in range(agents):
            step = agents * STEP * (factor if agent == 0 else 1)
            arguments = ("--agent", agent, "--file", path, "--step", step)
            processes.append(start(exit_, "benchmarks.asynchronous", *arguments, stdout=subprocess.PIPE))
        return [json.loads(process.communicate(timeout=600)[0].splitlines()[-1]) for process in processes[1:]]


def fleet_of(agents: int, rounds: int, asynchronous: Mapping[str, Any] | None, seed: int) -> Fleet:
    table = {**load_config().table(), "agents": agents, "rounds": rounds, "compare": [], "seed": seed}
    config = make_config({**table, **({} if asynchronous is None else {"asynchronous": dict(asynchronous)})})
    return new_fleet(config, port=free_ports(agents))


class Timed:
    """An observer that notes when rounds end."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.accuracy = 0.0

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def round(self, report: Report) -> None:
        if report.round > len(self.times):
            self.times.append(time.time())
        self.accuracy = report.accuracy or 0.0


def one_agent(path: Path, agent: int, step: float) -> dict[str, Any]:
    """A node whose every learning step takes `step` seconds more."""

    class Sleeping(NodeAgent):
        def run(self, transport: Transport) -> Any:
            learn = self.simulator.algorithm.learn

            def sleep_and_learn(*arguments: Any) -> Any:
                time.sleep(step)
                return learn(*arguments)

            vars(self.simulator.algorithm)["learn"] = sleep_and_learn
            return super().run(transport)

    vars(node_start)["NodeAgent"] = Sleeping
    observer = Timed()
    run_node(path, agent, observer, out=path.parent / f"agent-{agent}")
    return {"times": observer.times, "accuracy": observer.accuracy}


def measure_simulator(options: argparse.Namespace) -> None:
    print(f"simulator: {options.agents} agents, {options.rounds} rounds, mean of {options.seeds} seeds (each)")
    print("algorithm  slow  grace  weights by age        rounds/unit  validation of the others    test of the others")
    ways = [(None, None), *((grace, weights) for grace in options.grace for weights in options.weights)]
    for algorithm in options.algorithms:
        together: list[float] = []
        for factor, (grace, weights) in ((factor, way) for factor in (1, SLOW) for way in ways):
            speeds = [1 / factor] + [1.0] * (options.agents - 1)
            table = {**load_config().table(), "agents": options.agents, "rounds": options.rounds, "compare": []}
            table |= {"algorithm": algorithm, "data": {"fraction": 1.0, "validation": 0.9}}
            table |= {"evaluation": {"every": options.rounds}}
            if weights is not None:
                table["asynchronous"] = {"speeds": speeds, "grace": grace, "weights": weights}
            runs = [
                simulated({**table, "seed": seed})
                for seed in range(options.first_seed, options.first_seed + options.seeds)
            ]
            lengths = round_lengths(speeds, options.rounds, 0.2, 0)
            ends = trace_of_speeds(
                build(make_config(table)).mixing.links, lengths, grace=1e9 if grace is None else grace
            )[1]
            columns = [with_each(each, 3) for each in zip(*runs, strict=True)]
            shown = "together" if weights is None else json.dumps(weights, separators=(",", ":"))
            pace = options.rounds / ends[1:, -1].max()
            waits = "-" if grace is None else f"{grace:g}"
            print(f"{algorithm:9}  {factor:4}  {waits:5}  {shown:20}  {pace:11.2f}  {'  '.join(columns)}", flush=True)
            test = [run[1] for run in runs]
            together = together or test
            if weights is not None:
                print(f"  test accuracy less than together: {with_error(together, test)}", flush=True)


def simulated(table: Mapping[str, Any]) -> tuple[float, float, float]:
    """Validation and test accuracy of the others, and test accuracy of agent 0."""
    with tempfile.TemporaryDirectory() as folder:
        execution = peermask.Execution(device="cpu", final_checkpoint=False)
        run = peermask.run_experiment(make_config(table), Path(folder) / "run", execution=execution)
        rows = read_rows(Path(folder) / "run" / "metrics.csv")[-len(run.agents) :]
        validation = mean(float(row["validation_accuracy"]) for row in rows[1:])
        return validation, mean(float(row["test_accuracy"]) for row in rows[1:]), float(rows[0]["test_accuracy"])


if __name__ == "__main__":
    main()
