"""Two groups of agents that mean different things by the same labels: is collaboration still worth it?

    python -m benchmarks.meanings [--seeds 3] [--rounds 60] [--labels 5] [--fraction 0.3]

The embedded digits, ten agents with a few labels each on a random graph. The agents of the second half call every digit
by the next number, in their training and test data. Printed is the mean accuracy among all labels, with all agents and
both groups linked; `alone` hears nobody.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from peermask.config.file import make_config
from peermask.data.arrays import from_arrays
from peermask.data.dataset import Dataset
from peermask.data.digits import digits
from peermask.data.local import share_out
from peermask.data.partition import partitions
from peermask.run.runner import run_experiment

AGENTS, CLASSES = 10, 10
TRAINED = {"momentum": 0.9, "schedule": "cosine"}
METHODS: dict[str, dict[str, Any]] = {
    "alone (ind-mask)": {"name": "ind-mask", **TRAINED, "lr": 0.05, "step": "relative"},
    "mce-pl": {"name": "mce-pl", **TRAINED, "lr": 0.3},
    "accord, the agreed mask": {"name": "accord", "personal_from": "never"},
    "accord": {"name": "accord"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--labels", type=int, default=5)
    parser.add_argument("--fraction", type=float, default=0.3)
    options = parser.parse_args()
    print(f"{options.seeds} seeds, {options.rounds} rounds; {platform.machine()}, {os.cpu_count()} cores")
    print("| | one meaning | two meanings |\n|---|---|---|")
    for name, algorithm in METHODS.items():
        cells = [
            fmean(accuracy(options, algorithm, seed, groups) for seed in range(options.seeds)) for groups in (1, 2)
        ]
        print(f"| {name} | {' | '.join(f'{100 * cell:.1f} %' for cell in cells)} |", flush=True)


def accuracy(options: argparse.Namespace, algorithm: dict[str, Any], seed: int, groups: int) -> float:
    config = make_config(
        {
            "seed": seed,
            "agents": AGENTS,
            "rounds": options.rounds,
            "batch_size": 32,
            "retention": 0.3,
            "readout": "all",
            "graph": {"name": "erdos-renyi", "p": 0.5},
            "partition": "given",
            "model": "cnn",
            "algorithm": algorithm,
            "evaluation": {"every": options.rounds},
            "checkpoint": {"masks": False},
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        result = run_experiment(config, Path(folder) / "run", dataset=dealt(options, seed, groups))
        return result.mean_accuracy


def dealt(options: argparse.Namespace, seed: int, groups: int) -> Dataset:
    """Every agent's own training and test samples, with the labels as its group means them."""
    data = digits()
    choice = partitions["labels"].options.model_validate({"labels_per_agent": options.labels})
    parts = share_out(data, "labels", choice, AGENTS, seed, options.fraction, 0.0)
    train: list[tuple[Any, ...]] = []
    test: list[tuple[Any, ...]] = []
    for agent, own in enumerate(parts):
        shift = agent * groups // AGENTS  # 0, or 1 in the second group
        for index, split, rows in ((own.train, data.train, train), (own.test, data.test, test)):
            labels = (split.targets.numpy()[index] + shift) % CLASSES
            rows.append((split.inputs.numpy()[index], labels, np.full(len(index), agent)))
    (x, y, owner), (x_test, y_test, owner_test) = (
        [np.concatenate(column) for column in zip(*rows, strict=True)] for rows in (train, test)
    )
    names = [str(label) for label in range(CLASSES)]
    return from_arrays(
        x, y, x_test, y_test, names, "meanings", kind="features", agent_train=owner, agent_test=owner_test
    )


if __name__ == "__main__":
    main()
