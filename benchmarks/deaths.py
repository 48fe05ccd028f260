"""Ten agents of which one dies, or whose messages get lost: what that costs, by the rule for messages that are missing.

    python -m benchmarks.deaths [--seeds 3] [--rounds 60] [--dead 0 ...] [--at 4 30 1] [--loss 20]
                                [--methods accord mce-pl dsgd] [--rules "by age" skip short two full]

The default experiment (digits, five labels an agent, a random graph), in the simulator. Each agent of `--dead` in turn
(all ten by default) plays its last round `--at`. Printed are the accuracy of the others in percent, without it from the
start and with its death, and the difference of pairs with the same seed: its mean and standard error, the standard
deviation of a single pair, and the agent whose death costs most in the mean over seeds. Rules for its last message:

    by age    counts half as much each round, and expires (graph/mixing.py): `missing = "last"` of a fleet
    skip      is left out at once: `missing = "skip"`
    short     counts half in the next round, and then expires
    two       counts in full for two rounds
    full      counts in full for ever, as in version 1.0

With `--loss` nobody dies, and so many percent of all messages are lost, against none.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from peermask.algorithms.contract import Clock
from peermask.config.experiment import ExperimentConfig
from peermask.config.file import load_config, make_config
from peermask.graph.mixing import MISSING
from peermask.run.assemble import build_simulator
from peermask.run.asynchronous_exchange import AsynchronousExchange
from peermask.run.build import build
from peermask.run.trace import trace_for
from peermask.store.folder import RunFolder
from peermask.streams import stream

TRAINED = {"momentum": 0.9, "schedule": "cosine"}
METHODS: Mapping[str, dict[str, Any]] = {
    "accord": {"name": "accord"},
    "mce-pl": {"name": "mce-pl", **TRAINED, "lr": 0.3},
    "dsgd": {"name": "dsgd", **TRAINED, "lr": 0.02},
}
RULES: Mapping[str, tuple[int, ...]] = {
    "by age": MISSING, "skip": (1,), "short": (2, 1), "two": (1, 1, 1), "full": (1,) * 1_000,
}  # fmt: skip


def accuracies(config: ExperimentConfig, rule: tuple[int, ...] = MISSING, loss: float = 0.0) -> NDArray[np.float64]:
    """Of all agents after the last round; the share `loss` of all messages does not arrive."""
    experiment = build(config)
    with tempfile.TemporaryDirectory() as folder, build_simulator(experiment, torch.device("cpu"), 1) as simulator:
        trace = trace_for(experiment, RunFolder(Path(folder)))
        lost = stream(config.seed, "loss").uniform(trace.heard.size).reshape(trace.heard.shape) < loss
        trace = replace(trace, heard=np.maximum.accumulate(np.where(lost, 0, trace.heard), axis=0))
        exchange = AsynchronousExchange(experiment, RunFolder(Path(folder)), simulator, trace, {})
        most = max(rule) * (experiment.mixing.links.most + 1)
        exchange.ages = replace(exchange.ages, weights=rule, most=most)
        # Counting bytes would take a third of the time.
        exchange._count_traffic = lambda events: None  # type: ignore[method-assign]  # noqa: ARG005
        for number in range(1, config.rounds + 1):
            exchange.play(simulator, Clock(number, config.rounds, batches=config.local_batches or 1))
        return simulator.test().main.double().numpy()


def config_of(method: str, rounds: int, seed: int, dead: int | None = None, after: int = 0) -> ExperimentConfig:
    table = load_config().table() | {"algorithm": METHODS[method], "compare": [], "seed": seed, "rounds": rounds}
    if method == "dsgd":
        table["frozen"] = {"init": "kaiming-normal"}
    if dead is not None:
        table["deaths"] = {"after": after, "agents": [dead]}
    return make_config(table)


def show(name: str, before: NDArray[np.float64], after: NDArray[np.float64], dead: Sequence[object]) -> None:
    """Of pairs [agents that die, seeds]."""
    lost = before - after
    error, spread = (lost.std(ddof=1) / lost.size**0.5, lost.std(ddof=1)) if lost.size > 1 else (np.nan, np.nan)
    worst = lost.mean(1)
    print(
        f"| {name} | {before.mean():.1f} | {after.mean():.1f} | {lost.mean():.2f} ± {error:.2f} | {spread:.1f} | "
        f"{worst.max():.1f} ({dead[worst.argmax()]}) |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--dead", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--at", type=int, nargs="+", default=[4, 30, 1])
    parser.add_argument("--loss", type=float, default=0.0, metavar="PERCENT")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--rules", nargs="+", default=["by age"], choices=list(RULES))
    options = parser.parse_args()
    begun, seeds = time.perf_counter(), range(options.seeds)
    print(f"{options.seeds} seeds, {options.rounds} rounds; {platform.machine()}, {os.cpu_count()} cores")
    what = f"{options.loss:g} % lost" if options.loss else "dead after round"
    print(f"| | rule | {what} | without | with | points lost | of a pair | most (agent) |\n|{'---|' * 8}")

    def others(method: str, after: int, rule: tuple[int, ...]) -> NDArray[np.float64]:
        """Mean accuracy of the agents that live: [agents that die, seeds]."""

        def mean(dead: int, seed: int) -> float:
            return float(np.delete(accuracies(config_of(method, options.rounds, seed, dead, after), rule), dead).mean())

        return 100 * np.array([[mean(dead, seed) for seed in seeds] for dead in options.dead])

    def everybody(method: str, rule: tuple[int, ...], loss: float) -> NDArray[np.float64]:
        configs = [config_of(method, options.rounds, seed) for seed in seeds]
        return 100 * np.array([[accuracies(config, rule, loss).mean() for config in configs]])  # [1, seeds]

    for method in options.methods:
        without = everybody(method, MISSING, 0.0) if options.loss else others(method, 0, MISSING)
        for rule in options.rules:
            if options.loss:
                show(f"{method} | {rule} | ", without, everybody(method, RULES[rule], options.loss / 100), ["none"])
            else:
                for at in options.at:
                    show(f"{method} | {rule} | {at}", without, others(method, at, RULES[rule]), options.dead)
    print(f"{time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
