"""Ten agents, of whom some die: what the others lose by a rule for messages of agents that are missing.

    python -m benchmarks.deaths [--seeds 3] [--rounds 60] [--dead 0 ...] [--at 1 4 30] [--return-after ROUNDS]
                                [--methods accord mce-pl dsgd]

The default experiment (digits, five labels an agent, a random graph), in the simulator. Agents `--dead` publish their
last message in round `--at`, and nothing after it; with `--return-after` they go on so many rounds later from the state
they had, in the round of the others. Printed is the mean accuracy of the other agents, over all seeds, in percent:

    without   the dead ones were never there
    full      their last message counts in full for ever
    by age    it counts half as much each round, and expires (graph/mixing.py): `missing = "last"` of a fleet
    skip      it is left out at once: `missing = "skip"`
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from peermask.algorithms.contract import Clock
from peermask.config.file import load_config, make_config
from peermask.graph.mixing import Ages
from peermask.run.assemble import build_simulator
from peermask.run.build import Experiment, build

TRAINED = {"momentum": 0.9, "schedule": "cosine"}
METHODS: Mapping[str, dict[str, Any]] = {
    "accord": {"name": "accord"},
    "mce-pl": {"name": "mce-pl", **TRAINED, "lr": 0.3},
    "dsgd": {"name": "dsgd", **TRAINED, "lr": 0.02},
}
RULES: Mapping[str, tuple[int, ...] | None] = {"full": (1,), "by age": None, "skip": (1, 0)}


def others_accuracy(
    experiment: Experiment, dead: Collection[int], at: int, back: int, weights: tuple[int, ...] | None
) -> float:
    """Mean accuracy of agents that live: `dead` ones publish nothing after round `at` and before round `back`."""
    config, ages = experiment.config, Ages.of_missing(experiment.mixing)
    if weights is not None:
        ages = replace(ages, weights=weights, most=max(weights) * (experiment.mixing.links.most + 1))
    rows = [experiment.mixing.rows(slice(agent, agent + 1)) for agent in range(config.agents)]
    with build_simulator(experiment, torch.device("cpu"), 1) as simulator:
        messages, published = [dict[str, Any]()] * config.agents, [0] * config.agents
        for number in range(1, config.rounds + 1):
            ids = [agent for agent in range(config.agents) if agent not in dead or not at < number < back]
            clocks = [Clock(number, config.rounds, batches=config.local_batches or 1)] * len(ids)
            learned = [state for state, _ in simulator.learn_some(ids, clocks)]
            for agent, state in zip(ids, learned, strict=True):
                shared = simulator.algorithm.share(state)
                messages[agent] = {name: leaf.clone() for name, leaf in shared.items()}
                published[agent] = number
            received, mixings = [], []
            for agent in ids:
                heard = {j: published[j] for j in rows[agent].links.senders.tolist() if published[j]}
                columns, mixing = ages.weigh(rows[agent], number, heard)
                received.append({name: torch.cat([messages[j][name] for j in columns]) for name in messages[agent]})
                mixings.append(mixing)
            simulator.fuse_some(ids, learned, received, mixings, clocks)
        accuracy = simulator.test().main
    return float(np.mean([float(accuracy[agent]) for agent in range(config.agents) if agent not in dead]))


def experiment_of(method: str, rounds: int, seed: int) -> Experiment:
    table = load_config().table() | {"algorithm": METHODS[method], "compare": [], "seed": seed, "rounds": rounds}
    if method == "dsgd":
        table["frozen"] = {"init": "kaiming-normal"}
    return build(make_config(table))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--dead", type=int, nargs="+", default=[0])
    parser.add_argument("--at", type=int, nargs="+", default=[1, 4, 30])
    parser.add_argument("--return-after", type=int, metavar="ROUNDS")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    options = parser.parse_args()
    begun, never = time.perf_counter(), options.rounds + 1
    print(f"{options.seeds} seeds, {options.rounds} rounds; {platform.machine()}, {os.cpu_count()} cores")
    print(f"| | dead after round | without | {' | '.join(RULES)} |\n|---|---|---|{'---|' * len(RULES)}")
    for method in options.methods:
        experiments = [experiment_of(method, options.rounds, seed) for seed in range(options.seeds)]

        def cell(at: int, back: int, weights: tuple[int, ...] | None) -> str:
            found = [others_accuracy(one, options.dead, at, back, weights) for one in experiments]  # noqa: B023
            return f"{100 * np.mean(found):.1f}"

        without = cell(0, never, None)
        for at in options.at:
            back = never if options.return_after is None else at + options.return_after
            cells = [cell(at, back, weights) for weights in RULES.values()]
            print(f"| {method} | {at} | {without} | {' | '.join(cells)} |", flush=True)
    print(f"{time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
