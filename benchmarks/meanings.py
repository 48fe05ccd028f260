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

from peermask.config.file import make_config
from peermask.run.runner import run_experiment

AGENTS = 10
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
            "partition": {"name": "meanings", "labels_per_agent": options.labels, "groups": groups},
            "data": {"fraction": options.fraction, "validation": 0.0},
            "model": "cnn",
            "algorithm": algorithm,
            "evaluation": {"every": options.rounds},
            "checkpoint": {"masks": False},
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        result = run_experiment(config, Path(folder) / "run")
        return result.mean_accuracy


if __name__ == "__main__":
    main()
