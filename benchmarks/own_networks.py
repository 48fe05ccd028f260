"""Networks and tasks of a user's own, by each mask method with its defaults, beside plain torch.

    pip install scikit-learn && python -m benchmarks.own_networks [regression ...] [--seeds 3] [--rounds 200]

Five agents on a ring share a small table of scikit-learn. With given weights, ten agents learn the digits 5 to 9, three
labels and about twenty images each, by a network trained on the digits 0 to 4 whose last layer is drawn anew. Printed
are means over agents and seeds, and the least seed: R² of a regression (0 is the mean of the targets), accuracy
otherwise. `torch, alone` trains all weights of the same network on each agent's own samples, with as many batches, by
Adam at 0.003, which is not tuned.

With `--output-scales` the scale of a regression's last layer is chosen instead: a quarter of the training data is held
out, and R² on it is printed for every scale.
"""

from __future__ import annotations

import argparse
import copy
import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from sklearn import datasets as tables  # type: ignore[import-untyped]
from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.nn import functional as F

from peermask.config.file import make_config
from peermask.data.arrays import from_arrays
from peermask.data.dataset import Dataset, Split
from peermask.data.digits import digits
from peermask.data.measures import metrics
from peermask.models import frozen
from peermask.models.architectures import mlp
from peermask.models.pretrained import without_batch_norm
from peermask.run.build import build
from peermask.run.runner import run_experiment

GIVEN: dict[str, Any] = {
    "agents": 10,
    "graph": "erdos-renyi",
    "partition": {"name": "labels", "labels_per_agent": 3},
    "data": {"fraction": 0.3},
    "frozen": {"from": "module", "drawn": ["8.*"]},
}
SCALES = (0.0625, 0.125, 0.25, 0.5, 1.0)  # of a regression's last layer
MOST_KEPT = {"retention": 0.9, "mask": {"fc_keep": 0.5}}
METHODS: dict[str, dict[str, Any]] = {
    "ind-mask": {"name": "ind-mask"},
    "mce-pl": {"name": "mce-pl"},
    "accord": {"name": "accord"},
    "accord, weak votes": {"name": "accord", "pull": 0.3, "vote_gain": 0.1, "personal_pull": 0.0},
    "ind-mask, relative steps": {"name": "ind-mask", "step": "relative", "lr": "auto", "schedule": "cosine"},
}


@dataclass(frozen=True)
class Case:
    data: Callable[[], Dataset]
    module: Callable[[], nn.Module]
    figure: str = "accuracy"
    config: dict[str, Any] = field(default_factory=dict)


def table(load: Callable[..., Any], **options: Any) -> Dataset:
    x, y = load(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.25, random_state=0)
    return from_arrays(x_train, y_train, x_test, y_test, kind="features", **options)


def held_out(load: Callable[..., Any]) -> Dataset:
    """The training data of `table`, of which a quarter is the test data."""
    x, _, y, _ = train_test_split(*load(), test_size=0.25, random_state=0)
    x_train, x_held, y_train, y_held = train_test_split(x, y, test_size=0.25, random_state=1)
    return from_arrays(x_train, y_train, x_held, y_held, kind="features", task="regression")


class Attention(nn.Module):
    """Every feature is a token: its value along one direction, and a position that says which it is."""

    def __init__(self, features: int, outputs: int, width: int = 32) -> None:
        super().__init__()
        self.value = nn.Linear(1, width)
        self.position = nn.Parameter(torch.randn(features, width))
        self.encoder = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:  # [B, F] -> [B, O]
        tokens = self.encoder(self.value(x[:, :, None]) + self.position)  # [B, F, W]
        return self.head(tokens.mean(1))  # type: ignore[no-any-return]


def normed() -> nn.Module:
    layers = [nn.Linear(13, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()]
    return without_batch_norm(nn.Sequential(*layers, nn.Linear(64, 3)))


def five_digits(first: int) -> Dataset:
    """Digits `first` to `first + 4`, as labels 0 to 4."""

    def chosen(split: Split) -> tuple[Tensor, Tensor]:
        which = (split.targets >= first) & (split.targets < first + 5)
        return split.inputs[which], split.targets[which] - first

    data = digits()
    return from_arrays(*chosen(data.train), *chosen(data.test), kind="images")


@cache
def pretrained() -> nn.Module:
    """A small network of a user's own, trained on the digits 0 to 4."""
    torch.manual_seed(0)
    data = five_digits(0)
    trunk = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    module = nn.Sequential(*trunk, nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 5))
    fit(module, data.normalise(data.train.inputs), data.train.targets, F.cross_entropy, 300)
    return module


