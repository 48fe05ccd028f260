"""The scale of a regression's last layer, chosen on held-out training data.

    pip install scikit-learn && python -m benchmarks.output_scale [--seeds 3] [--rounds 200]

A quarter of each table is left out: it is the test data of `benchmarks.own_networks`. A quarter of the rest is held
out, and R² on it is printed for every scale: the mean over agents and seeds, by each mask method with its defaults.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from statistics import fmean
from typing import Any

import torch
from sklearn import datasets as tables  # type: ignore[import-untyped]
from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]

from benchmarks.own_networks import METHODS, Case, by_masks
from peermask.data.arrays import from_arrays
from peermask.data.dataset import Dataset
from peermask.models import frozen
from peermask.models.architectures import mlp

SCALES = (0.0625, 0.125, 0.25, 0.5, 1.0)
NAMES = ("ind-mask", "mce-pl", "accord")
TABLES: dict[str, Callable[..., Any]] = {
    "diabetes": partial(tables.load_diabetes, return_X_y=True),
    "Friedman 1": partial(tables.make_friedman1, n_samples=442, random_state=0),
}


def held_out(load: Callable[..., Any]) -> Dataset:
    x, _, y, _ = train_test_split(*load(), test_size=0.25, random_state=0)
    x_train, x_held, y_train, y_held = train_test_split(x, y, test_size=0.25, random_state=1)
    return from_arrays(x_train, y_train, x_held, y_held, kind="features", task="regression")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| table | scale | {' | '.join(NAMES)} | mean |\n|---|---|{'---|' * (len(NAMES) + 1)}")
    for name, load in TABLES.items():
        case = Case(partial(held_out, load), lambda: mlp((10,), 1), "r2")
        for scale in SCALES:
            frozen.REGRESSION_OUTPUT_SCALE = scale
            r2 = [fmean(by_masks(case, options, METHODS[n], seed) for seed in range(options.seeds)) for n in NAMES]
            print(f"| {name} | {scale} | {' | '.join(f'{x:.3f}' for x in r2)} | {fmean(r2):.3f} |", flush=True)


if __name__ == "__main__":
    main()
