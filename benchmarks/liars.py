"""Ten agents, of whom none to three lie: what each method bears, with and without its protection.

    python -m benchmarks.liars [--seeds 3] [--rounds 60] [--kinds inverted random crafted] [--methods NAME ...]

The default experiment (digits, five labels an agent, a random graph), in the simulator. Printed are, over the honest
agents of all seeds, the mean accuracy and that of the worst; `alone` is of the same agents, who hear nobody. Masks are
lied about in three ways, real values in two: `inverted` is then the opposite sign, `random` the liar's own values at
other places.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from peermask.config.file import load_config, make_config
from peermask.run.runner import run_experiment
from peermask.store.table import read_rows

TRAINED = {"momentum": 0.9, "schedule": "cosine"}
MASKS, REAL = {**TRAINED, "lr": 0.3}, {**TRAINED, "lr": 0.02}
METHODS: Mapping[str, dict[str, Any]] = {
    "alone (ind-mask)": {"name": "ind-mask", **MASKS},
    "mce-pl": {"name": "mce-pl", **MASKS},
    "mce-pl, guard = 1.5": {"name": "mce-pl", **MASKS, "guard": 1.5},
    "accord, guard = 0": {"name": "accord", "guard": 0.0},
    "accord, guard = 1.5": {"name": "accord"},
    "dsgd": {"name": "dsgd", **REAL},
    "dsgd, clip = 1": {"name": "dsgd", **REAL, "clip": 1.0},
}
MOST = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--kinds", nargs="+", default=["inverted", "random", "crafted"])
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    options = parser.parse_args()
    begun = time.perf_counter()
    print(f"{options.seeds} seeds, {options.rounds} rounds; {platform.machine()}, {os.cpu_count()} cores")
    print(f"| | lies | {' | '.join(f'{count} liars' for count in range(MOST + 1))} |\n|---|---|{'---|' * (MOST + 1)}")
    for method in options.methods:
        name = METHODS[method]["name"]
        honest = cell(options, METHODS[method], None, 0)
        # Alone nobody is lied to: what changes is who counts as honest.
        for kind in ["random"] if name == "ind-mask" else options.kinds:
            if kind == "crafted" and name == "dsgd":
                continue
            lied_to = [cell(options, METHODS[method], kind, count) for count in range(1, MOST + 1)]
            print(f"| {method} | {'' if name == 'ind-mask' else kind} | {' | '.join([honest, *lied_to])} |", flush=True)
    print(f"{time.perf_counter() - begun:.0f} s")


def cell(options: argparse.Namespace, algorithm: dict[str, Any], kind: str | None, count: int) -> str:
    """Mean accuracy of the honest, and that of the worst, in percent."""
    found = np.concatenate([accuracies(options, algorithm, kind, count, seed) for seed in range(options.seeds)])
    return f"{100 * found.mean():.1f} ({100 * found.min():.0f})"


def accuracies(
    options: argparse.Namespace, algorithm: dict[str, Any], kind: str | None, count: int, seed: int
) -> np.ndarray[Any, Any]:
    table = load_config().table() | {
        "algorithm": algorithm,
        "compare": [],
        "seed": seed,
        "rounds": options.rounds,
        "evaluation": {"every": options.rounds},
        "checkpoint": {"every": options.rounds, "masks": False},
    }
    if algorithm["name"] == "dsgd":
        table["frozen"] = {"init": "kaiming-normal"}
    if kind is not None:
        table["liars"] = {"count": count, "kind": kind}
    with tempfile.TemporaryDirectory() as folder:
        result = run_experiment(make_config(table), Path(folder) / "run")
        liars = {known["agent"] for known in result.manifest["agents"] if known.get("liar")}
        rows = read_rows(Path(folder) / "run" / "metrics.csv")
        last = [row for row in rows if int(row["round"]) == options.rounds and int(row["agent"]) not in liars]
        return np.array([float(row["test_accuracy"]) for row in last])


if __name__ == "__main__":
    main()
