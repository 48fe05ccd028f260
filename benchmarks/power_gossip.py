"""PowerGossip, a rival that compresses: neighbours send products of their weights with a vector, one a layer and link.

    python -m benchmarks.power_gossip [--seeds 3] [--rounds 60] [--lr 0.03 0.1] [--labels 5] [--fraction 0.1]

Its messages differ by link, so it is no method behind the contract, and runs in a loop of its own on the package's
data, graph and network. On a link (i, j) and a layer D = X_i - X_j is approximated by one step of power iteration. Both
ends send X q, then D q q^T is moved from one to the other with Metropolis weights. In the next round they send X^T p,
and so on, each beginning with the product of the round before. Momentum 0.9, cosine schedule, no decay; biases are sent
whole.

Vogels, Karimireddy, Jaggi: Practical low-rank communication compression in decentralized deep learning (2020).
"""

from __future__ import annotations

import argparse
import os
import platform
from math import cos, pi
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from peermask.algorithms.contract import Clock
from peermask.config.file import make_config
from peermask.data.digits import digits
from peermask.run.assemble import assemble
from peermask.run.build import build
from peermask.streams import stream

MOMENTUM = 0.9
BYTES = 2  # of a number, in half precision
CPU = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--lr", type=float, nargs="+", default=[0.03, 0.1])
    parser.add_argument("--labels", type=int, default=5)
    parser.add_argument("--fraction", type=float, default=0.1)
    options = parser.parse_args()
    print(f"{options.seeds} seeds, {options.rounds} rounds; {platform.machine()}, {os.cpu_count()} cores")
    print("| lr | all labels | own labels | kB a message |\n|---|---|---|---|")
    for lr in options.lr:
        found = [played(options, lr, seed) for seed in range(options.seeds)]
        everything, own, size = map(fmean, zip(*found, strict=True))
        print(f"| {lr} | {100 * everything:.1f} % | {100 * own:.1f} % | {size / 1e3:.2f} |", flush=True)


def played(options: argparse.Namespace, lr: float, seed: int) -> tuple[float, float, float]:
    """Accuracies after the last round, and the mean bytes of a message."""
    table: dict[str, Any] = {
        "seed": seed,
        "agents": 10,
        "rounds": options.rounds,
        "batch_size": 32,
        "retention": 1.0,
        "partition": {"name": "labels", "labels_per_agent": options.labels},
        "data": {"fraction": options.fraction},
        "model": "cnn",
        "frozen": {"init": "kaiming-normal"},
        "algorithm": "dsgd",
    }
    experiment = build(make_config(table), digits())
    _, feed = assemble(experiment, CPU)
    agents, layout = len(feed.ids), feed.network.layout
    params = experiment.frozen.values.repeat(agents, 1)  # [A, P]
    velocity, gossip = torch.zeros_like(params), Gossip(experiment.mixing.metropolis.matrix, layout, seed)
    for number in range(1, options.rounds + 1):
        clock = Clock(number, options.rounds)
        gradient, _ = feed.network.gradient(params, feed.batch(clock))
        velocity = MOMENTUM * velocity + gradient
        params = params - 0.5 * lr * (1 + cos(pi * clock.progress)) * velocity
        params = gossip.mixed(params, number)
    figures = feed.test(params).figures
    sent = gossip.sent / (options.rounds * 2 * len(gossip.links))
    return float(figures["accuracy_all"].mean()), float(figures["accuracy_own"].mean()), sent


class Gossip:
    """The vectors of all links, kept from round to round: [out] and [rest] of every masked layer."""

    def __init__(self, weights: Tensor, layout: Any, seed: int) -> None:
        agents = len(weights)
        self.weights, self.layout, self.sent = weights, layout, 0.0
        self.links = [(i, j) for i in range(agents) for j in range(i) if weights[i, j] > 0]
        self.vectors: dict[tuple[int, int, str], Tensor] = {}
        for i, j in self.links:
            for layer in layout.masked:
                drawn = stream(seed, f"power/{layer.name}/{j}", i).uniform(layer.size // layer.shape[0])
                self.vectors[i, j, layer.name] = torch.from_numpy(drawn).float() - 0.5

    def mixed(self, params: Tensor, number: int) -> Tensor:
        """The models after the messages of a round."""
        moved = params.clone()
        rest = self.layout.weights
        moved[:, rest:] = self.weights @ params[:, rest:]
        self.sent += 2 * len(self.links) * 4 * (params.shape[1] - rest)
        for i, j in self.links:
            for layer in self.layout.masked:
                rows = layer.shape[0]
                one, other = (params[k, layer.span].view(rows, -1) for k in (i, j))
                by_rows = number % 2 == 1  # X q, else X^T p
                a, b = (one, other) if by_rows else (one.T, other.T)
                q = self.vectors[i, j, layer.name]
                q = q / q.norm().clamp(min=1e-12)
                product = (a @ q - b @ q).half().float()  # D q, sent in half precision
                update = torch.outer(product, q) if by_rows else torch.outer(q, product)  # [rows, rest]
                step = self.weights[i, j] * update.flatten()
                moved[i, layer.span] -= step
                moved[j, layer.span] += step
                self.vectors[i, j, layer.name] = product
                self.sent += 2 * BYTES * len(product)
        return moved


if __name__ == "__main__":
    main()