CASES = {
    "regression": Case(lambda: table(tables.load_diabetes, task="regression"), lambda: mlp((10,), 1), "r2"),
    "attention": Case(lambda: table(tables.load_wine), lambda: Attention(13, 3)),
    "batch norm": Case(lambda: table(tables.load_wine), normed),
    "given weights": Case(lambda: five_digits(5), lambda: copy.deepcopy(pretrained()), config=GIVEN),
    "given weights, most kept": Case(
        lambda: five_digits(5), lambda: copy.deepcopy(pretrained()), config={**GIVEN, **MOST_KEPT}
    ),
}


def config_of(case: Case, options: argparse.Namespace, algorithm: dict[str, Any], seed: int) -> dict[str, Any]:
    return {
        "seed": seed,
        "agents": 5,
        "rounds": options.rounds,
        "graph": "ring",
        "partition": "iid",
        "algorithm": algorithm,
        "evaluation": {"every": options.rounds},
        "checkpoint": {"masks": False},
        **case.config,
    }


def by_masks(case: Case, options: argparse.Namespace, algorithm: dict[str, Any], seed: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(case, options, algorithm, seed)
        result = run_experiment(config, Path(folder) / "run", dataset=case.data(), module=case.module())
        return result.mean(case.figure)


def fit(module: nn.Module, x: Tensor, y: Tensor, loss_of: Callable[..., Tensor], batches: int) -> None:
    optimiser = torch.optim.Adam(module.parameters(), 3e-3)
    for _ in range(batches):
        batch = torch.randint(len(x), (32,))
        optimiser.zero_grad()
        loss_of(module(x[batch]), y[batch]).backward()
        optimiser.step()


def by_torch(case: Case, options: argparse.Namespace, seed: int) -> float:
    torch.manual_seed(seed)
    data = case.data()
    samples = build(make_config(config_of(case, options, METHODS["ind-mask"], seed)), data, case.module()).samples
    x, y = data.normalise(data.train.inputs), data.scale_targets(data.train.targets)
    figures = []
    for own in samples:
        module, index = case.module(), torch.from_numpy(own.train)
        fit(module, x[index], y[index], F.mse_loss if case.figure == "r2" else F.cross_entropy, options.rounds)
        with torch.no_grad():
            outputs = module.eval()(data.normalise(data.test.inputs[own.test]))
        targets = data.scale_targets(data.test.targets[own.test])
        right = (outputs.argmax(1) == targets).float().mean() if case.figure == "accuracy" else None
        figures.append(float(metrics[case.figure].make(outputs, targets) if right is None else right))
    return fmean(figures)


def compare_output_scales(options: argparse.Namespace) -> None:
    names = ("ind-mask", "mce-pl", "accord")
    print(f"| table | scale | {' | '.join(names)} | mean |\n|---|---|{'---|' * (len(names) + 1)}")
    loaders = {
        "diabetes": partial(tables.load_diabetes, return_X_y=True),
        "Friedman 1": partial(tables.make_friedman1, n_samples=442, random_state=0),
    }
    for name, load in loaders.items():
        case = Case(partial(held_out, load), lambda: mlp((10,), 1), "r2")
        for scale in SCALES:
            frozen.REGRESSION_OUTPUT_SCALE = scale
            r2 = [fmean(by_masks(case, options, METHODS[n], seed) for seed in range(options.seeds)) for n in names]
            print(f"| {name} | {scale} | {' | '.join(f'{x:.3f}' for x in r2)} | {fmean(r2):.3f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"some of {', '.join(CASES)}; default: all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--output-scales", action="store_true", help="compare scales of a regression's last layer")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.output_scales:
        compare_output_scales(options)
        return
    if unknown := set(options.cases) - set(CASES):
        parser.error(f"{unknown.pop()!r} is not a case; there are {', '.join(CASES)}")
    print(f"{options.seeds} seeds, {options.rounds} rounds; {platform.machine()}, {os.cpu_count()} cores")
    print("| | | mean | least seed |\n|---|---|---|---|")
    for name in options.cases or CASES:
        case = CASES[name]
        for method in [*METHODS, "torch, alone"]:
            each = [
                by_torch(case, options, seed)
                if method not in METHODS
                else by_masks(case, options, METHODS[method], seed)
                for seed in range(options.seeds)
            ]
            print(f"| {name} | {method} | {fmean(each):.3f} | {min(each):.3f} |", flush=True)


if __name__ == "__main__":
    main()
